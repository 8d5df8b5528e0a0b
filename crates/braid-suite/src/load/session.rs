//! Blocking MQTT sessions: connecting, subscribing, leaving, and reading a queue.

use std::io::{Error, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::packets::{self, CONNACK, Publish, Readable, SUBACK, push_puback, read_packets};

/// Time limit of one answer of the broker.
const ANSWER: Duration = Duration::from_secs(10);

/// A connected client with TCP_NODELAY, after CONNACK.
///
/// # Errors
/// No connection, a refusal, or no answer in time.
pub(crate) fn connect(address: SocketAddr, client_id: &str) -> Result<TcpStream, String> {
    let mut socket = open(address, client_id, true)?;
    accepted(&mut socket)?;
    Ok(socket)
}

/// A client with a persistent session, and Session Present.
///
/// # Errors
/// No connection, a refusal, or no answer in time.
pub(crate) fn resume(address: SocketAddr, client_id: &str) -> Result<(TcpStream, bool), String> {
    let mut socket = open(address, client_id, false)?;
    let bytes = read_answer(&mut socket, "CONNECT")?;
    match bytes {
        [CONNACK, 2, present @ (0 | 1), 0] => Ok((socket, present == 1)),
        _ => Err(format!("the answer to CONNECT was {bytes:02x?}")),
    }
}

/// Leaves a persistent session behind that has one subscription and no connection.
///
/// # Errors
/// The broker refuses, or does not close the connection.
pub(crate) fn leave_session(address: SocketAddr, client_id: &str, filter: &str) -> Result<(), String> {
    let (mut socket, _) = resume(address, client_id)?;
    subscribe(&mut socket, filter, 1)?;
    socket.write_all(&packets::DISCONNECT).map_err(|error| format!("cannot DISCONNECT: {error}"))?;
    // Once the broker has closed the connection, the session is offline.
    match socket.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err("a packet came after DISCONNECT".to_owned()),
        Err(error) => Err(format!("no end after DISCONNECT: {error}")),
    }
}

/// Resumes a session and reads and acknowledges `count` queued messages of QoS 1, each of which `check` accepts.
/// Returns the time from CONNECT to the first read and to the last.
///
/// # Errors
/// The session or messages are missing, or `check` refuses one.
pub(crate) fn take_queue(
    address: SocketAddr,
    client_id: &str,
    count: u64,
    check: impl FnMut(&Publish<'_>) -> Result<(), String>,
) -> Result<(Duration, Duration), String> {
    let began = Instant::now();
    let (mut socket, present) = resume(address, client_id)?;
    if !present {
        return Err(format!("the session of {client_id} is gone"));
    }
    let first = read_queue(&mut socket, count, check)?;
    Ok((first.map_or_else(Duration::default, |first| first - began), began.elapsed()))
}

/// Reads and acknowledges `count` messages of QoS 1, each of which `check` accepts. Returns the time of the first read.
///
/// # Errors
/// Messages are missing, or `check` refuses one.
pub(crate) fn read_queue(
    socket: &mut TcpStream,
    count: u64,
    mut check: impl FnMut(&Publish<'_>) -> Result<(), String>,
) -> Result<Option<Instant>, String> {
    let (mut buffer, mut carry, mut acks) = (vec![0; 256 * 1024], Vec::new(), Vec::new());
    let (mut first, mut taken) = (None, 0);
    while taken < count {
        let read = read_packets(socket, &mut buffer, &mut carry, |packet| {
            let publish =
                packet.publish().ok_or_else(|| format!("got {packet:02x?} instead of a PUBLISH"))?;
            check(&publish)?;
            push_puback(&mut acks, publish.packet_id);
            taken += 1;
            Ok(())
        });
        let state = read.map_err(|reason| format!("after {taken} messages: {reason}"))?;
        first.get_or_insert_with(Instant::now);
        // The socket blocks: a read without a packet has reached its time limit.
        if state == Readable::Drained && acks.is_empty() {
            return Err(format!("{taken} messages came of {count}"));
        }
        socket.write_all(&acks).map_err(|error| format!("cannot acknowledge: {error}"))?;
        acks.clear();
    }
    Ok(first)
}

/// Opens a connection and sends CONNECT; [`accepted`] waits for the answer.
///
/// # Errors
/// No connection.
pub(crate) fn open(address: SocketAddr, client_id: &str, is_clean: bool) -> Result<TcpStream, String> {
    let failed = |error: Error| format!("cannot connect `{client_id}` to {address}: {error}");
    let mut socket = TcpStream::connect_timeout(&address, ANSWER).map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    socket.set_read_timeout(Some(ANSWER)).map_err(failed)?;
    socket.write_all(&packets::connect(client_id, is_clean)).map_err(failed)?;
    Ok(socket)
}

/// Waits for CONNACK.
///
/// # Errors
/// Another packet, a refusal, or no answer in time.
pub(crate) fn accepted(socket: &mut TcpStream) -> Result<(), String> {
    answer(socket, "CONNECT", [CONNACK, 2, 0, 0])
}

/// Subscribes and waits for SUBACK.
///
/// # Errors
/// Another QoS than the requested one, or no answer in time.
pub(crate) fn subscribe(socket: &mut TcpStream, filter: &str, qos: u8) -> Result<(), String> {
    socket
        .write_all(&packets::subscribe(filter, qos))
        .map_err(|error| format!("cannot SUBSCRIBE: {error}"))?;
    answer(socket, "SUBSCRIBE", [SUBACK, 3, 0, 1, qos])
}

fn answer<const N: usize>(socket: &mut TcpStream, question: &str, expected: [u8; N]) -> Result<(), String> {
    match read_answer(socket, question)? {
        bytes if bytes == expected => Ok(()),
        bytes => Err(format!("the answer to {question} was {bytes:02x?} instead of {expected:02x?}")),
    }
}

fn read_answer<const N: usize>(socket: &mut TcpStream, question: &str) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).map_err(|error| format!("no answer to {question}: {error}"))?;
    Ok(bytes)
}
