//! The send window of a connection: what may be written and not be acknowledged yet, over all
//! streams.
//!
//! The library has one window for all. Three things are made of it that it does not offer: a size that
//! follows the path, room that lower priorities cannot take, and a sign that everything is
//! acknowledged.
//!
//! What is written and cannot be sent yet costs memory, and is beyond recall when something more
//! urgent comes. Twice the congestion window keeps the path busy: one is in flight, and when it is
//! acknowledged the other is there to be sent, even if the congestion window has doubled meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq::{Connection, PathId, SendStream};
use tokio::time::Instant;

use super::stream::Refusal;
use super::wakers::{Event, Wakers};

/// A slow path is given so much as well, which spares a turn of the application for each packet. More urgent messages of
/// the same stream cannot overtake it: at 40 kB/s it is less than a second.
const LEAST: u64 = 32 << 10;

/// Room that a priority has beyond what the next lower one can fill. [BQ-56]
pub(super) const RESERVE: u64 = 1 << 20;

/// As many priorities in use have it, counted from the lowest but one. Those above share that of the last of them, and
/// may have to wait for each other: else a peer decides how much is held, by the priorities that it asks for.
const RESERVES: u64 = 8;

pub(super) struct SendLimit {
    /// What lower priorities and equals may fill.
    base: u64,
    /// What it may become.
    most: u64,
    /// The stream through which acknowledgement is watched, while the window is narrow for it.
    watch: Option<StreamKey>,
    watches: u32,
    watched_since: Instant,
}

impl SendLimit {
    /// `most`: what the connection was configured with.
    pub(super) fn new(connection: &Connection, most: u64) -> Self {
        let base = LEAST.min(most);
        connection.set_send_window(base);
        Self { base, most, watch: None, watches: 0, watched_since: Instant::now() }
    }

    pub(super) fn size(&self) -> u64 {
        self.base
    }

    /// Comes after the path, when a write found no room; whether there is more now.
    ///
    /// Often enough: room, and with it the next write, comes with each acknowledgement, and so does
    /// growth of the congestion window.
    /// `backlog`: what the gate wants.
    pub(super) fn follow(&mut self, connection: &Connection, backlog: Option<u64>) -> bool {
        let window = || Some(connection.path_stats(PathId::ZERO)?.cwnd.saturating_mul(2).max(LEAST));
        let Some(size) = backlog.or_else(window) else { return false };
        let size = size.min(self.most);
        let has_grown = size > self.base;
        // Small steps down are not worth the library's attention.
        if has_grown || size < self.base - self.base / 4 {
            self.base = size;
            connection.set_send_window(size);
        }
        has_grown
    }

    /// Before every write: ends a watch.
    pub(super) fn open(&mut self, connection: &Connection) {
        if self.watch.take().is_some() {
            connection.set_send_window(self.base);
        }
    }

    /// Writes again, through `write`, what found no room, with `lower` priorities below it that may hold the window.
    /// Whatever the outcome, the window is as before for the others: what was taken beyond it makes
    /// them wait the longer. [BQ-56]
    pub(super) fn write_beyond(
        &self,
        connection: &Connection,
        lower: usize,
        write: impl FnOnce() -> Poll<Result<usize, Refusal>>,
    ) -> Poll<Result<usize, Refusal>> {
        let reserves = u64::try_from(lower).map_or(RESERVES, |lower| lower.min(RESERVES));
        connection.set_send_window(self.base.saturating_add(reserves * RESERVE));
        let outcome = write();
        connection.set_send_window(self.base);
        outcome
    }

    /// Rings [`Ring::Acknowledged`] when nothing on the connection is unacknowledged, unless a
    /// write comes first. No stream may wait for room meanwhile: it would not be told of any.
    ///
    /// A write that finds no room in the window is woken when there is some, and a window of one
    /// byte has room when nothing is unacknowledged. The write itself is never repeated: an empty
    /// one that is taken sends an empty frame.
    pub(super) fn watch(
        &mut self,
        connection: &Connection,
        key: StreamKey,
        send: &mut SendStream,
        wakers: &Arc<Wakers>,
    ) {
        self.watches = self.watches.wrapping_add(1);
        self.watch = Some(key);
        self.watched_since = Instant::now();
        let waker = wakers.waker(Event::Acknowledged(self.watches));
        connection.set_send_window(0);
        // Ready only if the stream was stopped or the connection is lost; other bells tell of both.
        let _ = Pin::new(&mut *send).poll_write(&mut Context::from_waker(&waker), &[]);
        connection.set_send_window(1);
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether nothing was written for so long, and not all is acknowledged.
    pub(super) fn is_quiet_for(&self, time: Duration) -> bool {
        self.is_watching() && self.watched_since.elapsed() >= time
    }

    /// Whether the ring with this number is that of the present watch.
    pub(super) fn is_watch(&self, number: u32) -> bool {
        self.watch.is_some() && self.watches == number
    }

    /// The stream has ended: a ring of its bell would mean nothing.
    pub(super) fn forget(&mut self, connection: &Connection, key: StreamKey) {
        if self.watch == Some(key) {
            self.open(connection);
        }
    }
}
