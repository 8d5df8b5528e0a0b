//! The streams of one connection: each has a parser, aliases and an outbox of its own, and no state of the session.

use std::collections::VecDeque;

use super::alias::InboundAliases;
use super::outbox::Outbox;
use crate::codec::Decoder;
use crate::error::Violation;
use crate::packet::{Packet, ProtocolVersion};
use crate::reason::ReasonCode;
use crate::stream::StreamKey;
use crate::topic::TopicName;

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
    pub(crate) outbox: Outbox,
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
    pub(crate) control: Stream,
    /// Acknowledgements of requests on the control stream that wait for their turn.
    control_owed: usize,
    /// In ascending order. [BQ-2]
    data: Vec<DataStream>,
    limits: StreamLimits,
    /// Bytes of incomplete packets on the data streams.
    partial: usize,
    /// Streams of `data` that are finishing.
    finishing: usize,
    actions: VecDeque<StreamAction>,
}

impl Streams {
    pub(crate) fn new(limits: StreamLimits) -> Self {
        Self {
            control: Stream::new(limits),
            control_owed: 0,
            data: Vec::new(),
            limits,
            partial: 0,
            finishing: 0,
            actions: VecDeque::new(),
        }
    }

    fn find(&self, key: StreamKey) -> Option<&DataStream> {
        self.data.binary_search_by_key(&key, |stream| stream.key).ok().map(|at| &self.data[at])
    }

    fn find_mut(&mut self, key: StreamKey) -> Option<&mut DataStream> {
        self.data.binary_search_by_key(&key, |stream| stream.key).ok().map(|at| &mut self.data[at])
    }

    /// A stream that has not ended.
    pub(crate) fn get(&self, key: StreamKey) -> Option<&Stream> {
        if key.is_control() {
            return Some(&self.control);
        }
        self.find(key).map(|data| &data.stream)
    }

    /// A stream that has not ended in both directions.
    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() {
            return Some(&mut self.control);
        }
        self.find_mut(key).map(|data| &mut data.stream)
    }

    /// A stream on which something may still be sent.
    pub(crate) fn writer(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() {
            return Some(&mut self.control);
        }
        let data = self.find_mut(key).filter(|data| data.life != Life::Finished)?;
        Some(&mut data.stream)
    }

    /// Whether this side ends the stream, or has ended it.
    pub(crate) fn is_ending(&self, key: StreamKey) -> bool {
        self.find(key).is_some_and(|data| data.life != Life::Open)
    }

    /// Whether nothing can be said on the stream any more.
    pub(crate) fn is_finished(&self, key: StreamKey) -> bool {
        self.find(key).is_none_or(|data| data.life == Life::Finished)
    }

    /// Where something for `key` goes that is answered there: there, or on the control stream when it has ended or
    /// has one direction. [BQ-42]
    pub(crate) fn resolve(&self, key: StreamKey) -> StreamKey {
        let is_open = || self.find(key).is_some_and(|data| data.life == Life::Open && !key.is_uni());
        if key.is_control() || is_open() { key } else { StreamKey::CONTROL }
    }

    /// Where something for `key` goes that nobody answers.
    pub(crate) fn resolve_unanswered(&self, key: StreamKey) -> StreamKey {
        let is_ours = self.limits.is_client && key.is_uni();
        if is_ours && self.find(key).is_some_and(|data| data.life == Life::Open) {
            key
        } else {
            self.resolve(key)
        }
    }

    /// Whether data streams other than `key` are open in both directions.
    pub(crate) fn has_others(&self, key: StreamKey) -> bool {
        self.data.iter().any(|data| data.key != key && data.life == Life::Open && !data.key.is_uni())
    }

    /// The topic of a PUBLISH on this stream. [BQ-18]
    pub(crate) fn resolve_topic(
        &mut self,
        key: StreamKey,
        topic: Option<TopicName>,
        alias: Option<u16>,
    ) -> Result<TopicName, Violation> {
        if let (None, Some(alias), false) = (&topic, alias, key.is_control())
            && self.find(key).is_some_and(|data| data.stream.aliases.find(alias).is_none())
        {
            return self.control.aliases.resolve(topic, Some(alias));
        }
        self.get_mut(key).ok_or(Violation::NoTopic)?.aliases.resolve(topic, alias)
    }

    // -- Life --------------------------------------------------------------------------------------

    /// Adds a data stream; nothing if it is there already.
    pub(crate) fn open(&mut self, key: StreamKey) {
        let Err(at) = self.data.binary_search_by_key(&key, |stream| stream.key) else { return };
        if key.is_control() {
            return;
        }
        let decoder = Decoder::new(self.limits.version, self.limits.maximum_packet_size);
        let stream = Stream::new(self.limits);
        let life = Life::Open;
        self.data.insert(at, DataStream { key, stream, decoder, owed: 0, life, is_ended_by_peer: false });
    }

    /// This side has nothing new to say on a stream. False: it is known, or there is no such stream.
    pub(crate) fn close(&mut self, key: StreamKey) -> bool {
        let Some(data) = self.find_mut(key).filter(|data| data.life == Life::Open) else { return false };
        data.life = Life::Finishing;
        self.finishing += 1;
        true
    }

    /// FIN of the peer on a stream on which nothing came.
    pub(crate) fn close_by_peer(&mut self, key: StreamKey) {
        if let Some(data) = self.find_mut(key) {
            data.is_ended_by_peer = true;
            self.close(key);
        }
    }

    /// FIN of the peer: ours follows, if it has not been sent. True: this is the end of the stream. [BQ-30]
    ///
    /// # Errors
    /// It came within a packet.
    pub(crate) fn finish(&mut self, key: StreamKey) -> Result<bool, Violation> {
        let Some(data) = self.find_mut(key) else { return Ok(false) };
        if data.decoder.partial_len() > 0 {
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
        let Some(data) = self.find_mut(key).filter(|data| data.life != Life::Finished) else { return false };
        data.stream.outbox.clear();
        let was_finishing = std::mem::replace(&mut data.life, Life::Finished) == Life::Finishing;
        let is_over = data.is_ended_by_peer;
        self.finishing -= usize::from(was_finishing);
        if is_over {
            self.remove(key);
        }
        true
    }

    /// Ends a stream here and now. False: it had ended before.
    pub(crate) fn remove(&mut self, key: StreamKey) -> bool {
        let Ok(at) = self.data.binary_search_by_key(&key, |stream| stream.key) else { return false };
        let data = self.data.remove(at);
        self.partial -= data.decoder.partial_len();
        self.finishing -= usize::from(data.life == Life::Finishing);
        if self.data.is_empty() {
            self.data = Vec::new(); // An idle connection keeps no table.
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
        if self.finishing == 0 {
            return None;
        }
        let is_done = |data: &&mut DataStream| {
            data.life == Life::Finishing && data.owed == 0 && data.stream.outbox.is_empty()
        };
        let data = self.data.iter_mut().find(is_done)?;
        let key = data.key;
        if data.is_ended_by_peer || key.is_uni() {
            self.remove(key);
        } else {
            data.life = Life::Finished;
            self.finishing -= 1;
        }
        // There is nothing to finish where only the peer sends.
        let is_written = !key.is_uni() || self.limits.is_client;
        if is_written { Some(StreamAction::Finish(key)) } else { self.poll_action() }
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// The next packet of a data stream. `None`: more is needed, or the stream has ended.
    pub(crate) fn decode(&mut self, key: StreamKey, input: &mut &[u8]) -> Result<Option<Packet>, Violation> {
        let Some(data) = self.find_mut(key) else { return Ok(None) };
        let before = data.decoder.partial_len();
        let packet = data.decoder.decode(input);
        let after = data.decoder.partial_len();
        self.partial = self.partial - before + after;
        packet
    }

    /// Whether more of a data stream may be read: incomplete packets must not fill the memory. [BQ-45]
    pub(crate) fn is_reading(&self, key: StreamKey) -> bool {
        let Some(data) = self.find(key) else { return false };
        self.partial <= self.limits.partial_bytes
            || data.decoder.partial_len() < PARTIAL_FREE
            || self.hoarder() == Some(key)
    }

    /// The stream whose incomplete packet the others wait for.
    pub(crate) fn hoarder(&self) -> Option<StreamKey> {
        if self.partial <= self.limits.partial_bytes {
            return None;
        }
        self.data.iter().find(|data| data.decoder.partial_len() >= PARTIAL_FREE).map(|data| data.key)
    }

    /// An acknowledgement of a request on this stream is owed, or no longer.
    pub(crate) fn owe(&mut self, key: StreamKey, one_more: bool) {
        let owed = match self.find_mut(key) {
            Some(data) => &mut data.owed,
            None if key.is_control() => &mut self.control_owed,
            None => return,
        };
        *owed = if one_more { *owed + 1 } else { owed.saturating_sub(1) };
    }

    /// How many acknowledgements of requests on this stream wait for their turn.
    pub(crate) fn owed(&self, key: StreamKey) -> Option<usize> {
        if key.is_control() {
            return Some(self.control_owed);
        }
        self.find(key).map(|data| data.owed)
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// The streams that have something to write, the control stream first.
    pub(crate) fn to_write(&self) -> impl Iterator<Item = StreamKey> {
        let control = (!self.control.outbox.is_empty()).then_some(StreamKey::CONTROL);
        let has_some = |data: &&DataStream| !data.stream.outbox.is_empty();
        control.into_iter().chain(self.data.iter().filter(has_some).map(|data| data.key))
    }

    fn outboxes(&self) -> impl Iterator<Item = &Outbox> {
        std::iter::once(&self.control.outbox).chain(self.data.iter().map(|data| &data.stream.outbox))
    }

    /// Bytes to write on all streams.
    pub(crate) fn unwritten(&self) -> usize {
        self.outboxes().map(Outbox::len).sum()
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
