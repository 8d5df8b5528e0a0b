//! Clients with persistent sessions, and publishers that fill their queues or count pauses.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::one_way::SIZE;
use super::progress::Progress;
use crate::load::packets::{PUBACK, Packet, Publish, PublishTemplate, read_packets};
use crate::load::payload::{self, Stamp};
use crate::load::session::{connect, read_queue, resume};

/// Pause of a client before it connects again.
pub(super) const AGAIN: Duration = Duration::from_millis(100);
/// Time between two looks at threads.
const LOOK: Duration = Duration::from_millis(10);
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
    let (mut seen, mut failures, mut connected, mut is_broken) = (BTreeSet::new(), 0, None, false);
    loop {
        let attempt = resume(address, client_id).and_then(|(mut socket, is_present)| {
            // The session is gone for good, and so is the promise after a message of another client.
            is_broken = !is_present;
            if is_broken {
                return Err(format!("the session of {client_id} is gone"));
            }
            connected.get_or_insert_with(Instant::now);
            while seen.len() < queue.len() {
                let missing = (queue.len() - seen.len()) as u64;
                read_queue(&mut socket, missing, |publish| {
                    let number = sequence(publish).filter(|number| queue.contains(number));
                    is_broken = number.is_none();
                    let number =
                        number.ok_or_else(|| format!("{client_id} got a message of another client"))?;
                    seen.insert(number);
                    Ok(())
                })?;
            }
            Ok(socket)
        });
        match attempt {
            Ok(socket) => {
                let complete = Instant::now();
                let connected = connected.unwrap_or(complete);
                return Ok(Back { _socket: socket, connected, complete, failures });
            }
            Err(reason) if is_broken => return Err(reason),
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
            thread::sleep(LOOK);
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
    use std::io::Write;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Instant;

    use super::{AGAIN, Progress, SteadyPublisher, come_back, in_threads, publish_each, push, sequence};
    use crate::load::packets::{push_puback, read_packets};

    /// A broker whose n-th connection is handled by the n-th function, after its CONNECT.
    fn broker(connections: Vec<fn(&mut TcpStream)>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("address");
        thread::spawn(move || {
            for handle in connections {
                let (mut socket, _) = listener.accept().expect("a client");
                let connect = |packet: &super::Packet<'_>| {
                    assert_eq!(packet.first, 0x10);
                    Ok(())
                };
                read_packets(&mut socket, &mut [0; 1024], &mut Vec::new(), connect).expect("CONNECT");
                handle(&mut socket);
            }
        });
        address
    }

    fn connack(socket: &mut TcpStream, present: u8, code: u8) {
        socket.write_all(&[0x20, 2, present, code]).expect("CONNACK");
    }

    /// Answers `acks` messages with PUBACK of `answer(identifier)`, and checks that they come in their order.
    fn acknowledge(socket: &mut TcpStream, acks: u32, answer: fn(u16) -> u16) {
        let (mut buffer, mut carry, mut next) = (vec![0; 65536], Vec::new(), 0);
        while next < acks {
            let mut out = Vec::new();
            let read = read_packets(socket, &mut buffer, &mut carry, |packet| {
                let publish = packet.publish().expect("a PUBLISH");
                assert_eq!(sequence(&publish), Some(next));
                next += 1;
                push_puback(&mut out, answer(publish.packet_id));
                Ok(())
            });
            // The publisher has left.
            if read.is_err() || socket.write_all(&out).is_err() {
                return;
            }
        }
    }

    fn send(socket: &mut TcpStream, numbers: &[usize]) {
        let mut out = Vec::new();
        numbers.iter().for_each(|&number| push(&mut out, "t", number));
        socket.write_all(&out).expect("messages");
        // Until the client has left, so that nothing is reset before it is read.
        let _ = std::io::copy(socket, &mut std::io::sink());
    }

    #[test]
    fn a_client_comes_back_until_it_has_its_whole_queue() {
        let address = broker(vec![
            |socket| {
                connack(socket, 1, 0);
                let mut out = Vec::new();
                [5, 6].iter().for_each(|&number| push(&mut out, "t", number));
                socket.write_all(&out).expect("messages");
                // The PUBACKs, so that the end of the connection is no reset.
                let _ = read_packets(socket, &mut [0; 64], &mut Vec::new(), |_| Ok(()));
            },
            |socket| connack(socket, 0, 3),
            |socket| {
                connack(socket, 1, 0);
                send(socket, &[6, 7, 8]);
            },
        ]);
        let back = come_back(address, "c", 5..9, Instant::now() + 100 * AGAIN).expect("comes back");
        assert_eq!(back.failures, 2);
        assert!(back.connected < back.complete);
    }

    #[test]
    fn a_lost_session_and_a_foreign_message_are_errors_at_once() {
        let late = || Instant::now() + 20 * AGAIN;
        let gone = come_back(broker(vec![|socket| connack(socket, 0, 0)]), "c", 0..1, late());
        assert!(gone.is_err_and(|reason| reason == "the session of c is gone"));
        let foreign = broker(vec![|socket| {
            connack(socket, 1, 0);
            send(socket, &[0, 4]);
        }]);
        let foreign = come_back(foreign, "c", 0..4, late());
        assert!(foreign.is_err_and(|reason| reason.contains("got a message of another client")));
        let refused = come_back(broker(vec![|socket| connack(socket, 0, 3)]), "c", 0..4, Instant::now());
        assert!(
            refused
                .is_err_and(|reason| reason.starts_with("c has 0 messages of 4: the answer to CONNECT was"))
        );
    }

    #[test]
    fn every_message_is_published_once_and_its_acknowledgement_is_the_next() {
        let publish = |answer: fn(&mut TcpStream)| {
            let topics = (0..100).map(|number| format!("t/{number}"));
            publish_each(broker(vec![answer]), topics, 7, &mut Progress::new("test"))
        };
        let good = publish(|socket| {
            connack(socket, 0, 0);
            acknowledge(socket, 100, |id| id);
        });
        assert_eq!(good, Ok(()));
        let wrong = publish(|socket| {
            connack(socket, 0, 0);
            acknowledge(socket, 100, |id| id + 1);
        });
        assert!(wrong.is_err_and(|reason| reason.contains("instead of PUBACK 1")));
    }

    #[test]
    fn a_steady_publisher_connects_again_and_counts_the_pause() {
        static STOP: AtomicBool = AtomicBool::new(false);
        let address = broker(vec![
            |socket| {
                connack(socket, 0, 0);
                acknowledge(socket, 1, |id| id);
            },
            |socket| {
                connack(socket, 0, 0);
                acknowledge(socket, 2, |id| id);
                STOP.store(true, Ordering::Relaxed);
                let _ = std::io::copy(socket, &mut std::io::sink());
            },
        ]);
        let publisher = SteadyPublisher::default();
        let longest = publisher.run(address, "steady", &STOP);
        assert!((2..=3).contains(&publisher.acknowledged.load(Ordering::Relaxed)));
        assert!(longest >= AGAIN, "{longest:?}");
    }

    #[test]
    fn every_number_is_worked_on_once_and_a_failure_ends_all() {
        let mut progress = Progress::new("test");
        let mut results = in_threads(4, 100, &mut progress, Ok).expect("all succeed");
        results.sort_unstable();
        assert_eq!(results, (0..100).collect::<Vec<_>>());
        // Without an end of the other thread, this takes seconds and all numbers.
        let (calls, most) = (AtomicUsize::new(0), 20_000_000);
        let failed = in_threads(2, most, &mut progress, |number| {
            calls.fetch_add(1, Ordering::Relaxed);
            if number == 3 { Err("three".to_owned()) } else { Ok(()) }
        });
        assert_eq!(failed, Err("three".to_owned()));
        assert!(calls.into_inner() < most - 1);
        assert_eq!(in_threads(4, 0, &mut progress, Ok), Ok(Vec::new()));
    }
}
