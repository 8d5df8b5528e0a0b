//! Requests of a client before CONNACK.

use braid_proto::packet::UserProperties;

use super::*;
use braid_proto::stream::Priority;

const CONTROL: StreamKey = StreamKey::CONTROL;

fn starting(session: Option<Session>) -> Pair {
    Pair::new(connect(ProtocolVersion::V5), session, ServerOptions::default())
}

impl Pair {
    fn open(&mut self, number: u32) -> StreamKey {
        let stream = StreamKey::bidi(number);
        self.client.handle_stream_opened(stream);
        self.server.handle_stream_opened(stream);
        stream
    }

    fn subscribe_early(&mut self, on: StreamKey, filter: &str) -> Result<PacketId, SendError> {
        self.client.subscribe_early(on, vec![entry(filter)], None, UserProperties::new())
    }

    /// Carries the bytes of a data stream there, and those of its answers back.
    fn carry(&mut self, stream: StreamKey) {
        let up = take(self.client.outbox(stream).unwrap());
        self.server.handle_bytes(stream, &up, self.now);
        while let Some(event) = self.server.poll_event() {
            self.answer(&event);
            self.server_events.push(event);
        }
        let down = take(self.server.outbox(stream).unwrap());
        self.client.handle_bytes(stream, &down, self.now);
        self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
    }

    fn subscribed(&self) -> Vec<PacketId> {
        let mut ids = Vec::new();
        for event in &self.client_events {
            if let ClientEvent::Subscribed(suback) = event {
                ids.push(suback.packet_id);
            }
        }
        ids
    }
}

#[test]
fn early_requests_are_answered_behind_connack_on_their_stream() {
    // [BQ-13], [BQ-61]
    let mut pair = starting(None);
    let stream = pair.open(1);
    let on_control = pair.subscribe_early(CONTROL, "a").unwrap();
    let on_data = pair.subscribe_early(stream, "b").unwrap();
    let elsewhere = pair.subscribe_early(StreamKey::bidi(9), "c").unwrap();
    pair.drive();
    assert!(matches!(pair.server_events[..], [Event::Connect(_)]) && pair.client_events.is_empty());
    pair.accept(None);
    pair.drive();
    assert!(matches!(pair.client_events[0], ClientEvent::Connected(_)), "before its answers");
    assert_eq!(
        pair.subscribed(),
        [on_control, elsewhere],
        "a stream that is not there is the control stream"
    );
    assert!(!pair.client.session().unwrap().outbound.is_empty(), "one is still to be answered");
    pair.carry(stream);
    assert_eq!(pair.subscribed(), [on_control, elsewhere, on_data]);
    let asked: Vec<_> = pair
        .server_events
        .iter()
        .filter_map(|event| if let Event::Subscribe(on, _) = event { Some(*on) } else { None })
        .collect();
    assert_eq!(asked, [CONTROL, CONTROL, stream]);
    assert!(pair.client.session().unwrap().outbound.is_empty(), "the identifiers are free");
    assert_eq!(pair.subscribe_early(stream, "d"), Err(SendError::NotConnected), "it is late");
}

#[test]
fn early_requests_share_the_identifiers_of_a_resumed_session() {
    // [MQTT-2.2.1-3]
    let mut pair = Pair::established(connect(ProtocolVersion::V5), Some(session()), None);
    pair.publish(QoS::AtLeastOnce);
    let (kept, servers) = pair.cut();
    let mut connect = connect(ProtocolVersion::V5);
    connect.clean_start = false;
    let mut pair = Pair::new(connect, kept, ServerOptions::default());
    let id = pair.subscribe_early(CONTROL, "a").unwrap();
    assert_eq!(id.value(), 2, "the first is the message's");
    pair.drive();
    pair.accept(servers);
    pair.drive();
    assert_eq!(pair.subscribed(), [id]);
    assert_eq!(pair.published(), [(1, ReasonCode::Success)]);
    assert!(pair.client.session().unwrap().outbound.is_empty());
}

#[test]
fn a_stream_that_ends_before_connack_reports_its_requests() {
    let mut pair = starting(None);
    let stream = pair.open(1);
    pair.subscribe_early(CONTROL, "a").unwrap();
    let id = pair.subscribe_early(stream, "b").unwrap();
    pair.client.handle_stream_reset(stream, pair.now);
    let event = pair.client.poll_event();
    assert!(
        matches!(&event, Some(ClientEvent::StreamEnded(on, ids)) if *on == stream && *ids == [id]),
        "{event:?}"
    );
    assert!(pair.client.outbox(stream).is_none());
}

#[test]
fn at_most_64_kib_are_sent_before_connack() {
    // [BQ-13]
    for is_control in [true, false] {
        let mut pair = starting(None);
        let streams: Vec<_> = (1..100).map(|number| pair.open(number)).collect();
        let filter = "f".repeat(1000);
        let mut written = take(pair.client.outbox(CONTROL).unwrap()).len();
        let mut refused = 0;
        for stream in streams {
            let on = if is_control { CONTROL } else { stream };
            let takes = pair.client.takes_early(&[entry(&filter)], &UserProperties::new());
            let sent = pair.subscribe_early(on, &filter);
            assert_eq!(sent.is_ok(), takes, "{sent:?}");
            refused += usize::from(sent == Err(SendError::NotConnected));
            written += take(pair.client.outbox(on).unwrap()).len();
            pair.client.handle_stream_reset(stream, pair.now); // Bytes on it have been sent.
        }
        assert!((62 * 1024..=64 * 1024).contains(&written), "{written}");
        assert_eq!(refused, 99 - written / 1000);
        assert!(pair.subscribe_early(CONTROL, "short").is_ok(), "as long as there is room");
    }
}

#[test]
fn early_requests_use_no_receive_maximum() {
    // [BQ-24]
    for is_early in [false, true] {
        let options = ServerOptions { receive_maximum: 20, ..ServerOptions::default() };
        let mut pair = Pair::new(connect(ProtocolVersion::V5), None, options);
        if is_early {
            pair.subscribe_early(CONTROL, "a").unwrap();
        }
        pair.drive();
        pair.accept(None);
        pair.drive();
        let urgent = || Delivery { priority: Priority::HIGHEST, ..delivery("t", "m", QoS::AtLeastOnce) };
        let mut count = 0;
        while matches!(pair.client.publish(urgent(), pair.now), Ok(Sent::Out(_))) {
            count += 1;
        }
        assert_eq!(count, 20, "a lane alone has all of it (early: {is_early})");
    }
}
