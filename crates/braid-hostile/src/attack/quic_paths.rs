//! QUIC below MQTT: half handshakes, garbage, streams, and addresses that change.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{Dir, Transport};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::attacker::Attacker;
use crate::packets::{Connect, PINGREQ};
use crate::quic::QuicClient;
use crate::relay::Relay;
use crate::stream::LOCAL;

/// Workers that make first packets of handshakes.
const BEGINNERS: usize = 16;
/// Half handshakes per second. Each costs the attacker a key exchange too, so that more would measure its own cost.
const HALF_RATE: f64 = 500.0;
/// Sockets that a worker keeps open, so that the broker gets no ICMP errors.
const KEPT: usize = 64;
/// Datagrams of garbage per second. Far more fill the receive buffer of the broker's socket: the kernel then drops
/// datagrams of all clients alike.
const GARBAGE_RATE: f64 = 5_000.0;
/// Clients with floods of streams or addresses.
const CLIENTS: usize = 8;
/// Changes of an address per second, of all clients together.
const MOVE_RATE: f64 = 1_000.0;
/// Addresses of each client behind a relay.
const ADDRESSES: usize = 32;
/// Packets of all clients behind relays per second.
const ADDRESS_RATE: f64 = 2_000.0;
const MAXIMUM_DATAGRAM: usize = 1_500;
/// Least size of a datagram with an Initial packet (RFC 9000, 14.1).
const MINIMUM_INITIAL: usize = 1_200;

/// Initial packets, and then nothing.
pub(crate) async fn half_handshakes(attacker: Rc<Attacker>) {
    let begin = |attacker: Rc<Attacker>, _at| async move {
        let broker = attacker.target.address(Transport::Quic);
        let trap = UdpSocket::bind((LOCAL, 0)).await?;
        let trap_address = trap.local_addr()?;
        let (mut kept, mut buffer) = (VecDeque::new(), [0; MAXIMUM_DATAGRAM]);
        loop {
            attacker.pace(HALF_RATE).await;
            // A client begins a handshake with the trap, and is dropped.
            let received = tokio::select! {
                biased;
                received = trap.recv_from(&mut buffer) => received,
                _ = QuicClient::dial(trap_address, &attacker.tls, false) => continue,
            };
            let (length, _) = received?;
            let socket = UdpSocket::bind((LOCAL, 0)).await?;
            socket.send_to(&buffer[..length], broker).await?;
            attacker.count(1);
            kept.push_back(socket);
            if kept.len() > KEPT {
                kept.pop_front();
            }
        }
    };
    attacker.workers(BEGINNERS, begin).await;
}

/// A datagram that belongs to no connection: unknown version, Initial without a valid tag, short header.
fn garbage_datagram(kind: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(MINIMUM_INITIAL).collect();
    match kind % 3 {
        0 => bytes[..5].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a]),
        1 => {
            bytes[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
            // Length of the source connection ID, no token, and a Length of 1,182.
            bytes[14..18].copy_from_slice(&[0, 0, 0x44, 0x9e]);
        }
        _ => bytes[0] = 0x40 | bytes[0] & 0x3f,
    }
    bytes
}

/// Datagrams that belong to no connection: the broker negotiates versions, discards, and resets.
pub(crate) async fn garbage(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let socket = UdpSocket::bind((LOCAL, 0)).await?;
        let broker = attacker.target.address(Transport::Quic);
        let mut answer = [0; MAXIMUM_DATAGRAM];
        for kind in at.. {
            attacker.pace(GARBAGE_RATE).await;
            let datagram = garbage_datagram(kind);
            let sent = socket.send_to(&datagram, broker).await?;
            attacker.count(1);
            while let Ok((length, _)) = socket.try_recv_from(&mut answer) {
                if length > 3 * sent {
                    attacker.fault(format!("an answer of {length} bytes to a datagram of {sent} bytes"));
                }
            }
        }
        Ok(())
    };
    attacker.workers(3, flood).await;
}

/// Streams that are opened and reset at full speed.
pub(crate) async fn streams(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let connect = Connect::new(&format!("streams-{at}")).encode();
        let mut client = QuicClient::connect(&attacker, &connect).await?;
        for number in 0u64.. {
            let dir = if number.is_multiple_of(4) { Dir::Uni } else { Dir::Bidi };
            let stream = client.open(dir).await?;
            client.write(stream, &[0x30]).await?;
            client.abort(stream, 0);
            attacker.count(1);
            tokio::task::yield_now().await;
        }
        Ok(())
    };
    attacker.workers(CLIENTS, flood).await;
}

/// Clients that move to another port all the time: each move is a path to validate, and a connection ID to retire.
pub(crate) async fn moves(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let connect = Connect::new(&format!("moves-{at}")).encode();
        let mut client = QuicClient::connect(&attacker, &connect).await?;
        loop {
            attacker.pace(MOVE_RATE).await;
            client.rebind()?;
            client.write(StreamKey::CONTROL, &PINGREQ).await?;
            client.linger(Duration::from_millis(1)).await?;
            attacker.count(1);
        }
    };
    attacker.workers(CLIENTS, flood).await;
}

/// Clients of which each datagram comes from another address than the one before.
pub(crate) async fn addresses(attacker: Rc<Attacker>) {
    let flood = |attacker: Rc<Attacker>, at: usize| async move {
        let relay = Relay::to(attacker.target.address(Transport::Quic), ADDRESSES).await?;
        let mut client = QuicClient::dial(relay.address, &attacker.tls, false).await?;
        client.write(StreamKey::CONTROL, &Connect::new(&format!("addresses-{at}")).encode()).await?;
        client.accepted().await?;
        relay.spread();
        loop {
            attacker.pace(ADDRESS_RATE).await;
            let ping = client.write(StreamKey::CONTROL, &PINGREQ);
            timeout(Duration::from_secs(2), ping).await.map_err(io::Error::other)??;
            client.linger(Duration::from_micros(100)).await?;
            attacker.count(1);
        }
    };
    attacker.workers(CLIENTS, flood).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_has_the_headers_of_rfc_9000() {
        let [version, initial, short] = [0, 1, 2].map(garbage_datagram);
        assert!([&version, &initial, &short].iter().all(|datagram| datagram.len() == MINIMUM_INITIAL));
        assert_eq!(version[0] & 0xc0, 0xc0, "a long header");
        assert_eq!(&initial[..6], [0xc3, 0, 0, 0, 1, 8], "version 1, eight bytes of connection ID");
        let rest = usize::from(u16::from_be_bytes([initial[16] & 0x3f, initial[17]]));
        assert_eq!(18 + rest, MINIMUM_INITIAL, "Length reaches to the end");
        assert_eq!(short[0] & 0xc0, 0x40, "a short header");
    }
}
