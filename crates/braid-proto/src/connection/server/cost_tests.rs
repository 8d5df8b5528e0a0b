//! Cost of single calls, in steps of work: bounded beside many streams and exchanges of a hostile client.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Buf, BytesMut};

use super::{Acceptance, Event, Server, ServerOptions};
use crate::message::{Delivery, Message, SharedMessage};
use crate::packet::{Connect, Packet};
use crate::session::{Session, SessionExpiry};
use crate::types::{Priority, ProtocolVersion, QoS, StreamKey, TopicName};
use crate::work::steps;

struct Rig {
    server: Server,
    now: Instant,
}

impl Rig {
    /// Connection with data streams 1 to `streams`.
    fn new(streams: u32) -> Self {
        let now = Instant::now();
        let mut rig = Self { server: Server::new(Arc::new(ServerOptions::default()), now), now };
        let mut connect = BytesMut::new();
        let packet = Packet::Connect(Box::new(Connect::new(ProtocolVersion::V5, "c")));
        packet.encode(ProtocolVersion::V5, &mut connect);
        rig.server.handle_bytes(StreamKey::CONTROL, &connect, now);
        assert!(matches!(rig.server.poll_event(), Some(Event::Connect(_))));
        let session = Session::new("c".into(), SessionExpiry::NEVER);
        rig.server.accept(session, &Acceptance::default(), now, |_| true);
        (1..=streams).for_each(|n| rig.server.handle_stream_opened(StreamKey::bidi(n)));
        rig
    }

    /// Steps of handling bytes, and of everything that a driver does after it.
    fn read(&mut self, on: StreamKey, bytes: &[u8]) -> u64 {
        steps(|| {
            assert!(self.server.is_reading(on), "{on} is not read");
            self.server.handle_bytes(on, bytes, self.now);
            self.drain();
        })
    }

    /// Acts as a driver: answers at once and writes everything.
    fn drain(&mut self) {
        while let Some(event) = self.server.poll_event() {
            if let Event::Publish(_, Some(token)) | Event::Release(token) = event {
                self.server.handle_persisted(token);
            }
        }
        let mut streams = Vec::new();
        let mut left = self.server.unwritten();
        self.server.streams_to_write(&mut streams);
        for stream in streams {
            let outbox = self.server.outbox(stream).expect("it has something to write");
            left -= outbox.len();
            outbox.advance(outbox.len());
        }
        assert_eq!((left, self.server.unwritten()), (0, 0));
        while self.server.poll_stream().is_some() {}
        self.server.continue_resend(self.now, |_| true);
        assert!(self.server.poll_timeout().is_some());
    }

    /// Delivers a message that is not acknowledged.
    fn deliver(&mut self, on: StreamKey, qos: QoS) -> u64 {
        let message = Message::new(TopicName::parse("t").expect("a name"), vec![0; 10], qos, false);
        let delivery =
            Delivery { stream: on, priority: Priority::HIGHEST, ..Delivery::of(SharedMessage::new(message)) };
        steps(|| {
            assert!(self.server.takes(&delivery));
            self.server.deliver(delivery, self.now);
            self.drain();
        })
    }

    fn reset(&mut self, on: StreamKey) -> u64 {
        steps(|| {
            self.server.handle_stream_reset(on, self.now);
            self.drain();
        })
    }
}

fn publish(qos: u8, id: u16) -> [u8; 9] {
    let [high, low] = id.to_be_bytes();
    [0x30 | qos << 1, 7, 0, 1, b't', high, low, 0, b'p']
}

/// Asserts that the cost beside `much` is the same as beside 4.
#[track_caller]
fn check_is_bounded(much: u32, cost: impl Fn(u32) -> u64) {
    let (few, many) = (cost(4), cost(much));
    assert!(few > 0, "nothing was counted");
    assert_eq!(few, many, "steps beside 4 and beside {much}");
}

#[test]
fn a_byte_on_each_of_many_streams_in_turn() {
    check_is_bounded(256, |streams| {
        let mut rig = Rig::new(streams);
        let turns = publish(1, 1).into_iter().chain(publish(2, 2));
        let most = |byte: u8| (1..=streams).map(|n| rig.read(StreamKey::bidi(n), &[byte])).max();
        turns.map(most).map(Option::unwrap_or_default).sum()
    });
}

#[test]
fn opening_and_ending_streams_beside_others() {
    check_is_bounded(256, |streams| {
        let mut rig = Rig::new(streams);
        for n in 1..=streams {
            rig.read(StreamKey::bidi(n), &publish(2, 1)[..4]);
        }
        let churn = |n: u32| {
            let (finished, reset) = (StreamKey::bidi(2 * n), StreamKey::bidi(2 * n + 1));
            steps(|| {
                rig.server.handle_stream_opened(finished);
                rig.server.handle_stream_opened(reset);
                rig.server.handle_stream_finished(finished);
                rig.reset(reset);
            })
        };
        (streams..streams + 100).map(churn).max().unwrap_or_default()
    });
}

#[test]
fn unknown_acknowledgements_beside_exchanges_on_many_streams() {
    check_is_bounded(256, |streams| {
        let mut rig = Rig::new(streams);
        for n in 1..=streams {
            rig.read(StreamKey::bidi(n), &publish(2, 1));
        }
        let kinds = [0x40, 0x50, 0x62, 0x70];
        kinds.map(|kind| rig.read(StreamKey::bidi(1), &[kind, 2, 0xFF, 0])).into_iter().sum()
    });
}

#[test]
fn deliveries_to_many_streams_and_their_acknowledgements() {
    check_is_bounded(256, |streams| {
        let mut rig = Rig::new(streams);
        let sent: Vec<_> = (1..=streams).map(|n| rig.deliver(StreamKey::bidi(n), QoS::AtLeastOnce)).collect();
        let acknowledge = |n: u32| {
            let [.., high, low] = n.to_be_bytes();
            rig.read(StreamKey::bidi(n), &[0x40, 2, high, low])
        };
        sent.into_iter().max().unwrap_or_default() + (1..=streams).map(acknowledge).max().unwrap_or_default()
    });
}

#[test]
fn an_acknowledgement_beside_many_retransmissions() {
    check_is_bounded(900, |messages| {
        let mut rig = Rig::new(2);
        let (ended, living) = (StreamKey::bidi(1), StreamKey::bidi(2));
        for _ in 0..messages {
            rig.deliver(ended, QoS::AtLeastOnce);
        }
        rig.deliver(living, QoS::AtLeastOnce);
        // The control stream is full, so that nothing is retransmitted.
        let large =
            Message::new(TopicName::parse("t").expect("a name"), vec![0; 20_000], QoS::AtMostOnce, false);
        rig.server.deliver(Delivery::of(SharedMessage::new(large)), rig.now);
        rig.server.handle_stream_reset(ended, rig.now);
        assert!(rig.server.is_resending());
        let [.., high, low] = (messages + 1).to_be_bytes();
        steps(|| {
            rig.server.handle_bytes(living, &[0x40, 2, high, low], rig.now);
            rig.server.continue_resend(rig.now, |_| true);
        })
    });
}
