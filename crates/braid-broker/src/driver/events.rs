//! What the protocol machine asks of the broker.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::{Acceptance, Event, Token};
use braid_proto::message::Message;
use braid_proto::packet::{ClientId, Connect, QoS};
use braid_proto::reason::ReasonCode;
use braid_store::Change;

use super::held::Due;
use super::{Driver, now};
use crate::dispatch::Congested;
use crate::persist::DurableProgress;

/// The deliveries that one turn may lead to before others get theirs.
const TURN_DELIVERIES: usize = 32 * 1024;

/// Messages that arrived together, and the tokens of those that want an acknowledgement.
#[derive(Default)]
pub(super) struct Batch {
    messages: Vec<Arc<Message>>,
    tokens: Vec<Option<Token>>,
    /// What else of a durable session is to be committed with them.
    changes: Vec<Change>,
}

impl Driver {
    /// Answers all events in their order; a CONNECT is left to the caller.
    pub(super) fn drain_events(&mut self) -> Option<Box<Connect>> {
        let mut batch = Batch::default();
        let mut due = None;
        let mut budget = TURN_DELIVERIES;
        while budget > 0
            && let Some(event) = self.server.poll_event()
        {
            match event {
                Event::Publish(message, token) => {
                    batch.messages.push(message);
                    batch.tokens.push(token);
                    // Few at a time where each goes to many.
                    if batch.messages.len().saturating_mul(self.fan_out) >= TURN_DELIVERIES {
                        self.publish(&mut batch, &mut due);
                        budget = 0;
                    }
                    continue;
                }
                // Nothing overtakes the messages before it.
                _ => self.publish(&mut batch, &mut due),
            }
            match event {
                // Refused or not it is over: nobody else gets a shared message because of that. [MQTT-4.8.2-6]
                Event::Publish(..) => {}
                Event::Complete(packet_id, _) => {
                    if self.ack_rtt.watches(packet_id) {
                        self.ack_rtt.note_complete(now());
                    }
                }
                Event::Release(token) => {
                    self.persist_release(token, &mut batch);
                    Due::add(&mut due, token);
                }
                Event::Subscribe(on, subscribe) => {
                    if let Some(token) = self.subscribe(on, *subscribe) {
                        Due::add(&mut due, token);
                    }
                }
                Event::Unsubscribe(on, unsubscribe) => {
                    if let Some(token) = self.unsubscribe(on, &unsubscribe) {
                        Due::add(&mut due, token);
                    }
                }
                Event::StreamViolated(stream, violation) => {
                    let client = self.entry.as_ref().map(|entry| entry.client_id.as_str());
                    tracing::info!(client, peer = self.peer_name(), %stream, cause = %violation, "stream ended");
                }
                Event::StreamEnded(stream) => {
                    self.egress.redirect(stream);
                    self.stream_ended(stream);
                }
                Event::Connect(connect) => return Some(connect),
            }
        }
        self.publish(&mut batch, &mut due);
        if !batch.changes.is_empty() {
            let commit = self.core.persist.commit(batch.changes);
            self.watch(Some(commit));
        }
        if let Some(due) = due {
            self.acknowledge(due);
        }
        None
    }

    /// Dispatches a batch; adds to `due` what is to be acknowledged of it, and who cannot keep up with it.
    fn publish(&mut self, batch: &mut Batch, due: &mut Option<Due>) {
        let Batch { messages, tokens, changes } = batch;
        if messages.is_empty() {
            return;
        }
        self.core.statistics.received(messages.len() as u64);
        self.pay_for_messages(messages.len());
        // Before anybody shares them.
        let account = self.account();
        self.core.memory.charge(&account, messages);
        let server = &mut self.server;
        let mut has_acknowledgements = false;
        for token in tokens.iter().flatten() {
            has_acknowledgements = true;
            Due::add(due, *token);
        }
        let set_reason = |token, reason| server.set_reason(token, reason);
        let retained = self.core.dispatcher.admit(&mut self.access, messages, tokens, set_reason);
        let publisher = self.entry.as_ref().map(|entry| entry.key);
        if let Some(progress) = &mut self.progress {
            changes.extend(received(progress, messages, tokens));
        }
        let changes = std::mem::take(changes);
        // QoS 0 owes nobody an acknowledgement, whatever becomes of what it retains.
        let is_awaited = has_acknowledgements || !changes.is_empty();
        let reached = |index: usize, reached| {
            if let (false, Some(token)) = (reached, tokens[index]) {
                server.set_reason(token, ReasonCode::NoMatchingSubscribers);
            }
        };
        let dispatched =
            self.core.dispatcher.publish(&mut self.routes, publisher, messages, changes, reached);
        self.fan_out = (dispatched.deliveries / messages.len().max(1)).max(1);
        if let Some(due) = due {
            for Congested { entry, until, messages } in dispatched.congested {
                let tokens = tokens.get(messages).unwrap_or_default();
                tokens.iter().flatten().for_each(|token| due.wait(token.stream(), &entry, until));
            }
        }
        self.watch(retained.filter(|_| is_awaited));
        self.watch(dispatched.commit.filter(|_| is_awaited));
        messages.clear();
        tokens.clear();
        self.note_published(dispatched.is_urgent);
    }

    /// PUBREL: a durable session's identifier is free again, which PUBCOMP must not say too early.
    fn persist_release(&mut self, token: Token, batch: &mut Batch) {
        let released = self.progress.as_mut().and_then(|progress| progress.release(token.packet_id()));
        batch.changes.extend(released);
    }

    /// Decides about a CONNECT: who it is, whether it may, and which session it goes on with.
    pub(super) async fn decide(&mut self, connect: Connect) {
        if let Some(reason) = self.refusal {
            tracing::debug!(client = connect.client_id.as_str(), peer = self.peer_name(), %reason, "refused");
            return self.server.reject(reason);
        }
        if self.core.memory.is_full() {
            self.core.statistics.refused(1);
            tracing::debug!(
                client = connect.client_id.as_str(),
                peer = self.peer_name(),
                "refused: memory is short"
            );
            return self.server.reject(ReasonCode::QuotaExceeded);
        }
        let limit = Duration::from_secs(self.core.config.limits.connect_timeout_secs);
        let answer = self.core.access.authenticate(&connect, self.link.peer());
        let answer = tokio::time::timeout(limit, answer).await;
        let identity = match answer.unwrap_or(Err(ReasonCode::ServerUnavailable)) {
            Ok(identity) => identity,
            Err(reason) => {
                tracing::info!(client = connect.client_id.as_str(), peer = self.peer_name(), %reason, "refused");
                return self.server.reject(reason);
            }
        };
        if self.core.lifecycle.is_stopping() {
            return self.server.reject(ReasonCode::ServerUnavailable);
        }
        let assigned_client_id = connect.client_id.is_empty();
        let client_id = if assigned_client_id { new_client_id() } else { Some(connect.client_id.clone()) };
        let Some(client_id) = client_id else {
            tracing::error!("the system gives no random numbers for a client identifier");
            return self.server.reject(ReasonCode::ServerUnavailable);
        };
        self.access = self.core.access.client(identity, &client_id);
        if self.server.offered_will().is_some_and(|will| !self.access.may_set_will(&will.topic)) {
            return self.server.reject(ReasonCode::NotAuthorized);
        }
        if !self.core.sessions.registry.has_room_for(&client_id, self.core.config.limits.sessions) {
            tracing::warn!("refused: the limit of sessions is reached");
            return self.server.reject(ReasonCode::QuotaExceeded);
        }
        let (sessions, clean_start) = (&self.core.sessions, connect.clean_start);
        let claim = match sessions.claim(&client_id, &self.access, clean_start, self.connection).await {
            Ok(claim) => claim,
            Err(reason) => {
                tracing::info!(client = client_id.as_str(), peer = self.peer_name(), %reason, "refused");
                return self.server.reject(reason);
            }
        };
        tracing::debug!(client = client_id.as_str(), version = %connect.version, transport = %self.link.peer().transport,
            present = claim.present, "connected");
        claim.entry.set_merges(connect.version.is_v5());
        let opened = self.open(&claim.entry).await;
        match &opened {
            Ok(()) if claim.entry.is_durable() => {
                self.progress =
                    Some(Box::new(DurableProgress::new(claim.entry.id(), &claim.session.inbound)));
            }
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(client = client_id.as_str(), %error, "refused: its session cannot be stored");
                self.server.reject(ReasonCode::ServerUnavailable);
            }
        }
        // The delayed Will of a session that goes on is not published [MQTT-3.1.3-9]; after a refusal it does not.
        self.former_will = claim.will.filter(|_| opened.is_err());
        self.entry = Some(claim.entry);
        self.replays = claim.pending_retained.into();
        self.core.statistics.client_came();
        let acceptance = Acceptance { session_present: claim.present, assigned_client_id };
        // After a refusal this only gives the session back.
        self.server.accept(claim.session, &acceptance, now());
        if opened.is_ok() {
            self.link.set_trusted(); // [BQ-13]
        }
        // What came right behind CONNECT may have released something: no byte has left yet.
        self.commit_progress();
        // Whoever stopped the broker during the claim may have signalled before this connection could hear it.
        if self.core.lifecycle.is_stopping() {
            self.server.disconnect(ReasonCode::ServerShuttingDown);
        }
    }
}

/// The QoS 2 messages among those that a durable session hands over: not twice, whatever happens. [MQTT-4.3.3-10]
fn received(
    progress: &mut DurableProgress,
    messages: &[Arc<Message>],
    tokens: &[Option<Token>],
) -> impl Iterator<Item = Change> {
    messages.iter().zip(tokens).filter_map(|(message, token)| {
        let packet_id = token.filter(|_| message.qos == QoS::ExactlyOnce)?.packet_id();
        Some(progress.receive(packet_id))
    })
}

/// A Client Identifier that nobody else has, and nobody can guess: whoever knows it can take the session over.
/// [MQTT-3.1.3-6], [MQTT-3.1.3-7]
fn new_client_id() -> Option<ClientId> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(ClientId::from(format!("auto-{:032x}", u128::from_ne_bytes(random)).as_str()))
}
