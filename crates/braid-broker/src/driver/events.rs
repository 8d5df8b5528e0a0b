//! What the protocol machine asks of the broker.

use std::sync::Arc;

use braid_proto::connection::{Acceptance, Event, Token};
use braid_proto::message::Message;
use braid_proto::packet::{ClientId, Connect};
use braid_proto::reason::ReasonCode;

use super::{Driver, now};
use crate::dispatch;
use crate::slot::Slot;

/// Messages that arrived together, and the tokens of those that want an acknowledgement.
#[derive(Default)]
pub(super) struct Batch {
    messages: Vec<Arc<Message>>,
    tokens: Vec<Option<Token>>,
}

impl Driver {
    /// Answers all events in their order; a CONNECT is left to the caller.
    pub(super) fn drain_events(&mut self) -> Option<Box<Connect>> {
        let mut batch = Batch::default();
        let mut persisted = None;
        let mut congested = None;
        while let Some(event) = self.server.poll_event() {
            match event {
                Event::Publish(message, token) => {
                    batch.messages.push(message);
                    batch.tokens.push(token);
                    continue;
                }
                // Nothing overtakes the messages before it.
                _ => persisted = self.publish(&mut batch, &mut congested).or(persisted),
            }
            match event {
                // Refused or not it is over: nobody else gets a shared message because of that. [MQTT-4.8.2-6]
                Event::Publish(..) | Event::Complete(..) => {}
                Event::Release(token) => persisted = Some(token),
                Event::Subscribe(subscribe) => persisted = self.subscribe(*subscribe).or(persisted),
                Event::Unsubscribe(unsubscribe) => persisted = self.unsubscribe(&unsubscribe).or(persisted),
                Event::Connect(connect) => return Some(connect),
            }
        }
        persisted = self.publish(&mut batch, &mut congested).or(persisted);
        if let Some(token) = persisted {
            self.acknowledge(token, congested);
        }
        None
    }

    /// Dispatches a batch; returns the last token in it, and in `congested` who cannot keep up with it.
    fn publish(&mut self, batch: &mut Batch, congested: &mut Option<Arc<Slot>>) -> Option<Token> {
        let Batch { messages, tokens } = batch;
        if messages.is_empty() {
            return None;
        }
        self.hub.statistics.received(messages.len() as u64);
        let server = &mut self.server;
        let last = tokens.iter().rev().find_map(|token| *token);
        if messages.iter().any(|message| message.topic.is_dollar() || message.retain) {
            self.hub.admit(messages, tokens, |token, reason| server.set_reason(token, reason));
        }
        let publisher = self.slot.as_ref().map(|slot| slot.key);
        let slow = dispatch::publish(&self.hub, &mut self.routes, publisher, messages, |index, reached| {
            if let (false, Some(token)) = (reached, tokens[index]) {
                server.set_reason(token, ReasonCode::NoMatchingSubscribers);
            }
        });
        *congested = slow.or(congested.take());
        messages.clear();
        tokens.clear();
        last
    }

    /// Decides about a CONNECT: who it is, whether it may, and which session it goes on with.
    pub(super) async fn decide(&mut self, connect: Connect) {
        if connect.properties.authentication_method.is_some() {
            // No method is offered: enhanced authentication cannot begin. [MQTT-4.12.0-1]
            return self.server.reject(ReasonCode::BadAuthenticationMethod);
        }
        if let Err(reason) = self.hub.authenticate.authenticate(&connect, &self.peer) {
            tracing::info!(client = %connect.client_id, peer = ?self.peer.address, %reason, "refused");
            return self.server.reject(reason);
        }
        if self.hub.is_stopping() {
            return self.server.reject(ReasonCode::ServerUnavailable);
        }
        let assigned_client_id = connect.client_id.is_empty();
        let client_id = if assigned_client_id { new_client_id() } else { connect.client_id.clone() };
        let claim = self.hub.claim(&client_id, connect.clean_start, self.connection).await;
        tracing::debug!(client = %client_id, version = %connect.version, transport = %self.peer.transport,
            present = claim.present, "connected");
        claim.slot.set_merges(connect.version.is_v5());
        self.slot = Some(claim.slot);
        let acceptance = Acceptance { session_present: claim.present, assigned_client_id };
        self.server.accept(claim.session, &acceptance, now());
        // Whoever stopped the broker during the claim may have signalled before this connection could hear it.
        if self.hub.is_stopping() {
            self.server.disconnect(ReasonCode::ServerShuttingDown);
        }
    }
}

/// A Client Identifier that nobody else has. [MQTT-3.1.3-6], [MQTT-3.1.3-7]
fn new_client_id() -> ClientId {
    ClientId::from(format!("auto-{:032x}", fastrand::u128(..)).as_str())
}
