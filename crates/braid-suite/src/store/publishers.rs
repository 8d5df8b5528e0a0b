//! Publishers of QoS 1 with a fixed number of unacknowledged messages, and the latency of each PUBACK.
//!
//! One thread, because it shares the processors with the broker. A publisher sends as many messages as a read brought
//! acknowledgements, in one write.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use braid_measure::Latencies;
use mio::{Events, Poll};

use crate::case::topic;
use crate::load::packets::PublishTemplate;
use crate::load::publisher::Publisher;
use crate::load::session::connect;

/// Most publishers of one load, which share the unacknowledged messages.
const PUBLISHERS: u32 = 16;
/// Time without any PUBACK after which the broker counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// A load that continues from one call to the next.
pub(crate) struct Publishers {
    poll: Poll,
    members: Vec<Member>,
    /// Messages acknowledged so far.
    pub(crate) acknowledged: u64,
    /// Latencies from the encoding of a message to the read that brought its PUBACK.
    pub(crate) latencies: Latencies,
}

struct Member {
    publisher: Publisher,
    window: usize,
    /// Times of the unacknowledged messages, in the order of sending, which is that of PUBACK.
    sent_at: VecDeque<Instant>,
}

impl Publishers {
    /// Connects publishers with `window` unacknowledged messages altogether, each with its own topic below `bench/`.
    ///
    /// # Errors
    /// The broker refuses one.
    pub(crate) fn connect(address: SocketAddr, window: u32, payload: usize) -> Result<Self, String> {
        Self::connect_to(&[address], window, payload)
    }

    /// Connects publishers to the nodes of a cluster in turn.
    ///
    /// # Errors
    /// A node refuses one.
    pub(crate) fn connect_to(nodes: &[SocketAddr], window: u32, payload: usize) -> Result<Self, String> {
        let failed = |error: io::Error| error.to_string();
        let poll = Poll::new().map_err(failed)?;
        let count = window.min(PUBLISHERS);
        let mut members = Vec::new();
        for (index, &node) in (0..count as usize).zip(nodes.iter().cycle()) {
            let socket = connect(node, &format!("bench-pub-{index}"))?;
            let templates = vec![PublishTemplate::new(&topic(index), 1, payload)];
            let publisher = Publisher::register(poll.registry(), index, socket, templates).map_err(failed)?;
            members.push(Member { publisher, window: (window / count) as usize, sent_at: VecDeque::new() });
        }
        let latencies = Latencies::with_resolution(Duration::from_nanos(1));
        Ok(Self { poll, members, acknowledged: 0, latencies })
    }

    /// Publishes until `end`.
    ///
    /// # Errors
    /// The broker ends a connection, acknowledges in a wrong order, or is stuck.
    pub(crate) fn publish_until(&mut self, end: Instant) -> Result<(), String> {
        self.publish(u64::MAX, |_| Instant::now() >= end)
    }

    /// Publishes `count` messages and waits until every message so far is acknowledged.
    ///
    /// # Errors
    /// As [`publish_until`](Self::publish_until).
    pub(crate) fn publish_all(&mut self, count: u64) -> Result<(), String> {
        self.publish(count, |publishers| publishers.members.iter().all(|member| member.sent_at.is_empty()))
    }

    /// Sends at most `left` messages, until `done`.
    fn publish(&mut self, mut left: u64, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut events = Events::with_capacity(PUBLISHERS as usize);
        let mut buffer = vec![0; 64 * 1024];
        for member in &mut self.members {
            member.refill(&mut left)?;
        }
        let mut answered_at = Instant::now();
        while !done(self) {
            match self.poll.poll(&mut events, Some(Duration::from_millis(20))) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.to_string()),
                _ => {}
            }
            let before = self.acknowledged;
            for event in &events {
                let Some(member) = self.members.get_mut(event.token().0) else { continue };
                self.acknowledged += member.receive(&mut buffer, &mut self.latencies)?;
                member.refill(&mut left)?;
            }
            if self.acknowledged > before {
                answered_at = Instant::now();
            } else if answered_at.elapsed() > STUCK {
                return Err(format!("no PUBACK for {STUCK:?}"));
            }
        }
        Ok(())
    }
}

impl Member {
    /// Sends as many messages as the window has room for and `left` allows.
    fn refill(&mut self, left: &mut u64) -> Result<(), String> {
        while self.sent_at.len() < self.window && *left > 0 {
            self.publisher.push(0);
            self.sent_at.push_back(Instant::now());
            *left -= 1;
        }
        self.publisher.flush()
    }

    /// Reads acknowledgements; returns their number.
    fn receive(&mut self, buffer: &mut [u8], latencies: &mut Latencies) -> Result<u64, String> {
        let before = self.publisher.acknowledged;
        let (mut now, sent_at) = (None, &mut self.sent_at);
        self.publisher.receive(buffer, || {
            let now = *now.get_or_insert_with(Instant::now);
            // There is a time for each message that was sent.
            sent_at.pop_front().into_iter().for_each(|sent| latencies.record(now - sent));
        })?;
        Ok(self.publisher.acknowledged - before)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::thread::{self, JoinHandle};

    use super::Publishers;
    use crate::load::packets::read_packets;

    /// A broker for one publisher that acknowledges identifier `n` with `answer(n)`; returns the number of messages.
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
        assert_eq!((publishers.acknowledged, publishers.latencies.arrived()), (100, 100));
        drop(publishers);
        assert_eq!(served.join().expect("served"), 100);
    }

    #[test]
    fn another_acknowledgement_than_the_next_is_refused() {
        let (address, _) = broker(|packet_id| packet_id + 1);
        let mut publishers = Publishers::connect(address, 1, 64).expect("connects");
        let refused = publishers.publish_all(1).expect_err("wrong identifier");
        assert!(refused.contains("sent PUBACK [0, 2] instead of 1"), "{refused}");
    }
}
