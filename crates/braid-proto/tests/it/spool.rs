//! Spooling of packets that are too large for the heap.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use braid_proto::connection::{Event, ServerOptions, StreamAction};
use braid_proto::decoder::{Decoder, Spool, SpoolError, SpooledPacket};
use braid_proto::error::Violation;
use braid_proto::packet::{Packet, ProtocolVersion, Publish};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use bytes::Bytes;

use crate::rig::{Rig, connect, options};

const KIB: usize = 1024;
/// Size of the packet of [`publish`], bytes.
const LARGE: usize = 256 * KIB;

/// Spool in memory.
#[derive(Debug, Default)]
pub(crate) struct MemorySpool {
    refuses: Option<SpoolError>,
    begun: AtomicUsize,
    /// Bytes of incomplete packets that are not dropped.
    held: Arc<AtomicUsize>,
    /// Last complete packet.
    whole: Arc<Mutex<Bytes>>,
}

#[derive(Debug)]
struct Book {
    refuses: Option<SpoolError>,
    bytes: Vec<u8>,
    held: Arc<AtomicUsize>,
    whole: Arc<Mutex<Bytes>>,
}

impl MemorySpool {
    pub(crate) fn refusing(error: SpoolError) -> Self {
        Self { refuses: Some(error), ..Self::default() }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Spool for MemorySpool {
    fn threshold(&self) -> usize {
        100 * KIB
    }

    fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let (held, whole) = (self.held.clone(), self.whole.clone());
        Ok(Box::new(Book { refuses: self.refuses, bytes: Vec::new(), held, whole }))
    }
    fn used(&self) -> u64 {
        self.held() as u64
    }

    fn refused(&self) -> u64 {
        0
    }
}

impl SpooledPacket for Book {
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError> {
        self.held.fetch_add(bytes.len(), Ordering::Relaxed);
        self.bytes.extend_from_slice(bytes);
        self.refuses.map_or(Ok(()), Err)
    }

    fn finish(self: Box<Self>) -> Result<Bytes, SpoolError> {
        let whole = Bytes::copy_from_slice(&self.bytes);
        *self.whole.lock().unwrap() = whole.clone();
        Ok(whole)
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// A PUBLISH of QoS 1 and `len` bytes.
fn publish(len: usize) -> Vec<u8> {
    let mut bytes = vec![0x32];
    let mut remaining = len - 4;
    for _ in 0..2 {
        bytes.push(u8::try_from(remaining & 0x7F).unwrap() | 0x80);
        remaining >>= 7;
    }
    bytes.push(u8::try_from(remaining).unwrap());
    bytes.extend([0, 1, b't', 0, 1, 0]);
    let filler = (0..).map(|at: u64| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]);
    let missing = len - bytes.len();
    bytes.extend(filler.take(missing));
    bytes
}

fn decoder(spool: &Arc<MemorySpool>) -> Decoder {
    let mut decoder = Decoder::default();
    decoder.configure(ProtocolVersion::V5, 1 << 20);
    decoder.set_spool(Some(spool.clone()));
    decoder
}

fn decode(decoder: &mut Decoder, mut input: &[u8]) -> Option<Publish> {
    let mut decoded = None;
    while !input.is_empty() {
        match decoder.decode(&mut input).unwrap() {
            Some(Packet::Publish(publish)) => assert!(decoded.replace(publish).is_none(), "one at a time"),
            Some(packet) => panic!("{packet:?}"),
            None => assert!(input.is_empty()),
        }
    }
    decoded
}

fn granting(spool: &Arc<MemorySpool>) -> Rig {
    let spool = Some(spool.clone() as Arc<dyn Spool>);
    let options =
        ServerOptions { spool, maximum_packet_size: 1 << 20, maximum_partial_bytes: 100 * KIB, ..options() };
    Rig::connected(options, connect(ProtocolVersion::V5))
}

#[test]
fn a_large_packet_decodes_alike_in_parts_of_any_size() {
    let bytes = publish(LARGE);
    for step in [1000, 64 * KIB - 1, 64 * KIB, LARGE - 1] {
        let spool = Arc::new(MemorySpool::default());
        let mut decoder = decoder(&spool);
        let mut both = bytes.clone();
        both.extend_from_slice(&bytes);
        let all: Vec<_> = both.chunks(step).filter_map(|part| decode(&mut decoder, part)).collect();
        assert_eq!((all.len(), spool.begun(), spool.held()), (2, 2, 0), "in parts of {step}");
        assert!(!decoder.is_partial());
        for publish in all {
            assert_eq!(publish.topic.unwrap().as_str(), "t");
            assert!(publish.payload == bytes[10..], "in parts of {step}");
        }
    }
}

#[test]
fn the_payload_is_a_slice_of_the_spool() {
    let spool = Arc::new(MemorySpool::default());
    let mut decoder = decoder(&spool);
    let bytes = publish(LARGE);
    assert!(decode(&mut decoder, &bytes[..LARGE - 1]).is_none());
    let publish = decode(&mut decoder, &bytes[LARGE - 1..]).unwrap();
    let whole = spool.whole.lock().unwrap().as_ptr_range();
    assert!(whole.contains(&publish.payload.as_ptr()), "it was copied");
    assert!(publish.spooled, "it is said where it is");
}

#[test]
fn a_large_announced_length_takes_no_space() {
    let spool = Arc::new(MemorySpool::default());
    let mut decoder = decoder(&spool);
    let bytes = publish(LARGE);
    assert!(decode(&mut decoder, &bytes[..3]).is_none());
    assert!(decode(&mut decoder, &bytes[3..64 * KIB - 1]).is_none());
    assert_eq!((spool.begun(), decoder.partial_len()), (0, 64 * KIB - 1));
    assert!(decode(&mut decoder, &bytes[64 * KIB - 1..64 * KIB]).is_none());
    assert_eq!((spool.begun(), spool.held(), decoder.partial_len()), (1, 64 * KIB, 0));
    assert!(decoder.is_partial());
    drop(decoder);
    assert_eq!(spool.held(), 0);
}

#[test]
fn packets_up_to_the_threshold_stay_in_the_heap() {
    let spool = Arc::new(MemorySpool::default());
    let mut decoder = decoder(&spool);
    let bytes = publish(100 * KIB);
    assert!(decode(&mut decoder, &bytes[..99 * KIB]).is_none());
    assert_eq!((spool.begun(), decoder.partial_len()), (0, 99 * KIB));
    assert!(decode(&mut decoder, &bytes[99 * KIB..]).is_some_and(|publish| !publish.spooled));
}

// [BQ-45]
#[test]
fn spooled_packets_do_not_count_as_partial_bytes() {
    let spool = Arc::new(MemorySpool::default());
    let mut rig = granting(&spool);
    let bytes = publish(LARGE);
    let streams: Vec<_> = (1..=10).map(|n| rig.open(n)).collect();
    for stream in &streams {
        rig.read_on(*stream, &bytes[..LARGE - 1]);
    }
    assert!(streams.iter().all(|stream| rig.server.is_reading(*stream)));
    assert_eq!(spool.held(), 10 * (LARGE - 1));
    rig.read_on(streams[3], &bytes[LARGE - 1..]);
    let events = rig.events();
    assert!(matches!(&events[..], [Event::Publish(message, Some(_))] if message.payload == bytes[10..]));
    // An incomplete packet is a violation in the spool too.
    rig.finish(streams[4]);
    let events = rig.events();
    assert!(matches!(events[0], Event::StreamViolated(on, Violation::Truncated) if on == streams[4]));
    assert_eq!(spool.held(), 8 * (LARGE - 1));
    rig.server.handle_stream_reset(streams[5], rig.now);
    assert_eq!(spool.held(), 7 * (LARGE - 1));
    drop(rig);
    assert_eq!(spool.held(), 0, "all went with the connection");
}

// [BQ-45]
#[test]
fn an_idle_spooled_packet_is_aborted_as_any_other() {
    let spool = Arc::new(MemorySpool::default());
    let mut rig = granting(&spool);
    let stream = rig.open(1);
    rig.read_on(stream, &publish(LARGE)[..80 * KIB]);
    rig.wait(ServerOptions::default().partial_idle);
    assert_eq!(rig.actions(), [StreamAction::Abort(stream, ReasonCode::ServerBusy)]);
    assert_eq!(spool.held(), 0);
}

// [BQ-34]
#[test]
fn a_full_spool_ends_only_the_stream_that_needs_it() {
    let spool = Arc::new(MemorySpool::refusing(SpoolError::Full));
    let mut rig = granting(&spool);
    let stream = rig.open(1);
    rig.read_on(stream, &publish(LARGE)[..80 * KIB]);
    assert_eq!(rig.actions(), [StreamAction::Abort(stream, ReasonCode::QuotaExceeded)]);
    assert!(!rig.server.is_closed() && rig.server.is_reading(StreamKey::CONTROL));
    assert_eq!(spool.held(), 0);
}
