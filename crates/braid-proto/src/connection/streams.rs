//! Streams of one connection. Each has a decoder, Topic Aliases and an outbox of its own, and no Session State.
//!
//! No method visits every stream: facts about all of them are kept as sums and sets, so that a peer with many streams
//! makes no call slower.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::stream::{InboundAliases, Outbox};
use super::traffic::{StreamReport, StreamTraffic};
use super::{Agreement, StreamAction};
use crate::decoder::{Decoder, PartialMessage, PartialMessages, Spool};
use crate::packet::BorrowedPacket;
use crate::types::{ReasonCode, StreamKey, TopicName, Violation};
use crate::work;

/// Incomplete packets below this many bytes may grow while those on other streams are held back.
const LARGE_PARTIAL: usize = 64 * 1024;

/// State that control stream and data streams have in common.
#[derive(Debug)]
pub(crate) struct Stream {
    outbox: Outbox,
    aliases: InboundAliases,
    /// QoS 1 messages received on it whose PUBACK has not been sent.
    pub(crate) unacknowledged: u16,
    /// Acknowledgements of requests on it that are not in its outbox yet.
    pending_acks: u32,
    traffic: StreamTraffic,
}

/// Data stream, until it has ended in both directions.
#[derive(Debug)]
struct DataStream {
    key: StreamKey,
    stream: Stream,
    decoder: Decoder,
    state: StreamState,
    /// Whether the peer has sent FIN.
    is_ended_by_peer: bool,
    /// Bytes of the outbox that [`StreamTotals::unwritten`] includes.
    counted: usize,
    /// Last arrival of bytes of the incomplete packet, while there is one.
    progressed_at: Option<Instant>,
}

/// State of the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    Open,
    /// FIN follows the pending acknowledgements and the bytes of the outbox.
    Finishing,
    /// FIN is sent, or the peer refuses bytes. The peer's FIN is outstanding.
    Finished,
}

/// Control stream and data streams of one connection.
#[derive(Debug)]
pub(crate) struct Streams {
    control: Stream,
    data: StreamTable, // [BQ-2]
    agreement: Agreement,
    /// Spool of the data streams, for large packets.
    spool: Option<Arc<dyn Spool>>,
    totals: StreamTotals,
    /// Bytes of the Topic Aliases that the peer defined, on all streams.
    alias_bytes: usize,
    /// Incomplete packets on the data streams. Boxed: many connections have no data streams.
    partials: Option<Box<Partials>>,
    actions: VecDeque<StreamAction>,
}

/// Incomplete packets on the data streams of a connection.
#[derive(Debug, Default)]
struct Partials {
    /// Bytes of them in the heap.
    bytes: usize,
    /// Streams with one of at least [`LARGE_PARTIAL`] bytes.
    large: BTreeSet<StreamKey>,
    /// Streams with one, by the last arrival of its bytes.
    by_progress: BTreeSet<(Instant, StreamKey)>,
}

impl Streams {
    pub(crate) fn new(agreement: Agreement) -> Self {
        Self {
            control: Stream::new(agreement),
            data: StreamTable::default(),
            agreement,
            spool: None,
            totals: StreamTotals::default(),
            alias_bytes: 0,
            partials: None,
            actions: VecDeque::new(),
        }
    }

    /// Limits of the connection.
    pub(crate) fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Stream, unless it has ended in both directions.
    fn get(&self, key: StreamKey) -> Option<&Stream> {
        if key.is_control() { Some(&self.control) } else { self.data.find(key).map(|data| &data.stream) }
    }

    /// Stream, unless it has ended in both directions.
    pub(crate) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        if key.is_control() {
            return Some(&mut self.control);
        }
        self.data.find_mut(key).map(|data| &mut data.stream)
    }

    /// Counts bytes that came on the control stream.
    pub(crate) fn note_control_received(&mut self, bytes: usize) {
        self.control.traffic.note_received(bytes);
    }

    /// Reports of the streams that have not ended in both directions: the control stream, then at most `limit` data
    /// streams in the order of their keys. Visits all of them.
    pub(crate) fn reports(&self, limit: usize) -> Vec<StreamReport> {
        let mut keys: Vec<_> = self.data.keys().collect();
        keys.sort_unstable();
        let data = keys.into_iter().take(limit).filter_map(|key| self.data.find(key));
        let data = data.map(|data| data.stream.report(data.key, data.state != StreamState::Open));
        std::iter::once(self.control.report(StreamKey::CONTROL, false)).chain(data).collect()
    }

    /// Number of data streams that have not ended in both directions.
    pub(crate) fn data_streams(&self) -> usize {
        self.data.len()
    }

    /// Outbox of a stream that has not ended in both directions.
    pub(crate) fn outbox(&self, key: StreamKey) -> Option<&Outbox> {
        self.get(key).map(|stream| &stream.outbox)
    }

    /// Outbox of a stream on which bytes may still be sent.
    pub(crate) fn outbox_mut(&mut self, key: StreamKey) -> Option<&mut Outbox> {
        self.sending_half(key).map(|(outbox, _)| outbox)
    }

    /// Outbox of a stream on which bytes may still be sent, and the counts for what is appended.
    pub(crate) fn sending_half(&mut self, key: StreamKey) -> Option<(&mut Outbox, &mut StreamTraffic)> {
        if key.is_control() {
            let Stream { outbox, traffic, .. } = &mut self.control;
            return Some((outbox, traffic));
        }
        self.totals.lend(&mut self.data, key);
        let data = self.data.find_mut(key).filter(|data| data.state != StreamState::Finished)?;
        let Stream { outbox, traffic, .. } = &mut data.stream;
        Some((outbox, traffic))
    }

    /// Offsets on the control stream of the first byte that is not taken yet, and behind the last one.
    pub(crate) fn control_progress(&self) -> (u64, u64) {
        (self.control.outbox.taken(), self.control.outbox.end())
    }

    /// Replaces the outbox of the control stream by one that was written before the connection was established.
    pub(crate) fn set_control_outbox(&mut self, outbox: Outbox) {
        self.control.outbox = outbox;
    }

    /// Outbox of a closed connection: only the control stream is still written.
    pub(crate) fn take_control_outbox(&mut self) -> Outbox {
        std::mem::take(&mut self.control.outbox)
    }

    /// Whether this side ends the stream, or has ended it.
    pub(crate) fn is_ending(&self, key: StreamKey) -> bool {
        self.data.find(key).is_some_and(|data| data.state != StreamState::Open)
    }

    /// Whether nothing can be sent on the stream any more.
    pub(crate) fn is_finished(&self, key: StreamKey) -> bool {
        self.data.find(key).is_none_or(|data| data.state == StreamState::Finished)
    }

    /// Whether the client's end of stream was reported: the server has finished it, or need not.
    pub(crate) fn has_reported_end(&self, key: StreamKey) -> bool {
        let is_over =
            |data: &DataStream| data.is_ended_by_peer || key.is_uni() && data.state != StreamState::Open;
        self.data.find(key).is_some_and(is_over)
    }

    /// Stream for packets that are answered: `key`, or the control stream if `key` has ended or has one direction.
    /// [BQ-42]
    pub(crate) fn resolve(&self, key: StreamKey) -> StreamKey {
        let is_open = || self.data.find(key).is_some_and(DataStream::is_open);
        if key.is_control() || is_open() { key } else { StreamKey::CONTROL }
    }

    /// Stream for packets without an answer, which a unidirectional stream of this side can carry too.
    pub(crate) fn resolve_unanswered(&self, key: StreamKey) -> StreamKey {
        let is_ours = self.agreement.is_client && key.is_uni();
        if is_ours && self.data.find(key).is_some_and(|data| data.state == StreamState::Open) {
            key
        } else {
            self.resolve(key)
        }
    }

    /// Whether data streams other than `key` are open in both directions.
    pub(crate) fn has_others(&self, key: StreamKey) -> bool {
        let own = self.data.find(key).is_some_and(DataStream::is_open);
        self.totals.open > usize::from(own)
    }

    /// Topic Name of a PUBLISH on this stream, which may define or use an alias. [BQ-18]
    pub(crate) fn resolve_topic(
        &mut self,
        key: StreamKey,
        topic: Option<TopicName>,
        alias: Option<NonZeroU16>,
    ) -> Result<TopicName, Violation> {
        if let (None, Some(alias), false) = (&topic, alias, key.is_control())
            && self.data.find(key).is_some_and(|data| data.stream.aliases.find(alias).is_none())
        {
            let resolved = self.control.aliases.resolve(topic, Some(alias), &mut self.alias_bytes);
            self.get_mut(key).into_iter().for_each(|stream| stream.traffic.note_publish_received());
            return resolved;
        }
        let stream = match self.data.find_mut(key) {
            Some(data) => &mut data.stream,
            None if key.is_control() => &mut self.control,
            None => return Err(Violation::NoTopic),
        };
        stream.traffic.note_publish_received();
        stream.aliases.resolve(topic, alias, &mut self.alias_bytes)
    }

    // -- Begin and end of streams ------------------------------------------------------------------

    /// Sets the spool of the data streams that are opened from now on.
    pub(crate) fn set_spool(&mut self, spool: Option<Arc<dyn Spool>>) {
        self.spool = spool;
    }

    /// Adds a data stream, unless it is known.
    pub(crate) fn open(&mut self, key: StreamKey) {
        if key.is_control() || self.data.find(key).is_some() {
            return;
        }
        let mut decoder = Decoder::new(self.agreement.version, self.agreement.maximum_packet_size);
        decoder.set_spool(self.spool.clone());
        let data = DataStream {
            key,
            stream: Stream::new(self.agreement),
            decoder,
            state: StreamState::Open,
            is_ended_by_peer: false,
            counted: 0,
            progressed_at: None,
        };
        self.totals.open += usize::from(data.is_open());
        self.data.insert(key, data);
    }

    /// Begins the end of a stream by this side. False: it is ending already, or not known.
    pub(crate) fn close(&mut self, key: StreamKey) -> bool {
        let Some(data) = self.data.find_mut(key).filter(|data| data.state == StreamState::Open) else {
            return false;
        };
        self.totals.open -= usize::from(data.is_open());
        data.state = StreamState::Finishing;
        self.totals.note_drained(data);
        true
    }

    /// Handles FIN of the peer on a stream without any bytes.
    pub(crate) fn close_by_peer(&mut self, key: StreamKey) {
        if let Some(data) = self.data.find_mut(key) {
            data.is_ended_by_peer = true;
            self.close(key);
        }
    }

    /// Handles FIN of the peer; that of this side follows unless it is sent. True: the end of the stream. [BQ-30]
    ///
    /// # Errors
    /// [`Violation::Truncated`] within a packet.
    pub(crate) fn finish(&mut self, key: StreamKey) -> Result<bool, Violation> {
        let Some(data) = self.data.find_mut(key) else { return Ok(false) };
        if data.decoder.is_partial() {
            return Err(Violation::Truncated);
        }
        let is_first = !std::mem::replace(&mut data.is_ended_by_peer, true);
        if data.state == StreamState::Finished {
            self.remove(key);
        } else {
            self.close(key);
        }
        Ok(is_first)
    }

    /// Handles STOP_SENDING of the peer: nothing can be sent any more, but the stream is still read. True: the
    /// session's exchanges on it end. [BQ-33]
    pub(crate) fn stop_sending(&mut self, key: StreamKey) -> bool {
        let Some(outbox) = self.outbox_mut(key).filter(|_| !key.is_control()) else { return false };
        outbox.clear();
        self.totals.settle(&mut self.data);
        let Some(data) = self.data.find_mut(key) else { return false };
        self.totals.open -= usize::from(data.is_open());
        data.state = StreamState::Finished;
        if data.is_ended_by_peer {
            self.remove(key);
        }
        true
    }

    /// Removes a stream at once. False: it had ended before.
    pub(crate) fn remove(&mut self, key: StreamKey) -> bool {
        let Some(data) = self.data.remove(key) else { return false };
        self.totals.open -= usize::from(data.is_open());
        self.totals.remove(&data);
        self.alias_bytes -= data.stream.aliases.bytes();
        if let Some(partials) = &mut self.partials {
            partials.bytes -= data.decoder.partial_len();
            partials.large.remove(&key);
            if let Some(at) = data.progressed_at {
                partials.by_progress.remove(&(at, key));
            }
        }
        true
    }

    /// Removes a stream, and resets it in the transport.
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
        while let Some(key) = self.totals.pop_drained(&mut self.data) {
            let Some(data) = self.data.find_mut(key) else { continue };
            data.state = StreamState::Finished;
            if data.is_ended_by_peer || key.is_uni() {
                self.remove(key);
            }
            // There is nothing to finish where only the peer sends.
            if !key.is_uni() || self.agreement.is_client {
                return Some(StreamAction::Finish(key));
            }
        }
        None
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// Decodes the next packet of a data stream. `None`: more bytes are needed, or the stream has ended.
    /// A PUBLISH may continue one of `parts`.
    pub(crate) fn decode<'i>(
        &mut self,
        key: StreamKey,
        input: &mut &'i [u8],
        parts: &mut PartialMessages,
    ) -> Result<Option<BorrowedPacket<'i>>, Violation> {
        let Some(data) = self.data.find_mut(key) else { return Ok(None) };
        let (before, len) = (data.decoder.partial_len(), input.len());
        let packet = data.decoder.decode_with(input, parts);
        data.stream.traffic.note_received(len - input.len());
        let after = data.decoder.partial_len();
        if before != after {
            let partials = self.partials.get_or_insert_default();
            partials.bytes = partials.bytes - before + after;
            if before < LARGE_PARTIAL && after >= LARGE_PARTIAL {
                partials.large.insert(key);
            } else if before >= LARGE_PARTIAL && after < LARGE_PARTIAL {
                partials.large.remove(&key);
            }
        }
        packet
    }

    /// Takes the incomplete large messages at the end of the connection. Visits all streams.
    pub(crate) fn take_partials(&mut self) -> impl Iterator<Item = PartialMessage> {
        self.data.0.values_mut().filter_map(|data| data.decoder.take_partial())
    }

    /// Whether a data stream has not ended in both directions.
    pub(crate) fn is_known(&self, key: StreamKey) -> bool {
        self.data.find(key).is_some()
    }

    /// Whether more of a data stream may be read: incomplete packets must not fill the memory. [BQ-45]
    pub(crate) fn is_reading(&self, key: StreamKey) -> bool {
        let Some(data) = self.data.find(key) else { return false };
        self.partial_len() <= self.agreement.maximum_partial_bytes
            || data.decoder.partial_len() < LARGE_PARTIAL
            || self.oldest_large_partial() == Some(key)
    }

    /// Notes the arrival of bytes on a stream. True: they leave a packet incomplete.
    pub(crate) fn note_progress(&mut self, key: StreamKey, now: Instant) -> bool {
        let Some(data) = self.data.find_mut(key) else { return false };
        let progressed_at = data.decoder.is_partial().then_some(now);
        let before = std::mem::replace(&mut data.progressed_at, progressed_at);
        if before != progressed_at {
            let by_progress = &mut self.partials.get_or_insert_default().by_progress;
            if let Some(at) = before {
                by_progress.remove(&(at, key));
            }
            by_progress.extend(progressed_at.map(|at| (at, key)));
        }
        progressed_at.is_some()
    }

    /// Stream whose incomplete packet has made no progress for longest, and the instant of its last progress.
    pub(crate) fn longest_idle_partial(&self) -> Option<(Instant, StreamKey)> {
        self.partials.as_ref()?.by_progress.first().copied()
    }

    /// Bytes in the heap of incomplete packets on the data streams.
    pub(crate) fn partial_len(&self) -> usize {
        self.partials.as_ref().map_or(0, |partials| partials.bytes)
    }

    /// Stream whose large incomplete packet alone may grow while the limit of partial bytes is exceeded.
    pub(crate) fn oldest_large_partial(&self) -> Option<StreamKey> {
        let partials = self.partials.as_ref()?;
        let is_exceeded = partials.bytes > self.agreement.maximum_partial_bytes;
        is_exceeded.then(|| partials.large.first().copied()).flatten()
    }

    /// Counts an acknowledgement of a request on this stream that is not in its outbox yet.
    pub(crate) fn add_pending_ack(&mut self, key: StreamKey) {
        if let Some(stream) = self.get_mut(key) {
            stream.pending_acks += 1;
        }
    }

    /// Counts an acknowledgement that goes into the outbox now.
    pub(crate) fn remove_pending_ack(&mut self, key: StreamKey) {
        let Some(stream) = self.get_mut(key) else { return };
        stream.pending_acks = stream.pending_acks.saturating_sub(1);
        if let Some(data) = self.data.find_mut(key) {
            self.totals.note_drained(data);
        }
    }

    /// Acknowledgements of requests on this stream that are not in its outbox yet.
    pub(crate) fn pending_acks(&self, key: StreamKey) -> Option<usize> {
        self.get(key).map(|stream| stream.pending_acks as usize)
    }

    // -- Sending -----------------------------------------------------------------------------------

    /// Streams with bytes to write, the control stream first.
    pub(crate) fn to_write(&self) -> impl Iterator<Item = StreamKey> {
        let control = (!self.control.outbox.is_empty()).then_some(StreamKey::CONTROL);
        control.into_iter().chain(self.totals.to_write(&self.data))
    }

    /// Bytes to write on all streams.
    pub(crate) fn unwritten(&self) -> usize {
        #[cfg(debug_assertions)]
        self.check_totals();
        self.control.outbox.len() + self.totals.unwritten(&self.data)
    }

    /// Compares the totals with a count over every stream.
    #[cfg(debug_assertions)]
    fn check_totals(&self) {
        let all = || self.data.0.iter().map(|(key, data)| (*key, &**data));
        let sum = |of: fn(&DataStream) -> usize| all().map(|(_, data)| of(data)).sum::<usize>();
        let those = |wanted: fn(&DataStream) -> bool| {
            all().filter(move |(_, data)| wanted(data)).map(|(key, _)| key).collect::<BTreeSet<_>>()
        };
        debug_assert_eq!(self.totals.unwritten(&self.data), sum(|data| data.stream.outbox.len()));
        let noted = |key: &StreamKey| self.totals.lent == *key || self.totals.drained.contains(key);
        debug_assert!(those(DataStream::is_drained).iter().all(noted));
        debug_assert_eq!(self.partial_len(), sum(|data| data.decoder.partial_len()));
        debug_assert_eq!(self.totals.open, sum(|data| data.is_open().into()));
        let large = self.partials.as_ref().map(|partials| partials.large.clone()).unwrap_or_default();
        debug_assert_eq!(large, those(|data| data.decoder.partial_len() >= LARGE_PARTIAL));
        let to_write: Vec<_> = self.totals.to_write(&self.data).collect();
        debug_assert_eq!(to_write, Vec::from_iter(those(|data| !data.stream.outbox.is_empty())));
    }
}

impl DataStream {
    /// Whether packets with an answer may be sent on it.
    fn is_open(&self) -> bool {
        self.state == StreamState::Open && !self.key.is_uni()
    }

    /// Whether FIN is due: nothing is left to send before it.
    fn is_drained(&self) -> bool {
        self.state == StreamState::Finishing && self.stream.pending_acks == 0 && self.stream.outbox.is_empty()
    }
}

impl Stream {
    fn new(agreement: Agreement) -> Self {
        Self {
            outbox: Outbox::default(),
            aliases: InboundAliases::new(agreement.inbound_aliases),
            unacknowledged: 0,
            pending_acks: 0,
            traffic: StreamTraffic::default(),
        }
    }

    fn report(&self, stream: StreamKey, is_ending: bool) -> StreamReport {
        let Self { outbox, pending_acks, traffic, .. } = self;
        StreamReport::new(stream, is_ending, *pending_acks as usize, outbox, traffic)
    }
}

/// Sums and sets over all data streams.
#[derive(Debug, Default)]
struct StreamTotals {
    /// Bytes to write, without changes of the outbox that is lent.
    unwritten: usize,
    /// Streams with bytes to write, ascending. A sorted list takes each message without an allocation.
    to_write: Vec<StreamKey>,
    /// Stream whose outbox was lent last and may have changed since; [`StreamKey::CONTROL`] for none.
    lent: StreamKey,
    /// Streams whose FIN may be due.
    drained: BTreeSet<StreamKey>,
    /// Streams on which packets with an answer may be sent.
    open: usize,
}

impl StreamTotals {
    /// Notes that a caller gets the outbox of a stream.
    fn lend(&mut self, table: &mut StreamTable, key: StreamKey) {
        if self.lent != key {
            self.settle(table);
            self.lent = key;
        }
    }

    /// Counts the changes of the outbox that was lent.
    fn settle(&mut self, table: &mut StreamTable) {
        let key = std::mem::take(&mut self.lent);
        if key.is_control() {
            return;
        }
        let Some(data) = table.find_mut(key) else { return };
        let (before, now) = (data.counted, data.stream.outbox.len());
        data.counted = now;
        self.unwritten = self.unwritten - before + now;
        if (before > 0) != (now > 0) {
            self.note_to_write(key, now > 0);
        }
        self.note_drained(data);
    }

    fn note_to_write(&mut self, key: StreamKey, has_bytes: bool) {
        match self.to_write.binary_search(&key) {
            Err(at) if has_bytes => self.to_write.insert(at, key),
            Ok(at) if !has_bytes => drop(self.to_write.remove(at)),
            _ => {}
        }
    }

    /// Notes a stream whose FIN is due.
    fn note_drained(&mut self, data: &DataStream) {
        if data.is_drained() {
            self.drained.insert(data.key);
        }
    }

    /// Takes the first stream whose FIN is due.
    fn pop_drained(&mut self, table: &mut StreamTable) -> Option<StreamKey> {
        self.settle(table);
        while let Some(key) = self.drained.pop_first() {
            // More bytes may have come; the stream is then noted again.
            if table.find(key).is_some_and(DataStream::is_drained) {
                return Some(key);
            }
        }
        None
    }

    /// Takes a removed stream out of the totals.
    fn remove(&mut self, data: &DataStream) {
        self.unwritten -= data.counted;
        self.note_to_write(data.key, false);
        self.drained.remove(&data.key);
        if self.lent == data.key {
            self.lent = StreamKey::CONTROL;
        }
    }

    /// Bytes to write.
    fn unwritten(&self, table: &StreamTable) -> usize {
        let lent = if self.lent.is_control() { None } else { table.find(self.lent) };
        lent.map_or(self.unwritten, |data| self.unwritten - data.counted + data.stream.outbox.len())
    }

    /// Streams with bytes to write, ascending.
    fn to_write(&self, table: &StreamTable) -> impl Iterator<Item = StreamKey> {
        let lent = self.lent;
        let has_bytes =
            !lent.is_control() && table.find(lent).is_some_and(|data| !data.stream.outbox.is_empty());
        let before = self.to_write.partition_point(|key| *key < lent);
        let behind = before + usize::from(self.to_write.get(before) == Some(&lent));
        let (before, behind) = (&self.to_write[..before], &self.to_write[behind..]);
        before.iter().copied().chain(has_bytes.then_some(lent)).chain(behind.iter().copied())
    }
}

/// Data streams of a connection by key. Each access counts as a step of work in tests; only reports iterate.
#[derive(Debug, Default)]
struct StreamTable(HashMap<StreamKey, Box<DataStream>, FxBuildHasher>);

impl StreamTable {
    fn keys(&self) -> impl Iterator<Item = StreamKey> {
        self.0.keys().copied()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn find(&self, key: StreamKey) -> Option<&DataStream> {
        work::step();
        self.0.get(&key).map(|data| &**data)
    }

    fn find_mut(&mut self, key: StreamKey) -> Option<&mut DataStream> {
        work::step();
        self.0.get_mut(&key).map(|data| &mut **data)
    }

    fn insert(&mut self, key: StreamKey, data: DataStream) {
        work::step();
        self.0.insert(key, Box::new(data));
    }

    fn remove(&mut self, key: StreamKey) -> Option<Box<DataStream>> {
        work::step();
        let data = self.0.remove(&key);
        if self.0.is_empty() {
            self.0 = HashMap::default(); // Idle connections keep no table.
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Buf;
    use fastrand::Rng;

    use super::*;
    use crate::types::ProtocolVersion;

    /// Model of a stream that is known.
    #[derive(Default)]
    struct Naive {
        unwritten: usize,
        pending_acks: usize,
        has_partial: bool,
        is_closed: bool,
        is_finished: bool,
    }

    fn streams() -> Streams {
        Streams::new(Agreement {
            version: ProtocolVersion::V5,
            receive_maximum: 1,
            peer_receive_maximum: 1,
            peer_maximum_packet_size: 1 << 20,
            maximum_inflight_bytes: usize::MAX,
            inbound_aliases: 0,
            outbound_aliases: 0,
            maximum_packet_size: 1 << 20,
            maximum_partial_bytes: 1 << 18,
            is_client: false,
        })
    }

    fn operate(streams: &mut Streams, naive: &mut BTreeMap<StreamKey, Naive>, random: &mut Rng) {
        let key = StreamKey::bidi(random.u32(1..12));
        match random.u32(0..16) {
            0 => {
                streams.open(key);
                naive.entry(key).or_default();
            }
            1 => assert_eq!(streams.remove(key), naive.remove(&key).is_some()),
            2 => assert_eq!(streams.abort(key, ReasonCode::QuotaExceeded), naive.remove(&key).is_some()),
            3 => {
                streams.close(key);
                naive.get_mut(&key).into_iter().for_each(|own| own.is_closed = true);
            }
            4 => {
                let was_open = naive.get_mut(&key).is_some_and(|own| {
                    own.unwritten = 0;
                    own.is_closed = true;
                    !std::mem::replace(&mut own.is_finished, true)
                });
                assert_eq!(streams.stop_sending(key), was_open);
            }
            5..8 => {
                let own = naive.get_mut(&key);
                if random.bool() {
                    streams.add_pending_ack(key);
                    own.into_iter().for_each(|own| own.pending_acks += 1);
                } else {
                    streams.remove_pending_ack(key);
                    own.into_iter().for_each(|own| own.pending_acks = own.pending_acks.saturating_sub(1));
                }
            }
            8 => {
                let mut input = &[0x30, 0x80, 0x80, 8][..];
                let mut rest = &vec![0; random.usize(0..100_000)][..];
                if naive.get(&key).is_some_and(|own| !own.has_partial) {
                    assert!(matches!(
                        streams.decode(key, &mut input, &mut PartialMessages::default()),
                        Ok(None)
                    ));
                    assert!(matches!(
                        streams.decode(key, &mut rest, &mut PartialMessages::default()),
                        Ok(None)
                    ));
                    naive.get_mut(&key).into_iter().for_each(|own| own.has_partial = true);
                }
            }
            _ => {
                let own = naive.get_mut(&key).filter(|own| !own.is_finished);
                let outbox = streams.outbox_mut(key);
                assert_eq!(outbox.is_some(), own.is_some());
                let Some((outbox, own)) = outbox.zip(own) else { return };
                if random.bool() {
                    outbox.open().extend_from_slice(&[0; 7]);
                } else {
                    outbox.advance(random.usize(0..=outbox.len()));
                }
                own.unwritten = outbox.len();
            }
        }
    }

    #[test]
    fn totals_agree_with_a_count_over_every_stream() {
        for seed in 0..200 {
            let mut random = Rng::with_seed(seed);
            let (mut streams, mut naive) = (streams(), BTreeMap::new());
            for _ in 0..300 {
                operate(&mut streams, &mut naive, &mut random);
                let unwritten: usize = naive.values().map(|own| own.unwritten).sum();
                assert_eq!(streams.unwritten(), unwritten, "seed {seed}");
                let to_write = naive.iter().filter(|(_, own)| own.unwritten > 0).map(|(key, _)| *key);
                assert!(streams.to_write().eq(to_write), "seed {seed}");
                let open = naive.values().filter(|own| !own.is_closed).count();
                assert_eq!(streams.has_others(StreamKey::CONTROL), open > 0, "seed {seed}");
                if random.u8(0..4) > 0 {
                    continue;
                }
                let is_due =
                    |own: &Naive| own.is_closed && !own.is_finished && own.unwritten + own.pending_acks == 0;
                let mut due = Vec::new();
                for (key, own) in naive.iter_mut().filter(|(_, own)| is_due(own)) {
                    own.is_finished = true;
                    due.push(StreamAction::Finish(*key));
                }
                let mut actions: Vec<_> = std::iter::from_fn(|| streams.poll_action()).collect();
                actions.retain(|action| matches!(action, StreamAction::Finish(_)));
                assert_eq!(actions, due, "seed {seed}");
            }
        }
    }
}
