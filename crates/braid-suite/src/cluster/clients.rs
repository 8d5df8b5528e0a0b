//! Clients with persistent sessions, and publishers that fill their queues or count pauses.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::live::SIZE;
use super::progress::Progress;
use crate::load::packets::{PUBACK, Packet, Publish, PublishTemplate, read_packets};
use crate::load::payload::{self, Stamp};
use crate::load::session::{connect, read_queue, resume};

/// Pause of a client before it connects again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);
/// Time without any PUBACK after which the broker counts as stuck.
const STUCK: Duration = Duration::from_secs(20);

/// Publishes one message of QoS 1 to each topic, with at most `window` unacknowledged; the sequence number of a message
/// is its place.
///
/// # Errors
/// The broker ends the connection, or acknowledges another message than the next.
pub(super) fn publish_each(
    address: SocketAddr,
    topics: impl ExactSizeIterator<Item = String>,
    window: usize,
    progress: &mut Progress,
) -> Result<(), String> {
    let mut socket = connect(address, "bench-filling")?;
    let (all, mut topics) = (topics.len(), topics.enumerate());
    let (mut sent, mut acknowledged, mut carry) = (0, 0, Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    while acknowledged < all {
        let mut out = Vec::new();
        for (number, topic) in topics.by_ref().take(window - (sent - acknowledged)) {
            push(&mut out, &topic, number);
            sent += 1;
        }
        socket.write_all(&out).map_err(|error| format!("cannot publish: {error}"))?;
        let before = acknowledged;
        read_packets(&mut socket, &mut buffer, &mut carry, |packet| {
            expect_puback(packet, acknowledged)?;
            acknowledged += 1;
            Ok(())
        })?;
        // The socket blocks: a read without a packet has reached its time limit.
        if acknowledged == before && carry.is_empty() {
            return Err(format!("{acknowledged} messages of {all} were acknowledged"));
        }
        progress.show(|| format!("{acknowledged} of {all} messages acknowledged"));
    }
    Ok(())
}

fn push(out: &mut Vec<u8>, topic: &str, number: usize) {
    let sequence = u32::try_from(number).unwrap_or(u32::MAX);
    let stamp = Stamp { due: 0, publisher: 0, sequence };
    PublishTemplate::new(topic, 1, SIZE).push(out, packet_id(number), stamp);
}

/// Packet Identifier of a message: 1 to 65,535, repeatedly.
fn packet_id(number: usize) -> u16 {
    u16::try_from(number % usize::from(u16::MAX)).unwrap_or(0) + 1
}

fn expect_puback(packet: &Packet<'_>, number: usize) -> Result<(), String> {
    match packet.first == PUBACK && packet.body == packet_id(number).to_be_bytes() {
        true => Ok(()),
        false => Err(format!("got {packet:02x?} instead of PUBACK {}", packet_id(number))),
    }
}

/// A client that is back.
pub(super) struct Back {
    /// Its connection, which lasts until it is dropped.
    pub(super) _socket: TcpStream,
    /// Time of its CONNACK.
    pub(super) connected: Instant,
    /// Time at which it had its whole queue.
    pub(super) complete: Instant,
    /// Connections that failed or were refused.
    pub(super) failures: u64,
}

/// Resumes a session, as often as needed, and takes its queue: messages with the numbers of `queue`.
///
/// # Errors
/// The session is gone, another message arrives, or messages are missing at `give_up`.
pub(super) fn come_back(
    address: SocketAddr,
    client_id: &str,
    queue: std::ops::Range<u32>,
    give_up: Instant,
) -> Result<Back, String> {
    let (mut seen, mut failures, mut connected) = (BTreeSet::new(), 0, None);
    loop {
        let attempt = resume(address, client_id).and_then(|(mut socket, is_present)| {
            if !is_present {
                return Ok(Err(format!("the session of {client_id} is gone")));
            }
            connected.get_or_insert_with(Instant::now);
            let complete = queue.len();
            while seen.len() < complete {
                let missing = (complete - seen.len()) as u64;
                read_queue(&mut socket, missing, |publish| {
                    seen.insert(
                        sequence(publish)
                            .filter(|number| queue.contains(number))
                            .ok_or_else(|| format!("{client_id} got a message of another client"))?,
                    );
                    Ok(())
                })?;
            }
            Ok(Ok(socket))
        });
        match attempt {
            Ok(Ok(socket)) => {
                let complete = Instant::now();
                let connected = connected.unwrap_or(complete);
                return Ok(Back { _socket: socket, connected, complete, failures });
            }
            Ok(Err(reason)) => return Err(reason),
            Err(reason) if Instant::now() > give_up => {
                return Err(format!("{client_id} has {} messages of {}: {reason}", seen.len(), queue.len()));
            }
            Err(_) => failures += 1,
        }
        thread::sleep(AGAIN);
    }
}

fn sequence(publish: &Publish<'_>) -> Option<u32> {
    payload::read(publish.payload, &payload::blank(SIZE)).map(|stamp| stamp.sequence)
}

/// Runs `each` for 0 to `count` - 1 in `threads` threads; returns the results in no particular order.
///
/// # Errors
/// The first that failed.
pub(super) fn in_threads<T: Send>(
    threads: usize,
    count: usize,
    progress: &mut Progress,
    each: impl Fn(usize) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let work = || {
            let mut results = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, String>(results);
                }
                let result = each(number);
                if result.is_err() {
                    // The others end, too.
                    next.store(count, Ordering::Relaxed);
                }
                results.push(result?);
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let workers: Vec<_> = (0..threads.min(count)).map(|_| scope.spawn(work)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            progress.show(|| format!("{} of {count} clients", done.load(Ordering::Relaxed)));
            thread::sleep(Duration::from_millis(1));
        }
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| "the thread of a client died".to_owned())??);
        }
        Ok(all)
    })
}

/// A publisher with one unacknowledged message at a time, which connects again when its connection fails.
#[derive(Default)]
pub(super) struct SteadyPublisher {
    pub(super) acknowledged: AtomicU64,
}

impl SteadyPublisher {
    /// Publishes until `stop`; returns the longest time between two acknowledgements, or from the last one to the end.
    pub(super) fn run(&self, address: SocketAddr, name: &str, stop: &AtomicBool) -> Duration {
        let (mut longest, mut last) = (Duration::ZERO, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            let connected = connect(address, name).and_then(|mut socket| {
                let limit = socket.set_read_timeout(Some(Duration::from_millis(50)));
                limit.map_err(|error| error.to_string())?;
                self.publish(&mut socket, name, stop, &mut longest, &mut last)
            });
            longest = longest.max(last.elapsed());
            if connected.is_err() {
                thread::sleep(AGAIN);
            }
        }
        longest
    }

    fn publish(
        &self,
        socket: &mut TcpStream,
        name: &str,
        stop: &AtomicBool,
        longest: &mut Duration,
        last: &mut Instant,
    ) -> Result<(), String> {
        let (mut buffer, mut carry, mut number) = (vec![0; 4096], Vec::new(), 0);
        loop {
            let mut out = Vec::new();
            push(&mut out, &format!("steady/{name}"), number);
            socket.write_all(&out).map_err(|error| error.to_string())?;
            let (sent, mut is_acknowledged) = (Instant::now(), false);
            while !is_acknowledged {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if sent.elapsed() > STUCK {
                    return Err("no PUBACK".to_owned());
                }
                read_packets(socket, &mut buffer, &mut carry, |packet| {
                    expect_puback(packet, number)?;
                    is_acknowledged = true;
                    Ok(())
                })?;
            }
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            *longest = (*longest).max(last.elapsed());
            *last = Instant::now();
            number += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, in_threads};

    #[test]
    fn every_number_is_worked_on_once_and_a_failure_ends_all() {
        let mut progress = Progress::new("test");
        let mut results = in_threads(4, 100, &mut progress, Ok).expect("all succeed");
        results.sort_unstable();
        assert_eq!(results, (0..100).collect::<Vec<_>>());
        let failed = in_threads(2, 100, &mut progress, |number| {
            match number {
                3 => Err("three"),
                _ => Ok(number),
            }
            .map_err(str::to_owned)
        });
        assert_eq!(failed, Err("three".to_owned()));
        assert_eq!(in_threads(4, 0, &mut progress, Ok), Ok(Vec::new()));
    }
}
