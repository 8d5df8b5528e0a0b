use std::collections::VecDeque;
use std::time::Duration;

use braid_proto::decoder::Decoder;
use braid_proto::packet::{
    Ack, AckKind, Connack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, Suback,
    SubscribeEntry, Unsuback,
};
use braid_proto::reason::ReasonCode;
use braid_transport::{ByteStream, Link};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::only_stream;
use super::packets::{filter, publish_packet, subscribe_packet};

/// Timeout above any wait of a test; it expires only in a test that fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// A client that sends the packets of the test and checks each packet it receives.
pub(crate) struct Client {
    io: Box<dyn ByteStream>,
    pub(crate) version: ProtocolVersion,
    decoder: Decoder,
    /// Decoded packets that the test has not taken.
    decoded: VecDeque<Packet>,
    last_id: PacketId,
    connack: Option<Connack>,
}

impl Client {
    pub(super) fn new(io: Box<dyn ByteStream>, version: ProtocolVersion) -> Self {
        let decoder = Decoder::new(version, 268_435_460);
        let last_id = PacketId::new(u16::MAX).expect("not zero");
        Self { io, version, decoder, decoded: VecDeque::new(), last_id, connack: None }
    }

    /// Client on a link of one stream, before CONNECT.
    pub(crate) fn over(link: Link, version: ProtocolVersion) -> Self {
        Self::new(only_stream(link), version)
    }

    // -- Sending -----------------------------------------------------------------------------------

    pub(crate) async fn send(&mut self, packet: Packet) {
        self.send_all([packet]).await;
    }

    /// Sends packets in one write.
    pub(crate) async fn send_all(&mut self, packets: impl IntoIterator<Item = Packet>) {
        let mut bytes = BytesMut::new();
        for packet in packets {
            packet.encode(self.version, &mut bytes);
        }
        self.send_bytes(&bytes).await;
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        assert!(self.try_send_bytes(bytes).await, "the broker closed the link");
    }

    /// False when the link is closed.
    pub(crate) async fn try_send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.io.write_all(bytes).await.is_ok()
    }

    /// Sends CONNECT on a fresh link.
    pub(crate) async fn send_connect(&mut self, connect: Connect) {
        self.send(Packet::Connect(Box::new(connect))).await;
    }

    pub(crate) async fn send_ack(&mut self, kind: AckKind, packet_id: PacketId) {
        self.send(Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success))).await;
    }

    pub(crate) fn next_id(&mut self) -> u16 {
        self.last_id = self.last_id.next();
        self.last_id.value()
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// The next packet; `None` at the end of the link.
    pub(crate) async fn next(&mut self) -> Option<Packet> {
        let packet = tokio::time::timeout(PATIENCE, self.read()).await;
        packet.expect("the broker sent nothing for five minutes")
    }

    /// Cancel safe: bytes that were read are decoded and stored before the next await.
    async fn read(&mut self) -> Option<Packet> {
        loop {
            if let Some(packet) = self.decoded.pop_front() {
                return Some(packet);
            }
            let mut bytes = vec![0; 64 * 1024];
            let len = self.io.read(&mut bytes).await.unwrap_or(0);
            if len == 0 {
                return None;
            }
            let mut input = &bytes[..len];
            while let Some(packet) = self.decoder.decode(&mut input).expect("the broker sends packets") {
                self.decoded.push_back(packet);
            }
        }
    }

    /// The next packet that `pick` accepts; others stay for later, in their order.
    async fn find<T>(&mut self, what: &str, pick: impl Fn(&Packet) -> Option<T>) -> T {
        let mut passed = Vec::new();
        loop {
            let packet = self.next().await;
            let Some(packet) = packet else { panic!("the link ended before {what}, after {passed:?}") };
            if let Some(found) = pick(&packet) {
                for packet in passed.into_iter().rev() {
                    self.decoded.push_front(packet);
                }
                return found;
            }
            passed.push(packet);
        }
    }

    pub(crate) async fn accepted(&mut self) {
        let connack = self.expect_connack().await;
        assert_eq!(connack.reason, ReasonCode::Success);
        self.connack = Some(connack);
    }

    /// CONNACK that accepted the connection.
    pub(crate) fn connack(&self) -> &Connack {
        self.connack.as_ref().expect("connected")
    }

    pub(crate) async fn expect_connack(&mut self) -> Connack {
        match self.next().await {
            Some(Packet::Connack(connack)) => *connack,
            other => panic!("CONNACK expected, not {other:?}"),
        }
    }

    pub(crate) async fn expect_publish(&mut self) -> Publish {
        match self.next().await {
            Some(Packet::Publish(publish)) => publish,
            other => panic!("PUBLISH expected, not {other:?}"),
        }
    }

    /// The next PUBLISH as text, acknowledged as its QoS asks.
    pub(crate) async fn take(&mut self) -> String {
        let publish = self.expect_publish().await;
        self.acknowledge(&publish).await;
        String::from_utf8_lossy(&publish.payload).into_owned()
    }

    /// The next `count` PUBLISH packets, acknowledged.
    pub(crate) async fn take_many(&mut self, count: usize) -> Vec<Publish> {
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let publish = self.find("PUBLISH", as_publish).await;
            self.acknowledge(&publish).await;
            all.push(publish);
        }
        all
    }

    /// Every packet that arrives without time passing, acknowledged if it is a PUBLISH.
    pub(crate) async fn take_all(&mut self) -> Vec<Publish> {
        let mut all = Vec::new();
        while let Some(packet) = self.next_at_once().await {
            match packet {
                Packet::Publish(publish) => {
                    self.acknowledge(&publish).await;
                    all.push(publish);
                }
                other => panic!("PUBLISH expected, not {other:?}"),
            }
        }
        all
    }

    /// The next packet if it arrives without time passing.
    pub(crate) async fn next_at_once(&mut self) -> Option<Packet> {
        tokio::time::timeout(Duration::from_millis(1), self.read()).await.ok().flatten()
    }

    /// Completes the exchange of a PUBLISH.
    pub(crate) async fn acknowledge(&mut self, publish: &Publish) {
        let Some(packet_id) = publish.packet_id else { return };
        if publish.qos == QoS::AtLeastOnce {
            return self.send_ack(AckKind::Puback, packet_id).await;
        }
        self.send_ack(AckKind::Pubrec, packet_id).await;
        assert_eq!(self.find_ack(AckKind::Pubrel, packet_id).await.reason, ReasonCode::Success);
        self.send_ack(AckKind::Pubcomp, packet_id).await;
    }

    /// The next packet must be this acknowledgement.
    pub(crate) async fn expect_ack(&mut self, kind: AckKind) -> Ack {
        match self.next().await {
            Some(Packet::Ack(ack)) if ack.kind == kind => ack,
            other => panic!("{} expected, not {other:?}", kind.packet_type()),
        }
    }

    /// Waits for an acknowledgement; other packets stay for later.
    pub(crate) async fn find_ack(&mut self, kind: AckKind, packet_id: PacketId) -> Ack {
        let is_it = |ack: &Ack| ack.kind == kind && ack.packet_id == packet_id;
        let what = format!("{} {packet_id}", kind.packet_type());
        self.find(&what, |packet| match packet {
            Packet::Ack(ack) if is_it(ack) => Some(ack.clone()),
            _ => None,
        })
        .await
    }

    /// Waits for an UNSUBACK; other packets stay for later.
    pub(crate) async fn find_unsuback(&mut self) -> Unsuback {
        self.find("UNSUBACK", |packet| match packet {
            Packet::Unsuback(unsuback) => Some((**unsuback).clone()),
            _ => None,
        })
        .await
    }

    /// Asserts that nothing arrives before time passes, and that the link is open.
    pub(crate) async fn expect_silence(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(1), self.read()).await;
        assert!(next.is_err(), "silence expected, not {next:?}");
    }

    /// Expects DISCONNECT with this reason and then the end of the link.
    pub(crate) async fn expect_disconnect(&mut self, reason: ReasonCode) -> Disconnect {
        let disconnect = match self.next().await {
            Some(Packet::Disconnect(disconnect)) => *disconnect,
            other => panic!("DISCONNECT expected, not {other:?}"),
        };
        assert_eq!(disconnect.reason, reason);
        self.expect_end().await;
        disconnect
    }

    /// Expects the end of the link without another packet.
    pub(crate) async fn expect_end(&mut self) {
        let next = self.next().await;
        assert!(next.is_none(), "the end expected, not {next:?}");
    }

    // -- Conversations -----------------------------------------------------------------------------

    /// Subscribes with one filter and expects it to be granted.
    pub(crate) async fn subscribe(&mut self, text: &str, qos: QoS) {
        let codes = self.subscribe_all(None, vec![SubscribeEntry::new(filter(text), qos)]).await.codes;
        assert_eq!(codes, [ReasonCode::from(qos)]);
    }

    pub(crate) async fn subscribe_all(
        &mut self,
        subscription_id: Option<u32>,
        entries: Vec<SubscribeEntry>,
    ) -> Suback {
        let packet_id = self.next_id();
        self.send(subscribe_packet(packet_id, subscription_id, entries)).await;
        let suback = self.find("SUBACK", as_suback).await;
        assert_eq!(suback.packet_id.value(), packet_id); // [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-2.2.1-6]
        suback
    }

    /// Publishes and completes the exchange; returns the reason of the first answer.
    pub(crate) async fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: QoS) -> ReasonCode {
        let packet_id = self.next_id();
        self.send(publish_packet(topic, payload, qos, packet_id)).await;
        self.complete(qos, packet_id).await
    }

    /// Publishes a prepared packet.
    pub(crate) async fn publish_as(&mut self, mut publish: Publish) -> ReasonCode {
        let (qos, packet_id) = (publish.qos, self.next_id());
        publish.packet_id = (qos > QoS::AtMostOnce).then_some(self.last_id);
        self.send(Packet::Publish(publish)).await;
        self.complete(qos, packet_id).await
    }

    async fn complete(&mut self, qos: QoS, packet_id: u16) -> ReasonCode {
        let packet_id = PacketId::new(packet_id).expect("not zero");
        match qos {
            QoS::AtMostOnce => ReasonCode::Success,
            QoS::AtLeastOnce => self.find_ack(AckKind::Puback, packet_id).await.reason,
            QoS::ExactlyOnce => {
                let reason = self.find_ack(AckKind::Pubrec, packet_id).await.reason;
                if !reason.is_error() {
                    self.send_ack(AckKind::Pubrel, packet_id).await;
                    self.find_ack(AckKind::Pubcomp, packet_id).await;
                }
                reason
            }
        }
    }

    /// Sends DISCONNECT and lets the broker handle it.
    pub(crate) async fn disconnect(mut self) {
        self.send(Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success)))).await;
        while self.next().await.is_some() {}
    }

    /// Drops the link and lets the broker handle it.
    pub(crate) async fn vanish(self) {
        drop(self);
        super::settle().await;
    }
}

fn as_publish(packet: &Packet) -> Option<Publish> {
    if let Packet::Publish(publish) = packet { Some(publish.clone()) } else { None }
}

fn as_suback(packet: &Packet) -> Option<Suback> {
    if let Packet::Suback(suback) = packet { Some((**suback).clone()) } else { None }
}
