//! Stream table: the sending state of each stream of one connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};

use crate::error::Error;
use crate::send_queue::{Waiter, answer};

/// Sending half of one stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// Index of its lane; `None` on the control stream, which many share, and once the lane has moved on.
    lane: Option<usize>,
    /// Priority of the stream in the link.
    priority: Option<Priority>,
    /// Bytes written to the link.
    written: u64,
    /// QoS 0 messages that are not written in full: the value of `written` behind their last byte, and the caller.
    unwritten: VecDeque<(u64, Waiter<ReasonCode>)>,
    /// Inflight messages of QoS 1 and 2.
    inflight: usize,
    /// Whether the stream carried a SUBSCRIBE, so that messages may arrive on it.
    is_subscribed: bool,
    /// Whether the stream carried QoS 0, which only the server's FIN confirms.
    has_unconfirmed: bool,
    /// Expiry of the only message of the stream.
    expires_at: Option<Instant>,
    phase: Phase,
    /// Time limit of the wait for the server's FIN.
    ends_by: Option<Instant>,
    /// Time of the last PUBLISH or acknowledgement.
    last_used: Instant,
}

/// State of the sending half of a stream: a reduced form of RFC 9000, 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// The stream takes no further request; FIN follows once its messages are acknowledged.
    Ending,
    /// FIN was sent; the server's is awaited.
    Ended,
}

impl Stream {
    fn new(lane: Option<usize>, now: Instant) -> Self {
        Self {
            lane,
            priority: None,
            written: 0,
            unwritten: VecDeque::new(),
            inflight: 0,
            is_subscribed: false,
            has_unconfirmed: false,
            expires_at: None,
            phase: Phase::Open,
            ends_by: None,
            last_used: now,
        }
    }

    pub(super) fn lane(&self) -> Option<usize> {
        self.lane
    }

    /// Separates the stream from its lane, which goes on with another stream.
    pub(super) fn take_lane(&mut self) -> Option<usize> {
        self.lane.take()
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn is_subscribed(&self) -> bool {
        self.is_subscribed
    }

    pub(super) fn has_unconfirmed(&self) -> bool {
        self.has_unconfirmed
    }

    pub(super) fn has_inflight(&self) -> bool {
        self.inflight > 0
    }

    /// Raises the priority, or lowers it while the stream `is_idle`. True: it changed.
    pub(super) fn raise_priority(&mut self, priority: Priority, is_idle: bool) -> bool {
        let changes = self.priority < Some(priority) || (is_idle && self.priority > Some(priority));
        if changes {
            self.priority = Some(priority);
        }
        changes
    }

    pub(super) fn note_subscribe(&mut self) {
        self.is_subscribed = true;
    }

    /// Notes a PUBLISH. `is_acknowledged`: QoS 1 or 2.
    pub(super) fn note_publish(&mut self, is_acknowledged: bool, now: Instant) {
        self.last_used = now;
        self.inflight += usize::from(is_acknowledged);
    }

    /// Notes the last acknowledgement of a message.
    pub(super) fn handle_acknowledged(&mut self, now: Instant) {
        self.inflight = self.inflight.saturating_sub(1);
        self.last_used = now;
    }

    /// Notes a QoS 0 message that ends `queued` bytes after what the link has taken.
    pub(super) fn note_unwritten(&mut self, queued: usize, waiter: Option<Waiter<ReasonCode>>) {
        self.has_unconfirmed = true;
        if let Some(waiter) = waiter {
            self.unwritten.push_back((self.written + queued as u64, waiter));
        }
    }

    /// Notes that `bytes` more were written to the link.
    pub(super) fn handle_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        while let Some((at, _)) = self.unwritten.front()
            && *at <= self.written
            && let Some((_, waiter)) = self.unwritten.pop_front()
        {
            answer(waiter, Ok(ReasonCode::Success));
        }
    }

    /// Fails the QoS 0 messages that are not written.
    pub(super) fn fail(&mut self, error: &Error) {
        for (_, waiter) in self.unwritten.drain(..) {
            answer(waiter, Err(error.clone()));
        }
    }

    /// Whether the stream can be ended without delaying anything, once its bytes are written.
    fn is_idle(&self) -> bool {
        let is_done = self.inflight == 0 && self.unwritten.is_empty();
        is_done && !self.is_subscribed && self.phase == Phase::Open
    }
}

/// Deadline of a stream that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamDeadline {
    /// The only message of this stream has expired.
    Expiry(StreamKey),
    /// The server's FIN did not arrive in time.
    Fin(StreamKey),
}

/// Streams of one connection.
#[derive(Debug)]
pub(super) struct Streams {
    control: Stream,
    data: BTreeMap<StreamKey, Stream>,
    /// Streams of [`Phase::Ending`].
    ending: Vec<StreamKey>,
    deadlines: BTreeSet<(Instant, StreamKey)>,
    /// Whether the server has given credit for a data stream at least once.
    has_opened: bool,
}

impl Streams {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            control: Stream::new(None, now),
            data: BTreeMap::new(),
            ending: Vec::new(),
            deadlines: BTreeSet::new(),
            has_opened: false,
        }
    }

    /// Adds a data stream for a lane.
    pub(super) fn insert(&mut self, key: StreamKey, lane: usize, now: Instant) {
        self.has_opened = true;
        self.data.entry(key).or_insert_with(|| Stream::new(Some(lane), now));
    }

    /// Whether a data stream was ever opened on this connection.
    pub(super) fn has_opened(&self) -> bool {
        self.has_opened
    }

    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        if key.is_control() { Some(&self.control) } else { self.data.get(&key) }
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() { Some(&mut self.control) } else { self.data.get_mut(&key) }
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.data.remove(&key)?;
        for deadline in stream.expires_at.into_iter().chain(stream.ends_by) {
            self.deadlines.remove(&(deadline, key));
        }
        if stream.phase == Phase::Ending {
            self.ending.retain(|other| *other != key);
        }
        Some(stream)
    }

    /// Order of writing: greater is sooner.
    pub(super) fn write_order(&self, key: StreamKey) -> (bool, Option<Priority>) {
        (key.is_control(), self.get(key).and_then(|stream| stream.priority))
    }

    /// Whether every QoS 0 message is written and, on data streams, known to have arrived.
    pub(super) fn is_settled(&self) -> bool {
        self.control.unwritten.is_empty() && self.data.values().all(|stream| !stream.has_unconfirmed)
    }

    /// Whether QoS 0 went on the control stream.
    pub(super) fn has_unconfirmed_on_control(&self) -> bool {
        self.control.has_unconfirmed
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.control.fail(error);
        self.data.values_mut().for_each(|stream| stream.fail(error));
    }

    // -- Ends --------------------------------------------------------------------------------------

    /// Whether a stream that is about to end still has a lane, which then needs a stream again.
    pub(super) fn is_any_ending(&self) -> bool {
        self.data.values().any(|stream| stream.phase != Phase::Open && stream.lane.is_some())
    }

    /// Least recently used idle stream of a lane for which `may_end` is true.
    pub(super) fn longest_idle(&self, may_end: impl Fn(usize) -> bool) -> Option<StreamKey> {
        let may_end = |stream: &Stream| stream.is_idle() && stream.lane.is_some_and(&may_end);
        let idle = self.data.iter().filter(|(_, stream)| may_end(stream));
        idle.min_by_key(|(_, stream)| stream.last_used).map(|(key, _)| *key)
    }

    /// Open data streams that carried QoS 0, which only the server's FIN confirms.
    pub(super) fn unconfirmed(&self) -> Vec<StreamKey> {
        let is_unconfirmed = |stream: &Stream| stream.has_unconfirmed && stream.phase == Phase::Open;
        self.data.iter().filter(|(_, stream)| is_unconfirmed(stream)).map(|(key, _)| *key).collect()
    }

    /// Begins the end of a stream, which takes no further request. Returns its lane; `None`: it has none, or was ending
    /// before.
    pub(super) fn begin_end(&mut self, key: StreamKey) -> Option<usize> {
        let stream = self.data.get_mut(&key).filter(|stream| stream.phase == Phase::Open)?;
        stream.phase = Phase::Ending;
        self.ending.push(key);
        stream.lane
    }

    /// Streams of [`Phase::Ending`].
    pub(super) fn ending(&self) -> &[StreamKey] {
        &self.ending
    }

    /// Notes FIN or RESET_STREAM of this side. The lane waits for the server's FIN until `ends_by`.
    pub(super) fn end(&mut self, key: StreamKey, ends_by: Option<Instant>) {
        self.ending.retain(|other| *other != key);
        let Some(stream) = self.data.get_mut(&key) else { return };
        stream.phase = Phase::Ended;
        if let Some(old) = std::mem::replace(&mut stream.ends_by, ends_by) {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.extend(ends_by.map(|by| (by, key)));
    }

    /// Sets the expiry of the only message of a stream.
    pub(super) fn set_expiry(&mut self, key: StreamKey, at: Option<Instant>) {
        let Some(stream) = self.get_mut(key) else { return };
        if let Some(old) = std::mem::replace(&mut stream.expires_at, at) {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.extend(at.map(|at| (at, key)));
    }

    /// Next deadline of any stream.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Takes a deadline that has passed.
    pub(super) fn pop_deadline(&mut self, now: Instant) -> Option<StreamDeadline> {
        loop {
            let (deadline, key) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
            self.deadlines.pop_first();
            let Some(stream) = self.get_mut(key) else { continue };
            if stream.expires_at == Some(deadline) {
                stream.expires_at = None;
                if stream.ends_by == Some(deadline) {
                    self.deadlines.insert((deadline, key));
                }
                return Some(StreamDeadline::Expiry(key));
            }
            if stream.ends_by == Some(deadline) {
                stream.ends_by = None;
                return Some(StreamDeadline::Fin(key));
            }
        }
    }
}
