//! Signs of life on streams that are not read now.
//!
//! Keep Alive runs from the last byte that came on any stream. Those that the driver reads tell of themselves; those of
//! a stream that is held back stay under its flow control and wake nobody. So while there is such a stream, the
//! transport is asked now and then whether more came.

use std::time::{Duration, Instant};

use super::{Driver, now};

/// Between two looks. So much later, at most, than one and a half Keep Alives is a client noticed that was held back
/// and is silent; never sooner.
const LOOK: Duration = Duration::from_secs(5);

/// What is known of a connection with streams that are held back.
pub(super) struct Unread {
    /// STREAM frames of the client, up to the last look.
    frames: u64,
    look_at: Instant,
}

impl Driver {
    /// Before the task waits.
    pub(super) fn watch_unread(&mut self) {
        if self.refused.is_empty() {
            self.unread = None;
        } else if self.unread.is_none() {
            self.look(now());
        }
    }

    /// When to look, where Keep Alive runs.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.server.poll_timeout()?;
        self.unread.as_ref().map(|unread| unread.look_at)
    }

    /// Counts what came unread as a sign of life; before Keep Alive is looked at.
    pub(super) fn look_for_unread(&mut self, now: Instant) {
        if self.unread.is_some() {
            self.look(now);
        }
    }

    fn look(&mut self, now: Instant) {
        let Some(frames) = self.link.stream_frames() else { return };
        // A stream is held back because something came on it: the first look finds a sign of life as well.
        if self.unread.as_ref().is_none_or(|unread| unread.frames != frames) {
            self.server.note_bytes(now); // [BQ-44]
        }
        self.unread = Some(Unread { frames, look_at: now + LOOK });
    }
}
