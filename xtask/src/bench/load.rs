//! One run of a flow against one broker: connect everybody, run the two threads, read the meters.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::board::Board;
use super::case::Flow;
use super::packets::{self, CONNACK, SUBACK};
use super::publishers::{Publishers, Sent};
use super::subscribers::Subscribers;
use super::usage::{Meter, Shares};

/// How long the broker may take for one answer while everything is set up.
const ANSWER: Duration = Duration::from_secs(10);
/// How long without a delivery until the missing ones count as lost.
const DRAINED_AFTER: Duration = Duration::from_secs(2);

/// What one run of a flow measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Flowed {
    /// Seconds measured.
    pub(super) seconds: f64,
    /// Messages delivered in that time, of all subscribers.
    pub(super) delivered: u64,
    /// Delivered messages per second.
    pub(super) throughput: f64,
    /// Broker CPU per delivered message, nanoseconds, user and kernel mode.
    pub(super) cpu_nanoseconds: f64,
    /// Latency from due time to the subscriber's read, microseconds.
    pub(super) p50_microseconds: f64,
    /// The same, 99th percentile.
    pub(super) p99_microseconds: f64,
    /// Who used the processors meanwhile.
    pub(super) shares: Shares,
    /// Messages sent in the whole run, warm-up included, times the subscribers of each.
    pub(super) expected: u64,
    /// How many of those never arrived. For QoS 1 any is a failure.
    pub(super) lost: u64,
    /// Paced: messages the generator itself sent more than 1 ms late.
    pub(super) late: u64,
}

/// Runs `flow` against the broker at `address`, whose process is `pid`.
///
/// # Errors
/// The broker refused or closed a connection, sent something that is not what was published, or lost QoS 1
/// messages; the text says which.
pub(super) fn run(
    flow: &Flow,
    address: SocketAddr,
    pid: u32,
    warm_up: Duration,
    measured: Duration,
) -> Result<Flowed, String> {
    let mut listening = Vec::new();
    for index in 0..flow.shape.subscribers() {
        let mut socket = connect(address, &format!("bench-sub-{index}"))?;
        subscribe(&mut socket, &flow.shape.filter(index), flow.qos)?;
        listening.push(socket);
    }
    let mut sending = Vec::new();
    for index in 0..flow.shape.publishers() {
        sending.push(connect(address, &format!("bench-pub-{index}"))?);
    }
    let board = Board::new(flow.shape.publishers(), warm_up, measured);
    let subscribers = Subscribers::new(&board, flow, listening).map_err(|error| error.to_string())?;
    let mut publishers = Publishers::new(&board, flow, sending).map_err(|error| error.to_string())?;
    let (observed, sent, latencies) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publishers.run());
        let receiving = scope.spawn(|| subscribers.run());
        let observed = observe(&board, pid);
        board.stop.store(true, Ordering::Relaxed);
        let sent = publishing.join().map_err(|_| "the publishers' thread died");
        if let Ok(sent) = &sent {
            drain(&board, sent.messages * flow.shape.copies());
        }
        board.finish.store(true, Ordering::Relaxed);
        let latencies = receiving.join().map_err(|_| "the subscribers' thread died");
        (observed, sent, latencies)
    });
    judge(flow, &board, &observed?, sent?, &latencies?)
}

/// What the meters showed between the two ends of the measured time.
struct Observed {
    seconds: f64,
    delivered: u64,
    broker_nanoseconds: f64,
    shares: Shares,
}

/// Sleeps through the run and reads the meters at both ends of the measured time.
fn observe(board: &Board, pid: u32) -> Result<Observed, String> {
    let until = |due: u64| {
        thread::sleep(board.instant(due).saturating_duration_since(Instant::now()));
        let delivered = board.delivered.load(Ordering::Relaxed);
        Meter::read(pid)
            .map(|meter| (meter, delivered))
            .map_err(|error| format!("the broker is gone: {error}"))
    };
    let (before, delivered_before) = until(board.measured.start)?;
    let (after, delivered_after) = until(board.measured.end)?;
    let shares = after.since(&before);
    Ok(Observed {
        seconds: shares.seconds,
        delivered: delivered_after - delivered_before,
        broker_nanoseconds: after.broker_since(&before).as_secs_f64() * 1e9,
        shares,
    })
}

/// Waits until `expected` messages were delivered, or none comes any more, or the run is void.
fn drain(board: &Board, expected: u64) {
    let (mut seen, mut seen_at) = (board.delivered.load(Ordering::Relaxed), Instant::now());
    while seen < expected && seen_at.elapsed() < DRAINED_AFTER && board.faults().0 == 0 {
        thread::sleep(Duration::from_millis(5));
        let now = board.delivered.load(Ordering::Relaxed);
        if now > seen {
            (seen, seen_at) = (now, Instant::now());
        }
    }
}

/// Turns what was seen into a result, or into the reason why there is none.
fn judge(
    flow: &Flow,
    board: &Board,
    observed: &Observed,
    sent: Sent,
    latencies: &Histogram<u64>,
) -> Result<Flowed, String> {
    let (faults, texts) = board.faults();
    if faults > 0 {
        return Err(format!("{faults} faults: {}", texts.join("; ")));
    }
    let expected = sent.messages * flow.shape.copies();
    let delivered = board.delivered.load(Ordering::Relaxed);
    let lost = expected.saturating_sub(delivered);
    if delivered > expected {
        return Err(format!("{delivered} messages arrived of {expected} sent"));
    }
    if flow.qos > 0 && lost + sent.unacknowledged > 0 {
        let unacknowledged = sent.unacknowledged;
        return Err(format!(
            "of {expected} QoS 1 messages {lost} were lost and {unacknowledged} not acknowledged"
        ));
    }
    if observed.delivered == 0 || latencies.is_empty() {
        return Err("nothing was delivered in the measured time".to_owned());
    }
    let microseconds = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Flowed {
        seconds: observed.seconds,
        delivered: observed.delivered,
        throughput: observed.delivered as f64 / observed.seconds,
        cpu_nanoseconds: observed.broker_nanoseconds / observed.delivered as f64,
        p50_microseconds: microseconds(0.5),
        p99_microseconds: microseconds(0.99),
        shares: observed.shares,
        expected,
        lost,
        late: sent.late,
    })
}

/// A connected client: TCP_NODELAY is on and CONNACK accepted.
///
/// # Errors
/// The text names what went wrong.
pub(super) fn connect(address: SocketAddr, client_id: &str) -> Result<TcpStream, String> {
    let mut socket = open(address, client_id)?;
    accepted(&mut socket)?;
    Ok(socket)
}

/// A client whose session outlives its connection, and whether the broker knew the session.
///
/// # Errors
/// The text names what went wrong.
pub(super) fn resume(address: SocketAddr, client_id: &str) -> Result<(TcpStream, bool), String> {
    let mut socket = open_with(address, client_id, &packets::connect_durable(client_id))?;
    let mut bytes = [0; 4];
    socket.read_exact(&mut bytes).map_err(|error| format!("no answer to CONNECT: {error}"))?;
    match bytes {
        [CONNACK, 2, present @ (0 | 1), 0] => Ok((socket, present == 1)),
        _ => Err(format!("the answer to CONNECT was {bytes:02x?}")),
    }
}

/// Leaves a session behind that has one subscription and no connection.
///
/// # Errors
/// The text names what went wrong.
pub(super) fn leave_session(address: SocketAddr, client_id: &str, filter: &str) -> Result<(), String> {
    let (mut socket, _) = resume(address, client_id)?;
    subscribe(&mut socket, filter, 1)?;
    socket.write_all(&packets::DISCONNECT).map_err(|error| format!("cannot DISCONNECT: {error}"))?;
    // The broker closes: then it has seen that the client is gone.
    match socket.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err("something came after DISCONNECT".to_owned()),
        Err(error) => Err(format!("no end after DISCONNECT: {error}")),
    }
}

/// Opens a connection and sends CONNECT; [`accepted`] waits for the answer.
///
/// # Errors
/// The text names what went wrong.
pub(super) fn open(address: SocketAddr, client_id: &str) -> Result<TcpStream, String> {
    open_with(address, client_id, &packets::connect(client_id))
}

fn open_with(address: SocketAddr, client_id: &str, connect: &[u8]) -> Result<TcpStream, String> {
    let failed = |error: std::io::Error| format!("cannot connect `{client_id}` to {address}: {error}");
    let mut socket = TcpStream::connect_timeout(&address, ANSWER).map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    socket.set_read_timeout(Some(ANSWER)).map_err(failed)?;
    socket.write_all(connect).map_err(failed)?;
    Ok(socket)
}

/// Waits for CONNACK.
///
/// # Errors
/// Another packet, a refusal, or none in time.
pub(super) fn accepted(socket: &mut TcpStream) -> Result<(), String> {
    answer(socket, "CONNECT", [CONNACK, 2, 0, 0])
}

/// Asks for messages, and waits for the answer.
///
/// # Errors
/// Another answer than the QoS that was asked for.
pub(super) fn subscribe(socket: &mut TcpStream, filter: &str, qos: u8) -> Result<(), String> {
    socket
        .write_all(&packets::subscribe(filter, qos))
        .map_err(|error| format!("cannot SUBSCRIBE: {error}"))?;
    answer(socket, "SUBSCRIBE", [SUBACK, 3, 0, 1, qos])
}

fn answer<const N: usize>(socket: &mut TcpStream, question: &str, expected: [u8; N]) -> Result<(), String> {
    let mut bytes = [0; N];
    socket.read_exact(&mut bytes).map_err(|error| format!("no answer to {question}: {error}"))?;
    if bytes != expected {
        return Err(format!("the answer to {question} was {bytes:02x?} instead of {expected:02x?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
