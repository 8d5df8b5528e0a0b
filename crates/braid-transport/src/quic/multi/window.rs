//! The send window of a connection: what may be written and not be acknowledged yet, over all
//! streams.
//!
//! The library has one window for all. Two things are made of it that it does not offer: room that
//! lower priorities cannot take, and a sign that everything is acknowledged.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use braid_proto::stream::StreamKey;
use noq::{Connection, SendStream};

use super::bells::{Bells, Ring};
use super::stream::{Refusal, Stream};

/// Room that each priority has beyond what all lower ones can fill. [BQ-56]
const RESERVE: u64 = 1 << 20;

/// Priorities that have it: the next ones share that of the last.
const RESERVES: u64 = 8;

pub(super) struct SendWindow {
    /// What the connection was configured with.
    base: u64,
    /// The stream through which acknowledgement is watched, while the window is narrow for it.
    watch: Option<StreamKey>,
    watches: u32,
}

impl SendWindow {
    pub(super) fn new(base: u64) -> Self {
        Self { base, watch: None, watches: 0 }
    }

    /// Before every write: ends a watch.
    pub(super) fn open(&mut self, connection: &Connection) {
        if self.watch.take().is_some() {
            connection.set_send_window(self.base);
        }
    }

    /// Writes again what found no room, with `lower` priorities below it that may hold the window.
    /// Whatever the outcome, the window is as before for the others: what was taken beyond it makes
    /// them wait the longer. [BQ-56]
    pub(super) fn write_beyond(
        &self,
        connection: &Connection,
        lower: usize,
        stream: &mut Stream,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Refusal>> {
        let reserves = u64::try_from(lower).map_or(RESERVES, |lower| lower.min(RESERVES));
        connection.set_send_window(self.base.saturating_add(reserves * RESERVE));
        let outcome = stream.poll_write(slices);
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
        bells: &Arc<Bells>,
    ) {
        self.watches = self.watches.wrapping_add(1);
        self.watch = Some(key);
        let bell = bells.bell(Ring::Acknowledged(self.watches));
        connection.set_send_window(0);
        // Ready only if the stream was stopped or the connection is lost; other bells tell of both.
        let _ = Pin::new(&mut *send).poll_write(&mut Context::from_waker(&bell), &[]);
        connection.set_send_window(1);
    }

    pub(super) fn is_watching(&self) -> bool {
        self.watch.is_some()
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
