//! Receive window of a connection: bytes that the peer may send over all streams before more of them are read.
//!
//! A sender that has written bulk of several priorities has several MiB of credit in use for it, and needs more for
//! its alarms: so the window is large, and what grows is that of a stream. Unread bytes come on top, up to three
//! windows, so that a stream that is not read leaves the others theirs. Where more is unread the peer gets a little at
//! a time: of that it sends the most urgent first. A budget for all connections makes the windows of those with unread
//! bytes smaller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use noq_proto::{Side, VarInt};
use tokio::time::Instant;

use crate::quic::io::Connection;

/// Smallest window, bytes: unread bytes up to it take no share of the budget.
const MIN_WINDOW: u64 = 256 << 10;

/// Largest window, bytes: 100 MB/s at 160 ms.
pub(in crate::quic) const MAX_WINDOW: u32 = 16 << 20;

/// Windows of unread bytes that come on top, of the largest that the budget gives.
const UNREAD_WINDOWS: u64 = 3;

/// Bytes out of the library, with what it takes to hold them, from which on a peer is no honest one: its credit ends
/// before, unless it sends bytes with a gap behind each.
const MAX_HELD: u64 = 96 << 20;

/// Bytes in a datagram at most.
const DATAGRAM: u64 = 1500;

/// Bytes that a peer gets at a time when more is unread.
const ALLOWANCE: u64 = 4 << 10;

/// Bounds of the time between two allowances.
const ALLOWANCE_INTERVAL: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Part of the time since the first allowance that passes until the next.
const ALLOWANCE_PART: u32 = 32;

/// Budget for unread bytes, shared by all connections whose options are clones of the same ones.
///
/// Connections with more unread bytes than the smallest window share it: when there are more of them, each gets a
/// smaller window, and those that are larger shrink with what is read.
#[derive(Clone, Debug)]
pub struct ReceiveBudget(Arc<Shares>);

#[derive(Debug)]
struct Shares {
    bytes: u64,
    connections: AtomicU64,
}

impl ReceiveBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(Shares { bytes, connections: AtomicU64::new(0) }))
    }

    /// Bytes of the budget.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Largest window of a connection that shares it.
    fn max_window(&self) -> u64 {
        let connections = self.0.connections.load(Ordering::Relaxed).max(1);
        (self.0.bytes / connections / (1 + UNREAD_WINDOWS)).clamp(MIN_WINDOW, MAX_WINDOW.into())
    }
}

impl PartialEq for ReceiveBudget {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for ReceiveBudget {}

pub(super) struct ReceiveWindow {
    budget: ReceiveBudget,
    has_share: bool,
    /// Window that was given last, without unread bytes.
    window: u64,
    /// Window that the library has, which counts from the bytes that were taken out of it. `None` on a server as long
    /// as its client is not trusted.
    library: Option<u64>,
    /// Bytes that were taken out of the library and are not read.
    held: u64,
    /// Datagrams that had come at the last update.
    updated_at: u64,
    /// Bytes read since then, and those of them that the library has given credit for.
    read: u64,
    credited: u64,
    allowance: Option<Allowance>,
}

/// Allowance for a peer that has filled what may be unread.
struct Allowance {
    since: Instant,
    next: Instant,
    bytes: u64,
}

impl ReceiveWindow {
    /// The library of a client begins with [`MAX_WINDOW`].
    pub(super) fn new(budget: ReceiveBudget, side: Side) -> Self {
        Self {
            budget,
            has_share: false,
            window: MAX_WINDOW.into(),
            library: (side == Side::Client).then_some(MAX_WINDOW.into()),
            held: 0,
            updated_at: 0,
            read: 0,
            credited: 0,
            allowance: None,
        }
    }

    /// Has a server's connection follow the window.
    pub(super) fn open(&mut self, connection: &mut Connection) {
        self.window = self.budget.max_window();
        self.set(connection, self.window);
    }

    /// True if pieces may be taken out of the library, which gives credit to the peer.
    pub(super) fn is_open(&self) -> bool {
        self.library.is_some()
    }

    /// Counts bytes that the application has read.
    pub(super) fn handle_read(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes as u64);
    }

    /// Counts bytes that were read from the library, which has given the peer credit for as many.
    pub(super) fn handle_credit(&mut self, bytes: usize) {
        self.credited = self.credited.saturating_add(bytes as u64);
    }

    fn share(&mut self, has_share: bool) {
        match (std::mem::replace(&mut self.has_share, has_share), has_share) {
            (false, true) => self.budget.0.connections.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.budget.0.connections.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Counts a change of the bytes of a stream that were taken out of the library, which has given credit for more of
    /// them: the next bytes that are read give none in exchange.
    pub(super) fn handle_held(&mut self, connection: &mut Connection, before: usize, after: usize) {
        self.held = self.held.saturating_sub(before as u64).saturating_add(after as u64);
        if let Some(library) = self.library
            && after > before
        {
            self.set(connection, library.saturating_sub((after - before) as u64));
        }
    }

    /// Everything was read.
    pub(super) fn handle_empty(&mut self) {
        self.share(false);
    }

    /// Nothing is held any more: all streams have ended.
    pub(super) fn handle_dropped(&mut self) {
        self.held = 0;
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// True if the peer has sent more than an honest one can.
    pub(super) fn is_exceeded(&self) -> bool {
        self.held > MAX_HELD
    }

    /// True if an update may be worth a frame, after so many datagrams in all.
    pub(super) fn is_due(&mut self, datagrams: u64) -> bool {
        let received = (datagrams - self.updated_at) * DATAGRAM;
        let window = self.budget.max_window().min(self.window);
        let is_due = received.max(self.read) >= window / 8 || self.allowance.is_some();
        if is_due {
            (self.updated_at, self.read) = (datagrams, 0);
        }
        is_due
    }

    /// Sets the window after what is `unread`, in the library and out of it.
    ///
    /// Credit that was given stays until bytes are read, so a smaller window takes back no more than was read since the
    /// last update. The library would take all of it from later reads, and give a window that grows again before them
    /// as credit on top.
    pub(super) fn update(&mut self, connection: &mut Connection, unread: u64) {
        let Some(library) = self.library else { return };
        self.share(unread > MIN_WINDOW);
        self.window = self.budget.max_window();
        let window = self.window;
        let limit = window * UNREAD_WINDOWS;
        if unread < limit {
            self.allowance = None;
        } else if self.allowance.is_none() {
            let now = Instant::now();
            self.allowance = Some(Allowance { since: now, next: now + ALLOWANCE_INTERVAL[0], bytes: 0 });
        }
        let allowance = self.allowance.as_ref().map_or(0, |allowance| allowance.bytes);
        let target = (window + unread.min(limit) + allowance).saturating_sub(self.held);
        let target = target.max(library.saturating_sub(std::mem::take(&mut self.credited)));
        // An allowance counts as a whole; other credit waits until it is worth a frame.
        let is_due = self.allowance.is_some() || target - target.min(library) >= window / 8;
        if target < library || is_due && target > library {
            self.set(connection, target);
        }
    }

    /// Time of the next allowance.
    pub(super) fn next_allowance(&self) -> Option<Instant> {
        self.allowance.as_ref().map(|allowance| allowance.next)
    }

    /// Gives the allowance that is due. True if there was one.
    pub(super) fn handle_timeout(&mut self) -> bool {
        let now = Instant::now();
        let Some(allowance) = self.allowance.as_mut().filter(|allowance| allowance.next <= now) else {
            return false;
        };
        allowance.bytes += ALLOWANCE;
        let [least, most] = ALLOWANCE_INTERVAL;
        allowance.next = now + ((now - allowance.since) / ALLOWANCE_PART).clamp(least, most);
        true
    }

    /// The library sends a frame if the window is larger than before.
    fn set(&mut self, connection: &mut Connection, bytes: u64) {
        self.library = Some(bytes);
        connection.set_receive_window(VarInt::from_u64(bytes).unwrap_or(VarInt::MAX));
    }
}

impl Drop for ReceiveWindow {
    fn drop(&mut self) {
        self.share(false);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSlice;
    use std::task::Poll;

    use braid_proto::stream::StreamKey;
    use tokio::io::ReadBuf;
    use tokio::time::{Sleep, sleep};

    use super::super::tests::pair_with;
    use super::*;
    use crate::link::Link;
    use crate::quic::QuicOptions;
    use crate::transport::{Dir, Read};

    /// Has the client write what it may on streams that the server does not read, until `end`; how much that was.
    async fn flood(server: &mut Link, client: &mut Link, streams: &[StreamKey], end: Sleep) -> u64 {
        let (mut written, mut memory) = (0, [0; 4096]);
        let mut end = Box::pin(end);
        poll_fn(|cx| {
            let mut buffer = ReadBuf::new(&mut memory);
            while let Poll::Ready(read) = server.poll_read(cx, &mut buffer, &mut |key| key.is_control()) {
                assert!(matches!(read, Ok(Read::Opened(_))), "{read:?}");
            }
            assert!(client.poll_read(cx, &mut buffer, &mut |_| true).is_pending());
            for key in streams {
                while let Poll::Ready(taken) = client.poll_write(cx, *key, &[IoSlice::new(&[7; 10_000])]) {
                    written += taken.expect("write") as u64;
                }
            }
            let _ = (server.poll_flush(cx), client.poll_flush(cx));
            end.as_mut().poll(cx)
        })
        .await;
        written
    }

    /// Other connections come and go while nothing is read of one. [BQ-55]
    #[tokio::test(start_paused = true)]
    async fn a_budget_that_swings_gives_no_credit_for_what_is_not_read() {
        const WINDOW: u64 = 2 << 20;
        let budget = ReceiveBudget::new(WINDOW * (1 + UNREAD_WINDOWS));
        let quic = QuicOptions { receive_budget: budget.clone(), ..QuicOptions::server() };
        let (_listener, mut server, mut client) = pair_with(quic, |_| ()).await;
        server.set_trusted();
        let mut streams = Vec::new();
        for _ in 0..32 {
            streams.push(poll_fn(|cx| client.poll_open(cx, Dir::Bidi)).await.expect("open"));
        }
        let mut written = 0;
        for others in [0, 7].repeat(10) {
            budget.0.connections.fetch_add(others, Ordering::Relaxed);
            let end = sleep(Duration::from_millis(50));
            written += flood(&mut server, &mut client, &streams, end).await;
            budget.0.connections.fetch_sub(others, Ordering::Relaxed);
        }
        assert!(written > WINDOW * (1 + UNREAD_WINDOWS) / 2, "{written}");
        // With an eighth for what was taken out of the library, and allowances.
        assert!(written <= WINDOW * (1 + UNREAD_WINDOWS) * 9 / 8, "{written}");
    }
}
