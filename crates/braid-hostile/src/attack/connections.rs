//! Connections that never become clients: slow ones, half handshakes, and floods.

use std::rc::Rc;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::Transport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use crate::attacker::Attacker;
use crate::packets::{Connect, packet};
use crate::quic::QuicClient;
use crate::stream::{UPGRADE_HEAD, client_hello, connect, is_accepted, read_to_end};
use crate::target::Target;

/// Connections to each listener.
const SLOW: usize = 100;
/// Connections with a half handshake to each listener.
const HALF: usize = 250;
/// Connections with a half handshake that are opened per second: what they hold is measured, not what a flood of
/// handshakes costs.
const HALF_RATE: f64 = 200.0;
/// Connections that are opened and closed at the same time.
const FLOOD: usize = 64;

/// Beginning of a handshake for each transport, of which nothing more follows; `None` after a fault.
async fn beginnings(attacker: &Attacker) -> Option<Vec<(Transport, Vec<u8>)>> {
    // A CONNECT that claims more than it has.
    let connect_packet = packet(0x10, &[&Connect::new("slow").encode()[2..], &[0; 60_000]].concat());
    let mut beginnings = Vec::new();
    for transport in Target::TRANSPORTS {
        let bytes = match transport {
            Transport::Tls | Transport::Wss => hello(attacker, transport).await?,
            Transport::Ws => UPGRADE_HEAD.as_bytes().to_vec(),
            Transport::Tcp | Transport::Quic | Transport::Mem => connect_packet.clone(),
        };
        beginnings.push((transport, bytes));
    }
    Some(beginnings)
}

/// ClientHello for a transport; `None` after a fault.
async fn hello(attacker: &Attacker, transport: Transport) -> Option<Vec<u8>> {
    attacker.prepared("a ClientHello", client_hello(attacker, transport).await)
}

/// One byte a second to every listener.
pub(crate) async fn slowloris(attacker: Rc<Attacker>) {
    let Some(beginnings) = beginnings(&attacker).await else { return };
    let beginnings = Rc::new(beginnings);
    let drip = move |attacker: Rc<Attacker>, at: usize| {
        let beginnings = Rc::clone(&beginnings);
        async move {
            let (transport, bytes) = &beginnings[at % beginnings.len()];
            // All at once would be a flood.
            sleep(Duration::from_millis(at as u64)).await;
            if transport.is_quic() {
                let address = attacker.target.address(Transport::Quic);
                let mut client = QuicClient::dial(address, &attacker.tls, false).await?;
                attacker.count(1);
                for byte in bytes {
                    client.write(StreamKey::CONTROL, &[*byte]).await?;
                    client.linger(Duration::from_secs(1)).await?;
                }
                return Ok(());
            }
            let mut stream = connect(&attacker, *transport).await?;
            attacker.count(1);
            for byte in bytes {
                stream.write_all(&[*byte]).await?;
                sleep(Duration::from_secs(1)).await;
            }
            Ok(())
        }
    };
    attacker.workers(SLOW * Target::TRANSPORTS.len(), drip).await;
}

/// ClientHello on TLS and secure WebSocket, and then nothing.
pub(crate) async fn tls_half(attacker: Rc<Attacker>) {
    hold(attacker, &[Transport::Tls, Transport::Wss]).await;
}

/// A request for the upgrade to WebSocket without its end.
pub(crate) async fn ws_half(attacker: Rc<Attacker>) {
    hold(attacker, &[Transport::Ws]).await;
}

/// Holds connections that have sent the beginning of their handshake, and opens another for each that is closed.
async fn hold(attacker: Rc<Attacker>, transports: &[Transport]) {
    let Some(mut beginnings) = beginnings(&attacker).await else { return };
    beginnings.retain(|(transport, _)| transports.contains(transport));
    let number = HALF * beginnings.len();
    let beginnings = Rc::new(beginnings);
    let hold = move |attacker: Rc<Attacker>, at: usize| {
        let beginnings = Rc::clone(&beginnings);
        async move {
            let (transport, bytes) = &beginnings[at % beginnings.len()];
            attacker.pace(HALF_RATE).await;
            let mut stream = connect(&attacker, *transport).await?;
            stream.write_all(bytes).await?;
            attacker.count(1);
            read_to_end(&mut stream).await;
            Ok(())
        }
    };
    attacker.workers(number, hold).await;
}

/// Opens and closes connections over TCP at full speed: one third at once, one third with a reset, one third after
/// CONNACK.
pub(crate) async fn connects(attacker: Rc<Attacker>) {
    let open = |attacker: Rc<Attacker>, at: usize| async move {
        let mut stream = connect(&attacker, Transport::Tcp).await?;
        attacker.count(1);
        match at % 3 {
            0 => {}
            1 => stream.set_zero_linger()?,
            _ => {
                let id = format!("flood-{}", fastrand::u32(..));
                stream.write_all(&Connect::new(&id).encode()).await?;
                let mut head = [0; 4];
                stream.read_exact(&mut head).await?;
                if !is_accepted(&head) {
                    return Err(std::io::ErrorKind::ConnectionRefused.into());
                }
            }
        }
        Ok(())
    };
    attacker.workers(FLOOD, open).await;
}

/// Guesses the password of a user over TCP at full speed.
pub(crate) async fn passwords(attacker: Rc<Attacker>) {
    let guess = |attacker: Rc<Attacker>, _at| async move {
        let mut stream = connect(&attacker, Transport::Tcp).await?;
        let (id, password) = (format!("guess-{}", fastrand::u32(..)), fastrand::u64(..).to_string());
        let connect = Connect { login: Some((crate::run::USER, &password)), ..Connect::new(&id) };
        stream.write_all(&connect.encode()).await?;
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        attacker.count(1);
        if is_accepted(&head) { Err(std::io::Error::other("a guess was right")) } else { Ok(()) }
    };
    attacker.workers(FLOOD, guess).await;
}

/// Opens connections over TLS at full speed, and closes each once the broker has signed its handshake.
pub(crate) async fn tls_connects(attacker: Rc<Attacker>) {
    let Some(hello) = hello(&attacker, Transport::Tls).await else { return };
    let hello = Rc::new(hello);
    let open = move |attacker: Rc<Attacker>, _at| {
        let hello = Rc::clone(&hello);
        async move {
            let mut stream = connect(&attacker, Transport::Tls).await?;
            stream.write_all(&hello).await?;
            let mut answer = [0; 64];
            stream.read_exact(&mut answer).await?;
            attacker.count(1);
            stream.set_zero_linger()
        }
    };
    attacker.workers(FLOOD, open).await;
}
