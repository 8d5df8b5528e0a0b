//! Incomplete packets.

use std::time::Duration;

use braid_proto::connection::{Event, ServerOptions, StreamAction};
use braid_proto::error::Violation;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;

use super::{forge, granting, payloads};
use crate::rig::{Rig, options};

const KIB: usize = 1024;
const SECOND: Duration = Duration::from_secs(1);

fn rig() -> Rig {
    granting(ServerOptions { maximum_partial_bytes: 100 * KIB, maximum_packet_size: 1 << 22, ..options() })
}

/// Sends `len` bytes, a multiple of 1 KiB, of a PUBLISH that announces 256 KiB.
fn begin(rig: &mut Rig, n: u32, len: usize) -> StreamKey {
    let stream = rig.open(n);
    let mut bytes = vec![0x30, 0x80, 0x80, 0x10, 0, 1, b't', 0];
    bytes.resize(len, b'.');
    rig.read_on(stream, &bytes);
    stream
}

// [BQ-45]
#[test]
fn partial_bytes_are_bounded_and_the_oldest_packet_may_grow() {
    let mut rig = rig();
    let a = begin(&mut rig, 1, 64 * KIB);
    let b = begin(&mut rig, 2, 36 * KIB);
    assert!(rig.server.is_reading(a) && rig.server.is_reading(b), "100 KiB are allowed");
    rig.read_on(b, &[b'.'; 64 * KIB]);
    let c = begin(&mut rig, 3, KIB);
    assert!(rig.server.is_reading(a), "one may end");
    assert!(!rig.server.is_reading(b), "it would fill the memory");
    assert!(rig.server.is_reading(c), "what is small may grow");
    assert!(rig.server.is_reading(StreamKey::CONTROL));
    // The oldest packet ends: the next one may grow.
    rig.read_on(a, &[b'.'; 193 * KIB][..192 * KIB + 4]);
    assert_eq!(payloads(&rig.events()).len(), 1);
    assert!(rig.server.is_reading(a) && rig.server.is_reading(b));
}

// [BQ-45]
#[test]
fn an_idle_packet_is_aborted_when_others_wait_for_its_memory() {
    let mut rig = rig();
    let a = begin(&mut rig, 1, 80 * KIB);
    rig.wait(100 * SECOND);
    assert!(rig.actions().is_empty(), "no packet waits");
    let b = begin(&mut rig, 2, 80 * KIB);
    assert!(!rig.server.is_reading(b));
    rig.wait(29 * SECOND);
    rig.read_on(a, b".");
    rig.wait(29 * SECOND);
    assert!(rig.actions().is_empty(), "it moves");
    rig.wait(SECOND);
    assert_eq!(rig.actions(), [StreamAction::Abort(a, ReasonCode::ServerBusy)]);
    assert!(matches!(rig.events()[0], Event::StreamViolated(_, Violation::PartialPacketStalled)));
    assert!(rig.server.is_reading(b) && !rig.server.is_closed());
    rig.wait(500 * SECOND);
    assert!(rig.actions().is_empty());
    // Its time is bounded also when no other packet waits.
    rig.wait(100 * SECOND);
    assert_eq!(rig.actions(), [StreamAction::Abort(b, ReasonCode::ServerBusy)]);
    assert!(rig.server.poll_timeout().is_none());
}

// [BQ-45]
#[test]
fn a_packet_that_had_to_wait_has_its_full_time() {
    let mut rig = rig();
    let a = begin(&mut rig, 1, 80 * KIB);
    let b = begin(&mut rig, 2, 80 * KIB);
    let c = begin(&mut rig, 3, 80 * KIB);
    rig.wait(29 * SECOND);
    rig.reset(a);
    assert!(rig.server.is_reading(b) && !rig.server.is_reading(c));
    rig.wait(29 * SECOND);
    assert!(rig.actions().is_empty(), "b could not go on until now");
    rig.wait(SECOND);
    assert_eq!(rig.actions(), [StreamAction::Abort(b, ReasonCode::ServerBusy)]);
    assert!(rig.server.is_reading(c));
}

// [BQ-45]
#[test]
fn ended_streams_free_their_partial_bytes() {
    let mut rig = rig();
    for n in 1..1000 {
        let stream = begin(&mut rig, n, 90 * KIB);
        match n % 3 {
            0 => rig.reset(stream),
            1 => rig.finish(stream),
            _ => rig.read_on(stream, &[b'.'; 166 * KIB + 4]),
        }
        rig.actions();
    }
    let a = begin(&mut rig, 2000, 40 * KIB);
    let b = begin(&mut rig, 2001, 60 * KIB);
    assert!(rig.server.is_reading(a) && rig.server.is_reading(b));
    rig.wait(599 * SECOND);
    assert!(rig.actions().is_empty(), "no packet waits for either");
    rig.read_on(b, &forge::PINGREQ);
}

/// Memory grows with the bytes that arrive, never with the length that a header announces.
// [BQ-45]
#[test]
fn an_announced_packet_costs_only_received_bytes() {
    let mut rig = granting(ServerOptions { maximum_packet_size: 268_435_460, ..options() });
    for n in 1..1000 {
        let stream = rig.open(n);
        rig.read_on(stream, &[0x30, 0xFF, 0xFF, 0xFF, 0x7F]);
        assert!(rig.server.is_reading(stream));
    }
    assert!(rig.actions().is_empty());
}

// [BQ-45]
#[test]
fn a_timeout_beyond_the_clock_never_expires() {
    let limits =
        ServerOptions { maximum_partial_bytes: 100 * KIB, maximum_packet_size: 1 << 22, ..options() };
    let mut rig =
        granting(ServerOptions { partial_timeout: Duration::MAX, partial_idle: Duration::MAX, ..limits });
    let a = begin(&mut rig, 1, 80 * KIB);
    let b = begin(&mut rig, 2, 80 * KIB);
    let c = begin(&mut rig, 3, 80 * KIB);
    assert!(rig.server.is_reading(a) && !rig.server.is_reading(b));
    rig.wait(100_000 * SECOND);
    assert!(rig.actions().is_empty());
    rig.reset(a);
    assert!(rig.server.is_reading(b) && !rig.server.is_reading(c));
}
