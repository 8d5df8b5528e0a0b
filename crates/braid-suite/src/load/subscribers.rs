//! The receiving half of a flow: one thread with all subscribers, large reads, one clock reading per read.
//!
//! Every message is checked: topic, QoS, payload byte by byte, and the sequence numbers of each publisher. A gap is a
//! loss; a step back is a duplicate or a wrong order, and a fault.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use braid_measure::Latencies;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::packets::{Packet, Readable, push_puback, read_packets, write_some};
use super::payload;
use super::run_state::RunState;
use crate::case::{Flow, Shape};

struct Subscriber {
    socket: TcpStream,
    carry: Vec<u8>,
    acks: Vec<u8>,
    /// Next sequence number of each publisher from `first_publisher` on.
    next: Vec<u32>,
    first_publisher: usize,
    closed: bool,
}

/// State of the receiving thread.
pub(crate) struct Subscribers<'run> {
    run: &'run RunState,
    flow: &'run Flow,
    poll: Poll,
    subscribers: Vec<Subscriber>,
    /// Topics of each publisher in the order of its messages.
    topics: Vec<Vec<String>>,
    blank: Vec<u8>,
    /// Nanoseconds.
    latencies: Latencies,
}

impl<'run> Subscribers<'run> {
    /// Takes over sockets whose subscriptions are acknowledged.
    ///
    /// # Errors
    /// No epoll.
    pub(crate) fn new(
        run: &'run RunState,
        flow: &'run Flow,
        sockets: Vec<std::net::TcpStream>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let publishers = flow.shape.publishers();
        let interest =
            if flow.qos > 0 { Interest::READABLE.add(Interest::WRITABLE) } else { Interest::READABLE };
        let mut subscribers = Vec::with_capacity(sockets.len());
        for (index, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(&mut socket, Token(index), interest)?;
            let (first_publisher, heard) = match flow.shape {
                Shape::Pairs(_) => (index, 1),
                Shape::FanOut(_) | Shape::FanIn(_) => (0, publishers),
            };
            subscribers.push(Subscriber {
                socket,
                carry: Vec::new(),
                acks: Vec::new(),
                next: vec![0; heard],
                first_publisher,
                closed: false,
            });
        }
        Ok(Self {
            run,
            flow,
            poll,
            subscribers,
            topics: (0..publishers).map(|publisher| flow.topics(publisher)).collect(),
            blank: payload::blank(flow.payload),
            latencies: Latencies::with_resolution(Duration::from_nanos(1)),
        })
    }

    /// Receives until the run finishes; returns the latencies of the messages that were due in the measured period.
    pub(crate) fn run(mut self) -> Latencies {
        let mut buffer = vec![0; 256 * 1024];
        let mut events = Events::with_capacity(self.subscribers.len().max(1));
        let mut resolved = vec![0_u64; self.topics.len()];
        while !self.run.finish.load(Ordering::Relaxed) {
            if self.poll.poll(&mut events, Some(Duration::from_millis(20))).is_err() {
                continue;
            }
            for event in &events {
                self.receive(event.token().0, &mut buffer, &mut resolved);
            }
        }
        self.latencies
    }

    fn receive(&mut self, index: usize, buffer: &mut [u8], resolved: &mut [u64]) {
        let Some(subscriber) = self.subscribers.get_mut(index) else { return };
        while !subscriber.closed {
            let Subscriber { socket, carry, acks, next, first_publisher, .. } = subscriber;
            let mut delivered = 0;
            let mut clock = None;
            let outcome = read_packets(socket, buffer, carry, |packet| {
                let now = *clock.get_or_insert_with(|| self.run.now());
                let arrival =
                    check(packet, self.flow.qos, &self.topics, &self.blank, *first_publisher, next, acks)?;
                resolved[arrival.publisher] += arrival.step;
                delivered += 1;
                if let Some(latency) = latency(&self.run.measured, arrival.due, now) {
                    self.latencies.record(latency);
                }
                Ok(())
            });
            if delivered > 0 {
                self.run.delivered.fetch_add(delivered, Ordering::Relaxed);
                for (count, shared) in resolved.iter_mut().zip(&self.run.resolved) {
                    if *count > 0 {
                        shared.fetch_add(std::mem::take(count), Ordering::Relaxed);
                    }
                }
            }
            let outcome = outcome.and_then(|state| subscriber.flush().map(|()| state));
            match outcome {
                Ok(Readable::More) => {}
                Ok(Readable::Drained) => return,
                Err(reason) => {
                    subscriber.closed = true;
                    self.run.fault(format!("subscriber {index}: {reason}"));
                }
            }
        }
    }
}

impl Subscriber {
    /// Writes the acknowledgements of one read at once.
    fn flush(&mut self) -> Result<(), String> {
        let written = write_some(&mut self.socket, &self.acks)?;
        self.acks.drain(..written);
        Ok(())
    }
}

/// A message that equals the published one.
#[derive(Debug, PartialEq, Eq)]
struct Arrival {
    publisher: usize,
    /// Due time, nanoseconds since the epoch.
    due: u64,
    /// Step of its publisher's sequence number: 1, more after a loss.
    step: u64,
}

/// Latency of a message that was due in the measured period, whenever it arrives: a stall at the end of the period
/// delays its messages beyond it.
fn latency(measured: &Range<u64>, due: u64, now: u64) -> Option<Duration> {
    measured.contains(&due).then(|| Duration::from_nanos(now.saturating_sub(due)))
}

/// Checks one packet and appends its acknowledgement.
fn check(
    packet: &Packet<'_>,
    qos: u8,
    topics: &[Vec<String>],
    blank: &[u8],
    first_publisher: usize,
    next: &mut [u32],
    acks: &mut Vec<u8>,
) -> Result<Arrival, String> {
    let Some(publish) = packet.publish() else {
        return Err(format!("got a packet {:#04x} instead of a PUBLISH", packet.first));
    };
    if packet.first != 0x30 | (qos << 1) {
        return Err(format!(
            "got a PUBLISH with first byte {:#04x} for a message of QoS {qos}",
            packet.first
        ));
    }
    let Some(stamp) = payload::read(publish.payload, blank) else {
        return Err(format!("got a payload that was not sent ({} bytes)", publish.payload.len()));
    };
    let publisher = stamp.publisher as usize;
    let expected = publisher.checked_sub(first_publisher).and_then(|index| next.get_mut(index));
    let topic = topics.get(publisher).and_then(|topics| topics.get(stamp.sequence as usize % topics.len()));
    let (Some(expected), Some(topic)) = (expected, topic) else {
        return Err(format!("got a message of publisher {publisher}, which it never subscribed to"));
    };
    if publish.topic != topic.as_bytes() {
        return Err(format!("got topic {:?} instead of {topic}", String::from_utf8_lossy(publish.topic)));
    }
    // Sequence numbers wrap after 2^32: less than half of that is a gap, more is a step back.
    let gap = stamp.sequence.wrapping_sub(*expected);
    if gap > u32::MAX / 2 {
        return Err(format!("got message {} again or too late: {expected} was next", stamp.sequence));
    }
    *expected = stamp.sequence.wrapping_add(1);
    if qos > 0 {
        push_puback(acks, publish.packet_id);
    }
    Ok(Arrival { publisher, due: stamp.due, step: u64::from(gap) + 1 })
}

#[cfg(test)]
mod tests {
    use super::super::packets::{PublishTemplate, split_packet};
    use super::super::payload::{Stamp, blank};
    use super::{Arrival, Duration, check, latency};

    const ARRIVED: Arrival = Arrival { publisher: 1, due: 77, step: 1 };

    /// Checks sequence number `sequence` on `bench/01` when `next` is expected.
    fn checked(sequence: u32, next: &mut [u32], qos: u8) -> (Result<Arrival, String>, Vec<u8>) {
        let topics = [vec!["bench/00".to_owned()], vec!["bench/01".to_owned(); 4]];
        let (mut bytes, mut acks) = (Vec::new(), Vec::new());
        let stamp = Stamp { due: 77, publisher: 1, sequence };
        PublishTemplate::new("bench/01", 1, 64).push(&mut bytes, 5, stamp);
        let (packet, _) = split_packet(&bytes).expect("well formed").expect("whole");
        (check(&packet, qos, &topics, &blank(64), 1, next, &mut acks), acks)
    }

    #[test]
    fn the_next_message_is_counted_and_acknowledged() {
        let mut next = [3];
        assert_eq!(checked(3, &mut next, 1), (Ok(ARRIVED), vec![0x40, 2, 0, 5]));
        assert_eq!(next, [4]);
    }

    #[test]
    fn a_message_counts_in_the_period_in_which_it_was_due() {
        let nanos = |nanos| Some(Duration::from_nanos(nanos));
        for (due, now, expected) in [(10, 15, nanos(5)), (19, 900, nanos(881)), (9, 15, None), (20, 21, None)]
        {
            assert_eq!(latency(&(10..20), due, now), expected, "due at {due}");
        }
    }

    #[test]
    fn a_gap_is_a_loss_and_a_step_back_a_fault() {
        let mut next = [3];
        assert_eq!(checked(6, &mut next, 1).0, Ok(Arrival { step: 4, ..ARRIVED }));
        assert!(checked(6, &mut next, 1).0.is_err_and(|reason| reason.contains("again")));
        assert!(checked(2, &mut next, 1).0.is_err());
        let mut last = [u32::MAX];
        assert_eq!(checked(u32::MAX, &mut last, 1).0, Ok(ARRIVED));
        assert_eq!(last, [0], "sequence numbers wrap");
    }

    #[test]
    fn another_qos_or_publisher_is_a_fault() {
        assert!(checked(0, &mut [0], 0).0.is_err_and(|reason| reason.contains("QoS 0")));
        assert!(checked(0, &mut [], 1).0.is_err_and(|reason| reason.contains("never subscribed")));
    }
}
