//! Events of the protocol machine, answered in their order; PUBLISH packets are dispatched a batch at a time.

use std::borrow::Cow;
use std::task::{Context, Poll};
use std::time::Instant;

use braid_auth::identity::Identity;
use braid_proto::connection::{Event, Server, Token};
use braid_proto::message::SharedMessage;
use braid_proto::packet::{Auth, Connect};
use braid_proto::reason::ReasonCode;
use braid_store::{Change, StoreError};
use braid_transport::PeerCertificate;

use super::Driver;
use super::ack_pipeline::{AckPipeline, PendingAcks};
use super::connect::{
    ClaimedSession, PendingAuthentication, Unclaimed, admit, authenticate, claim_session, peer_name,
};
use super::read_gate::ReadGate;
use super::read_limits::{MemoryBackpressure, UrgentAllowance};
use super::subscribe::{FILTERS_IN_TURN, Handled, SubscriptionHandler};
use crate::admission::{Ban, BanFilter, Subject};
use crate::auth::{
    Challenge, ClientAccess, Credentials, ExpiryTimer, Grant, Outcome, Refusal, SecurityAction,
    SecurityEvent, shortened,
};
use crate::clock;
use crate::connection_guard::note_limit;
use crate::core::Core;
use crate::dispatch::Congested;
use crate::limit::Limit;
use crate::mountpoint;
use crate::registry::SessionEntry;
use crate::routing::RouteCache;
use crate::statistics::Counter;

/// Work of a turn, in matches of messages with subscriptions, before other tasks run. Deliveries would be too few: a
/// session with a thousand overlapping subscriptions gets one, and each of them is looked at for it.
const TURN_WORK: usize = 8 * 1024;

/// Acknowledgements of the client and ends of streams in one turn, some hundred microseconds: one read may have ten
/// thousand.
const ACKS_IN_TURN: usize = 2048;

/// Assumed work of a message before the first batch.
const INITIAL_WORK: usize = 64;

/// Messages that arrived together, the tokens of those that want an acknowledgement, and the changes of a durable
/// session that are committed with them.
#[derive(Default)]
struct PublishBatch {
    messages: Vec<SharedMessage>,
    tokens: Vec<Option<Token>>,
    changes: Vec<Change>,
    /// Acknowledgements of this turn, of dispatched messages and of other requests.
    acks: Option<PendingAcks>,
}

/// Routes of one publisher, the work that its messages cause, and the backpressure of memory on it.
pub(super) struct PublishIngress {
    pub(super) pressure: MemoryBackpressure,
    urgent: UrgentAllowance,
    /// `None` until the client publishes.
    routes: Option<Box<RouteCache>>,
    /// Work of each message of the last batch, see [`Dispatched::work`](crate::dispatch::Dispatched::work).
    message_work: usize,
}

/// Parts of the connection that a batch passes through.
struct IngressScope<'a> {
    core: &'a Core,
    access: &'a mut ClientAccess,
    publisher: Option<&'a SessionEntry>,
    server: &'a mut Server,
    gate: &'a mut ReadGate,
    acks: &'a mut AckPipeline,
    now: Instant,
}

/// Packet about which the authenticator has to be asked.
pub(super) enum Question {
    Connect(Box<Connect>),
    Auth(Box<Auth>),
}

impl PublishBatch {
    fn push(&mut self, message: SharedMessage, token: Option<Token>) {
        self.messages.push(message);
        self.tokens.push(token);
    }

    /// Adds an acknowledgement that is due at the end of the turn.
    fn acknowledge(&mut self, token: Token) {
        PendingAcks::add(&mut self.acks, token);
    }
}

impl PublishIngress {
    pub(super) fn new() -> Self {
        Self {
            pressure: MemoryBackpressure::default(),
            urgent: UrgentAllowance::default(),
            routes: None,
            message_work: INITIAL_WORK,
        }
    }

    /// True when a batch is as much work as one turn may do.
    fn is_full(&self, batch: &PublishBatch) -> bool {
        batch.messages.len().saturating_mul(self.message_work) >= TURN_WORK
    }

    /// Dispatches the messages of a batch. Adds their acknowledgements to it, with the receivers that cannot keep up,
    /// and the commits to the pipeline of acknowledgements.
    fn publish(&mut self, batch: &mut PublishBatch, context: IngressScope<'_>) {
        let IngressScope { core, access, publisher, server, gate, acks: pipeline, now } = context;
        let PublishBatch { messages, tokens, changes, acks } = batch;
        if messages.is_empty() {
            return;
        }
        core.statistics.add(Counter::MessagesReceived, messages.len() as u64);
        gate.note_publishes(messages.len(), now);
        // Before the messages are shared.
        core.memory.charge(&self.pressure.account(&core.memory), messages);
        let mut has_acknowledgements = false;
        for token in tokens.iter().flatten() {
            has_acknowledgements = true;
            PendingAcks::add(acks, *token);
        }
        let set_reason = |token, reason| server.set_reason(token, reason);
        let retention = core.dispatcher.admit(access, messages, tokens, set_reason);
        pipeline.note_received(messages, tokens, changes);
        let changes = std::mem::take(changes);
        // No acknowledgement waits for the store if all is QoS 0, also where messages are retained.
        let is_awaited = has_acknowledgements || !changes.is_empty();
        let reached = |index: usize, reached| {
            if let (false, Some(token)) = (reached, tokens[index]) {
                server.set_reason(token, ReasonCode::NoMatchingSubscribers);
            }
        };
        let dispatched = core.dispatcher.publish(
            self.routes.get_or_insert_default(),
            publisher,
            messages,
            &retention.publishers,
            changes,
            reached,
        );
        self.message_work = (dispatched.work / messages.len().max(1)).max(1);
        let rate = core.config.limits.urgent_bytes_per_second;
        let is_exempt = self.urgent.take(dispatched.urgent.bytes, rate, &core.statistics, now);
        if let Some(acks) = acks {
            let waits = |congested: &Congested| !(congested.is_urgent && is_exempt);
            for Congested { entry, until, messages, .. } in dispatched.congested.into_iter().filter(waits) {
                let tokens = tokens.get(messages).unwrap_or_default();
                tokens.iter().flatten().for_each(|token| acks.wait_for(token.stream(), &entry, until));
            }
        }
        for commit in [retention.commit, dispatched.forwarded, dispatched.commit] {
            pipeline.wait_for(commit.filter(|_| is_awaited));
        }
        messages.clear();
        tokens.clear();
        self.pressure.note_publishes(dispatched.urgent.is_all && is_exempt, &core.memory, now);
    }
}

impl Driver {
    /// Answers all events, or as many as one turn may; a CONNECT or AUTH is returned. Messages between two
    /// other events are dispatched as one batch, and all acknowledgements are pushed together at the end.
    pub(super) fn drain_events(&mut self, now: Instant) -> Option<Question> {
        let mut batch = PublishBatch::default();
        let (mut is_full, mut question) = (false, None);
        let (mut filters_left, mut acks_left) = (FILTERS_IN_TURN, ACKS_IN_TURN);
        while !is_full && let Some(event) = self.server.poll_event() {
            if let Event::Publish(message, token) = event {
                batch.push(message, token);
                is_full = self.ingress.is_full(&batch);
                if is_full {
                    self.publish(&mut batch, now);
                }
                continue;
            }
            // No request overtakes the messages before it.
            self.publish(&mut batch, now);
            match event {
                Event::Connect(connect) => return Some(Question::Connect(connect)),
                Event::Auth(auth) => {
                    question = Some(Question::Auth(auth));
                    break;
                }
                Event::Publish(..) => {}
                // A refused delivery is over as well: no other member gets a shared message for it. [MQTT-4.8.2-6]
                Event::Complete(packet_id, _) => self.egress.note_acknowledged(packet_id, clock::now),
                Event::Release(token) => {
                    batch.changes.extend(self.acks.note_released(token));
                    batch.acknowledge(token);
                }
                Event::Subscribe(..) | Event::Unsubscribe(..) => {
                    is_full = self.handle_subscription(event, &mut batch, &mut filters_left);
                    continue;
                }
                Event::OffsetRefused(stream, problem) => {
                    // [BQ-99]
                    let (client, peer) = (self.session.client(), peer_name(self.link.peer()));
                    tracing::info!(client, peer, %stream, "a large message is not continued: {problem}");
                }
                Event::StreamViolated(stream, violation) => {
                    self.note_violation(violation);
                    let (client, peer) = (self.session.client(), peer_name(self.link.peer()));
                    tracing::debug!(client, peer, %stream, cause = %violation, "stream ended");
                }
                Event::StreamEnded(stream) => {
                    self.egress.redirect(stream);
                    if let Some(handler) = self.subscriptions() {
                        handler.redirect(stream);
                    }
                }
            }
            acks_left -= 1;
            is_full = acks_left == 0;
        }
        self.publish(&mut batch, now);
        if !batch.changes.is_empty() {
            self.acks.wait_for(Some(self.core.persist.commit(batch.changes)));
        }
        let leaves = batch.acks.and_then(|acks| self.acks.push(acks));
        self.release_acks(leaves);
        question
    }

    fn publish(&mut self, batch: &mut PublishBatch, now: Instant) {
        let context = IngressScope {
            core: &self.core,
            access: &mut self.session.access,
            publisher: self.session.entry.as_deref(),
            server: &mut self.server,
            gate: &mut self.gate,
            acks: &mut self.acks,
            now,
        };
        self.ingress.publish(batch, context);
    }

    /// Handles a SUBSCRIBE or UNSUBSCRIBE as far as one turn may; true if later turns handle its rest, or the next one.
    fn handle_subscription(
        &mut self,
        event: Event,
        batch: &mut PublishBatch,
        filters_left: &mut usize,
    ) -> bool {
        if self.close.drops_requests {
            // No answer can be sent any more, and a connection that takes the session over does not wait for it.
            self.session.progress = None;
            return false;
        }
        let Some(handler) = self.subscriptions() else { return false };
        let handled = match &event {
            Event::Subscribe(on, subscribe) => handler.subscribe(*on, subscribe, filters_left),
            Event::Unsubscribe(on, unsubscribe) => handler.unsubscribe(*on, unsubscribe, filters_left),
            _ => return false,
        };
        match handled {
            Handled::Partly => self.server.put_back_event(event),
            Handled::Wholly(token) => {
                token.into_iter().for_each(|token| batch.acknowledge(token));
                return *filters_left == 0;
            }
        }
        true
    }

    fn subscriptions(&mut self) -> Option<SubscriptionHandler<'_>> {
        Some(SubscriptionHandler {
            core: &self.core,
            entry: self.session.entry.as_ref()?,
            access: &self.session.access,
            ignores_priorities: self.session.policy.ignores_priorities,
            server: &mut self.server,
            retained: &mut self.retained,
            acks: &mut self.acks,
            progress: &mut self.session.progress,
        })
    }

    // -- Acknowledgements --------------------------------------------------------------------------

    /// Releases acknowledgements whose commits are done. After a commit that failed none is released any more.
    pub(super) fn poll_commits(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(outcome) = self.acks.poll_commit(context) {
            match outcome {
                Ok(leaves) => self.release_acks(leaves),
                Err(error) => {
                    self.note_store_error(&error);
                    self.server.disconnect(match error {
                        StoreError::Fenced { .. } => ReasonCode::SessionTakenOver,
                        // 0x88 is a code of CONNACK only.
                        StoreError::Unavailable { .. } => ReasonCode::ServerBusy,
                        _ => ReasonCode::ImplementationSpecificError,
                    });
                }
            }
        }
    }

    /// Releases acknowledgements whose receivers have room again or count as stuck.
    pub(super) fn poll_receivers(&mut self, now: Instant, context: &Context<'_>) {
        let leaves = self.acks.poll_receivers(self.core.queues.policy.limits, now, context);
        self.release_acks(leaves);
    }

    fn release_acks(&mut self, up_to: Option<Token>) {
        if let Some(token) = up_to {
            self.server.handle_persisted(token);
        }
    }

    /// Lifts the barriers in the outboxes that are durable by now. One that never will be ends the link: the bytes
    /// behind it must not be written, not even to say why.
    pub(super) fn poll_barriers(&mut self, context: &mut Context<'_>) {
        if let Err(error) = self.acks.poll_barriers(context) {
            self.note_store_error(&error);
            self.end_link(None);
        }
    }

    fn note_store_error(&self, error: &StoreError) {
        self.core.persist.complain(error);
        tracing::warn!(client = self.session.client(), %error, "disconnected: its data cannot be stored");
    }

    // -- CONNECT and AUTH --------------------------------------------------------------------------

    /// Answers a CONNECT or AUTH. A CONNECT is answered with `refusal`, if there is one.
    pub(super) async fn decide(&mut self, question: Question, refusal: Option<ReasonCode>) {
        match question {
            Question::Connect(connect) => self.decide_connect(connect, refusal).await,
            Question::Auth(auth) => self.decide_auth(*auth).await,
        }
    }

    async fn decide_connect(&mut self, connect: Box<Connect>, refusal: Option<ReasonCode>) {
        let memory = || self.core.memory.is_exhausted().then_some(ReasonCode::QuotaExceeded);
        if let Some(reason) = refusal.or_else(memory) {
            let (client, peer) = (shortened(connect.client_id.as_str()), self.link.peer());
            tracing::debug!(client, peer = peer_name(peer), %reason, "refused");
            if refusal.is_none() {
                let client = Some(&connect.client_id);
                note_limit(&self.core, client, None, peer.address, Limit::MemoryHigh);
            }
            return self.server.reject(reason);
        }
        // Before the authentication, whose answer must not get old. A session that begins meanwhile is found
        // by the claim, as is one below a mountpoint, which is not known yet.
        let has_session = || self.core.sessions.registry.find(&connect.client_id).is_some();
        let waits = self.link.is_early() && self.session.policy.mountpoint.is_none() && has_session();
        if waits && !self.await_confirmation().await {
            return;
        }
        let properties = &connect.properties;
        let Self { core, link, session, .. } = self;
        let (core, session, asked) = (&*core, &*session, &*connect);
        let ask = |peer| async move {
            let credentials = Credentials {
                client_id: &asked.client_id,
                user_name: asked.user_name.as_deref(),
                password: asked.password.as_ref(),
                method: properties.authentication_method.as_deref(),
                data: properties.authentication_data.as_ref(),
                peer,
                listener: &session.policy,
            };
            authenticate(core, core.access.authenticate(&credentials)).await
        };
        let outcome = link.wait_for(ask).await;
        self.conclude(Some(connect), outcome).await;
    }

    /// Continues an enhanced authentication, or begins to repeat it.
    async fn decide_auth(&mut self, auth: Auth) {
        let (connect, outcome) = match self.session.authentication.take().map(|pending| *pending) {
            Some(PendingAuthentication { connect, exchange }) => {
                let Self { core, link, .. } = self;
                let proceed = |_| authenticate(core, exchange.proceed(auth.authentication_data));
                (connect, link.wait_for(proceed).await)
            }
            None => {
                let Self { core, link, session, .. } = self;
                let Some(entry) = &session.entry else { return };
                let (core, session, auth) = (&*core, &*session, &auth);
                let ask = |peer| async move {
                    let credentials = Credentials {
                        client_id: session.access.client_id().unwrap_or(&entry.client_id),
                        user_name: None,
                        password: None,
                        method: auth.method.as_deref(),
                        data: auth.authentication_data.as_ref(),
                        peer,
                        listener: &session.policy,
                    };
                    authenticate(core, core.access.authenticate(&credentials)).await
                };
                (None, link.wait_for(ask).await)
            }
        };
        self.conclude(connect, outcome).await;
    }

    /// Carries out the answer of the authenticator: about a CONNECT, or without one about a re-authentication.
    async fn conclude(&mut self, connect: Option<Box<Connect>>, outcome: Result<Outcome, Refusal>) {
        match outcome {
            Ok(Outcome::Challenge(Challenge { data, exchange })) => {
                self.session.authentication = Some(Box::new(PendingAuthentication { connect, exchange }));
                self.server.challenge(data, clock::now());
            }
            Ok(Outcome::Accepted(grant)) => match connect {
                Some(connect) => self.accept(&connect, *grant).await,
                None => self.reauthenticate(*grant),
            },
            Err(refusal) => self.refuse(connect.as_deref(), refusal),
        }
    }

    /// Refuses a client, with a record of the cause. [MQTT-4.12.0-1], [MQTT-4.12.0-4], [MQTT-4.12.1-2]
    fn refuse(&mut self, connect: Option<&Connect>, Refusal { reason, cause }: Refusal) {
        let client_id = match (connect, &self.session.entry) {
            (Some(connect), _) => Some(&connect.client_id),
            (None, Some(entry)) => Some(&entry.client_id),
            (None, None) => None,
        };
        let action = match connect {
            Some(_) => SecurityAction::Connect,
            None => SecurityAction::Reauthenticate,
        };
        let claimed_user = connect.and_then(|connect| connect.user_name.as_deref());
        let event = SecurityEvent::refused(client_id, None, action, cause).with_claimed_user(claimed_user);
        self.core.access.audit.record(event.with_address(self.link.peer().address));
        match connect {
            Some(_) => self.server.reject(reason),
            None => self.server.disconnect(reason),
        }
    }

    /// Accepts the CONNECT of a client that was authenticated, if it may have its session.
    async fn accept(&mut self, connect: &Connect, mut grant: Grant) {
        let (connection, expiry) = (self.session.connection, grant.expiry);
        let credential = grant.credential.take();
        let admitted =
            match admit(&mut self.server, &self.core.statistics, &self.session.policy, connect, &grant) {
                Ok(admitted) => admitted,
                Err(refusal) => return self.refuse(Some(connect), refusal),
            };
        let claimed = loop {
            let Self { core, link, server, .. } = self;
            let is_early = link.is_early();
            let claim = |peer| claim_session(core, server, peer, connection, &admitted, is_early);
            match link.wait_for(claim).await {
                Ok(claimed) => break claimed,
                Err(Unclaimed::Refused(reason)) => return self.server.reject(reason),
                Err(Unclaimed::Early) => {
                    if !self.await_confirmation().await {
                        return;
                    }
                }
            }
        };
        let ClaimedSession { claim, access, acceptance, progress, refusal } = claimed;
        if let Some(reason) = refusal {
            self.server.reject(reason);
        }
        self.acks.record(progress);
        // The delayed Will of a session that continues is not published [MQTT-3.1.3-9]; a refusal keeps it.
        self.session.delayed_will = claim.will.filter(|_| refusal.is_some()).map(Box::new);
        self.session.access = access;
        self.session.credential = credential;
        self.session.entry = Some(claim.entry);
        self.session.expiry = expiry.map(|expiry| Box::new(ExpiryTimer::new(expiry, clock::now())));
        self.retained.resume(claim.pending_retained);
        self.core.statistics.client_came();
        // After a refusal this only gives the session back.
        let mut denied = 0;
        let permitted = self.session.access.permitted_deliveries(&mut denied);
        self.server.accept(claim.session, &acceptance, clock::now(), permitted);
        self.core.statistics.add(Counter::MessagesDropped, denied);
        if refusal.is_none() {
            self.link.set_trusted(); // [BQ-13]
            self.observer().begin_presence(connect.clean_start, acceptance.session_present);
            // The user may have been removed, or banned, before the session queue had an owner to signal to.
            self.recheck();
        }
        // Packets right behind CONNECT may have released an identifier: no byte has left yet.
        self.acks.commit_progress(&mut self.server, &self.core.persist);
        // The broker may have begun to stop before the session queue had an owner to signal to.
        if self.core.lifecycle.is_stopping() {
            self.server.disconnect(ReasonCode::ServerShuttingDown);
        }
    }

    /// Ends a re-authentication with success, if the client is still the same user.
    fn reauthenticate(&mut self, Grant { identity, expiry, data, credential, .. }: Grant) {
        if !self.session.access.owns(Some(&identity)) || !self.keeps_mountpoint(&identity) {
            return self.server.disconnect(ReasonCode::NotAuthorized);
        }
        if let Some(entry) = &self.session.entry {
            entry.set_identity(&identity);
        }
        self.session.access.set_identity(identity);
        self.session.credential = credential;
        self.session.expiry = expiry.map(|expiry| Box::new(ExpiryTimer::new(expiry, clock::now())));
        self.server.finish_reauthentication(data);
        self.recheck_subscriptions();
    }

    /// Tests whether the client has the same mountpoint with another identity.
    fn keeps_mountpoint(&self, identity: &Identity) -> bool {
        let (access, policy) = (&self.session.access, &self.session.policy);
        let mountpoint = access.client_id().map(|id| mountpoint::of_client(policy, identity, id));
        mountpoint.is_none_or(|mountpoint| mountpoint.is_ok_and(|to| to.as_ref() == access.mountpoint()))
    }

    /// Closes a connection whose credentials have expired.
    pub(super) fn expire(&mut self) {
        self.session.expiry = None;
        let cause = "its credentials have expired";
        self.end_for(SecurityAction::Expired, cause, ReasonCode::NotAuthorized);
    }

    /// Checks the client against rules and bans that have changed.
    pub(super) fn recheck(&mut self) {
        if self.end_if_banned() {
            return;
        }
        if let Some(cause) = self.revocation() {
            return self.end_for(SecurityAction::Revoked, cause, ReasonCode::NotAuthorized);
        }
        self.recheck_subscriptions();
    }

    /// Reason why the client would not be accepted any more.
    pub(super) fn revocation(&self) -> Option<&'static str> {
        if self.core.access.is_revoked(self.session.access.identity()) {
            Some("the user is not known any more")
        } else if self.link.peer().certificate.as_ref().is_some_and(PeerCertificate::is_refused) {
            Some("its certificate is not accepted any more")
        } else if self.session.credential.as_ref().is_some_and(|credential| credential.is_revoked()) {
            Some("its credential is not accepted any more")
        } else {
            None
        }
    }

    /// Ban of a client with a session by which it may not stay. One for flapping only keeps it from connecting again:
    /// of two clients with one identifier, the one that has the session keeps it.
    pub(super) fn ban(&self) -> Option<Ban> {
        let entry = self.session.entry.as_ref()?;
        let user = self.session.access.identity().user();
        let subject = Subject { client_id: Some(&entry.client_id), user, address: self.link.peer().address };
        self.core.access.admission.find_ban(subject, BanFilter::ByHand, clock::now())
    }

    /// Disconnects a client that is banned by now. DISCONNECT has no code for a ban.
    pub(super) fn end_if_banned(&mut self) -> bool {
        let Some(ban) = self.ban() else { return false };
        self.core.statistics.add(Counter::ClientsBanned, 1);
        self.end_for(SecurityAction::Banned, String::from(&*ban.reason), ReasonCode::AdministrativeAction);
        true
    }

    /// Disconnects the client, with a record of the cause.
    fn end_for(&mut self, action: SecurityAction, cause: impl Into<Cow<'static, str>>, reason: ReasonCode) {
        let client_id = self.session.entry.as_ref().map(|entry| &entry.client_id);
        let identity = Some(self.session.access.identity());
        let event = SecurityEvent::refused(client_id, identity, action, cause);
        self.core.access.audit.record(event.with_address(self.link.peer().address));
        self.end_session(reason);
    }

    /// Closes the connection for a reason that came from elsewhere: requests of the client are not answered any more.
    pub(super) fn end_session(&mut self, reason: ReasonCode) {
        self.close.drops_requests = true;
        let of_stop = reason == ReasonCode::ServerShuttingDown;
        let connection = self.session.connection.0;
        match self.core.lifecycle.successor(connection).filter(|_| of_stop) {
            Some(address) => self.server.redirect(address), // [MQTT-4.13.1-1]
            None => self.server.disconnect(reason),
        }
    }

    /// Ends the subscriptions that are not permitted any more, in this turn and later ones.
    fn recheck_subscriptions(&mut self) {
        self.session.recheck = self.subscriptions().and_then(SubscriptionHandler::begin_recheck);
        self.continue_recheck();
    }

    pub(super) fn continue_recheck(&mut self) {
        let Some(mut recheck) = self.session.recheck.take() else { return };
        if let Some(handler) = self.subscriptions() {
            handler.recheck(&mut recheck);
            self.session.recheck = Some(recheck).filter(|recheck| !recheck.is_over());
        }
    }
}
