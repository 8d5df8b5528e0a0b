//! What the client knows of each stream of one connection.

use std::collections::VecDeque;
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
    pub(super) expires_at: Option<Instant>,
    /// Nothing more goes on it.
    pub(super) is_ending: bool,
    /// This end has ended it: until when the server may take to do so too.
    pub(super) ends_by: Option<Instant>,
    /// When something was last put on it.
    pub(super) used: Instant,
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
            is_ending: false,
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
        self.exchanges == 0 && self.unwritten.is_empty() && !self.is_subscribed && !self.is_ending
    }

    /// When it is to be looked at again.
    fn deadline(&self) -> Option<Instant> {
        self.ends_by.into_iter().chain(self.expires_at).min()
    }
}

#[derive(Debug)]
pub(super) struct Streams {
    control: Stream,
    /// The data streams in ascending order of their keys.
    open: Vec<Stream>,
    /// The server has given credit for a data stream at least once.
    pub(super) has_opened: bool,
}

impl Streams {
    pub(super) fn new(now: Instant) -> Self {
        Self { control: Stream::new(StreamKey::CONTROL, None, now), open: Vec::new(), has_opened: false }
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
        self.find(key).ok().map(|at| self.open.remove(at))
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

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.iter().filter_map(Stream::deadline).min()
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.control.fail(error);
        self.open.iter_mut().for_each(|stream| stream.fail(error));
    }
}
