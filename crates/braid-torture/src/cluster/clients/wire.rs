//! One TCP connection with packets of MQTT.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use braid_proto::decoder::Decoder;
use braid_proto::packet::{Packet, ProtocolVersion};
use bytes::{Buf, BytesMut};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Largest packet that is accepted.
const PACKET_MAX: usize = 16 << 20;

/// Connection with the packets that were not read or written yet.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    version: ProtocolVersion,
    decoder: Decoder,
    input: BytesMut,
    output: BytesMut,
}

impl Wire {
    /// Connects within `limit`.
    ///
    /// # Errors
    /// Those of the system, and the time limit.
    pub(crate) async fn connect(
        address: SocketAddr,
        version: ProtocolVersion,
        limit: Duration,
    ) -> io::Result<Self> {
        let stream = timeout(limit, TcpStream::connect(address)).await??;
        stream.set_nodelay(true)?;
        let decoder = Decoder::new(version, PACKET_MAX);
        Ok(Self { stream, version, decoder, input: BytesMut::new(), output: BytesMut::new() })
    }

    /// Writes a packet, or the part of it that the system takes now; [`Wire::next`] writes the rest.
    pub(crate) fn send(&mut self, packet: &Packet) {
        packet.encode(self.version, &mut self.output);
        // The next read reports the end of the connection.
        let _ = self.write();
    }

    /// True if the system has taken all packets.
    pub(crate) fn is_written(&self) -> bool {
        self.output.is_empty()
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.try_write(&self.output) {
                Ok(written) => self.output.advance(written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Next packet. Cancelling loses nothing.
    ///
    /// # Errors
    /// The connection has ended, or with [`ErrorKind::InvalidData`] the server has sent what is no packet.
    pub(crate) async fn next(&mut self) -> io::Result<Packet> {
        loop {
            self.write()?;
            let mut rest = &self.input[..];
            let decoded = self.decoder.decode(&mut rest);
            let consumed = self.input.len() - rest.len();
            self.input.advance(consumed);
            if let Some(packet) = decoded.map_err(|wrong| illegal(&wrong))? {
                return Ok(packet);
            }
            let (stream, is_written) = (&self.stream, self.output.is_empty());
            let writable = async || if is_written { pending().await } else { stream.writable().await };
            tokio::select! {
                ready = stream.readable() => ready?,
                ready = writable() => ready?,
            }
            match self.stream.try_read_buf(&mut self.input) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Error of an illegal packet. One that was cut is [`ErrorKind::UnexpectedEof`].
pub(crate) fn illegal(reason: &impl ToString) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason.to_string())
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use braid_proto::packet::{Ack, AckKind, PacketId, Publish, QoS};
    use braid_proto::reason::ReasonCode;
    use braid_proto::topic::TopicName;
    use tokio::net::TcpListener;

    use super::*;

    const V5: ProtocolVersion = ProtocolVersion::V5;

    /// Both ends of a connection.
    async fn pair() -> (Wire, Wire) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let wire = Wire::connect(listener.local_addr().unwrap(), V5, Duration::from_secs(5)).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let decoder = Decoder::new(V5, PACKET_MAX);
        let other = Wire { stream, version: V5, decoder, input: BytesMut::new(), output: BytesMut::new() };
        (wire, other)
    }

    fn puback(number: u16) -> Packet {
        Packet::Ack(Ack::new(AckKind::Puback, PacketId::new(number).unwrap(), ReasonCode::Success))
    }

    fn publish(len: usize) -> Packet {
        Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic: Some(TopicName::parse("t").unwrap()),
            packet_id: None,
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: None,
            payload: vec![7; len].into(),
            spooled: false,
        })
    }

    #[tokio::test]
    async fn a_packet_in_parts_survives_cancelled_reads() {
        let (mut wire, other) = pair().await;
        let mut bytes = BytesMut::new();
        [puback(1), puback(2)].iter().for_each(|packet| packet.encode(V5, &mut bytes));
        let (first, second) = bytes.split_at(bytes.len() - 1);
        assert_eq!(other.stream.try_write(first).unwrap(), first.len());
        assert_eq!(wire.next().await.unwrap(), puback(1));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(pin!(wire.next()).poll(&mut context), Poll::Pending));
        assert_eq!(other.stream.try_write(second).unwrap(), second.len());
        assert_eq!(wire.next().await.unwrap(), puback(2));
        drop(other);
        assert_eq!(wire.next().await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_packet_that_the_system_does_not_take_at_once_is_written_while_reading() {
        let (mut wire, mut other) = pair().await;
        let large = publish(PACKET_MAX - 100);
        wire.send(&large);
        assert!(!wire.is_written());
        let both = async {
            tokio::join!(wire.next(), async {
                let received = other.next().await.unwrap();
                other.send(&puback(3));
                received
            })
        };
        let (answer, received) = timeout(Duration::from_secs(30), both).await.unwrap();
        assert!(received == large && wire.is_written());
        assert_eq!(answer.unwrap(), puback(3));
    }

    #[tokio::test]
    async fn bytes_that_are_no_packet_end_the_connection() {
        let (mut wire, other) = pair().await;
        assert_eq!(other.stream.try_write(&[0; 4]).unwrap(), 4);
        assert_eq!(wire.next().await.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
