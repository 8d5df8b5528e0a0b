//! Clients that each send one large PUBLISH at a constant rate, and its rest at the end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use super::TOPIC;
use super::pattern::Pattern;
use crate::load::packets::{PUBACK, publish_head};
use crate::load::session::connect;

/// Time between two writes of a client; the clients take turns.
const WRITE_EVERY: Duration = Duration::from_millis(250);
/// Time limit of a write of the rest, and of PUBACK.
const ANSWER: Duration = Duration::from_secs(60);

/// Connected clients before their PUBLISH.
pub(crate) struct Senders {
    clients: Vec<Client>,
    pattern: Arc<Pattern>,
    progress: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

/// Totals of the time at a constant rate.
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Largest delay of a client behind its rate after a write.
    pub(crate) behind: Duration,
}

struct Client {
    index: u32,
    socket: TcpStream,
    head: Vec<u8>,
    /// Bytes of head and payload sent so far, and their total.
    sent: u64,
    size: u64,
}

impl Senders {
    /// Connects `count` clients with a PUBLISH of `size` bytes of payload each.
    ///
    /// # Errors
    /// The broker refuses one.
    pub(crate) fn connect(
        address: SocketAddr,
        count: u32,
        size: u32,
        pattern: Arc<Pattern>,
    ) -> Result<Self, String> {
        let client = |index: u32| {
            let socket = connect(address, &format!("bench-large-{index}"))?;
            socket.set_nonblocking(true).map_err(|error| error.to_string())?;
            let head = publish_head(&format!("{TOPIC}{index}"), 1, size);
            let size = head.len() as u64 + u64::from(size);
            Ok(Client { index, socket, head, sent: 0, size })
        };
        let clients = (0..count).map(client).collect::<Result<_, String>>()?;
        Ok(Self { clients, pattern, progress: Arc::default(), is_stopped: Arc::default() })
    }

    /// Counter of the bytes sent by all clients.
    pub(crate) fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Closure that ends the sending with an error.
    pub(crate) fn stop(&self) -> impl Fn() + Send + 'static {
        let is_stopped = Arc::clone(&self.is_stopped);
        move || is_stopped.store(true, Ordering::Relaxed)
    }

    fn check(&self) -> Result<(), String> {
        if self.is_stopped.load(Ordering::Relaxed) {
            Err("the clients were stopped".to_owned())
        } else {
            Ok(())
        }
    }

    /// Sends `rate` bytes per second with each client until `end`, except for the last byte.
    ///
    /// # Errors
    /// The broker ends a connection.
    pub(crate) fn send(&mut self, rate: u32, end: Instant) -> Result<Sent, String> {
        let start = Instant::now();
        let count = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        let mut behind = Duration::ZERO;
        let mut turn = start;
        'all: loop {
            self.check()?;
            for client in &mut self.clients {
                turn += WRITE_EVERY / count;
                if turn >= end {
                    break 'all;
                }
                thread::sleep(turn.saturating_duration_since(Instant::now()));
                let since = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let due_bytes = since.saturating_mul(rate.into()) / 1000;
                let due_bytes = due_bytes.min(client.size - 1);
                let sent = client.send_up_to(due_bytes, &self.pattern);
                let sent = sent.map_err(|error| format!("a client of a large PUBLISH: {error}"))?;
                self.progress.fetch_add(sent, Ordering::Relaxed);
                let missing = due_bytes.saturating_sub(client.sent) as f64;
                behind = behind.max(Duration::from_secs_f64(missing / f64::from(rate)));
            }
        }
        let (bytes, seconds) = (self.progress.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
        Ok(Sent { bytes, seconds, behind })
    }

    /// Sends the rest of `count` messages as fast as the broker takes it, each when the one before is acknowledged and
    /// was delivered, for which `deliveries` receives `()`: the subscriber's queue has room for few of them. Then all
    /// clients leave.
    ///
    /// # Errors
    /// The broker ends a connection, does not acknowledge or does not deliver.
    pub(crate) fn complete(mut self, count: u32, deliveries: &Receiver<()>) -> Result<(), String> {
        let clients = std::mem::take(&mut self.clients);
        for mut client in clients.into_iter().take(count as usize) {
            self.check()?;
            let sent = client.complete(&self.pattern, &self.progress);
            sent.map_err(|error| format!("the rest of the PUBLISH of client {}: {error}", client.index))?;
            let delivered = deliveries.recv_timeout(ANSWER);
            delivered.map_err(|_| format!("the PUBLISH of client {} was not delivered", client.index))?;
        }
        Ok(())
    }
}

impl Client {
    /// Sends until `goal` bytes are sent or the socket takes no more; returns the number of bytes.
    fn send_up_to(&mut self, goal: u64, pattern: &Pattern) -> io::Result<u64> {
        let before = self.sent;
        while self.sent < goal {
            let bytes = match self.sent.checked_sub(self.head.len() as u64) {
                Some(place) => pattern.at(self.index, place),
                None => &self.head[usize::try_from(self.sent).unwrap_or(0)..],
            };
            let room = usize::try_from(goal - self.sent).unwrap_or(usize::MAX).min(bytes.len());
            match self.socket.write(&bytes[..room]) {
                Ok(written) => self.sent += written as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.sent - before)
    }

    fn complete(&mut self, pattern: &Pattern, progress: &AtomicU64) -> io::Result<()> {
        self.socket.set_nonblocking(false)?;
        self.socket.set_write_timeout(Some(ANSWER))?;
        self.socket.set_read_timeout(Some(ANSWER))?;
        while self.sent < self.size {
            let sent = self.send_up_to(self.size, pattern)?;
            progress.fetch_add(sent, Ordering::Relaxed);
            if sent == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mut answer = [0; 4];
        self.socket.read_exact(&mut answer)?;
        if answer != [PUBACK, 2, 0, 1] {
            return Err(io::Error::other(format!("the answer was {answer:02x?}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::load::packets::split_packet;

    /// A client with a PUBLISH of 1,000 bytes of payload, and the other end of its connection.
    fn client() -> (Client, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
        let (peer, _) = listener.accept().expect("a client");
        let head = publish_head("large/5", 1, 1000);
        let size = head.len() as u64 + 1000;
        (Client { index: 5, socket, head, sent: 0, size }, peer)
    }

    #[test]
    fn the_rest_is_sent_and_must_be_acknowledged() {
        for (answer, is_good) in [([0x40, 2, 0, 1], true), ([0x40, 2, 0, 2], false)] {
            let (mut client, mut peer) = client();
            client.send_up_to(40, &Pattern::new()).expect("sent");
            peer.write_all(&answer).expect("sent");
            let progress = AtomicU64::new(40);
            assert_eq!(client.complete(&Pattern::new(), &progress).is_ok(), is_good);
            assert_eq!(progress.into_inner(), client.size);
        }
    }

    #[test]
    fn a_publish_sent_in_parts_is_whole() {
        let (mut client, mut peer) = client();
        let pattern = Pattern::new();
        for goal in [3, 20, 700, client.size] {
            client.send_up_to(goal, &pattern).expect("sent");
            assert_eq!(client.sent, goal);
        }
        drop(client);
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).expect("read");
        let (packet, rest) = split_packet(&bytes).expect("well formed").expect("whole");
        assert_eq!(
            (packet.publish().expect("a PUBLISH").payload, rest),
            (&pattern.at(5, 0)[..1000], &[][..])
        );
    }
}
