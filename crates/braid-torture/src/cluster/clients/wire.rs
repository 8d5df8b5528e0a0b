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
    /// The connection has ended, or the server has sent what is no packet.
    pub(crate) async fn next(&mut self) -> io::Result<Packet> {
        loop {
            self.write()?;
            let mut rest = &self.input[..];
            let decoded = self.decoder.decode(&mut rest);
            let consumed = self.input.len() - rest.len();
            self.input.advance(consumed);
            if let Some(packet) = decoded.map_err(|wrong| io::Error::other(wrong.to_string()))? {
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
