//! Random operations of clients on a connection.

use std::time::Duration;

use braid_proto::packet::{Packet, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use tokio::time::Instant;

use super::actor::{Actor, Life};
use super::ledger::{FILTERS, Name, Origin, Publication, QOS, TOPICS};
use super::wire::Wire;
use super::world::{CLIENTS, NOTICED, World};
use crate::support::{Lanes, filter, message, subscribe_packet, unsubscribe_packet};

/// The identifier of every SUBSCRIBE and UNSUBSCRIBE.
const REQUEST: u16 = 65_535;

impl World {
    /// Everybody is there and listens to something.
    pub(super) async fn begin(&mut self) {
        for who in 0..CLIENTS {
            self.connect(who, true).await;
            for _ in 0..2 {
                self.open(who).await;
                self.subscribe(who).await;
            }
        }
    }

    pub(super) async fn step(&mut self) {
        let who = self.rng.usize(0..CLIENTS);
        let choice = self.rng.u8(0..100);
        match &self.actors[who].wire {
            None if choice < 60 => self.connect(who, choice < 45).await,
            None => {}
            Some(Wire::Memory(_)) => self.step_on_one_stream(who, choice).await,
            Some(Wire::Quic(_)) => self.step_on_many(who, choice).await,
        }
        let millis = if self.rng.bool() { 0 } else { self.rng.u64(1..150) };
        self.pass(Duration::from_millis(millis)).await;
        if self.rng.u8(0..3) > 0 {
            for actor in &mut self.actors {
                actor.pump(usize::MAX, &mut self.rng).await;
            }
            self.pass(Duration::ZERO).await;
        }
    }

    pub(super) async fn step_on_one_stream(&mut self, who: usize, choice: u8) {
        match choice {
            0..40 => self.publish(who).await,
            40..60 => self.look(who).await,
            60..72 => self.subscribe(who).await,
            72..76 => self.unsubscribe(who).await,
            76..90 => self.connect(who, choice < 86).await,
            90..95 => self.disconnect(who).await,
            _ => self.vanish(who).await,
        }
    }

    pub(super) async fn step_on_many(&mut self, who: usize, choice: u8) {
        match choice {
            0..24 => self.publish(who).await,
            24..38 => self.look(who).await,
            38..50 => self.open(who).await,
            50..61 => self.subscribe(who).await,
            61..64 => self.unsubscribe(who).await,
            64..68 => self.leave_unread(who).await,
            68..73 => self.finish(who).await,
            73..78 => self.reset(who).await,
            78..83 => self.spoil(who).await,
            83..86 => self.move_client(who, choice < 85).await,
            86..88 => self.gap(who).await,
            88..90 => self.lose(who).await,
            90..93 => self.connect(who, choice < 92).await,
            93 => self.disconnect(who).await,
            94 => self.vanish(who).await,
            _ => self.change_network(who),
        }
    }

    // -- Streams -----------------------------------------------------------------------------------

    pub(super) fn lanes(&mut self, who: usize) -> &mut Lanes {
        self.actors[who].wire.as_mut().and_then(Wire::lanes).expect("QUIC")
    }

    pub(super) async fn open(&mut self, who: usize) {
        if self.actors[who].streams.len() < 5 {
            let stream = self.lanes(who).open().await;
            self.actors[who].streams.insert(stream, Life::Open);
        }
    }

    pub(super) async fn leave_unread(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            if self.rng.u8(0..3) > 0 {
                self.lanes(who).leave_unread(stream);
            } else {
                self.lanes(who).read(stream);
            }
        }
    }

    pub(super) async fn finish(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(who);
            lanes.read(stream);
            lanes.finish(stream);
            self.ends(who, stream, Life::Finishing);
        }
    }

    pub(super) async fn spoil(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(who);
            lanes.read(stream);
            lanes.send_bytes(stream, &[0xff, 0xff]);
            self.ends(who, stream, Life::Spoilt);
            // The client does not know yet that it is sent again what it answers.
            self.actors[who].answer(false, &mut self.rng).await;
        }
    }

    pub(super) fn ends(&mut self, who: usize, stream: StreamKey, life: Life) {
        let actor = &mut self.actors[who];
        actor.streams.insert(stream, life);
        actor.ledger.begin_move();
        self.seen.streams_ended += 1;
    }

    pub(super) async fn reset(&mut self, who: usize) {
        if let Some(stream) = self.actors[who].any_data_stream(&mut self.rng) {
            let code = self.rng.u64(0..100);
            let lanes = self.lanes(who);
            lanes.reset(stream, code);
            lanes.forget(stream);
            let actor = &mut self.actors[who];
            actor.streams.remove(&stream);
            actor.ledger.begin_move();
            actor.go_on(stream, true, &mut self.rng).await;
            self.resets.push((Instant::now() + NOTICED, who, actor.connection, stream));
            self.seen.streams_ended += 1;
        }
    }

    // -- Requests ----------------------------------------------------------------------------------

    /// A stream for a request, once it is known where the subscriptions are.
    pub(super) async fn stream_for_request(&mut self, who: usize) -> StreamKey {
        let mut waited = Duration::ZERO;
        while self.actors[who].ledger.is_moving() {
            assert!(waited < Duration::from_secs(60), "a stream of {who} does not end");
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            self.pass(Duration::from_millis(20)).await;
            waited += Duration::from_millis(20);
        }
        let stream = self.actors[who].any_stream(&mut self.rng);
        if let Some(lanes) = self.actors[who].wire.as_mut().and_then(Wire::lanes) {
            lanes.read(stream);
        }
        stream
    }

    /// The answer comes on the stream of the request. [BQ-14]
    pub(super) async fn request(&mut self, who: usize, stream: StreamKey, packet: Packet) -> Packet {
        self.actors[who].wire.as_mut().expect("connected").send(stream, packet).await;
        for _ in 0..6000 {
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            if let Some((on, answer)) = self.actors[who].answers.pop() {
                assert_eq!(on, stream, "{answer:?}");
                return answer;
            }
            self.pass(Duration::from_millis(10)).await;
        }
        panic!("{who} waits for an answer on {stream}");
    }

    pub(super) async fn subscribe(&mut self, who: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let qos = QOS[self.rng.usize(0..3)];
        let stream = self.stream_for_request(who).await;
        let open = self.open_messages();
        let number = self.actors[who].ledger.begin_subscribe(text, qos, open.into_iter());
        let packet = subscribe_packet(REQUEST, None, vec![SubscribeEntry::new(filter(text), qos)]);
        match self.request(who, stream, packet).await {
            Packet::Suback(suback) => assert_eq!(suback.codes, [ReasonCode::from(qos)]),
            other => panic!("{other:?}"),
        }
        self.actors[who].ledger.subscribed(number, stream, text, qos);
    }

    pub(super) async fn unsubscribe(&mut self, who: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let stream = self.stream_for_request(who).await;
        let is_there = self.actors[who].ledger.has(text);
        self.actors[who].ledger.begin_unsubscribe(text);
        let code = if is_there { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
        match self.request(who, stream, unsubscribe_packet(REQUEST, &[text])).await {
            Packet::Unsuback(unsuback) => assert_eq!(unsuback.codes, [code]), // [BQ-17]
            other => panic!("{other:?}"),
        }
        self.actors[who].ledger.unsubscribed(text);
    }

    // -- Messages ----------------------------------------------------------------------------------

    /// Messages that the broker may still dispatch.
    pub(super) fn open_messages(&self) -> Vec<(Name, usize)> {
        let own = self.actors.iter().flat_map(Actor::unaccepted);
        let repeated = self.publications.iter().filter(|(_, one)| one.is_repeated).map(|(name, _)| *name);
        let all = own.chain(self.in_flight.iter().map(|(_, name)| *name)).chain(repeated);
        all.map(|name| (name, self.publications[&name].topic)).collect()
    }

    pub(super) async fn publish(&mut self, who: usize) {
        let mut stream = self.actors[who].any_stream(&mut self.rng);
        for _ in 0..self.rng.usize(1..8) {
            if self.rng.u8(0..4) == 0 {
                stream = self.actors[who].any_stream(&mut self.rng);
            }
            let qos = if self.actors[who].has_room() { QOS[self.rng.usize(0..3)] } else { QoS::AtMostOnce };
            let to = self.rng.usize(0..TOPICS.len());
            let actor = &mut self.actors[who];
            actor.next_number += 1;
            let name = Name { publisher: who, number: actor.next_number };
            let origin = Origin { publisher: who, connection: actor.connection, stream };
            let publication = Publication { topic: to, qos, origin, is_repeated: false };
            self.publications.insert(name, publication);
            for other in &mut self.actors {
                other.ledger.publish(name, &publication);
            }
            if qos == QoS::AtMostOnce {
                self.in_flight.push((Instant::now() + NOTICED, name));
            }
            let len = if TOPICS[to] == "bulk/0" { self.rng.usize(0..40_000) } else { 0 };
            let payload = format!("{who}:{}:{to} {}", name.number, "x".repeat(len));
            let publish = Publish { qos, ..message(TOPICS[to], payload) };
            self.actors[who].publish(name, publish, stream, &mut self.rng).await;
        }
        self.seen.messages = self.publications.len();
    }

    /// Some packets are looked at, and some answered.
    pub(super) async fn look(&mut self, who: usize) {
        let limit = self.rng.usize(1..30);
        self.actors[who].pump(limit, &mut self.rng).await;
        self.actors[who].answer(false, &mut self.rng).await;
    }
}
