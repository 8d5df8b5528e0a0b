//! Acknowledgements on their way to the protocol machine: first durable, then as fast as the receivers.
//!
//! An acknowledgement passes two stages. In the first it waits for the commits of the store that stand before it; in
//! the second for receivers that cannot keep up with what it acknowledges. The [`Token`] that comes out releases it,
//! and all before it, in the protocol machine.

use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use braid_proto::connection::{Server, Token};
use braid_proto::message::SharedMessage;
use braid_proto::packet::QoS;
use braid_proto::stream::StreamKey;
use braid_store::{Change, Commit, Completion, StoreError};

use crate::persist::{DurableProgress, Persist};
use crate::queue::backpressure::RoomRegistration;
use crate::queue::usage::QueueLimits;
use crate::registry::SessionEntry;

/// Acknowledgements of one batch: the last token, their streams, and the receivers that cannot keep up.
pub(super) struct PendingAcks {
    token: Token,
    /// One of the streams, and all others in the order of their keys.
    stream: StreamKey,
    others: Vec<StreamKey>,
    congested: CongestedStreams,
}

/// Streams with a receiver that cannot keep up: one receiver each, in the order of their keys. Messages of many streams
/// come mixed, and each is looked up.
#[derive(Default)]
struct CongestedStreams(Vec<CongestedStream>);

struct CongestedStream {
    stream: StreamKey,
    receiver: Arc<SessionEntry>,
    /// The receiver counts as stuck from then on, and is not waited for.
    until: Instant,
    /// Wakes this connection when the receiver has room.
    registration: Option<RoomRegistration>,
}

/// Commit that was not done at once, with the acknowledgements behind it.
struct PendingCommit {
    commit: Commit,
    acks: Option<PendingAcks>,
}

/// Withholds acknowledgements while receivers cannot keep up.
///
/// Otherwise a publisher of QoS 1 runs ahead of a subscriber until the session queue is full, and acknowledged messages
/// are dropped. With it the publisher's own window slows the publisher down: no stream is read less, QoS 0 is not
/// concerned, and a receiver that takes nothing for a while is not waited for.
///
/// The acknowledgements of a connection leave in order [MQTT-4.6.0-2], and those of a stream must not wait for those of
/// another [BQ-55]. They are delayed only while every stream with a pending one is congested. When one of another
/// stream joins them, all leave, and flow control takes the place of the publisher's window: a congested stream is not
/// read until its receiver has room or counts as stuck.
#[derive(Default)]
struct AckBackpressure {
    /// The last withheld acknowledgement.
    withheld: Option<Token>,
    congested: CongestedStreams,
}

/// Pipeline of acknowledgements of one connection, and the durable progress of its deliveries.
#[derive(Default)]
pub(super) struct AckPipeline {
    /// In the order of the commits.
    commits: VecDeque<PendingCommit>,
    backpressure: Option<AckBackpressure>,
    /// Present when the session outlives its connection.
    progress: Option<Box<DurableProgress>>,
}

// === impl PendingAcks ===

impl PendingAcks {
    /// Adds the next acknowledgement.
    pub(super) fn add(acks: &mut Option<Self>, token: Token) {
        let stream = token.stream();
        match acks {
            None => {
                *acks =
                    Some(Self { token, stream, others: Vec::new(), congested: CongestedStreams::default() });
            }
            Some(acks) => {
                if stream != acks.token.stream() {
                    acks.add_stream(stream);
                }
                acks.token = acks.token.max(token);
            }
        }
    }

    fn add_stream(&mut self, stream: StreamKey) {
        if stream != self.stream
            && let Err(at) = self.others.binary_search(&stream)
        {
            self.others.insert(at, stream);
        }
    }

    fn streams(&self) -> impl Iterator<Item = StreamKey> {
        self.others.iter().copied().chain([self.stream])
    }

    /// Notes that `receiver` cannot keep up with messages of `stream`. The first receiver of a stream counts.
    pub(super) fn wait_for(&mut self, stream: StreamKey, receiver: &Arc<SessionEntry>, until: Instant) {
        self.congested.add(CongestedStream { stream, receiver: receiver.clone(), until, registration: None });
    }

    fn join(&mut self, later: Self) {
        self.token = self.token.max(later.token);
        later.streams().for_each(|stream| self.add_stream(stream));
        self.congested.join(later.congested);
    }
}

// === impl CongestedStreams ===

impl CongestedStreams {
    fn find(&self, stream: StreamKey) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |congested| congested.stream)
    }

    fn contains(&self, stream: StreamKey) -> bool {
        self.find(stream).is_ok()
    }

    fn add(&mut self, congested: CongestedStream) {
        if let Err(at) = self.find(congested.stream) {
            self.0.insert(at, congested);
        }
    }

    fn join(&mut self, later: Self) {
        later.0.into_iter().for_each(|congested| self.add(congested));
    }
}

// === impl AckBackpressure ===

impl AckBackpressure {
    /// Takes acknowledgements in; returns the token up to which they leave now.
    fn admit(&mut self, mut acks: PendingAcks) -> Option<Token> {
        let token = self.withheld.map_or(acks.token, |withheld| withheld.max(acks.token));
        self.congested.join(std::mem::take(&mut acks.congested));
        if acks.streams().all(|stream| self.congested.contains(stream)) {
            self.withheld = Some(token);
            return None;
        }
        self.withheld = None;
        Some(token)
    }

    /// Removes streams that are no longer congested; returns the token up to which acknowledgements leave now. One
    /// stream that is still congested does not withhold those of the others.
    fn end(&mut self, mut is_over: impl FnMut(&mut CongestedStream) -> bool) -> Option<Token> {
        let before = self.congested.0.len();
        self.congested.0.retain_mut(|congested| !is_over(congested));
        if self.congested.0.len() < before { self.withheld.take() } else { None }
    }
}

// === impl AckPipeline ===

impl AckPipeline {
    /// Begins to record the progress of a session that outlives its connection.
    pub(super) fn record(&mut self, progress: Option<Box<DurableProgress>>) {
        self.progress = progress;
    }

    // -- Commits -----------------------------------------------------------------------------------

    /// Makes acknowledgements that are pushed from now on wait for a commit.
    pub(super) fn wait_for(&mut self, commit: Option<Commit>) {
        match commit {
            None | Some(Completion::Done(Ok(()))) => {}
            Some(commit) => self.commits.push_back(PendingCommit { commit, acks: None }),
        }
    }

    /// Adds acknowledgements behind every commit so far; returns the token up to which they leave now.
    pub(super) fn push(&mut self, acks: PendingAcks) -> Option<Token> {
        match self.commits.back_mut() {
            None => return self.admit(acks),
            Some(PendingCommit { acks: Some(earlier), .. }) => earlier.join(acks),
            Some(last) => last.acks = Some(acks),
        }
        None
    }

    /// Ready for each commit that is done, with the token up to which acknowledgements leave now. Pending when no
    /// commit waits, or the first one does.
    ///
    /// # Errors
    /// The commit failed. No acknowledgement leaves any more.
    pub(super) fn poll_commit(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Token>, StoreError>> {
        let Some(first) = self.commits.front_mut() else { return Poll::Pending };
        let outcome = ready!(Pin::new(&mut first.commit).poll(context));
        if let Err(error) = outcome {
            self.commits.clear();
            return Poll::Ready(Err(error));
        }
        let acks = self.commits.pop_front().and_then(|done| done.acks);
        Poll::Ready(Ok(acks.and_then(|acks| self.admit(acks))))
    }

    // -- Backpressure ------------------------------------------------------------------------------

    fn admit(&mut self, acks: PendingAcks) -> Option<Token> {
        match &mut self.backpressure {
            None if acks.congested.0.is_empty() => Some(acks.token),
            backpressure => backpressure.get_or_insert_default().admit(acks),
        }
    }

    /// Ends the wait for receivers that have room again or count as stuck; returns the token up to which
    /// acknowledgements leave now. The task is woken when another receiver has room.
    pub(super) fn poll_receivers(
        &mut self,
        limits: QueueLimits,
        now: Instant,
        context: &Context<'_>,
    ) -> Option<Token> {
        let backpressure = self.backpressure.as_mut()?;
        let leaves = backpressure.end(|CongestedStream { receiver, until, registration, .. }| {
            receiver.queue.poll_room(registration, limits, context) || *until <= now
        });
        if backpressure.congested.0.is_empty() {
            self.backpressure = None;
        }
        leaves
    }

    /// True when a stream is not to be read because its receivers cannot keep up: its acknowledgements have left, and
    /// slow no publisher down.
    pub(super) fn is_paused(&self, stream: StreamKey) -> bool {
        let backpressure = self.backpressure.as_ref();
        backpressure.is_some_and(|it| it.withheld.is_none() && it.congested.contains(stream))
    }

    /// Time at which a receiver counts as stuck.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.backpressure.as_ref()?.congested.0.iter().map(|congested| congested.until).min()
    }

    // -- Durable progress --------------------------------------------------------------------------

    /// Records the QoS 2 messages among those that a durable session publishes, which therefore are not published
    /// twice. [MQTT-4.3.3-10]
    pub(super) fn note_received(
        &mut self,
        messages: &[SharedMessage],
        tokens: &[Option<Token>],
        changes: &mut Vec<Change>,
    ) {
        let Some(progress) = &mut self.progress else { return };
        for (message, token) in messages.iter().zip(tokens) {
            if let Some(token) = token.filter(|_| message.qos == QoS::ExactlyOnce) {
                changes.push(progress.receive(token.packet_id()));
            }
        }
    }

    /// PUBREL: the change that frees the identifier of a durable session. PUBCOMP waits for its commit.
    pub(super) fn note_released(&mut self, token: Token) -> Option<Change> {
        self.progress.as_mut()?.release(token.packet_id())
    }

    /// A delivery was dropped instead of being sent.
    pub(super) fn note_dropped(&mut self, queue_lsn: Option<NonZeroU64>) {
        if let (Some(queue_lsn), Some(progress)) = (queue_lsn, &mut self.progress) {
            progress.note_completed(queue_lsn);
        }
    }

    /// Records acknowledgements of the client, before anything that answers them is written.
    pub(super) fn note_progress(&mut self, server: &mut Server) {
        let Some(progress) = &mut self.progress else { return };
        while let Some(step) = server.poll_progress() {
            progress.note(step);
        }
    }

    /// Commits the progress of deliveries.
    pub(super) fn commit_progress(&mut self, server: &mut Server, persist: &Persist) {
        // Packets right behind CONNECT were handled before progress was recorded.
        self.note_progress(server);
        if let Some(progress) = &mut self.progress {
            progress.commit(persist);
        }
    }

    /// Lifts the barriers in the outboxes whose commits are done.
    ///
    /// # Errors
    /// A commit failed. Bytes behind its barrier must not be written, not even to say why.
    pub(super) fn poll_barriers(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let Some(progress) = &mut self.progress else { return Ok(()) };
        let outcome = progress.poll_barriers(context);
        if outcome.is_err() {
            self.progress = None;
        }
        outcome
    }

    /// Bytes of a stream that may be written now; `None` for all.
    pub(super) fn writable(&self, stream: StreamKey, has_ended: impl Fn(StreamKey) -> bool) -> Option<usize> {
        self.progress.as_ref()?.writable(stream, has_ended)
    }

    /// Progress of the deliveries, of a session that outlives its connection.
    pub(super) fn progress(&mut self) -> Option<&mut DurableProgress> {
        self.progress.as_deref_mut()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use braid_proto::connection::{Acceptance, Event, ServerOptions};
    use braid_proto::message::{Delivery, Message};
    use braid_proto::packet::ClientId;
    use braid_proto::session::Session;
    use braid_proto::topic::TopicName;

    use super::*;
    use crate::config::LimitsConfig;
    use crate::memory::Memory;
    use crate::queue::egress::EgressQueue;
    use crate::queue::policy::QueuePolicy;
    use crate::registry::{ConnectionId, SessionKey};

    fn receiver() -> Arc<SessionEntry> {
        Arc::new(SessionEntry::new(SessionKey(1), ClientId::from("receiver"), ConnectionId(1)))
    }

    const LIMITS: QueueLimits = QueueLimits { messages: 8, bytes: 1 << 20 };

    /// A connected receiver with more in its queue than the congestion threshold.
    fn congested_receiver(now: Instant) -> Arc<SessionEntry> {
        let receiver = receiver();
        receiver.queue.open();
        let mut egress = EgressQueue::default();
        egress.note_end(now);
        let context = Context::from_waker(Waker::noop());
        receiver.queue.poll_take(&mut egress, |stream| stream, LIMITS, &context);
        let limits = LimitsConfig {
            queued_messages: LIMITS.messages,
            queued_bytes: LIMITS.bytes,
            ..LimitsConfig::default()
        };
        let policy = QueuePolicy::new(&limits, now, Arc::new(Memory::new(&limits)));
        let topic = TopicName::parse("t").expect("a topic name");
        let message = SharedMessage::new(Message::new(topic, "x", QoS::AtLeastOnce, false));
        let deliveries = std::iter::repeat_with(|| Delivery::of(message.clone())).take(6);
        receiver.queue.push(deliveries, &policy, now, &mut Vec::new());
        receiver
    }

    /// Tokens of QoS 1 messages on these data streams, in the order of their arrival.
    fn tokens(streams: &[u32]) -> Vec<Token> {
        let now = Instant::now();
        let mut server = Server::new(Arc::new(ServerOptions::default()), now);
        server.handle_bytes(StreamKey::CONTROL, b"\x10\x0e\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01a", now);
        assert!(matches!(server.poll_event(), Some(Event::Connect(_))));
        let acceptance = Acceptance::default();
        server.accept(Session::default(), &acceptance, now, |_| true);
        let mut tokens = Vec::new();
        for (stream, packet_id) in streams.iter().zip(1..) {
            let stream = if *stream == 0 { StreamKey::CONTROL } else { StreamKey::bidi(*stream) };
            server.handle_stream_opened(stream);
            let publish = [0x32, 0x06, 0x00, 0x01, b't', 0x00, packet_id, 0x00];
            server.handle_bytes(stream, &publish, now);
            match server.poll_event() {
                Some(Event::Publish(_, Some(token))) => tokens.push(token),
                other => panic!("{other:?}"),
            }
        }
        tokens
    }

    fn acks(tokens: &[Token]) -> PendingAcks {
        let mut acks = None;
        tokens.iter().for_each(|token| PendingAcks::add(&mut acks, *token));
        acks.expect("there are tokens")
    }

    fn poll(pipeline: &mut AckPipeline) -> Poll<Result<Option<Token>, StoreError>> {
        pipeline.poll_commit(&mut Context::from_waker(Waker::noop()))
    }

    /// Messages of many streams come mixed: the first receiver that a stream waits for counts.
    #[test]
    fn a_stream_waits_for_one_receiver_when_messages_of_streams_are_mixed() {
        let start = Instant::now();
        let mut congested = CongestedStreams::default();
        for round in 0..3 {
            for at in 0..200 {
                let (stream, until) = (StreamKey::bidi(at * 77 % 200), start + Duration::from_secs(round));
                let one = CongestedStream { stream, receiver: receiver(), until, registration: None };
                congested.join(CongestedStreams(vec![one]));
            }
        }
        assert_eq!(congested.0.len(), 200);
        assert!((0..200).all(|stream| congested.contains(StreamKey::bidi(stream))));
        assert!(!congested.contains(StreamKey::bidi(200)));
        assert!(congested.0.iter().all(|congested| congested.until == start));
    }

    #[test]
    fn acknowledgements_leave_at_once_without_commits_and_congestion() {
        let tokens = tokens(&[0, 0]);
        let mut pipeline = AckPipeline::default();
        pipeline.wait_for(None);
        pipeline.wait_for(Some(Completion::Done(Ok(()))));
        assert_eq!(pipeline.push(acks(&tokens)), Some(tokens[1]));
        assert!(poll(&mut pipeline).is_pending() && pipeline.next_timeout().is_none());
    }

    #[test]
    fn acknowledgements_wait_for_the_commits_before_them_in_order() {
        let tokens = tokens(&[0, 0, 0]);
        let mut pipeline = AckPipeline::default();
        let (first, commit) = Completion::pending();
        pipeline.wait_for(Some(commit));
        assert_eq!(pipeline.push(acks(&tokens[..1])), None);
        let (second, commit) = Completion::pending();
        pipeline.wait_for(Some(commit));
        assert_eq!(pipeline.push(acks(&tokens[1..2])), None);
        assert_eq!(pipeline.push(acks(&tokens[2..])), None, "they join those of the last commit");
        second.complete(Ok(()));
        assert!(poll(&mut pipeline).is_pending(), "the first commit is not done");
        first.complete(Ok(()));
        assert!(matches!(poll(&mut pipeline), Poll::Ready(Ok(Some(token))) if token == tokens[0]));
        assert!(matches!(poll(&mut pipeline), Poll::Ready(Ok(Some(token))) if token == tokens[2]));
        assert!(poll(&mut pipeline).is_pending());
    }

    #[test]
    fn no_acknowledgement_leaves_after_a_commit_that_failed() {
        let tokens = tokens(&[0, 0]);
        let mut pipeline = AckPipeline::default();
        let (first, commit) = Completion::pending();
        pipeline.wait_for(Some(commit));
        assert_eq!(pipeline.push(acks(&tokens[..1])), None);
        let (second, commit) = Completion::pending();
        pipeline.wait_for(Some(commit));
        assert_eq!(pipeline.push(acks(&tokens[1..])), None);
        first.complete(Err(StoreError::Closed));
        second.complete(Ok(()));
        assert!(matches!(poll(&mut pipeline), Poll::Ready(Err(StoreError::Closed))));
        assert!(poll(&mut pipeline).is_pending());
    }

    /// [BQ-55]: acknowledgements are withheld until another stream joins them; then flow control takes over.
    #[test]
    fn a_congested_stream_withholds_its_own_acknowledgements_only() {
        let tokens = tokens(&[1, 1, 2]);
        let (one, two) = (StreamKey::bidi(1), StreamKey::bidi(2));
        let mut pipeline = AckPipeline::default();
        let until = Instant::now() + Duration::from_secs(1);
        let mut first = acks(&tokens[..2]);
        first.wait_for(one, &receiver(), until);
        assert_eq!(pipeline.push(first), None);
        assert!(!pipeline.is_paused(one), "the window of the publisher slows it down");
        assert_eq!(pipeline.next_timeout(), Some(until));
        assert_eq!(pipeline.push(acks(&tokens[2..])), Some(tokens[2]));
        assert!(pipeline.is_paused(one) && !pipeline.is_paused(two));
    }

    /// [BQ-55]: one stream with room is enough for all to leave.
    #[test]
    fn acknowledgements_are_withheld_only_if_all_of_their_streams_are_congested() {
        let tokens = tokens(&[1, 2]);
        let until = Instant::now() + Duration::from_secs(1);
        let mut pipeline = AckPipeline::default();
        let mut both = acks(&tokens);
        both.wait_for(StreamKey::bidi(1), &receiver(), until);
        assert_eq!(pipeline.push(both), Some(tokens[1]));
        let mut both = acks(&tokens);
        both.wait_for(StreamKey::bidi(2), &receiver(), until);
        assert_eq!(pipeline.push(both), None, "the first stream is still congested");
    }

    /// Behind one commit acknowledgements keep their streams, and the receivers that those wait for.
    #[test]
    fn acknowledgements_that_join_others_keep_their_streams_and_receivers() {
        let tokens = tokens(&[1, 2]);
        let until = Instant::now() + Duration::from_secs(1);
        for (congested, leaves) in [([true, false], true), ([false, true], true), ([true, true], false)] {
            let mut pipeline = AckPipeline::default();
            let (completer, commit) = Completion::pending();
            pipeline.wait_for(Some(commit));
            for (token, is_congested) in tokens.iter().zip(congested) {
                let mut acks = acks(std::slice::from_ref(token));
                if is_congested {
                    acks.wait_for(token.stream(), &receiver(), until);
                }
                assert_eq!(pipeline.push(acks), None, "the commit is not done");
            }
            completer.complete(Ok(()));
            let expected = leaves.then_some(tokens[1]);
            assert!(
                matches!(poll(&mut pipeline), Poll::Ready(Ok(token)) if token == expected),
                "{congested:?}"
            );
        }
    }

    #[test]
    fn a_receiver_that_counts_as_stuck_is_not_waited_for() {
        let tokens = tokens(&[1]);
        let mut pipeline = AckPipeline::default();
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        let mut pending = acks(&tokens);
        pending.wait_for(StreamKey::bidi(1), &congested_receiver(now), until);
        assert_eq!(pipeline.push(pending), None);
        let mut poll = |now| pipeline.poll_receivers(LIMITS, now, &Context::from_waker(Waker::noop()));
        assert_eq!(poll(now), None);
        assert_eq!(poll(until), Some(tokens[0]));
        assert_eq!((poll(until), pipeline.next_timeout()), (None, None));
    }

    #[test]
    fn acknowledgements_leave_when_the_receiver_has_room() {
        let tokens = tokens(&[1]);
        let mut pipeline = AckPipeline::default();
        let now = Instant::now();
        let mut pending = acks(&tokens);
        pending.wait_for(StreamKey::bidi(1), &receiver(), now + Duration::from_secs(1));
        assert_eq!(pipeline.push(pending), None);
        let context = Context::from_waker(Waker::noop());
        assert_eq!(pipeline.poll_receivers(LIMITS, now, &context), Some(tokens[0]));
    }
}
