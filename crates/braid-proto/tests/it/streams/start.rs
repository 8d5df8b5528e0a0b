//! Streams before the CONNECT is accepted.

use std::time::Duration;

use braid_proto::connection::{Acceptance, Cause, Event, ServerOptions, StreamAction};
use braid_proto::error::Violation;
use braid_proto::packet::{Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Session, SessionExpiry};

use super::{forge, payloads};
use crate::rig::{Rig, connect, encoded, options};

const V5: ProtocolVersion = ProtocolVersion::V5;

fn accept(rig: &mut Rig) {
    let session = Session::new("c".into(), SessionExpiry::NEVER);
    rig.server.accept(session, &Acceptance::default(), rig.now, |_| true);
}

// [BQ-13], [BQ-3]
#[test]
fn nothing_is_read_from_a_stream_before_the_connect_is_accepted() {
    let mut rig = Rig::before_connect(options());
    let data = rig.open(1);
    assert!(rig.server.is_reading(forge::CONTROL) && !rig.server.is_reading(data));
    rig.read(&encoded(&Packet::Connect(Box::new(connect(V5))), V5));
    assert!(matches!(rig.events()[..], [Event::Connect(_)]));
    let late = rig.open(2);
    assert!(!rig.server.is_reading(data) && !rig.server.is_reading(late));
    accept(&mut rig);
    assert!(rig.server.is_reading(data) && rig.server.is_reading(late));
    rig.read_on(data, &forge::publish(0, 0, "held"));
    assert_eq!(payloads(&rig.events()), ["held"]);
}

// [BQ-13]
#[test]
fn streams_of_a_refused_connect_are_dropped() {
    let mut rig = Rig::before_connect(options());
    let data = rig.open(1);
    rig.read(&encoded(&Packet::Connect(Box::new(connect(V5))), V5));
    rig.events();
    rig.server.reject(ReasonCode::NotAuthorized);
    assert!(!rig.server.is_reading(data) && rig.server.is_closed());
    rig.read_on(data, &forge::publish(0, 0, "not read"));
    assert!(rig.events().is_empty() && rig.sent_on(data).is_none());
}

// [BQ-13], [BQ-30]
#[test]
fn a_stream_that_ended_before_is_not_opened_or_is_finished() {
    let mut rig = Rig::before_connect(options());
    let (reset, finished) = (rig.open(1), rig.open(2));
    rig.reset(reset);
    rig.finish(finished);
    rig.read(&encoded(&Packet::Connect(Box::new(connect(V5))), V5));
    rig.events();
    accept(&mut rig);
    assert!(rig.sent_on(reset).is_none());
    assert_eq!(rig.actions(), [StreamAction::Finish(finished)]);
    assert!(rig.sent_on(finished).is_none());
}

// [BQ-6]
#[test]
fn data_streams_do_not_replace_connect() {
    let mut rig = Rig::before_connect(options());
    rig.wait(Duration::from_millis(4_999));
    rig.open(1);
    assert!(!rig.server.is_closed());
    rig.wait(Duration::from_millis(1));
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::ConnectTimeout)));
}

// [BQ-44], [MQTT-3.1.2-22]
#[test]
fn a_strict_keep_alive_counts_whole_packets_only() {
    let mut connect = connect(V5);
    connect.keep_alive = 10;
    let mut rig = Rig::connected(ServerOptions { strict_keep_alive: true, ..options() }, connect);
    let data = rig.open(1);
    for _ in 0..3 {
        rig.wait(Duration::from_secs(14));
        rig.read_on(data, &forge::publish(0, 0, "whole"));
    }
    // A packet that arrives byte by byte, and bytes that the transport reports.
    rig.read_on(data, &[0x30, 100]);
    for _ in 0..14 {
        rig.wait(Duration::from_secs(1));
        rig.read_on(data, &[0]);
        rig.server.note_bytes(rig.now);
    }
    assert!(!rig.server.is_closed());
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::KeepAliveTimeout)));
}

// [BQ-44], [MQTT-3.1.2-22]
#[test]
fn bytes_of_any_stream_restart_the_keep_alive() {
    let mut connect = connect(V5);
    connect.keep_alive = 10;
    let mut rig = Rig::connected(options(), connect);
    let data = rig.open(1);
    // A packet that arrives byte by byte.
    rig.read_on(data, &[0x30, 100]);
    for _ in 0..20 {
        rig.wait(Duration::from_secs(14));
        assert!(!rig.server.is_closed());
        rig.read_on(data, &[0]);
    }
    rig.wait(Duration::from_millis(14_999));
    assert!(!rig.server.is_closed());
    rig.wait(Duration::from_millis(1));
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::KeepAliveTimeout)));
}
