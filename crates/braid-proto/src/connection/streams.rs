//! The streams of one connection: each has a parser, aliases and an outbox of its own, and no state of the session.
//!
//! No method looks at every stream: what holds for all of them is kept as a sum or a set.

mod sums;
mod table;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::alias::InboundAliases;
use super::outbox::Outbox;
use crate::decoder::{Decoder, Spool};
use crate::error::Violation;
use crate::packet::{Packet, ProtocolVersion};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;
use crate::topic::TopicName;

use sums::Sums;
use table::Table;

/// An incomplete packet of this many bytes may grow further, whatever others hold.
const PARTIAL_FREE: usize = 64 * 1024;

/// What the shell is to do with a data stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Send FIN: everything that the stream had to say is written. [BQ-30]
    Finish(StreamKey),
    /// Send RESET_STREAM and STOP_SENDING with this code. [BQ-34]
    Abort(StreamKey, ReasonCode),
}

/// What each stream of a connection has of its own.
#[derive(Debug)]
pub(crate) struct Stream {
    outbox: Outbox,
    pub(crate) aliases: InboundAliases,
    /// QoS 1 messages that came on it and whose PUBACK has not been sent.
    pub(crate) unacknowledged: u16,
}

#[derive(Debug)]
struct DataStream {
    key: StreamKey,
    stream: Stream,
    decoder: Decoder,
    /// Acknowledgements that wait for their turn.
    owed: usize,
    life: Life,
    /// The peer has sent FIN.
    is_ended_by_peer: bool,
    /// Bytes in the outbox when they were counted last.
    counted: usize,
    /// When more of an incomplete packet came last, while there is one.
    heard_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Open,
    /// FIN of ours follows what is owed and what is in the outbox.
    Finishing,
    /// FIN of ours is sent, that of the peer is to come.
    Finished,
}

/// What holds for every stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    pub(crate) version: ProtocolVersion,
    pub(crate) maximum_packet_size: usize,
    pub(crate) topic_aliases: u16,
    /// Bytes of incomplete packets on all data streams; the oldest stream may exceed it.
    pub(crate) partial_bytes: usize,
    /// This side opens the streams: it writes the unidirectional ones.
    pub(crate) is_client: bool,
}

#[derive(Debug)]
pub(crate) struct Streams {
    control: Stream,
    /// Acknowledgements of requests on the control stream that wait for their turn.
    control_owed: usize,
    data: Table, // [BQ-2]
    limits: StreamLimits,
    /// Where large packets are received.
    spool: Option<Arc<dyn Spool>>,
    sums: Sums,
    /// Bytes in the heap of incomplete packets on the data streams.
    partial: usize,
    /// The streams with an incomplete packet from [`PARTIAL_FREE`] on.
    heavy: BTreeSet<StreamKey>,
    /// The streams with an incomplete packet, by when more of it came last.
    heard: BTreeSet<(Instant, StreamKey)>,
    actions: VecDeque<StreamAction>,
}

impl Streams {
    pub(crate) fn new(limits: StreamLimits) -> Self {
        Self {
            control: Stream::new(limits),
            control_owed: 0,
            data: Table::default(),
            limits,
            spool: None,
            sums: Sums::default(),
            partial: 0,
            heavy: BTreeSet::new(),
            heard: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    /// The bytes to send on a stream that has not ended in both directions.
    pub(crate) fn outbox(&self, key: StreamKey) -> Option<&Outbox> {
        if key.is_control() {
            return Some(&self.control.outbox);
        }
        self.data.find(key).map(|data| &data.stream.outbox)
    }

    /// Bytes of the control stream that were taken since it began, and where the next one put into it will be.
    pub(crate) fn control_progress(&self) -> (u64, u64) {
        (self.control.outbox.taken(), self.control.outbox.end())
    }

    /// The same of a stream on which something may still be sent, to add to them or take of them.
    pub(crate) fn outbox_mut(&mut self, key: StreamKey) -> Option<&mut Outbox> {
        if key.is_control() {
            return Some(&mut self.control.outbox);
        }
        self.sums.lend(&mut self.data, key);
        let data = self.data.find_mut(key).filter(|data| data.life != Life::Finished)?;
        Some(&mut data.stream.outbox)
    }

    /// What was encoded before there were streams.
    pub(crate) fn set_control_outbox(&mut self, outbox: Outbox) {
        self.control.outbox = outbox;
    }

    /// The last words of a connection that ends: only the control stream has any.
    pub(crate) fn take_control_outbox(&mut self) -> Outbox {
        std::mem::take(&mut self.control.outbox)
    }

    /// A stream that has not ended in both directions.
    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() {
            return Some(&mut self.control);
        }
        self.data.find_mut(key).map(|data| &mut data.stream)
    }

    /// Whether this side ends the stream, or has ended it.
    pub(crate) fn is_ending(&self, key: StreamKey) -> bool {
        self.data.find(key).is_some_and(|data| data.life != Life::Open)
    }

    /// Whether nothing can be said on the stream any more.
    pub(crate) fn is_finished(&self, key: StreamKey) -> bool {
        self.data.find(key).is_none_or(|data| data.life == Life::Finished)
    }

    /// Whether a client's shell has heard of the end of the stream: the server has finished it, or need not.
    pub(crate) fn has_told_end(&self, key: StreamKey) -> bool {
        let is_over = |data: &DataStream| data.is_ended_by_peer || key.is_uni() && data.life != Life::Open;
        self.data.find(key).is_some_and(is_over)
    }

    /// Where something for `key` goes that is answered there: there, or on the control stream when it has ended or
    /// has one direction. [BQ-42]
    pub(crate) fn resolve(&self, key: StreamKey) -> StreamKey {
        let is_open = || self.data.find(key).is_some_and(DataStream::is_open);
        if key.is_control() || is_open() { key } else { StreamKey::CONTROL }
    }

    /// Where something for `key` goes that nobody answers.
    pub(crate) fn resolve_unanswered(&self, key: StreamKey) -> StreamKey {
        let is_ours = self.limits.is_client && key.is_uni();
        if is_ours && self.data.find(key).is_some_and(|data| data.life == Life::Open) {
            key
        } else {
            self.resolve(key)
        }
    }

    /// Whether data streams other than `key` are open in both directions.
    pub(crate) fn has_others(&self, key: StreamKey) -> bool {
        let own = self.data.find(key).is_some_and(DataStream::is_open);
        self.sums.open > usize::from(own)
    }

    /// The topic of a PUBLISH on this stream. [BQ-18]
    pub(crate) fn resolve_topic(
        &mut self,
        key: StreamKey,
        topic: Option<TopicName>,
        alias: Option<u16>,
    ) -> Result<TopicName, Violation> {
        if let (None, Some(alias), false) = (&topic, alias, key.is_control())
            && self.data.find(key).is_some_and(|data| data.stream.aliases.find(alias).is_none())
        {
            return self.control.aliases.resolve(topic, Some(alias));
        }
        self.get_mut(key).ok_or(Violation::NoTopic)?.aliases.resolve(topic, alias)
    }

    // -- Life --------------------------------------------------------------------------------------

    /// Where large packets are received on the data streams that begin from now on.
    pub(crate) fn set_spool(&mut self, spool: Option<Arc<dyn Spool>>) {
        self.spool = spool;
    }

    /// Adds a data stream; nothing if it is there already.
    pub(crate) fn open(&mut self, key: StreamKey) {
        if key.is_control() || self.data.find(key).is_some() {
            return;
        }
        let mut decoder = Decoder::new(self.limits.version, self.limits.maximum_packet_size);
        decoder.set_spool(self.spool.clone());
        let data = DataStream {
            key,
            stream: Stream::new(self.limits),
            decoder,
            owed: 0,
            life: Life::Open,
            is_ended_by_peer: false,
            counted: 0,
            heard_at: None,
        };
        self.sums.open += usize::from(data.is_open());
        self.data.insert(key, data);
    }

    /// This side has nothing new to say on a stream. False: it is known, or there is no such stream.
    pub(crate) fn close(&mut self, key: StreamKey) -> bool {
        let Some(data) = self.data.find_mut(key).filter(|data| data.life == Life::Open) else { return false };
        self.sums.open -= usize::from(data.is_open());
        data.life = Life::Finishing;
        self.sums.note_finished(data);
        true
    }

    /// FIN of the peer on a stream on which nothing came.
    pub(crate) fn close_by_peer(&mut self, key: StreamKey) {
        if let Some(data) = self.data.find_mut(key) {
            data.is_ended_by_peer = true;
            self.close(key);
        }
    }

    /// FIN of the peer: ours follows, if it has not been sent. True: this is the end of the stream. [BQ-30]
    ///
    /// # Errors
    /// It came within a packet.
    pub(crate) fn finish(&mut self, key: StreamKey) -> Result<bool, Violation> {
        let Some(data) = self.data.find_mut(key) else { return Ok(false) };
        if data.decoder.is_partial() {
            return Err(Violation::Truncated);
        }
        let is_first = !std::mem::replace(&mut data.is_ended_by_peer, true);
        if data.life == Life::Finished {
            self.remove(key);
        } else {
            self.close(key);
        }
        Ok(is_first)
    }

    /// STOP_SENDING of the peer: nothing can be said any more, but it is still listened to. True: this is the end of
    /// what the session had there. [BQ-33]
    pub(crate) fn mute(&mut self, key: StreamKey) -> bool {
        let Some(outbox) = self.outbox_mut(key).filter(|_| !key.is_control()) else { return false };
        outbox.clear();
        self.sums.settle(&mut self.data);
        let Some(data) = self.data.find_mut(key) else { return false };
        self.sums.open -= usize::from(data.is_open());
        data.life = Life::Finished;
        if data.is_ended_by_peer {
            self.remove(key);
        }
        true
    }

    /// Ends a stream here and now. False: it had ended before.
    pub(crate) fn remove(&mut self, key: StreamKey) -> bool {
        let Some(data) = self.data.remove(key) else { return false };
        self.sums.open -= usize::from(data.is_open());
        self.sums.forget(&data);
        self.partial -= data.decoder.partial_len();
        self.heavy.remove(&key);
        if let Some(at) = data.heard_at {
            self.heard.remove(&(at, key));
        }
        true
    }

    /// Ends a stream and tells the shell.
    pub(crate) fn abort(&mut self, key: StreamKey, reason: ReasonCode) -> bool {
        let was_open = self.remove(key);
        if was_open {
            self.actions.push_back(StreamAction::Abort(key, reason));
        }
        was_open
    }

    pub(crate) fn poll_action(&mut self) -> Option<StreamAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        while let Some(key) = self.sums.pop_finished(&mut self.data) {
            let Some(data) = self.data.find_mut(key) else { continue };
            data.life = Life::Finished;
            if data.is_ended_by_peer || key.is_uni() {
                self.remove(key);
            }
            // There is nothing to finish where only the peer sends.
            if !key.is_uni() || self.limits.is_client {
                return Some(StreamAction::Finish(key));
            }
        }
        None
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// The next packet of a data stream. `None`: more is needed, or the stream has ended.
    pub(crate) fn decode(&mut self, key: StreamKey, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        let Some(data) = self.data.find_mut(key) else { return Ok(None) };
        let before = data.decoder.partial_len();
        let packet = data.decoder.decode(input);
        let after = data.decoder.partial_len();
        self.partial = self.partial - before + after;
        if before < PARTIAL_FREE && after >= PARTIAL_FREE {
            self.heavy.insert(key);
        } else if before >= PARTIAL_FREE && after < PARTIAL_FREE {
            self.heavy.remove(&key);
        }
        packet
    }

    /// Whether more of a data stream may be read: incomplete packets must not fill the memory. [BQ-45]
    pub(crate) fn is_reading(&self, key: StreamKey) -> bool {
        let Some(data) = self.data.find(key) else { return false };
        self.partial <= self.limits.partial_bytes
            || data.decoder.partial_len() < PARTIAL_FREE
            || self.hoarder() == Some(key)
    }

    /// Something came on a stream; whether it left a packet incomplete.
    pub(crate) fn note_heard(&mut self, key: StreamKey, now: Instant) -> bool {
        let Some(data) = self.data.find_mut(key) else { return false };
        let heard_at = data.decoder.is_partial().then_some(now);
        let before = std::mem::replace(&mut data.heard_at, heard_at);
        if let Some(at) = before.filter(|_| before != heard_at) {
            self.heard.remove(&(at, key));
        }
        self.heard.extend(heard_at.map(|at| (at, key)));
        heard_at.is_some()
    }

    /// The stream whose incomplete packet stands still longest, and since when.
    pub(crate) fn stillest(&self) -> Option<(Instant, StreamKey)> {
        self.heard.first().copied()
    }

    /// Bytes of incomplete packets on the data streams.
    pub(crate) fn partial_len(&self) -> usize {
        self.partial
    }

    /// The stream whose incomplete packet the others wait for.
    pub(crate) fn hoarder(&self) -> Option<StreamKey> {
        if self.partial <= self.limits.partial_bytes {
            return None;
        }
        self.heavy.first().copied()
    }

    /// An acknowledgement of a request on this stream is owed, or no longer.
    pub(crate) fn owe(&mut self, key: StreamKey, one_more: bool) {
        let next = |owed: usize| if one_more { owed + 1 } else { owed.saturating_sub(1) };
        if key.is_control() {
            self.control_owed = next(self.control_owed);
        } else if let Some(data) = self.data.find_mut(key) {
            data.owed = next(data.owed);
            self.sums.note_finished(data);
        }
    }

    /// How many acknowledgements of requests on this stream wait for their turn.
    pub(crate) fn owed(&self, key: StreamKey) -> Option<usize> {
        if key.is_control() {
            return Some(self.control_owed);
        }
        self.data.find(key).map(|data| data.owed)
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// The streams that have something to write, the control stream first.
    pub(crate) fn to_write(&self) -> impl Iterator<Item = StreamKey> {
        let control = (!self.control.outbox.is_empty()).then_some(StreamKey::CONTROL);
        control.into_iter().chain(self.sums.to_write(&self.data))
    }

    /// Bytes to write on all streams.
    pub(crate) fn unwritten(&self) -> usize {
        #[cfg(debug_assertions)]
        self.check_sums();
        self.control.outbox.len() + self.sums.unwritten(&self.data)
    }

    /// Compares what is kept with what a look at every stream gives.
    #[cfg(debug_assertions)]
    fn check_sums(&self) {
        let all = || self.data.recount();
        let sum = |of: fn(&DataStream) -> usize| all().map(|(_, data)| of(data)).sum::<usize>();
        let those = |wanted: fn(&DataStream) -> bool| {
            all().filter(move |(_, data)| wanted(data)).map(|(key, _)| key).collect::<BTreeSet<_>>()
        };
        debug_assert_eq!(self.sums.unwritten(&self.data), sum(|data| data.stream.outbox.len()));
        debug_assert!(those(DataStream::is_done).iter().all(|key| self.sums.notes_finished(*key)));
        debug_assert_eq!(self.partial, sum(|data| data.decoder.partial_len()));
        debug_assert_eq!(self.sums.open, sum(|data| data.is_open().into()));
        debug_assert_eq!(self.heavy, those(|data| data.decoder.partial_len() >= PARTIAL_FREE));
        let to_write: Vec<_> = self.sums.to_write(&self.data).collect();
        debug_assert_eq!(to_write, Vec::from_iter(those(|data| !data.stream.outbox.is_empty())));
    }
}

impl DataStream {
    /// Whether something is said here and answered.
    fn is_open(&self) -> bool {
        self.life == Life::Open && !self.key.is_uni()
    }

    /// Whether there is nothing left before FIN.
    fn is_done(&self) -> bool {
        self.life == Life::Finishing && self.owed == 0 && self.stream.outbox.is_empty()
    }
}

impl Stream {
    fn new(limits: StreamLimits) -> Self {
        Self {
            outbox: Outbox::default(),
            aliases: InboundAliases::new(limits.topic_aliases),
            unacknowledged: 0,
        }
    }
}
