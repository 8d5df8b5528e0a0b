//! Publishers of QoS 1 that keep a number of messages unacknowledged, and how long each PUBACK took.
//!
//! One thread, because it shares the processors with the broker. A publisher sends as many messages as a read brought
//! acknowledgements, in one write.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::bench::case::topic;
use crate::bench::load::connect;
use crate::bench::packets::{PUBACK, PublishTemplate, Readable, read_packets};
use crate::bench::payload::Stamp;

/// The most publishers of one load; each has its share of the unacknowledged messages.
const PUBLISHERS: u32 = 16;
/// How long without any PUBACK until the broker counts as stuck.
const STUCK: Duration = Duration::from_secs(30);
/// The longest latency that is told apart, nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// A load that goes on from one call to the next.
pub(super) struct Publishers {
    poll: Poll,
    publishers: Vec<Publisher>,
    /// Messages acknowledged so far.
    pub(super) acknowledged: u64,
    /// From the write of a message to the read that brought its PUBACK, nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

struct Publisher {
    socket: TcpStream,
    template: PublishTemplate,
    index: u32,
    window: usize,
    sequence: u32,
    carry: Vec<u8>,
    out: Vec<u8>,
    /// In the order of sending, which is that of PUBACK.
    unacknowledged: VecDeque<(u16, Instant)>,
}

impl Publishers {
    /// Connects publishers that may have `window` messages unacknowledged together, each with its own topic below
    /// `bench/`.
    ///
    /// # Errors
    /// The broker refuses one.
    pub(super) fn connect(address: SocketAddr, window: u32, payload: usize) -> Result<Self, String> {
        let failed = |error: io::Error| error.to_string();
        let poll = Poll::new().map_err(failed)?;
        let count = window.min(PUBLISHERS);
        let mut publishers = Vec::new();
        for index in 0..count {
            let socket = connect(address, &format!("bench-pub-{index}"))?;
            socket.set_nonblocking(true).map_err(failed)?;
            let mut socket = TcpStream::from_std(socket);
            let interest = Interest::READABLE.add(Interest::WRITABLE);
            poll.registry().register(&mut socket, Token(index as usize), interest).map_err(failed)?;
            publishers.push(Publisher {
                socket,
                template: PublishTemplate::new(&topic(index as usize), 1, payload),
                index,
                window: (window / count) as usize,
                sequence: 0,
                carry: Vec::new(),
                out: Vec::new(),
                unacknowledged: VecDeque::new(),
            });
        }
        let latencies = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| error.to_string())?;
        Ok(Self { poll, publishers, acknowledged: 0, latencies })
    }

    /// Publishes until `end`.
    ///
    /// # Errors
    /// The broker ends a connection, acknowledges what was not sent, or is stuck.
    pub(super) fn publish_until(&mut self, end: Instant) -> Result<(), String> {
        self.publish(u64::MAX, |_| Instant::now() >= end)
    }

    /// Publishes `count` messages and waits until all that was ever sent is acknowledged.
    ///
    /// # Errors
    /// As [`publish_until`](Self::publish_until).
    pub(super) fn publish_all(&mut self, count: u64) -> Result<(), String> {
        self.publish(count, Self::is_all_acknowledged)
    }

    fn is_all_acknowledged(&self) -> bool {
        self.publishers.iter().all(|publisher| publisher.unacknowledged.is_empty())
    }

    /// Sends at most `left` messages, until `done`.
    fn publish(&mut self, mut left: u64, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut events = Events::with_capacity(PUBLISHERS as usize);
        let mut buffer = vec![0; 64 * 1024];
        for publisher in &mut self.publishers {
            publisher.refill(&mut left)?;
        }
        let mut heard = Instant::now();
        while !done(self) {
            match self.poll.poll(&mut events, Some(Duration::from_millis(20))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.to_string()),
                _ => {}
            }
            let before = self.acknowledged;
            for event in &events {
                let Some(publisher) = self.publishers.get_mut(event.token().0) else { continue };
                self.acknowledged += publisher.receive(&mut buffer, &mut self.latencies)?;
                publisher.refill(&mut left)?;
            }
            let now = Instant::now();
            if self.acknowledged > before {
                heard = now;
            } else if now - heard > STUCK {
                return Err(format!("no PUBACK for {STUCK:?}"));
            }
        }
        Ok(())
    }
}

impl Publisher {
    /// Sends as many messages as the window has room for and `left` allows.
    fn refill(&mut self, left: &mut u64) -> Result<(), String> {
        while self.unacknowledged.len() < self.window && *left > 0 {
            let packet_id = u16::try_from(self.sequence % 60_000).unwrap_or(0) + 1;
            let stamp = Stamp { due: 0, publisher: self.index, sequence: self.sequence };
            self.template.push(&mut self.out, packet_id, stamp);
            self.sequence = self.sequence.wrapping_add(1);
            self.unacknowledged.push_back((packet_id, Instant::now()));
            *left -= 1;
        }
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("writing failed: {error}")),
            }
        }
        Ok(())
    }

    /// Takes the acknowledgements that are there, and says how many.
    fn receive(&mut self, buffer: &mut [u8], latencies: &mut Histogram<u64>) -> Result<u64, String> {
        let mut count = 0;
        loop {
            let Self { socket, carry, unacknowledged, .. } = self;
            let mut clock = None;
            let state = read_packets(socket, buffer, carry, |packet| {
                let now = *clock.get_or_insert_with(Instant::now);
                let Some((packet_id, sent)) = unacknowledged.pop_front() else {
                    return Err("a PUBACK came for nothing".to_owned());
                };
                if packet.first != PUBACK || packet.body != packet_id.to_be_bytes() {
                    return Err(format!("got {packet:02x?} where PUBACK of {packet_id} was due"));
                }
                let latency = u64::try_from((now - sent).as_nanos()).unwrap_or(LONGEST);
                latencies.saturating_record(latency.clamp(1, LONGEST));
                count += 1;
                Ok(())
            })?;
            if state == Readable::Drained {
                return Ok(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::thread::{self, JoinHandle};

    use super::Publishers;
    use crate::bench::packets::read_packets;

    /// A broker for one publisher that acknowledges identifier `n` with `answer(n)`; tells how many it got.
    fn broker(answer: fn(u16) -> u16) -> (SocketAddr, JoinHandle<u64>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let address = listener.local_addr().expect("address");
        let served = thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.read_exact(&mut [0; 25]).expect("CONNECT");
            socket.write_all(&[0x20, 2, 0, 0]).expect("CONNACK");
            let (mut buffer, mut carry, mut count) = (vec![0; 4096], Vec::new(), 0);
            loop {
                let mut acks = Vec::new();
                let read = read_packets(&mut socket, &mut buffer, &mut carry, |packet| {
                    let [high, low] = answer(packet.publish().expect("a PUBLISH").packet_id).to_be_bytes();
                    acks.extend_from_slice(&[0x40, 2, high, low]);
                    count += 1;
                    Ok(())
                });
                if read.is_err() || socket.write_all(&acks).is_err() {
                    return count;
                }
            }
        });
        (address, served)
    }

    #[test]
    fn every_message_is_sent_once_and_its_acknowledgement_timed() {
        let (address, served) = broker(|packet_id| packet_id);
        let mut publishers = Publishers::connect(address, 1, 64).expect("connects");
        publishers.publish_all(100).expect("all acknowledged");
        assert_eq!((publishers.acknowledged, publishers.latencies.len()), (100, 100));
        drop(publishers);
        assert_eq!(served.join().expect("served"), 100);
    }

    #[test]
    fn another_acknowledgement_than_the_next_is_refused() {
        let (address, _) = broker(|packet_id| packet_id + 1);
        let mut publishers = Publishers::connect(address, 1, 64).expect("connects");
        let refused = publishers.publish_all(1).expect_err("wrong identifier");
        assert!(refused.contains("PUBACK of 1 was due"), "{refused}");
    }
}
