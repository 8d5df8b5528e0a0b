//! A client that comes back to a long queue: how fast it has everything.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::publishers::Publishers;
use crate::bench::brokers::Broker;
use crate::bench::load::{leave_session, resume};
use crate::bench::packets::{Packet, Readable, push_puback, read_packets};
use crate::bench::payload;
use crate::bench::spread::Spread;
use crate::bench::usage::{Meter, Shares, wait_for_quiet, written};

/// Bytes of a payload.
const PAYLOAD: usize = 256;
/// Unacknowledged messages of the publisher that fills the queue, below every broker's limit.
const FILLING: u32 = 512;
/// The client whose queue it is.
const CLIENT: &str = "bench-away";

/// The queue of one broker, drained once in each round.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) broker: String,
    pub(super) messages: u64,
    pub(super) rounds: Vec<Drained>,
}

/// One drain.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Drained {
    /// Messages per second, from CONNECT to the last of them.
    pub(super) rate: f64,
    /// From CONNECT to the first message.
    pub(super) first_milliseconds: f64,
    pub(super) cpu_nanoseconds: f64,
    /// Bytes for the device, per message.
    pub(super) written: f64,
    pub(super) shares: Shares,
}

/// Measures every broker, in turns.
///
/// # Errors
/// A broker that does not start, or loses, repeats or mixes up what it has queued.
pub(super) fn run(
    directory: &Path,
    brokers: &[Broker],
    rounds: u32,
    messages: u64,
    quiet_wait: Duration,
) -> Result<Vec<Row>, String> {
    let row = |broker: &Broker| Row { broker: broker.label.clone(), messages, rounds: Vec::new() };
    let mut rows: Vec<_> = brokers.iter().map(row).collect();
    for _ in 0..rounds {
        wait_for_quiet(Instant::now() + quiet_wait).map_err(|error| error.to_string())?;
        for (broker, row) in brokers.iter().zip(&mut rows) {
            let drained =
                once(directory, broker, messages).map_err(|reason| format!("{}: {reason}", broker.label))?;
            eprintln!("# drain {}: {:.0}/s", broker.label, drained.rate);
            row.rounds.push(drained);
        }
    }
    Ok(rows)
}

impl Row {
    /// What `of` says, over the rounds.
    pub(super) fn spread(&self, of: fn(&Drained) -> f64) -> Option<Spread> {
        Spread::of(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }

    /// The rate divided by another's, round by round.
    pub(super) fn ratio(&self, reference: &Self) -> Option<Spread> {
        let rates =
            |row: &Self| row.rounds.iter().map(|drained| Some(drained.rate)).collect::<Vec<Option<f64>>>();
        Spread::of_ratios(&rates(self), &rates(reference))
    }
}

fn once(directory: &Path, broker: &Broker, messages: u64) -> Result<Drained, String> {
    let running = broker.start_in(directory)?;
    let pid = running.pid();
    leave_session(running.address, CLIENT, "bench/+")?;
    let mut publishers = Publishers::connect(running.address, FILLING, PAYLOAD)?;
    publishers.publish_all(messages)?;
    drop(publishers);
    let meter = || Meter::read(pid).map_err(|error| format!("the broker is gone: {error}"));
    let (before, bytes) = (meter()?, written(pid)?);
    let (first, all) = take(running.address, messages)?;
    let after = meter()?;
    Ok(Drained {
        rate: messages as f64 / all.as_secs_f64(),
        first_milliseconds: first.as_secs_f64() * 1e3,
        cpu_nanoseconds: after.broker_since(&before).as_secs_f64() * 1e9 / messages as f64,
        written: (written(pid)? - bytes) as f64 / messages as f64,
        shares: after.since(&before),
    })
}

/// Comes back, takes and acknowledges `messages`, and says when the first and the last were there.
fn take(address: SocketAddr, messages: u64) -> Result<(Duration, Duration), String> {
    let began = Instant::now();
    let (mut socket, present) = resume(address, CLIENT)?;
    if !present {
        return Err("the session is gone".to_owned());
    }
    let mut queue = Queue::default();
    let (mut buffer, mut carry, mut acks) = (vec![0; 256 * 1024], Vec::new(), Vec::new());
    let mut first = None;
    while queue.taken < messages {
        let state =
            read_packets(&mut socket, &mut buffer, &mut carry, |packet| queue.take(packet, &mut acks))
                .map_err(|reason| format!("after {} messages: {reason}", queue.taken))?;
        first.get_or_insert_with(|| began.elapsed());
        // The socket blocks: without bytes it has only waited for too long.
        if state == Readable::Drained && acks.is_empty() {
            return Err(format!("{} messages came of {messages}", queue.taken));
        }
        socket.write_all(&acks).map_err(|error| format!("cannot acknowledge: {error}"))?;
        acks.clear();
    }
    Ok((first.unwrap_or_default(), began.elapsed()))
}

/// What a returning client has seen.
#[derive(Default)]
struct Queue {
    taken: u64,
    /// The next sequence number, by publisher.
    next: Vec<u32>,
}

impl Queue {
    /// Checks that it is the next message of its publisher, and acknowledges it.
    fn take(&mut self, packet: &Packet<'_>, acks: &mut Vec<u8>) -> Result<(), String> {
        let publish = packet.publish().ok_or_else(|| format!("got {packet:02x?} instead of a PUBLISH"))?;
        let stamp = payload::read(publish.payload, &payload::blank(PAYLOAD))
            .ok_or_else(|| "got a payload that was not sent".to_owned())?;
        let publisher = stamp.publisher as usize;
        if self.next.len() <= publisher {
            self.next.resize(publisher + 1, 0);
        }
        if stamp.sequence != self.next[publisher] {
            let next = self.next[publisher];
            return Err(format!(
                "got message {} of publisher {publisher}, and {next} was next",
                stamp.sequence
            ));
        }
        self.next[publisher] += 1;
        self.taken += 1;
        push_puback(acks, publish.packet_id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{PAYLOAD, Queue};
    use crate::bench::packets::{PublishTemplate, split_packet};
    use crate::bench::payload::Stamp;

    fn take(queue: &mut Queue, publisher: u32, sequence: u32) -> Result<Vec<u8>, String> {
        let (mut bytes, mut acks) = (Vec::new(), Vec::new());
        let stamp = Stamp { due: 0, publisher, sequence };
        PublishTemplate::new("bench/00", 1, PAYLOAD).push(&mut bytes, 7, stamp);
        let (packet, _) = split_packet(&bytes)?.ok_or("half a packet")?;
        queue.take(&packet, &mut acks).map(|()| acks)
    }

    #[test]
    fn each_publisher_has_an_order_of_its_own() {
        let mut queue = Queue::default();
        assert_eq!(take(&mut queue, 1, 0), Ok(vec![0x40, 2, 0, 7]));
        assert!(take(&mut queue, 0, 0).is_ok() && take(&mut queue, 1, 1).is_ok());
        assert_eq!(queue.taken, 3);
    }

    #[test]
    fn a_message_that_is_missing_or_comes_again_is_noticed() {
        let mut queue = Queue::default();
        assert!(take(&mut queue, 0, 1).is_err_and(|reason| reason.contains("0 was next")));
        assert!(take(&mut queue, 0, 0).is_ok());
        assert!(take(&mut queue, 0, 0).is_err_and(|reason| reason.contains("1 was next")));
    }
}
