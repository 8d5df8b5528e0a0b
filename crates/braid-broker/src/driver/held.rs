//! Slowing publishers down to the pace of those who receive.

use std::sync::Arc;
use std::task::Context;
use std::time::{Duration, Instant};

use braid_proto::connection::Token;

use super::{Driver, now};
use crate::slot::Slot;

/// The longest that an acknowledgement waits for a receiver.
const PATIENCE: Duration = Duration::from_millis(100);

/// Acknowledgements that are held back because a receiver of what they acknowledge cannot keep up.
///
/// Without this a publisher of QoS 1 runs ahead of a subscriber until the mailbox is full, and what was
/// acknowledged is dropped. With it the publisher's own window slows it down. Nobody is read less, QoS 0 is not
/// concerned, and a receiver that sends nothing for a moment has nobody wait for it: a stuck client slows
/// nobody down.
pub(super) struct Held {
    token: Token,
    slot: Arc<Slot>,
    until: Instant,
}

impl Driver {
    /// Lets the acknowledgements up to `token` go, or holds them for `congested`.
    pub(super) fn hold(&mut self, token: Token, congested: Option<Arc<Slot>>) {
        match (&mut self.held, congested) {
            (Some(held), _) => held.token = token,
            (held, Some(slot)) => *held = Some(Held { token, slot, until: now() + PATIENCE }),
            (None, None) => self.server.handle_persisted(token),
        }
    }

    /// Lets held acknowledgements go when there is room again, or when they waited long enough.
    pub(super) fn poll_held(&mut self, context: &Context<'_>) {
        let Some(held) = &self.held else { return };
        if held.slot.mailbox.poll_room(self.hub.capacity, context) || held.until <= now() {
            let token = held.token;
            self.held = None;
            self.server.handle_persisted(token);
        }
    }

    /// When [`Driver::poll_held`] gives up waiting.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held.as_ref().map(|held| held.until)
    }
}
