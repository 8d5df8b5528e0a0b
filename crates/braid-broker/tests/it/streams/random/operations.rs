//! Random operations of clients on a connection.

use std::time::Duration;

use braid_proto::packet::{Packet, Publish, QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamKey;
use tokio::time::Instant;

use super::client::{ModelClient, StreamState};
use super::model::{FILTERS, Name, Origin, Publication, QOS, TOPICS};
use super::wire::Wire;
use super::world::{CLIENTS, NOTICED, World};
use crate::support::{Lanes, filter, message, subscribe_packet, unsubscribe_packet};

/// The identifier of every SUBSCRIBE and UNSUBSCRIBE.
const REQUEST: u16 = 65_535;

impl World {
    /// Connects every client and subscribes it to something.
    pub(super) async fn begin(&mut self) {
        for client_index in 0..CLIENTS {
            self.connect(client_index, true).await;
            for _ in 0..2 {
                self.open(client_index).await;
                self.subscribe(client_index).await;
            }
        }
    }

    pub(super) async fn step(&mut self) {
        let client_index = self.rng.usize(0..CLIENTS);
        let choice = self.rng.u8(0..100);
        match &self.clients[client_index].wire {
            None if choice < 60 => self.connect(client_index, choice < 45).await,
            None => {}
            Some(Wire::Memory(_)) => self.step_on_one_stream(client_index, choice).await,
            Some(Wire::Quic(_)) => self.step_on_many(client_index, choice).await,
        }
        let millis = if self.rng.bool() { 0 } else { self.rng.u64(1..150) };
        self.pass(Duration::from_millis(millis)).await;
        if self.rng.u8(0..3) > 0 {
            for client in &mut self.clients {
                client.pump(usize::MAX, &mut self.rng).await;
            }
            self.pass(Duration::ZERO).await;
        }
    }

    pub(super) async fn step_on_one_stream(&mut self, client_index: usize, choice: u8) {
        match choice {
            0..40 => self.publish(client_index).await,
            40..60 => self.look(client_index).await,
            60..72 => self.subscribe(client_index).await,
            72..76 => self.unsubscribe(client_index).await,
            76..90 => self.connect(client_index, choice < 86).await,
            90..95 => self.disconnect(client_index).await,
            _ => self.vanish(client_index).await,
        }
    }

    pub(super) async fn step_on_many(&mut self, client_index: usize, choice: u8) {
        match choice {
            0..24 => self.publish(client_index).await,
            24..38 => self.look(client_index).await,
            38..50 => self.open(client_index).await,
            50..61 => self.subscribe(client_index).await,
            61..64 => self.unsubscribe(client_index).await,
            64..68 => self.leave_unread(client_index).await,
            68..73 => self.finish(client_index).await,
            73..78 => self.reset(client_index).await,
            78..83 => self.spoil(client_index).await,
            83..86 => self.move_client(client_index, choice < 85).await,
            86..88 => self.gap(client_index).await,
            88..90 => self.lose(client_index).await,
            90..93 => self.connect(client_index, choice < 92).await,
            93 => self.disconnect(client_index).await,
            94 => self.vanish(client_index).await,
            _ => self.change_network(client_index),
        }
    }

    // -- Streams -----------------------------------------------------------------------------------

    pub(super) fn lanes(&mut self, client_index: usize) -> &mut Lanes {
        self.clients[client_index].wire.as_mut().and_then(Wire::lanes).expect("QUIC")
    }

    pub(super) async fn open(&mut self, client_index: usize) {
        if self.clients[client_index].streams.len() < 5 {
            let stream = self.lanes(client_index).open().await;
            self.clients[client_index].streams.insert(stream, StreamState::Open);
        }
    }

    pub(super) async fn leave_unread(&mut self, client_index: usize) {
        if let Some(stream) = self.clients[client_index].any_data_stream(&mut self.rng) {
            if self.rng.u8(0..3) > 0 {
                self.lanes(client_index).leave_unread(stream);
            } else {
                self.lanes(client_index).read(stream);
            }
        }
    }

    pub(super) async fn finish(&mut self, client_index: usize) {
        if let Some(stream) = self.clients[client_index].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(client_index);
            lanes.read(stream);
            lanes.finish(stream);
            self.ends(client_index, stream, StreamState::Finishing);
        }
    }

    pub(super) async fn spoil(&mut self, client_index: usize) {
        if let Some(stream) = self.clients[client_index].any_data_stream(&mut self.rng) {
            let lanes = self.lanes(client_index);
            lanes.read(stream);
            lanes.send_bytes(stream, &[0xff, 0xff]);
            self.ends(client_index, stream, StreamState::Spoilt);
            // The client does not know yet that the broker repeats the message that it answers.
            self.clients[client_index].answer(false, &mut self.rng).await;
        }
    }

    pub(super) fn ends(&mut self, client_index: usize, stream: StreamKey, state: StreamState) {
        let client = &mut self.clients[client_index];
        client.streams.insert(stream, state);
        client.model.begin_move();
        self.seen.streams_ended += 1;
    }

    pub(super) async fn reset(&mut self, client_index: usize) {
        if let Some(stream) = self.clients[client_index].any_data_stream(&mut self.rng) {
            let code = self.rng.u64(0..100);
            let lanes = self.lanes(client_index);
            lanes.reset(stream, code);
            lanes.forget(stream);
            let client = &mut self.clients[client_index];
            client.streams.remove(&stream);
            client.model.begin_move();
            client.go_on(stream, true, &mut self.rng).await;
            self.resets.push((Instant::now() + NOTICED, client_index, client.connection, stream));
            self.seen.streams_ended += 1;
        }
    }

    // -- Requests ----------------------------------------------------------------------------------

    /// Returns a stream for a request, once the client knows where its subscriptions are.
    pub(super) async fn stream_for_request(&mut self, client_index: usize) -> StreamKey {
        let mut waited = Duration::ZERO;
        while self.clients[client_index].model.is_moving() {
            assert!(waited < Duration::from_secs(60), "a stream of {client_index} does not end");
            self.clients[client_index].pump(usize::MAX, &mut self.rng).await;
            self.pass(Duration::from_millis(20)).await;
            waited += Duration::from_millis(20);
        }
        let stream = self.clients[client_index].any_stream(&mut self.rng);
        if let Some(lanes) = self.clients[client_index].wire.as_mut().and_then(Wire::lanes) {
            lanes.read(stream);
        }
        stream
    }

    /// The answer comes on the stream of the request. [BQ-14]
    pub(super) async fn request(&mut self, client_index: usize, stream: StreamKey, packet: Packet) -> Packet {
        self.clients[client_index].wire.as_mut().expect("connected").send(stream, packet).await;
        for _ in 0..6000 {
            self.clients[client_index].pump(usize::MAX, &mut self.rng).await;
            if let Some((on, answer)) = self.clients[client_index].answers.pop() {
                assert_eq!(on, stream, "{answer:?}");
                return answer;
            }
            self.pass(Duration::from_millis(10)).await;
        }
        panic!("{client_index} waits for an answer on {stream}");
    }

    pub(super) async fn subscribe(&mut self, client_index: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let qos = QOS[self.rng.usize(0..3)];
        let stream = self.stream_for_request(client_index).await;
        let open = self.open_messages();
        let number = self.clients[client_index].model.begin_subscribe(text, qos, open.into_iter());
        let packet = subscribe_packet(REQUEST, None, vec![SubscribeEntry::new(filter(text), qos)]);
        match self.request(client_index, stream, packet).await {
            Packet::Suback(suback) => assert_eq!(suback.codes, [ReasonCode::from(qos)]),
            other => panic!("{other:?}"),
        }
        self.clients[client_index].model.subscribed(number, stream, text, qos);
    }

    pub(super) async fn unsubscribe(&mut self, client_index: usize) {
        let text = FILTERS[self.rng.usize(0..FILTERS.len())];
        let stream = self.stream_for_request(client_index).await;
        let is_there = self.clients[client_index].model.has(text);
        self.clients[client_index].model.begin_unsubscribe(text);
        let code = if is_there { ReasonCode::Success } else { ReasonCode::NoSubscriptionExisted };
        match self.request(client_index, stream, unsubscribe_packet(REQUEST, &[text])).await {
            Packet::Unsuback(unsuback) => assert_eq!(unsuback.codes, [code]), // [BQ-17]
            other => panic!("{other:?}"),
        }
        self.clients[client_index].model.unsubscribed(text);
    }

    // -- Messages ----------------------------------------------------------------------------------

    /// Messages that the broker may still dispatch.
    pub(super) fn open_messages(&self) -> Vec<(Name, usize)> {
        let own = self.clients.iter().flat_map(ModelClient::unaccepted);
        let repeated = self.publications.iter().filter(|(_, one)| one.is_repeated).map(|(name, _)| *name);
        let all = own.chain(self.in_flight.iter().map(|(_, name)| *name)).chain(repeated);
        all.map(|name| (name, self.publications[&name].topic)).collect()
    }

    pub(super) async fn publish(&mut self, client_index: usize) {
        let mut stream = self.clients[client_index].any_stream(&mut self.rng);
        for _ in 0..self.rng.usize(1..8) {
            if self.rng.u8(0..4) == 0 {
                stream = self.clients[client_index].any_stream(&mut self.rng);
            }
            let qos = if self.clients[client_index].has_room() {
                QOS[self.rng.usize(0..3)]
            } else {
                QoS::AtMostOnce
            };
            let to = self.rng.usize(0..TOPICS.len());
            let client = &mut self.clients[client_index];
            client.next_number += 1;
            let name = Name { publisher: client_index, number: client.next_number };
            let origin = Origin { publisher: client_index, connection: client.connection, stream };
            let publication = Publication { topic: to, qos, origin, is_repeated: false };
            self.publications.insert(name, publication);
            for other in &mut self.clients {
                other.model.publish(name, &publication);
            }
            if qos == QoS::AtMostOnce {
                self.in_flight.push((Instant::now() + NOTICED, name));
            }
            let len = if TOPICS[to] == "bulk/0" { self.rng.usize(0..40_000) } else { 0 };
            let payload = format!("{client_index}:{}:{to} {}", name.number, "x".repeat(len));
            let publish = Publish { qos, ..message(TOPICS[to], payload) };
            self.clients[client_index].publish(name, publish, stream, &mut self.rng).await;
        }
        self.seen.messages = self.publications.len();
    }

    /// Reads some packets, and answers some of those.
    pub(super) async fn look(&mut self, client_index: usize) {
        let limit = self.rng.usize(1..30);
        self.clients[client_index].pump(limit, &mut self.rng).await;
        self.clients[client_index].answer(false, &mut self.rng).await;
    }
}
