//! Clients that each send one long PUBLISH at a steady rate.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::bench::load::connect;
use crate::bench::packets::publish_head;

/// How often each client writes, one after the other.
const WRITE_EVERY: Duration = Duration::from_millis(250);

/// Connected clients that have sent nothing of their PUBLISH.
pub(super) struct Senders {
    clients: Vec<Client>,
    progress: Arc<AtomicU64>,
}

/// What they have done; they leave when this is dropped.
pub(super) struct Sent {
    pub(super) bytes: u64,
    /// The longest that a client was behind its rate after a write.
    pub(super) behind: Duration,
    _clients: Vec<Client>,
}

struct Client {
    socket: TcpStream,
    head: Vec<u8>,
    /// Bytes of head and payload that are sent, and all of them.
    sent: u64,
    size: u64,
}

impl Senders {
    /// Connects `count` clients with a PUBLISH of `size` bytes of payload each.
    ///
    /// # Errors
    /// The broker refuses one.
    pub(super) fn connect(address: SocketAddr, count: u32, size: u32) -> Result<Self, String> {
        let client = |index: u32| {
            let socket = connect(address, &format!("bench-large-{index}"))?;
            socket.set_nonblocking(true).map_err(|error| error.to_string())?;
            let head = publish_head(&format!("large/{index}"), 1, size);
            let size = head.len() as u64 + u64::from(size);
            Ok(Client { socket, head, sent: 0, size })
        };
        let clients = (0..count).map(client).collect::<Result<_, String>>()?;
        Ok(Self { clients, progress: Arc::default() })
    }

    /// Bytes that all have sent, while they do.
    pub(super) fn progress(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.progress)
    }

    /// Sends `rate` bytes per second with each client until `end`.
    ///
    /// # Errors
    /// The broker ends a connection.
    pub(super) fn send(mut self, rate: u32, end: Instant) -> Result<Sent, String> {
        let payload = vec![7; 256 * 1024];
        let start = Instant::now();
        let count = u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
        let mut behind = Duration::ZERO;
        let mut turn = start;
        'all: loop {
            for client in &mut self.clients {
                turn += WRITE_EVERY / count;
                if turn >= end {
                    break 'all;
                }
                thread::sleep(turn.saturating_duration_since(Instant::now()));
                let since = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let owed = since.saturating_mul(rate.into()) / 1000;
                let sent = client.send_up_to(owed.min(client.size), &payload);
                let sent = sent.map_err(|error| format!("a client of a large PUBLISH: {error}"))?;
                self.progress.fetch_add(sent, Ordering::Relaxed);
                let missing = owed.min(client.size).saturating_sub(client.sent) as f64;
                behind = behind.max(Duration::from_secs_f64(missing / f64::from(rate)));
            }
        }
        Ok(Sent { bytes: self.progress.load(Ordering::Relaxed), behind, _clients: self.clients })
    }
}

impl Client {
    /// Sends until `goal` bytes are sent or the socket takes no more; how many that were.
    fn send_up_to(&mut self, goal: u64, payload: &[u8]) -> io::Result<u64> {
        let before = self.sent;
        while self.sent < goal {
            let done = usize::try_from(self.sent).unwrap_or(usize::MAX);
            let bytes = self.head.get(done..).filter(|rest| !rest.is_empty()).unwrap_or(payload);
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
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::Client;
    use crate::bench::packets::{publish_head, split_packet};

    #[test]
    fn a_publish_sent_in_parts_is_whole() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let socket = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
        let (mut peer, _) = listener.accept().expect("a client");
        let head = publish_head("large/0", 1, 1000);
        let size = head.len() as u64 + 1000;
        let mut client = Client { socket, head, sent: 0, size };
        for goal in [3, 20, 700, size] {
            client.send_up_to(goal, &[7; 300]).expect("sent");
            assert_eq!(client.sent, goal);
        }
        drop(client);
        let mut bytes = Vec::new();
        peer.read_to_end(&mut bytes).expect("read");
        let (packet, rest) = split_packet(&bytes).expect("well formed").expect("whole");
        assert_eq!((packet.publish().expect("a PUBLISH").payload, rest), (&[7; 1000][..], &[][..]));
    }
}
