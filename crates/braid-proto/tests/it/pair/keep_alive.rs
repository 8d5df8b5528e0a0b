//! Timers: Keep Alive, PINGREQ and PINGRESP, and a server that does not answer.

use super::*;

fn pings(pair: &mut Pair, duration: Duration) -> usize {
    // Counts PINGREQ (C0 00) where it leaves.
    let end = pair.now + duration;
    let mut count = 0;
    while let Some(next) = pair.client.poll_timeout().filter(|next| *next <= end) {
        pair.now = next;
        pair.client.handle_timeout(next);
        count += pair
            .client
            .outbox(StreamKey::CONTROL)
            .unwrap()
            .chunk()
            .windows(2)
            .filter(|bytes| *bytes == [0xC0, 0])
            .count();
        pair.drive();
    }
    pair.now = end;
    count
}

#[test]
fn an_idle_client_pings_once_per_keep_alive_and_stays_connected() {
    // [MQTT-3.1.2-20], [MQTT-3.12.4-1]
    let mut pair =
        Pair::established(Connect { keep_alive: 10, ..connect(ProtocolVersion::V311) }, None, None);
    assert_eq!(pings(&mut pair, SECOND * 95), 9);
    pair.server.handle_timeout(pair.now);
    assert!(pair.client.is_established() && !pair.server.is_closed());
}

#[test]
fn a_client_that_publishes_qos_1_need_not_ping() {
    let mut pair = Pair::established(Connect { keep_alive: 10, ..connect(ProtocolVersion::V5) }, None, None);
    for _ in 0..20 {
        assert_eq!(pings(&mut pair, SECOND * 5), 0);
        pair.publish(QoS::AtLeastOnce);
        pair.drive();
    }
}

#[test]
fn a_client_that_only_publishes_qos_0_pings_to_learn_whether_the_server_is_there() {
    let mut pair = Pair::established(Connect { keep_alive: 10, ..connect(ProtocolVersion::V5) }, None, None);
    let mut count = 0;
    for _ in 0..20 {
        count += pings(&mut pair, SECOND * 5);
        pair.publish(QoS::AtMostOnce);
        pair.drive();
    }
    assert!((9..=10).contains(&count), "{count} pings in 100 s");
}

#[test]
fn a_requested_ping_measures_the_round_trip() {
    let mut pair = Pair::established(Connect { keep_alive: 0, ..connect(ProtocolVersion::V5) }, None, None);
    assert_eq!(pair.client.take_round_trip(), None);
    pair.client.ping(pair.now);
    let unwritten = pair.client.unwritten();
    pair.client.ping(pair.now);
    assert_eq!(pair.client.unwritten(), unwritten, "one is on its way");
    pair.now += SECOND;
    pair.drive();
    assert_eq!((pair.client.take_round_trip(), pair.client.take_round_trip()), (Some(SECOND), None));
}

#[test]
fn keep_alive_0_never_pings() {
    let mut pair = Pair::established(Connect { keep_alive: 0, ..connect(ProtocolVersion::V5) }, None, None);
    assert_eq!(pair.client.poll_timeout(), None);
    pair.advance(SECOND * 100_000);
    assert!(pair.client.is_established());
}

#[test]
fn the_servers_keep_alive_replaces_the_clients() {
    // [MQTT-3.2.2-21]
    let options = ServerOptions { maximum_keep_alive: 5, ..ServerOptions::default() };
    let mut pair = Pair::new(Connect { keep_alive: 100, ..connect(ProtocolVersion::V5) }, None, options);
    pair.drive();
    pair.accept(None);
    pair.drive();
    assert_eq!(pings(&mut pair, SECOND * 51), 10);
}

#[test]
fn a_silent_server_times_out_after_the_ping_timeout() {
    let mut pair = Pair::established(Connect { keep_alive: 20, ..connect(ProtocolVersion::V5) }, None, None);
    let start = pair.now;
    while !pair.client.is_closed() {
        pair.now = pair.client.poll_timeout().expect("a timer while the connection is open");
        pair.client.handle_timeout(pair.now);
        take(pair.client.outbox(StreamKey::CONTROL).unwrap());
    }
    assert_eq!(pair.now - start, SECOND * 30, "Keep Alive and ping timeout");
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::PingrespTimeout)));
}

#[test]
fn a_server_in_the_middle_of_a_large_packet_does_not_time_out() {
    let mut pair = Pair::established(Connect { keep_alive: 20, ..connect(ProtocolVersion::V5) }, None, None);
    // 1 MB, byte by byte.
    pair.client.handle_bytes(StreamKey::CONTROL, &[0x30, 0xC0, 0x84, 0x3D], pair.now);
    for _ in 0..100 {
        pair.now += SECOND;
        if pair.client.poll_timeout().is_some_and(|at| at <= pair.now) {
            pair.client.handle_timeout(pair.now);
        }
        pair.client.handle_bytes(StreamKey::CONTROL, &[0], pair.now);
    }
    assert!(pair.client.is_established());
}

// On one stream a PINGREQ waits for all that was published before it.
#[test]
fn no_timeout_while_bytes_before_a_pingreq_leave() {
    let mut pair = Pair::established(Connect { keep_alive: 20, ..connect(ProtocolVersion::V5) }, None, None);
    let large =
        Message::new(TopicName::parse("t").expect("a topic"), vec![0; 1_000_000], QoS::AtLeastOnce, false);
    assert!(matches!(
        pair.client.publish(Delivery::of(SharedMessage::new(large)), pair.now),
        Ok(Sent::Out(_))
    ));
    let tick = |pair: &mut Pair, taken: usize| {
        pair.now += SECOND;
        let outbox = pair.client.outbox(StreamKey::CONTROL).unwrap();
        outbox.advance(taken.min(outbox.len()));
        if pair.client.poll_timeout().is_some_and(|at| at <= pair.now) {
            pair.client.handle_timeout(pair.now);
        }
    };
    for _ in 0..80 {
        tick(&mut pair, 10_000);
    }
    assert!(pair.client.is_established());
    // The link accepts no more bytes.
    for _ in 0..20 {
        tick(&mut pair, 0);
    }
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::PingrespTimeout)));
}

#[test]
fn a_paused_client_does_not_time_out() {
    let mut pair = Pair::established(Connect { keep_alive: 20, ..connect(ProtocolVersion::V5) }, None, None);
    pair.client.pause(true, pair.now);
    for _ in 0..50 {
        pair.now = pair.client.poll_timeout().expect("pings go on");
        pair.client.handle_timeout(pair.now);
    }
    assert!(pair.client.is_established());
    pair.client.pause(false, pair.now);
    pair.drive();
    assert!(pings(&mut pair, SECOND * 60) <= 3);
}

#[test]
fn a_server_that_does_not_answer_connect_times_out() {
    let mut pair = Pair::new(connect(ProtocolVersion::V5), None, ServerOptions::default());
    let limit = ClientOptions::default().handshake_timeout;
    pair.client.handle_timeout(pair.now + limit - SECOND);
    assert!(!pair.client.is_closed());
    pair.client.handle_timeout(pair.now + limit);
    assert_eq!(pair.client.cause(), Some(Cause::Violation(Violation::ConnackTimeout)));
}
