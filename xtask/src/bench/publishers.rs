//! The sending half of the generator: one thread, every publisher, large writes of copied templates.
//!
//! Saturated, a publisher refills whenever a quarter of its window is free, so that the generator's writes carry
//! many messages whatever the rhythm of the broker's answers. Paced, every message has a due time; whatever is due
//! goes out, stamped with when it was due and not with when this thread came to it.

use std::io::{self, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::board::Board;
use super::case::{Flow, topic};
use super::kernel;
use super::packets::{self, PublishTemplate, Readable, read_packets};
use super::payload::Stamp;

/// The most one refill encodes: enough for a large write, little enough to stay in the cache.
const REFILL_BYTES: usize = 64 * 1024;
/// QoS 1 without a window still has no more than 65,535 packet ids.
const QOS_1_LIMIT: u64 = 60_000;
/// How long the thread sleeps when every window is full and no socket will say when it is not.
const PARK: Duration = Duration::from_micros(100);
/// QoS 0 messages not delivered after this long without any delivery are lost: their window opens again.
pub(super) const LOST_AFTER: Duration = Duration::from_millis(200);
/// How often a paced run reads its acknowledgements.
const PACED_READ: Duration = Duration::from_millis(5);
/// How long the last messages may take to leave and to be acknowledged.
const LAST_CALL: Duration = Duration::from_secs(10);
/// A paced message that leaves this much after its time is counted as late.
const LATE_NANOSECONDS: u64 = 1_000_000;

/// What the publishers did in one run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    pub(super) messages: u64,
    /// QoS 1: messages the broker never acknowledged.
    pub(super) unacknowledged: u64,
    /// Paced: messages that left more than a millisecond after they were due.
    pub(super) late: u64,
}

struct Publisher {
    index: u32,
    socket: TcpStream,
    template: PublishTemplate,
    out: Vec<u8>,
    written: usize,
    sent: u64,
    acknowledged: u64,
    /// QoS 0: the window waits for no message before this one.
    forgiven: u64,
    carry: Vec<u8>,
    /// The socket's buffer is full; its writability event clears this.
    blocked: bool,
    closed: bool,
}

/// The thread's state.
pub(super) struct Publishers<'run> {
    board: &'run Board,
    flow: &'run Flow,
    poll: Poll,
    events: Events,
    publishers: Vec<Publisher>,
    buffer: Vec<u8>,
    late: u64,
}

impl<'run> Publishers<'run> {
    /// Takes over connected sockets, one per publisher.
    ///
    /// # Errors
    /// No epoll.
    pub(super) fn new(
        board: &'run Board,
        flow: &'run Flow,
        sockets: Vec<std::net::TcpStream>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut publishers = Vec::with_capacity(sockets.len());
        for (index, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true)?;
            let mut socket = TcpStream::from_std(socket);
            poll.registry().register(
                &mut socket,
                Token(index),
                Interest::READABLE.add(Interest::WRITABLE),
            )?;
            publishers.push(Publisher {
                index: u32::try_from(index).map_err(io::Error::other)?,
                socket,
                template: PublishTemplate::new(&topic(index), flow.qos, flow.payload),
                out: Vec::with_capacity(REFILL_BYTES),
                written: 0,
                sent: 0,
                acknowledged: 0,
                forgiven: 0,
                carry: Vec::new(),
                blocked: false,
                closed: false,
            });
        }
        let events = Events::with_capacity(publishers.len().max(1));
        Ok(Self { board, flow, poll, events, publishers, buffer: vec![0; 256 * 1024], late: 0 })
    }

    /// Publishes until told to stop, then until everything is out and acknowledged. The connections stay open: a
    /// broker may treat a publisher that leaves as it likes, and this is not what is measured.
    pub(super) fn run(&mut self) -> Sent {
        match self.flow.pace {
            Some(rate) => self.pace(u64::from(rate)),
            None => self.saturate(),
        }
        self.last_call();
        let messages = self.publishers.iter().map(|publisher| publisher.sent).sum();
        let acknowledged: u64 = self.publishers.iter().map(|publisher| publisher.acknowledged).sum();
        let unacknowledged = if self.flow.qos > 0 { messages - acknowledged } else { 0 };
        Sent { messages, unacknowledged, late: self.late }
    }

    fn saturate(&mut self) {
        let (mut moved_at, mut delivered) = (Instant::now(), 0);
        while !self.board.stop.load(Ordering::Relaxed) {
            let mut progress = false;
            for index in 0..self.publishers.len() {
                let free = self.free(index);
                let publisher = &mut self.publishers[index];
                if publisher.blocked || publisher.closed || free == 0 {
                    continue;
                }
                let now = self.board.now();
                for _ in 0..free.min((REFILL_BYTES / publisher.template.length()) as u64) {
                    publisher.push(now);
                }
                publisher.flush(self.board);
                progress = true;
            }
            let seen = self.board.delivered.load(Ordering::Relaxed);
            if seen != delivered {
                (moved_at, delivered) = (Instant::now(), seen);
            }
            // QoS 1 waits for acknowledgements, which are events; QoS 0 for the subscribers' thread.
            let wait_for_event = !progress && self.flow.qos > 0;
            self.receive(if wait_for_event { Duration::from_millis(100) } else { Duration::ZERO });
            if !progress && self.flow.qos == 0 {
                thread::sleep(PARK);
                if moved_at.elapsed() > LOST_AFTER {
                    self.forgive();
                }
            }
        }
    }

    /// Gives up on QoS 0 messages that no later message will show to be missing.
    fn forgive(&mut self) {
        for publisher in self.publishers.iter_mut().filter(|publisher| !publisher.blocked) {
            publisher.forgiven = publisher.sent;
        }
    }

    /// How many messages this publisher may add now; 0 until it is worth a write.
    fn free(&self, index: usize) -> u64 {
        let publisher = &self.publishers[index];
        let window = u64::from(self.flow.window);
        if window == 0 && self.flow.qos == 0 {
            return u64::MAX;
        }
        let outstanding = match self.flow.qos {
            0 => {
                let resolved = self.board.resolved[index].load(Ordering::Relaxed);
                publisher.sent.saturating_sub(publisher.forgiven.max(resolved / self.flow.shape.copies()))
            }
            _ => publisher.sent - publisher.acknowledged,
        };
        let limit = if window == 0 { QOS_1_LIMIT } else { window };
        let free = limit.saturating_sub(outstanding);
        if free >= limit.div_ceil(4) { free } else { 0 }
    }

    fn pace(&mut self, rate: u64) {
        kernel::sleep_exactly();
        let count = self.publishers.len();
        let mut timetable = Timetable { rate, next: 0 };
        let (mut turn, mut read_at) = (0_usize, Instant::now());
        while !self.board.stop.load(Ordering::Relaxed) {
            let now = self.board.now();
            let (first, mut added) = (turn, 0_usize);
            while let Some(due) = timetable.take(now) {
                self.late += u64::from(now - due > LATE_NANOSECONDS);
                self.publishers[turn].push(due);
                (turn, added) = ((turn + 1) % count, added + 1);
            }
            for offset in 0..added.min(count) {
                self.publishers[(first + offset) % count].flush(self.board);
            }
            if read_at.elapsed() >= PACED_READ {
                read_at = Instant::now();
                self.receive(Duration::ZERO);
                self.refuse_reused_packet_ids();
            }
            let wait = self.board.instant(timetable.due()).saturating_duration_since(Instant::now());
            if !wait.is_zero() {
                thread::sleep(wait);
            }
        }
    }

    /// A paced broker that stopped acknowledging would make packet ids be used twice.
    fn refuse_reused_packet_ids(&self) {
        let behind = |publisher: &Publisher| publisher.sent - publisher.acknowledged > QOS_1_LIMIT;
        if self.flow.qos > 0 && self.publishers.iter().any(behind) {
            self.board.fault("the broker stopped acknowledging: the run is void".to_owned());
            self.board.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits at most `timeout` for events and reads what there is.
    fn receive(&mut self, timeout: Duration) {
        if self.poll.poll(&mut self.events, Some(timeout)).is_err() {
            return;
        }
        for event in &self.events {
            let Some(publisher) = self.publishers.get_mut(event.token().0) else { continue };
            if event.is_readable() {
                publisher.read(&mut self.buffer, self.board);
            }
            if event.is_writable() && publisher.blocked {
                publisher.flush(self.board);
            }
        }
    }

    fn last_call(&mut self) {
        let deadline = Instant::now() + LAST_CALL;
        let qos = self.flow.qos;
        let waiting = |publisher: &Publisher| {
            !publisher.closed
                && (publisher.written < publisher.out.len()
                    || (qos > 0 && publisher.acknowledged < publisher.sent))
        };
        for publisher in &mut self.publishers {
            publisher.flush(self.board);
        }
        while self.publishers.iter().any(waiting) && Instant::now() < deadline {
            self.receive(Duration::from_millis(20));
        }
    }
}

impl Publisher {
    /// Encodes the next message behind those that wait.
    fn push(&mut self, due: u64) {
        let sequence = u32::try_from(self.sent & u64::from(u32::MAX)).unwrap_or(0);
        let stamp = Stamp { due, publisher: self.index, sequence };
        self.template.push(&mut self.out, packet_id(self.sent), stamp);
        self.sent += 1;
    }

    /// Writes what waits, as far as the socket takes it.
    fn flush(&mut self, board: &Board) {
        self.blocked = false;
        while self.written < self.out.len() && !self.closed {
            match self.socket.write(&self.out[self.written..]) {
                Ok(0) => self.close(board, "the broker takes no more bytes"),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.close(board, &format!("writing failed: {error}")),
            }
        }
        self.out.clear();
        self.written = 0;
    }

    /// Reads and checks acknowledgements.
    fn read(&mut self, buffer: &mut [u8], board: &Board) {
        while !self.closed {
            let acknowledged = &mut self.acknowledged;
            let sent = self.sent;
            let outcome = read_packets(&mut self.socket, buffer, &mut self.carry, |packet| {
                if packet.first != packets::PUBACK || packet.body.len() != 2 {
                    return Err(format!("sent a packet {:#04x} nobody asked for", packet.first));
                }
                // The acknowledgements come in the order of the messages [MQTT-4.6.0-2].
                let expected = packet_id(*acknowledged);
                if *acknowledged == sent || packet.body != expected.to_be_bytes() {
                    return Err(format!("sent PUBACK {:?} instead of {expected}", packet.body));
                }
                *acknowledged += 1;
                Ok(())
            });
            match outcome {
                Ok(Readable::More) => {}
                Ok(Readable::Drained) => return,
                Err(reason) => self.close(board, &reason),
            }
        }
    }

    fn close(&mut self, board: &Board, reason: &str) {
        self.closed = true;
        board.fault(format!("publisher {}: {reason}", self.index));
    }
}

/// When paced messages are due, whatever became of those before.
struct Timetable {
    /// Messages per second.
    rate: u64,
    next: u64,
}

impl Timetable {
    /// When the next message is due, nanoseconds since the epoch.
    fn due(&self) -> u64 {
        self.next * 1_000_000_000 / self.rate
    }

    /// The due time of the next message, if that has come.
    fn take(&mut self, now: u64) -> Option<u64> {
        let due = self.due();
        (due <= now).then(|| {
            self.next += 1;
            due
        })
    }
}

/// The packet id of a publisher's n-th message: 1 to 65,535, again and again.
fn packet_id(message: u64) -> u16 {
    u16::try_from(message % u64::from(u16::MAX)).unwrap_or(0) + 1
}

#[cfg(test)]
mod tests {
    use super::{Timetable, packet_id};

    #[test]
    fn packet_ids_are_never_zero_and_use_the_whole_range() {
        assert_eq!((packet_id(0), packet_id(65_534), packet_id(65_535)), (1, 65_535, 1));
    }

    #[test]
    fn a_late_generator_stamps_when_messages_were_due() {
        let mut timetable = Timetable { rate: 8000, next: 0 };
        assert_eq!(timetable.take(0), Some(0));
        assert_eq!(timetable.take(124_999), None);
        // The thread was away for a millisecond: eight messages wait, each with its own time.
        let waiting: Vec<_> = std::iter::from_fn(|| timetable.take(1_000_000)).collect();
        assert_eq!(waiting, (1..=8).map(|message| message * 125_000).collect::<Vec<_>>());
    }
}
