//! Nonblocking connection of one publisher.

use std::io;
use std::net;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::packets::{self, PublishTemplate, Readable, read_packets, write_some};
use super::payload::Stamp;

/// Encodes messages from templates, writes them in large pieces, and checks the order of PUBACK packets.
pub(crate) struct Publisher {
    pub(crate) index: u32,
    socket: TcpStream,
    /// One for each topic, used in turn; of the same length.
    templates: Vec<PublishTemplate>,
    out: Vec<u8>,
    /// Bytes of `out` that the socket has taken.
    written: usize,
    /// Messages encoded so far.
    pub(crate) sent: u64,
    /// PUBACK packets so far.
    pub(crate) acknowledged: u64,
    carry: Vec<u8>,
    /// True while the socket's buffer is full; its writability event clears it by [`flush`](Self::flush).
    pub(crate) is_blocked: bool,
}

impl Publisher {
    /// Takes over a connected socket and registers it under `index` for both directions.
    ///
    /// # Errors
    /// The socket cannot be registered.
    pub(crate) fn register(
        registry: &Registry,
        index: usize,
        socket: net::TcpStream,
        templates: Vec<PublishTemplate>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(socket);
        registry.register(&mut socket, Token(index), Interest::READABLE.add(Interest::WRITABLE))?;
        let index = u32::try_from(index).map_err(io::Error::other)?;
        let (out, carry) = (Vec::new(), Vec::new());
        Ok(Self {
            index,
            socket,
            templates,
            out,
            written: 0,
            sent: 0,
            acknowledged: 0,
            carry,
            is_blocked: false,
        })
    }

    /// Bytes of one message on the wire.
    pub(crate) fn message_length(&self) -> usize {
        self.templates.first().map_or(0, PublishTemplate::length)
    }

    /// True while encoded messages are not written.
    pub(crate) fn has_unwritten(&self) -> bool {
        self.written < self.out.len()
    }

    /// Encodes the next message, due at `due`.
    pub(crate) fn push(&mut self, due: u64) {
        let sequence = u32::try_from(self.sent & u64::from(u32::MAX)).unwrap_or(0);
        let stamp = Stamp { due, publisher: self.index, sequence };
        let template = &self.templates[sequence as usize % self.templates.len()];
        template.push(&mut self.out, packet_id(self.sent), stamp);
        self.sent += 1;
    }

    /// Writes encoded messages, as far as the socket takes them.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        self.written += write_some(&mut self.socket, &self.out[self.written..])?;
        self.is_blocked = self.has_unwritten();
        if !self.is_blocked {
            self.out.clear();
            self.written = 0;
        }
        Ok(())
    }

    /// Reads PUBACK packets until the socket is empty, and calls `each` for every one.
    ///
    /// # Errors
    /// The connection failed, or another packet than the next PUBACK came.
    pub(crate) fn receive(&mut self, buffer: &mut [u8], mut each: impl FnMut()) -> Result<(), String> {
        loop {
            let Self { socket, carry, acknowledged, sent, .. } = self;
            let state = read_packets(socket, buffer, carry, |packet| {
                if packet.first != packets::PUBACK || packet.body.len() != 2 {
                    return Err(format!("sent an unexpected packet {:#04x}", packet.first));
                }
                // Acknowledgements come in the order of the messages [MQTT-4.6.0-2].
                let expected = packet_id(*acknowledged);
                if acknowledged == sent || packet.body != expected.to_be_bytes() {
                    return Err(format!("sent PUBACK {:?} instead of {expected}", packet.body));
                }
                *acknowledged += 1;
                each();
                Ok(())
            })?;
            if state == Readable::Drained {
                return Ok(());
            }
        }
    }
}

/// Packet identifier of a publisher's n-th message: 1 to 65,535, repeatedly.
fn packet_id(message: u64) -> u16 {
    u16::try_from(message % u64::from(u16::MAX)).unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::packet_id;

    #[test]
    fn packet_ids_are_never_zero_and_use_the_whole_range() {
        assert_eq!((packet_id(0), packet_id(65_534), packet_id(65_535)), (1, 65_535, 1));
    }
}
