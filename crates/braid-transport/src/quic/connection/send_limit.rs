//! Send limit of a connection: bytes that may be written and unacknowledged, over all streams.
//!
//! The library has one send window for all streams. It becomes a limit that follows the path, reserves that lower
//! priorities cannot take, and a sign that everything is acknowledged.
//!
//! Bytes that are written and cannot be sent yet cost memory, and nothing more urgent can overtake them. Twice the
//! congestion window keeps the path busy: one half is in flight, and when it is acknowledged the other can be sent,
//! even if the congestion window has doubled meanwhile.

use std::time::Duration;

use braid_proto::stream::StreamKey;
use tokio::time::Instant;

use super::stream;
use crate::quic::io::Connection;

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
    /// Limit that was filled: what was written before the limit became smaller is unacknowledged still.
    filled: u64,
    watch: Option<Watch>,
}

/// Watch for the acknowledgement of everything, for which the library's window is closed.
struct Watch {
    /// The stream whose write waits.
    stream: StreamKey,
    since: Instant,
}

impl SendLimit {
    /// `max`: the configured send window.
    pub(super) fn new(connection: &mut Connection, max: u64) -> Self {
        let bytes = MIN_LIMIT.min(max);
        connection.set_send_window(bytes);
        Self { bytes, max, filled: bytes, watch: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the limit after the path when a write found no room; true if there is more now. `bytes`: the limit that the
    /// gate or the congestion window asks for.
    ///
    /// That is often enough: room, and with it the next write, comes with each acknowledgement, and so does growth of
    /// the congestion window.
    pub(super) fn update(&mut self, connection: &mut Connection, bytes: u64) -> bool {
        let bytes = bytes.min(self.max);
        let has_grown = bytes > self.bytes;
        if has_grown || bytes < self.bytes - self.bytes / 4 {
            self.bytes = bytes;
            self.filled = self.filled.max(bytes);
            connection.set_send_window(bytes);
        }
        has_grown
    }

    /// Notes that a write found room: no more than the limit is unacknowledged with it.
    pub(super) fn note_room(&mut self) {
        self.filled = self.bytes;
    }

    /// Ends a watch. To be called before every write.
    pub(super) fn end_watch(&mut self, connection: &mut Connection) {
        if self.watch.take().is_some() {
            connection.set_send_window(self.bytes);
        }
    }

    /// Opens the reserves of `lower` priorities in use below it for a write that found no room; [`Self::narrow`]
    /// follows it. Bytes that are taken beyond the limit make the other streams wait the longer. [BQ-56]
    pub(super) fn widen(&self, connection: &mut Connection, lower: usize) {
        let reserves = (lower as u64).min(MAX_RESERVES);
        connection.set_send_window(self.filled.saturating_add(reserves * RESERVE));
    }

    /// Closes the reserves again.
    pub(super) fn narrow(&self, connection: &mut Connection) {
        connection.set_send_window(self.bytes);
    }

    /// Watches for the acknowledgement of everything, unless a write comes first: an event of room for the stream tells
    /// of it. No other stream may wait for room meanwhile: it would not be told.
    ///
    /// The library keeps the number of unacknowledged bytes to itself. But it tells of room for a write that found none
    /// in the window, and a window of one byte has room when nothing is unacknowledged.
    pub(super) fn begin_watch(&mut self, connection: &mut Connection, stream: StreamKey) {
        self.watch = Some(Watch { stream, since: Instant::now() });
        connection.set_send_window(0);
        // Ready only if the stream was stopped or the connection is lost; other events report both.
        let _ = connection.poll_room(stream::id(stream));
        connection.set_send_window(1);
    }

    /// Tests whether an event of room for a stream is that of the watch.
    pub(super) fn is_watched(&self, stream: StreamKey) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.stream == stream)
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// True if nothing was written for this time, and not everything is acknowledged.
    pub(super) fn is_quiet_for(&self, time: Duration) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.since.elapsed() >= time)
    }

    /// The stream has ended: there will be no event for it.
    pub(super) fn remove(&mut self, connection: &mut Connection, stream: StreamKey) {
        if self.is_watched(stream) {
            self.end_watch(connection);
        }
    }
}
