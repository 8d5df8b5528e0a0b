//! Replay of the first flight of QUIC clients that resume a session with early data.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::{ClientTls, Transport};
use tokio::net::UdpSocket;

use crate::attacker::Attacker;
use crate::packets::Connect;
use crate::quic::QuicClient;
use crate::relay::Relay;
use crate::stream::LOCAL;

/// First flights that are recorded.
const FLIGHTS: usize = 16;
/// Replayed flights per second.
const RATE: f64 = 1_000.0;
/// Time in which the tickets of a connection arrive.
const TICKETS_ARRIVE: Duration = Duration::from_millis(50);
/// Time in which the last datagrams of a client that was dropped leave.
const LAST_WORDS: Duration = Duration::from_millis(20);
/// Time after which the broker has forgotten the recorded connections, so that their datagrams begin new ones.
const FORGOTTEN: Duration = Duration::from_millis(500);
/// Client Identifier in every recorded CONNECT.
const CLIENT: &str = "replayed";

/// Records first flights with early data, and sends them again and again. Meanwhile a client with the Client
/// Identifier of these flights is connected, which a replayed CONNECT would disconnect.
pub(crate) async fn replay(attacker: Rc<Attacker>) {
    let mut flights = Vec::new();
    for _ in 0..FLIGHTS {
        if let Ok(flight) = record(&attacker).await {
            flights.push(flight);
        }
    }
    if flights.is_empty() {
        attacker.fault("no early data could be recorded");
        return;
    }
    tokio::time::sleep(FORGOTTEN).await;
    let flights = Rc::new(flights);
    let work = move |attacker: Rc<Attacker>, at: usize| {
        let flights = Rc::clone(&flights);
        async move { if at == 0 { watch(&attacker).await } else { send(&attacker, &flights).await } }
    };
    attacker.workers(4, work).await;
}

/// Datagrams with which a client resumes, and sends its CONNECT as early data.
async fn record(attacker: &Attacker) -> io::Result<Vec<Vec<u8>>> {
    let relay = Relay::to(attacker.target.address(Transport::Quic), 1).await?;
    // With no other session to resume.
    let tls: ClientTls = attacker.target.tls();
    let connect = Connect::new(CLIENT).encode();
    let mut first = QuicClient::dial(relay.address, &tls, true).await?;
    first.write(StreamKey::CONTROL, &connect).await?;
    first.accepted().await?;
    first.linger(TICKETS_ARRIVE).await?;
    drop(first);
    // Its last datagrams come a little later, and the relay answers the client of the latest one.
    tokio::time::sleep(LAST_WORDS).await;
    relay.record();
    let mut second = QuicClient::dial(relay.address, &tls, true).await?;
    let is_early = second.is_early();
    second.write(StreamKey::CONTROL, &connect).await?;
    second.accepted().await?;
    let flight = relay.take_recorded();
    if is_early { Ok(flight) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Sends the flights from a fresh address each.
async fn send(attacker: &Attacker, flights: &[Vec<Vec<u8>>]) -> io::Result<()> {
    for flight in flights.iter().cycle() {
        attacker.pace(RATE).await;
        let socket = UdpSocket::bind((LOCAL, 0)).await?;
        socket.connect(attacker.target.address(Transport::Quic)).await?;
        for datagram in flight {
            socket.send(datagram).await?;
        }
        attacker.count(1);
    }
    Ok(())
}

/// Holds the session that a replayed CONNECT would take over.
async fn watch(attacker: &Attacker) -> io::Result<()> {
    let mut client = QuicClient::connect(attacker, &Connect::new(CLIENT).encode()).await?;
    loop {
        if client.linger(Duration::from_secs(1)).await.is_err() {
            attacker.fault("a replayed CONNECT has taken over a session");
            return Ok(());
        }
    }
}
