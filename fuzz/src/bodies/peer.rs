//! Peer of a protocol machine, and input that both machines share.

use std::collections::HashMap;

use braid_proto::connection::{Client, Outbox, Server, StreamAction};
use braid_proto::decoder::Decoder;
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{Packet, ProtocolVersion, QoS};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicName;
use bytes::{Buf, Bytes};

/// Streams that bits 4 to 6 of an operation select.
pub(super) const STREAMS: [StreamKey; 8] = [
    StreamKey::CONTROL,
    StreamKey::bidi(1),
    StreamKey::bidi(2),
    StreamKey::bidi(3),
    StreamKey::bidi(4),
    StreamKey::bidi(9),
    StreamKey::uni(0),
    StreamKey::uni(1),
];

/// Protocol version of a number; 5.0 from 2 on.
pub(super) fn version(number: u8) -> ProtocolVersion {
    match number {
        0 => ProtocolVersion::V31,
        1 => ProtocolVersion::V311,
        _ => ProtocolVersion::V5,
    }
}

/// PUBLISH with this first byte, with QoS 1 or 2.
pub(super) fn publish(version: ProtocolVersion, first: u8, id: u8) -> Vec<u8> {
    let mut packet = vec![first, 5, 0, 1, b'a', 0, id];
    if version.is_v5() {
        packet[1] = 6;
        packet.push(0);
    }
    packet
}

/// Message to the peer, whose QoS, priority and payload depend on a byte.
pub(super) fn delivery(on: StreamKey, byte: u8, payload_len: usize, retain: bool) -> Delivery {
    let qos = QoS::from_bits(byte % 3).unwrap_or_default();
    let payload = Bytes::from(vec![byte; payload_len]);
    let message = Message::new(TopicName::parse("topic").expect("a name"), payload, qos, retain);
    let priority = Priority::new(u16::from(byte & 16));
    Delivery { stream: on, priority, ..Delivery::of(SharedMessage::new(message)) }
}

/// Output of a protocol machine.
pub(super) trait Machine {
    fn streams_to_write(&self, streams: &mut Vec<StreamKey>);
    fn unwritten(&self) -> usize;
    fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox>;
    fn poll_stream(&mut self) -> Option<StreamAction>;
}

macro_rules! machines {
    ($($machine:ident),*) => {$(
        impl Machine for $machine {
            fn streams_to_write(&self, streams: &mut Vec<StreamKey>) {
                $machine::streams_to_write(self, streams);
            }

            fn unwritten(&self) -> usize {
                $machine::unwritten(self)
            }

            fn outbox(&mut self, stream: StreamKey) -> Option<&mut Outbox> {
                $machine::outbox(self, stream)
            }

            fn poll_stream(&mut self) -> Option<StreamAction> {
                $machine::poll_stream(self)
            }
        }
    )*};
}

machines!(Client, Server);

/// Peer of a protocol machine: decoders of its streams, while they are open.
pub(super) struct Peer {
    version: ProtocolVersion,
    decoders: HashMap<StreamKey, Decoder>,
}

impl Peer {
    pub(super) fn new(version: ProtocolVersion) -> Self {
        let mut peer = Self { version, decoders: HashMap::new() };
        peer.open(StreamKey::CONTROL);
        peer
    }

    pub(super) fn open(&mut self, stream: StreamKey) {
        self.decoders.entry(stream).or_insert_with(|| Decoder::new(self.version, usize::MAX));
    }

    /// Takes everything that the machine writes, whole packets on open streams; `check` gets each.
    pub(super) fn drain(&mut self, machine: &mut impl Machine, mut check: impl FnMut(StreamKey, &Packet)) {
        let mut streams = Vec::new();
        machine.streams_to_write(&mut streams);
        assert!(streams.is_sorted(), "the control stream is first");
        let mut left = machine.unwritten();
        for stream in streams {
            let Some(outbox) = machine.outbox(stream) else { continue };
            let written = outbox.copy_to_bytes(outbox.len());
            left -= written.len();
            let decoder = self.decoders.get_mut(&stream).expect("a stream that is open");
            let mut input = &written[..];
            while let Some(packet) = decoder.decode(&mut input).expect("the machine writes packets") {
                check(stream, &packet);
            }
            assert_eq!(decoder.partial_len(), 0, "half a packet was written");
        }
        assert_eq!(left, 0, "bytes on a stream that is not to be written");
        while let Some(action) = machine.poll_stream() {
            let (StreamAction::Finish(stream) | StreamAction::Abort(stream, _)) = action;
            assert!(!stream.is_control(), "the control stream was ended: {action:?}");
            assert!(machine.outbox(stream).is_none());
            self.decoders.remove(&stream);
        }
    }
}
