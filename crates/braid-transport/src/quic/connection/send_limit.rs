//! Send limit of a connection: bytes that may be written and unacknowledged, over all streams.
//!
//! The library has one send window for all streams. It becomes a limit that follows the path, reserves that lower
//! priorities cannot take, and a sign that everything is acknowledged.
//!
//! Bytes that are written and cannot be sent yet cost memory, and nothing more urgent can overtake them. Twice the
//! congestion window keeps the path busy: one half is in flight, and when it is acknowledged the other can be sent,
//! even if the congestion window has doubled meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq::{Connection, SendStream};
use tokio::time::Instant;

use super::events::{Event, EventWakers};
use super::stream::WriteFailure;

/// Smallest limit without a gate: it spares a turn of the application for each packet of a slow path. More urgent
/// messages of the same stream cannot overtake it: at 40 kB/s it is less than a second.
pub(super) const MIN_LIMIT: u64 = 32 << 10;

/// Room of a priority above what the next lower one can fill. [BQ-56]
pub(super) const RESERVE: u64 = 1 << 20;

/// Number of reserves, from the lowest priority in use but one. The priorities above share the last of them and may
/// have to wait for each other: otherwise a peer decides how much is held, by the priorities that it asks for.
const MAX_RESERVES: u64 = 8;

pub(super) struct SendLimit {
    /// Bytes that lower priorities and equals may fill.
    bytes: u64,
    /// Upper bound of `bytes`.
    max: u64,
    watch: Option<Watch>,
    watches: u32,
}

/// Watch for the acknowledgement of everything, for which the library's window is closed.
struct Watch {
    /// The stream whose write waits.
    stream: StreamKey,
    since: Instant,
}

impl SendLimit {
    /// `max`: the configured send window.
    pub(super) fn new(connection: &Connection, max: u64) -> Self {
        let bytes = MIN_LIMIT.min(max);
        connection.set_send_window(bytes);
        Self { bytes, max, watch: None, watches: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the limit after the path when a write found no room; true if there is more now. `bytes`: the limit that the
    /// gate or the congestion window asks for.
    ///
    /// That is often enough: room, and with it the next write, comes with each acknowledgement, and so does growth of
    /// the congestion window.
    pub(super) fn update(&mut self, connection: &Connection, bytes: u64) -> bool {
        let bytes = bytes.min(self.max);
        let has_grown = bytes > self.bytes;
        // Small steps down are not worth a lock of the connection.
        if has_grown || bytes < self.bytes - self.bytes / 4 {
            self.bytes = bytes;
            connection.set_send_window(bytes);
        }
        has_grown
    }

    /// Ends a watch. To be called before every write.
    pub(super) fn end_watch(&mut self, connection: &Connection) {
        if self.watch.take().is_some() {
            connection.set_send_window(self.bytes);
        }
    }

    /// Repeats with `write` a write that found no room, with the reserves of `lower` priorities in use below it.
    /// Afterwards the window is as before for the other streams: bytes that were taken beyond it make them wait the
    /// longer. [BQ-56]
    pub(super) fn write_beyond(
        &self,
        connection: &Connection,
        lower: usize,
        write: impl FnOnce() -> Poll<Result<usize, WriteFailure>>,
    ) -> Poll<Result<usize, WriteFailure>> {
        let reserves = (lower as u64).min(MAX_RESERVES);
        connection.set_send_window(self.bytes.saturating_add(reserves * RESERVE));
        let outcome = write();
        connection.set_send_window(self.bytes);
        outcome
    }

    /// Signals [`Event::Acknowledged`] when nothing on the connection is unacknowledged, unless a write comes first. No
    /// stream may wait for room meanwhile: it would not be woken.
    ///
    /// A write that finds no room in the window is woken when there is some, and a window of one byte has room when
    /// nothing is unacknowledged. The write itself is never repeated: an empty one that is taken sends an empty frame.
    pub(super) fn begin_watch(
        &mut self,
        connection: &Connection,
        stream: StreamKey,
        send: &mut SendStream,
        wakers: &Arc<EventWakers>,
    ) {
        self.watches = self.watches.wrapping_add(1);
        self.watch = Some(Watch { stream, since: Instant::now() });
        let waker = wakers.waker(Event::Acknowledged(self.watches));
        connection.set_send_window(0);
        // Ready only if the stream was stopped or the connection is lost; other wakers report both.
        let _ = Pin::new(&mut *send).poll_write(&mut Context::from_waker(&waker), &[]);
        connection.set_send_window(1);
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// True if nothing was written for this time, and not everything is acknowledged.
    pub(super) fn is_quiet_for(&self, time: Duration) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.since.elapsed() >= time)
    }

    /// True for the number of the present watch.
    pub(super) fn is_watch(&self, number: u32) -> bool {
        self.is_watching() && self.watches == number
    }

    /// The stream has ended: its waker would mean nothing.
    pub(super) fn remove(&mut self, connection: &Connection, stream: StreamKey) {
        if self.watch.as_ref().is_some_and(|watch| watch.stream == stream) {
            self.end_watch(connection);
        }
    }
}
