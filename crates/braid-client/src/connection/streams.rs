//! What the client knows of each stream of one connection.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};

use crate::error::Error;
use crate::request::{Waiter, answer};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) key: StreamKey,
    /// Its lane; the control stream carries many.
    pub(super) slot: Option<usize>,
    /// What the link was told.
    pub(super) priority: Option<Priority>,
    /// Bytes that the link took.
    written: u64,
    /// QoS 0 on its way into the link: the count of bytes after it.
    unwritten: VecDeque<(u64, Waiter<ReasonCode>)>,
    /// Messages of QoS 1 and 2 on it that are not done.
    pub(super) exchanges: usize,
    /// It carried a SUBSCRIBE: messages may come on it.
    pub(super) is_subscribed: bool,
    /// It carried QoS 0, so that only its end tells that the server has everything.
    pub(super) has_unconfirmed: bool,
    /// When its only message is worth nothing any more.
    expires_at: Option<Instant>,
    pub(super) life: Life,
    /// Until when its lane waits for the server to end it too.
    ends_by: Option<Instant>,
    /// When something was last put on it.
    pub(super) used: Instant,
}

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// Nothing more goes on it: once everything on it is done, this end ends it.
    Ending,
    /// This end has ended it: the server is to do so too.
    Ended,
}

impl Stream {
    pub(super) fn new(key: StreamKey, slot: Option<usize>, now: Instant) -> Self {
        Self {
            key,
            slot,
            priority: None,
            written: 0,
            unwritten: VecDeque::new(),
            exchanges: 0,
            is_subscribed: false,
            has_unconfirmed: false,
            expires_at: None,
            life: Life::Open,
            ends_by: None,
            used: now,
        }
    }

    /// A QoS 0 message was put behind the `waiting` bytes that the stream has to write now, itself included.
    pub(super) fn note_unwritten(&mut self, waiting: usize, waiter: Option<Waiter<ReasonCode>>) {
        self.has_unconfirmed = true;
        if let Some(waiter) = waiter {
            self.unwritten.push_back((self.written + waiting as u64, waiter));
        }
    }

    /// The link took so many bytes more.
    pub(super) fn handle_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
        while let Some((at, _)) = self.unwritten.front()
            && *at <= self.written
            && let Some((_, waiter)) = self.unwritten.pop_front()
        {
            answer(waiter, Ok(ReasonCode::Success));
        }
    }

    /// What is not written never will be.
    pub(super) fn fail(&mut self, error: &Error) {
        for (_, waiter) in self.unwritten.drain(..) {
            answer(waiter, Err(error.clone()));
        }
    }

    /// Whether nobody would miss it, once its bytes are written.
    pub(super) fn is_idle(&self) -> bool {
        let is_done = self.exchanges == 0 && self.unwritten.is_empty();
        is_done && !self.is_subscribed && self.life == Life::Open
    }
}

/// What a deadline was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The only message of this stream has expired.
    Expiry(StreamKey),
    /// The lane of this stream waits no longer for its end.
    End(StreamKey),
}

#[derive(Debug)]
pub(super) struct Streams {
    control: Stream,
    /// The data streams in ascending order of their keys.
    open: Vec<Stream>,
    /// Those of [`Life::Ending`]: all others need no look.
    ending: Vec<StreamKey>,
    /// When which is to be looked at.
    deadlines: BTreeSet<(Instant, StreamKey)>,
    /// The server has given credit for a data stream at least once.
    pub(super) has_opened: bool,
}

impl Streams {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            control: Stream::new(StreamKey::CONTROL, None, now),
            open: Vec::new(),
            ending: Vec::new(),
            deadlines: BTreeSet::new(),
            has_opened: false,
        }
    }

    pub(super) fn insert(&mut self, key: StreamKey, slot: usize, now: Instant) {
        self.has_opened = true;
        if let Err(at) = self.find(key) {
            self.open.insert(at, Stream::new(key, Some(slot), now));
        }
    }

    fn find(&self, key: StreamKey) -> Result<usize, usize> {
        self.open.binary_search_by_key(&key, |stream| stream.key)
    }

    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        if key.is_control() {
            return Some(&self.control);
        }
        self.find(key).ok().map(|at| &self.open[at])
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() {
            return Some(&mut self.control);
        }
        self.find(key).ok().map(|at| &mut self.open[at])
    }

    pub(super) fn remove(&mut self, key: StreamKey) -> Option<Stream> {
        let stream = self.find(key).ok().map(|at| self.open.remove(at))?;
        for deadline in stream.expires_at.into_iter().chain(stream.ends_by) {
            self.deadlines.remove(&(deadline, key));
        }
        if stream.life == Life::Ending {
            self.ending.retain(|other| *other != key);
        }
        Some(stream)
    }

    /// The data streams.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.open.iter()
    }

    /// Its place in the order of writing: greater is sooner.
    pub(super) fn rank(&self, key: StreamKey) -> (bool, Option<Priority>) {
        (key.is_control(), self.get(key).and_then(|stream| stream.priority))
    }

    /// Whether every QoS 0 message is written and, on data streams, known to have arrived.
    pub(super) fn is_settled(&self) -> bool {
        self.control.unwritten.is_empty() && self.open.iter().all(|stream| !stream.has_unconfirmed)
    }

    /// Whether QoS 0 went on the control stream.
    pub(super) fn has_unconfirmed_on_control(&self) -> bool {
        self.control.has_unconfirmed
    }

    // -- Ends --------------------------------------------------------------------------------------

    /// Nothing more goes on a stream. Its lane; `None`: it has none, or the stream was ending before.
    pub(super) fn begin_end(&mut self, key: StreamKey) -> Option<usize> {
        let at = self.find(key).ok()?;
        let stream = &mut self.open[at];
        if stream.life != Life::Open {
            return None;
        }
        stream.life = Life::Ending;
        self.ending.push(key);
        stream.slot
    }

    /// The streams that say no more and that this end has not ended.
    pub(super) fn ending(&self) -> &[StreamKey] {
        &self.ending
    }

    /// This end has ended a stream. Its lane waits for the server until then.
    pub(super) fn end(&mut self, key: StreamKey, ends_by: Option<Instant>) {
        self.ending.retain(|other| *other != key);
        let Ok(at) = self.find(key) else { return };
        let stream = &mut self.open[at];
        stream.life = Life::Ended;
        if let Some(old) = std::mem::replace(&mut stream.ends_by, ends_by) {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.extend(ends_by.map(|by| (by, key)));
    }

    /// The only message of a stream is worth nothing any more from then on.
    pub(super) fn set_expiry(&mut self, key: StreamKey, at: Option<Instant>) {
        let Some(stream) = self.get_mut(key) else { return };
        if let Some(old) = std::mem::replace(&mut stream.expires_at, at) {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.extend(at.map(|at| (at, key)));
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// A stream whose message has expired, or whose lane has waited long enough.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Due> {
        loop {
            let (deadline, key) = *self.deadlines.first().filter(|(deadline, _)| *deadline <= now)?;
            self.deadlines.pop_first();
            let Some(stream) = self.get_mut(key) else { continue };
            if stream.expires_at == Some(deadline) {
                stream.expires_at = None;
                if stream.ends_by == Some(deadline) {
                    self.deadlines.insert((deadline, key));
                }
                return Some(Due::Expiry(key));
            }
            if stream.ends_by == Some(deadline) {
                stream.ends_by = None;
                return Some(Due::End(key));
            }
        }
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.control.fail(error);
        self.open.iter_mut().for_each(|stream| stream.fail(error));
    }
}
