//! A client with many streams, each of which can be written, read or left unread.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use braid_proto::decoder::Decoder;
use braid_proto::packet::{
    Ack, AckKind, Connack, Connect, Disconnect, Packet, PacketId, ProtocolVersion, Publish, QoS, Suback,
    SubscribeEntry,
};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_transport::{Close, Dir, Link};
use bytes::BytesMut;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::packets::{filter, id, publish_packet, subscribe_packet};
use super::pump::{Order, State, pump};

pub(crate) use super::pump::Ended;

pub(crate) const CONTROL: StreamKey = StreamKey::CONTROL;

/// Timeout above any wait of a test; it expires only in a test that fails.
const PATIENCE: Duration = Duration::from_secs(3600);

/// A client over one link of many streams. A task of its own moves the bytes; the test takes packets stream by stream,
/// in any order.
pub(crate) struct Lanes {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
    version: ProtocolVersion,
    last_id: u16,
    connack: Option<Connack>,
}

impl Lanes {
    pub(crate) fn new(link: Link, version: ProtocolVersion) -> Self {
        let state = Arc::new(Mutex::new(State::new(version)));
        let task = tokio::spawn(pump(link, Arc::clone(&state)));
        Self { state, task, version, last_id: 0, connack: None }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the pump does not panic")
    }

    fn order(&self, order: Order) {
        let mut state = self.lock();
        state.orders.push_back(order);
        state.wake();
    }

    /// Waits until `look` returns something.
    async fn wait<T>(&self, what: &str, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let changed = Arc::clone(&self.lock().changed);
                let mut changed = std::pin::pin!(changed.notified());
                changed.as_mut().enable();
                if let Some(found) = look(&mut self.lock()) {
                    return found;
                }
                changed.await;
            }
        };
        match timeout(PATIENCE, waiting).await {
            Ok(found) => found,
            Err(_) => panic!("no {what} within an hour; {}", self.lock().summary()),
        }
    }

    // -- Datagrams ---------------------------------------------------------------------------------

    pub(crate) fn send_datagram(&self, bytes: &[u8]) {
        self.order(Order::Datagram(bytes.to_vec()));
    }

    /// The next datagram, one whole PUBLISH.
    pub(crate) async fn expect_datagram(&self) -> Publish {
        let bytes = self.wait("datagram", |state| state.datagrams.pop_front()).await;
        let (mut decoder, mut rest) = (Decoder::new(self.version, usize::MAX), &bytes[..]);
        let packet = decoder.decode(&mut rest).expect("a packet").expect("a whole one");
        assert!(rest.is_empty(), "and nothing else");
        let Packet::Publish(publish) = packet else { panic!("{packet:?}") };
        publish
    }

    /// Number of datagrams that were not taken.
    pub(crate) fn datagrams(&self) -> usize {
        self.lock().datagrams.len()
    }

    // -- Streams -----------------------------------------------------------------------------------

    pub(crate) async fn open(&self) -> StreamKey {
        self.open_in(Dir::Bidi).await
    }

    pub(crate) async fn open_uni(&self) -> StreamKey {
        self.open_in(Dir::Uni).await
    }

    async fn open_in(&self, dir: Dir) -> StreamKey {
        let (tell, told) = oneshot::channel();
        self.order(Order::Open(dir, tell));
        let opened = timeout(PATIENCE, told).await.expect("no credit for a stream within an hour");
        opened.unwrap_or_else(|_| panic!("no stream: {}", self.lock().summary()))
    }

    /// Sends FIN after all queued bytes.
    pub(crate) fn finish(&self, stream: StreamKey) {
        self.order(Order::Finish(stream));
    }

    /// Sends RESET_STREAM and STOP_SENDING.
    pub(crate) fn reset(&self, stream: StreamKey, code: u64) {
        self.order(Order::Abort(stream, code));
    }

    pub(crate) fn set_priority(&self, stream: StreamKey, priority: u16) {
        self.order(Order::Priority(stream, Priority::new(priority)));
    }

    /// Stops reading a stream, until [`Self::read`].
    pub(crate) fn leave_unread(&self, stream: StreamKey) {
        self.lock().lane(stream).is_read = false;
    }

    pub(crate) fn read(&self, stream: StreamKey) {
        let mut state = self.lock();
        state.lane(stream).is_read = true;
        state.wake();
    }

    /// Drops the state of a stream that has ended.
    pub(crate) fn forget(&self, stream: StreamKey) {
        self.lock().forget(stream);
    }

    // -- Sending -----------------------------------------------------------------------------------

    pub(crate) fn send(&self, stream: StreamKey, packet: &Packet) {
        let mut bytes = BytesMut::new();
        packet.encode(self.version, &mut bytes);
        self.send_bytes(stream, &bytes);
    }

    pub(crate) fn send_bytes(&self, stream: StreamKey, bytes: &[u8]) {
        self.lock().send(stream, bytes);
    }

    pub(crate) fn send_connect(&self, connect: Connect) {
        self.send(CONTROL, &Packet::Connect(Box::new(connect)));
    }

    pub(crate) fn send_ack(&self, stream: StreamKey, kind: AckKind, packet_id: PacketId) {
        self.send(stream, &Packet::Ack(Ack::new(kind, packet_id, ReasonCode::Success)));
    }

    pub(crate) fn next_id(&mut self) -> u16 {
        self.last_id = if self.last_id == u16::MAX { 1 } else { self.last_id + 1 };
        self.last_id
    }

    // -- Receiving ---------------------------------------------------------------------------------

    /// The next packet of a stream; `None` at its end, or that of the link.
    pub(crate) async fn next(&self, stream: StreamKey) -> Option<Packet> {
        self.wait(&format!("packet on {stream}"), |state| {
            let is_over = state.end.is_some();
            let lane = state.lane(stream);
            let packet = lane.packets.pop_front();
            if packet.is_some() || is_over || lane.ended.is_some() { Some(packet) } else { None }
        })
        .await
    }

    pub(crate) async fn expect(&self, stream: StreamKey) -> Packet {
        let packet = self.next(stream).await;
        packet.unwrap_or_else(|| panic!("{stream} has ended: {}", self.lock().summary()))
    }

    /// Packets that have come on a stream since the last call, without waiting.
    pub(crate) fn received(&self, stream: StreamKey) -> Vec<Packet> {
        self.lock().lane(stream).packets.drain(..).collect()
    }

    /// Bytes received on a stream so far.
    pub(crate) fn received_bytes(&self, stream: StreamKey) -> usize {
        self.lock().lane(stream).received
    }

    pub(crate) async fn expect_publish(&self, stream: StreamKey) -> Publish {
        match self.expect(stream).await {
            Packet::Publish(publish) => publish,
            other => panic!("PUBLISH expected on {stream}, not {other:?}"),
        }
    }

    /// The next PUBLISH of a stream; earlier packets stay for later.
    pub(crate) async fn find_publish(&self, stream: StreamKey) -> Publish {
        self.wait(&format!("PUBLISH on {stream}"), |state| {
            let packets = &mut state.lane(stream).packets;
            let at = packets.iter().position(|packet| matches!(packet, Packet::Publish(_)))?;
            match packets.remove(at) {
                Some(Packet::Publish(publish)) => Some(publish),
                _ => None,
            }
        })
        .await
    }

    pub(crate) async fn expect_ack(&self, stream: StreamKey, kind: AckKind, packet_id: u16) -> ReasonCode {
        match self.expect(stream).await {
            Packet::Ack(ack) if ack.kind == kind && ack.packet_id == id(packet_id) => ack.reason,
            other => panic!("{} {packet_id} expected on {stream}, not {other:?}", kind.packet_type()),
        }
    }

    /// Waits for an acknowledgement on its stream; earlier packets stay for later.
    pub(crate) async fn find_ack(&self, stream: StreamKey, kind: AckKind, packet_id: u16) -> ReasonCode {
        let is_it = |packet: &Packet| matches!(packet, Packet::Ack(ack) if ack.kind == kind && ack.packet_id == id(packet_id));
        self.wait(&format!("{} {packet_id} on {stream}", kind.packet_type()), |state| {
            let packets = &mut state.lane(stream).packets;
            let at = packets.iter().position(is_it)?;
            match packets.remove(at) {
                Some(Packet::Ack(ack)) => Some(ack.reason),
                _ => None,
            }
        })
        .await
    }

    pub(crate) async fn expect_suback(&self, stream: StreamKey) -> Suback {
        match self.expect(stream).await {
            Packet::Suback(suback) => *suback,
            other => panic!("SUBACK expected on {stream}, not {other:?}"),
        }
    }

    pub(crate) async fn expect_unsuback(&self, stream: StreamKey) -> Vec<ReasonCode> {
        match self.expect(stream).await {
            Packet::Unsuback(unsuback) => unsuback.codes,
            other => panic!("UNSUBACK expected on {stream}, not {other:?}"),
        }
    }

    /// The next PUBLISH of a stream as text, acknowledged on it as its QoS asks.
    pub(crate) async fn take(&self, stream: StreamKey) -> String {
        let publish = self.expect_publish(stream).await;
        self.acknowledge(stream, &publish).await;
        String::from_utf8_lossy(&publish.payload).into_owned()
    }

    /// Completes the exchange of a PUBLISH on the stream that brought it.
    pub(crate) async fn acknowledge(&self, stream: StreamKey, publish: &Publish) {
        let Some(packet_id) = publish.packet_id else { return };
        if publish.qos == QoS::AtLeastOnce {
            return self.send_ack(stream, AckKind::Puback, packet_id);
        }
        self.send_ack(stream, AckKind::Pubrec, packet_id);
        assert_eq!(self.find_ack(stream, AckKind::Pubrel, packet_id.value()).await, ReasonCode::Success);
        self.send_ack(stream, AckKind::Pubcomp, packet_id);
    }

    /// Asserts that nothing arrives on a stream for a second, and that neither it nor the link ends.
    pub(crate) async fn expect_silence(&self, stream: StreamKey) {
        super::pass(1).await;
        let mut state = self.lock();
        assert!(state.end.is_none(), "the link has ended: {:?}", state.end);
        let lane = state.lane(stream);
        assert!(lane.packets.is_empty() && lane.ended.is_none(), "silence expected on {stream}: {lane:?}");
    }

    /// Expects the end of the peer's sending half of a stream, with no packet before it.
    pub(crate) async fn expect_ended(&self, stream: StreamKey) -> Ended {
        let packet = self.next(stream).await;
        assert!(packet.is_none(), "the end of {stream} expected, not {packet:?}");
        self.wait(&format!("end of {stream}"), |state| state.lane(stream).ended).await
    }

    /// The code of the peer's STOP_SENDING.
    pub(crate) async fn expect_stopped(&self, stream: StreamKey) -> u64 {
        self.wait(&format!("STOP_SENDING on {stream}"), |state| state.lane(stream).stopped).await
    }

    /// Expects the peer to end both halves of a stream with this code.
    pub(crate) async fn expect_aborted(&self, stream: StreamKey, code: u64) {
        assert_eq!(self.expect_ended(stream).await, Ended::Reset(code));
        assert_eq!(self.expect_stopped(stream).await, code);
    }

    /// Waits for the end of the link, with nothing more on the control stream: `Ok` for an orderly end, else the
    /// reason.
    pub(crate) async fn expect_closed(&self) -> Result<(), String> {
        let packet = self.next(CONTROL).await;
        assert!(packet.is_none(), "the end of the link expected, not {packet:?}");
        self.wait("end of the link", |state| state.end.clone()).await
    }

    /// Expects DISCONNECT with this reason and then the end of the link.
    pub(crate) async fn expect_disconnect(&self, reason: ReasonCode) {
        match self.expect(CONTROL).await {
            Packet::Disconnect(disconnect) => assert_eq!(disconnect.reason, reason),
            other => panic!("DISCONNECT expected, not {other:?}"),
        }
        assert_eq!(self.expect_closed().await, Ok(()));
    }

    /// Expects DISCONNECT with this reason, behind answers to PINGREQ, and then the end of the link.
    pub(crate) async fn find_disconnect(&self, reason: ReasonCode) {
        loop {
            match self.expect(CONTROL).await {
                Packet::Pingresp => {}
                Packet::Disconnect(disconnect) => {
                    assert_eq!(disconnect.reason, reason);
                    break;
                }
                other => panic!("DISCONNECT expected, not {other:?}"),
            }
        }
        assert_eq!(self.expect_closed().await, Ok(()));
    }

    /// Waits until the handshake is confirmed: earlier bytes were 0-RTT data.
    pub(crate) async fn confirmed(&self) {
        self.wait("confirmation", |state| state.is_confirmed.then_some(())).await;
    }

    // -- Conversations -----------------------------------------------------------------------------

    pub(crate) async fn accepted(&mut self) {
        match self.expect(CONTROL).await {
            Packet::Connack(connack) => {
                assert_eq!(connack.reason, ReasonCode::Success);
                self.connack = Some(*connack);
            }
            other => panic!("CONNACK expected, not {other:?}"),
        }
    }

    pub(crate) fn connack(&self) -> &Connack {
        self.connack.as_ref().expect("connected")
    }

    /// Subscribes on a stream with one filter and expects it to be granted there.
    pub(crate) async fn subscribe(&mut self, stream: StreamKey, text: &str, qos: QoS) {
        let packet_id = self.next_id();
        let entries = vec![SubscribeEntry::new(filter(text), qos)];
        self.send(stream, &subscribe_packet(packet_id, None, entries));
        let suback = self.expect_suback(stream).await;
        assert_eq!((suback.packet_id.value(), &suback.codes[..]), (packet_id, &[ReasonCode::from(qos)][..]));
    }

    /// Publishes on a stream and completes the exchange there; returns the reason of the first answer.
    pub(crate) async fn publish(
        &mut self,
        stream: StreamKey,
        topic: &str,
        payload: impl AsRef<[u8]>,
        qos: QoS,
    ) -> ReasonCode {
        let packet_id = self.next_id();
        self.send(stream, &publish_packet(topic, payload, qos, packet_id));
        match qos {
            QoS::AtMostOnce => ReasonCode::Success,
            QoS::AtLeastOnce => self.expect_ack(stream, AckKind::Puback, packet_id).await,
            QoS::ExactlyOnce => {
                let reason = self.expect_ack(stream, AckKind::Pubrec, packet_id).await;
                self.send_ack(stream, AckKind::Pubrel, id(packet_id));
                self.expect_ack(stream, AckKind::Pubcomp, packet_id).await;
                reason
            }
        }
    }

    /// Sends PINGREQ on a stream and expects the answer on the control stream.
    pub(crate) async fn ping(&self, stream: StreamKey) {
        self.send(stream, &Packet::Pingreq);
        let packet = self.expect(CONTROL).await;
        assert!(matches!(packet, Packet::Pingresp), "PINGRESP expected, not {packet:?}");
    }

    /// Moves the connection to another port of its host.
    pub(crate) fn rebind(&self) {
        self.order(Order::Rebind);
    }

    /// Sends DISCONNECT and lets the broker handle it.
    pub(crate) async fn disconnect(&self) -> Result<(), String> {
        self.send(CONTROL, &Packet::Disconnect(Box::new(Disconnect::new(ReasonCode::Success))));
        self.wait("end of the link", |state| state.end.clone()).await
    }

    /// Closes the connection with a code and without a DISCONNECT, and lets the broker handle it.
    pub(crate) async fn close(&self, code: u32) {
        self.order(Order::Close(Close { code, stop: None }));
        self.wait("end of the link", |state| state.end.clone().map(drop)).await;
        super::pass(1).await;
    }

    /// Drops the link and lets the broker handle it.
    pub(crate) async fn vanish(self) {
        drop(self);
        super::pass(1).await;
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.task.abort();
    }
}
