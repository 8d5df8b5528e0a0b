//! 0-RTT: what arrives before the handshake is confirmed may be a copy that somebody else sent.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Event, Server, State};
use crate::reason::ReasonCode;

/// What becomes of a PUBLISH that arrives before the handshake is confirmed. [BQ-61]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyPublish {
    /// It takes effect once the handshake is confirmed; what follows it waits with it.
    #[default]
    Hold,
    /// It is refused: 0x83 with QoS 1 and 2. MQTT 3 cannot say so: there it is held.
    Reject,
    /// It takes effect at once.
    Accept,
}

/// While the handshake is not confirmed.
#[derive(Debug)]
pub(super) struct Early {
    /// From the first PUBLISH on: tokens stand for all before them, so nothing overtakes it.
    held: VecDeque<Event>,
}

impl Server {
    /// What arrives from now on is early data.
    pub fn set_early(&mut self) {
        self.early = Some(Box::new(Early { held: VecDeque::new() }));
    }

    /// Handles the confirmation of the handshake: what was early no longer is.
    pub fn handle_confirmed(&mut self, _now: Instant) {
        if let Some(early) = self.early.take() {
            self.events.extend(early.held);
        }
    }

    /// Whether something waits for the confirmation: nothing more is read then.
    pub(super) fn holds_early(&self) -> bool {
        self.early.as_ref().is_some_and(|early| !early.held.is_empty())
    }

    /// Tells the shell, now or once the handshake is confirmed.
    pub(super) fn emit(&mut self, event: Event) {
        let Some(early) = &mut self.early else { return self.events.push_back(event) };
        let is_publish = matches!(event, Event::Publish(..));
        if !is_publish && early.held.is_empty() || self.options.early_publish == EarlyPublish::Accept {
            return self.events.push_back(event);
        }
        let State::Established(established) = &mut self.state else { return early.held.push_back(event) };
        match event {
            Event::Publish(_, token)
                if self.options.early_publish == EarlyPublish::Reject
                    && established.exchange.version().is_v5() =>
            {
                if let Some(token) = token {
                    established.exchange.set_reason(token, ReasonCode::ImplementationSpecificError);
                    established.exchange.waiting.waive(token);
                }
            }
            event => early.held.push_back(event),
        }
    }
}
