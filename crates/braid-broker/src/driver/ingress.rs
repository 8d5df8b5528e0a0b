//! Dispatch of the PUBLISH packets that one connection receives, a batch at a time.

use std::sync::Arc;
use std::time::Instant;

use braid_proto::connection::{Server, Token};
use braid_proto::message::Message;
use braid_proto::reason::ReasonCode;
use braid_store::Change;

use super::ack_pipeline::{AckPipeline, PendingAcks};
use super::read_gate::ReadGate;
use crate::auth::ClientAccess;
use crate::core::Core;
use crate::dispatch::Congested;
use crate::routing::RouteCache;
use crate::session_entry::SessionKey;

/// Deliveries that one turn may cause before other tasks run.
const TURN_DELIVERIES: usize = 32 * 1024;

/// Assumed deliveries of a message before the first batch.
const INITIAL_FAN_OUT: usize = 64;

/// Messages that arrived together, the tokens of those that want an acknowledgement, and the changes of a durable
/// session that are committed with them.
#[derive(Default)]
pub(super) struct PublishBatch {
    messages: Vec<Arc<Message>>,
    tokens: Vec<Option<Token>>,
    pub(super) changes: Vec<Change>,
    /// Acknowledgements of this turn, of dispatched messages and of other requests.
    pub(super) acks: Option<PendingAcks>,
}

/// Routes of one publisher, and its fan-out.
pub(super) struct PublishIngress {
    routes: RouteCache,
    /// Deliveries for each message of the last batch.
    fan_out: usize,
}

/// Parts of the connection that a batch passes through.
pub(super) struct IngressScope<'a> {
    pub(super) core: &'a Core,
    pub(super) access: &'a mut ClientAccess,
    pub(super) publisher: Option<SessionKey>,
    pub(super) server: &'a mut Server,
    pub(super) gate: &'a mut ReadGate,
    pub(super) acks: &'a mut AckPipeline,
    pub(super) now: Instant,
}

impl PublishBatch {
    pub(super) fn push(&mut self, message: Arc<Message>, token: Option<Token>) {
        self.messages.push(message);
        self.tokens.push(token);
    }

    /// Adds an acknowledgement that is due at the end of the turn.
    pub(super) fn acknowledge(&mut self, token: Token) {
        PendingAcks::add(&mut self.acks, token);
    }
}

impl PublishIngress {
    pub(super) fn new() -> Self {
        Self { routes: RouteCache::default(), fan_out: INITIAL_FAN_OUT }
    }

    /// True when a batch is as much work as one turn may do.
    pub(super) fn is_full(&self, batch: &PublishBatch) -> bool {
        batch.messages.len().saturating_mul(self.fan_out) >= TURN_DELIVERIES
    }

    /// Dispatches the messages of a batch. Adds their acknowledgements to it, with the receivers that cannot keep up, and
    /// the commits to the pipeline of acknowledgements.
    pub(super) fn publish(&mut self, batch: &mut PublishBatch, context: IngressScope<'_>) {
        let IngressScope { core, access, publisher, server, gate, acks: pipeline, now } = context;
        let PublishBatch { messages, tokens, changes, acks } = batch;
        if messages.is_empty() {
            return;
        }
        core.statistics.received(messages.len() as u64);
        gate.note_publishes(messages.len(), now);
        // Before the messages are shared.
        core.memory.charge(&gate.account(&core.memory), messages);
        let mut has_acknowledgements = false;
        for token in tokens.iter().flatten() {
            has_acknowledgements = true;
            PendingAcks::add(acks, *token);
        }
        let set_reason = |token, reason| server.set_reason(token, reason);
        let retained = core.dispatcher.admit(access, messages, tokens, set_reason);
        pipeline.note_received(messages, tokens, changes);
        let changes = std::mem::take(changes);
        // No acknowledgement waits for the store if all is QoS 0, also where messages are retained.
        let is_awaited = has_acknowledgements || !changes.is_empty();
        let reached = |index: usize, reached| {
            if let (false, Some(token)) = (reached, tokens[index]) {
                server.set_reason(token, ReasonCode::NoMatchingSubscribers);
            }
        };
        let dispatched = core.dispatcher.publish(&mut self.routes, publisher, messages, changes, reached);
        self.fan_out = (dispatched.deliveries / messages.len().max(1)).max(1);
        if let Some(acks) = acks {
            for Congested { entry, until, messages } in dispatched.congested {
                let tokens = tokens.get(messages).unwrap_or_default();
                tokens.iter().flatten().for_each(|token| acks.wait_for(token.stream(), &entry, until));
            }
        }
        pipeline.wait_for(retained.filter(|_| is_awaited));
        pipeline.wait_for(dispatched.commit.filter(|_| is_awaited));
        messages.clear();
        tokens.clear();
        gate.note_dispatched(dispatched.is_urgent, &core.memory, now);
    }
}
