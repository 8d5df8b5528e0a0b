//! What waits for time or for acknowledgements: ends of streams, and addresses to be validated.
//!
//! FIN must not travel with payload that was not sent before [BQ-31], and best after the payload was
//! acknowledged, so that it does not travel with a repetition either. The library tells of a stream's
//! acknowledgements only once it is finished. So a stream is finished when nothing on the whole
//! connection is unacknowledged; or, while others keep it busy, three round trips after what it has
//! written can have been sent, and as many bytes were as may have waited for that: the gate may hold
//! them for long, and so may a busy machine. That a stream is not read by its receiver makes no difference to
//! others; a higher priority that keeps the connection busy does, for 3 seconds at most. Nothing is
//! lost in any case.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq::PathId;
use tokio::time::{Instant, Sleep, sleep_until};

use super::send_limit::RESERVE;
use super::state::ConnectionState;
use super::unsent_bytes::{Mark, Progress};
use crate::link::Read;

/// What was sent is acknowledged by then, unless it was lost more than once.
const ROUND_TRIPS: u32 = 3;

/// A round trip when none was measured.
const ROUND_TRIP: Duration = Duration::from_millis(333);

/// Timers do not know less.
const TICK: Duration = Duration::from_millis(1);

/// Where nothing was sent for so long since the end was asked for, nothing waited to be sent.
const SILENCE: Duration = Duration::from_millis(100);

/// An end does not wait any longer: the peer needs its credit back.
const MOST: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(super) struct PendingFinishes {
    /// Streams to finish without an acknowledgement, by when.
    ends: BTreeMap<(Instant, StreamKey), Ending>,
    alarm: Option<Pin<Box<Sleep>>>,
}

/// Since when a stream waits for its end, and what had to be sent then.
#[derive(Clone, Copy)]
struct Ending {
    since: Instant,
    mark: Mark,
}

/// What the path carries.
pub(super) struct Pace {
    rtt: Duration,
    /// The congestion window.
    bytes: u64,
}

impl Pace {
    /// When so many bytes are sent and acknowledged.
    pub(super) fn settles(&self, bytes: u64) -> Duration {
        let rounds = u32::try_from(bytes / self.bytes.max(1)).unwrap_or(u32::MAX);
        self.rtt.saturating_mul(rounds.saturating_add(ROUND_TRIPS)).min(MOST)
    }
}

impl ConnectionState {
    pub(super) fn finish(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| stream.is_writable()) else { return };
        if stream.written == 0 {
            return self.finish_now(key);
        }
        stream.is_finishing = true;
        self.write_scheduler.forget(key);
        let (priority, written) = (stream.priority(), stream.written);
        self.unsent_bytes.look(self.progress(), self.window.size());
        let ending = Ending { since: Instant::now(), mark: self.unsent_bytes.mark(priority, written) };
        self.settle_later(key, ending);
        // The next read sees to it.
        self.connection_bell.wake_by_ref();
    }

    fn finish_now(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.finish();
            self.sending_ended(key);
        }
    }

    fn settle_later(&mut self, key: StreamKey, ending: Ending) {
        let Some(stream) = self.streams.get(&key) else { return };
        let pace = self.pace();
        let rivals = self.write_scheduler.rivals(stream.priority(), self.patience(&pace));
        // Equals are sent in turns with it.
        let before = stream.written.min(self.window.size()).saturating_mul(1 + rivals.equals);
        let due = (Instant::now() + pace.settles(before)).min(ending.since + MOST);
        self.finishes.ends.insert((due, key), ending);
    }

    /// A watch has come to its end.
    pub(super) fn acknowledged(&mut self, number: u32) {
        if self.window.is_watch(number) {
            self.window.open(&self.connection);
            while let Some(((_, key), _)) = self.finishes.ends.pop_first() {
                self.finish_now(key);
            }
        }
    }

    /// Does what is due, and sees to being woken for the rest.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) -> Option<Read> {
        loop {
            self.watch();
            let end = self.next_end().map(|(due, _)| due);
            let look = self.migration.as_ref().and_then(|peer| peer.next_look());
            let Some(due) = end.into_iter().chain(look).min() else {
                self.finishes.alarm = None;
                return None;
            };
            let alarm = self.finishes.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if due < alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return None;
            }
            self.finishes.alarm = None;
            if let Some(address) = self.migration.as_mut().and_then(|peer| peer.moved()) {
                return Some(Read::Moved(address));
            }
            self.finish_due();
        }
    }

    /// Finishes what is due. It waits on behind a higher priority that fills the connection, where it may not have been
    /// sent, and where nothing was written since and not all is acknowledged yet: some of it was lost.
    fn finish_due(&mut self) {
        let now = Instant::now();
        let progress = self.progress();
        let is_repeating = self.window.is_quiet_for(self.pace().settles(0) / 2);
        while let Some((due, key)) = self.next_end().filter(|(due, _)| *due <= now) {
            let Some(ending) = self.finishes.ends.remove(&(due, key)) else { return };
            let has_reason = is_repeating || self.may_be_unsent(&ending, progress) || self.is_outranked(key);
            if now < ending.since + MOST && has_reason {
                self.settle_later(key, ending);
            } else {
                self.finish_now(key);
            }
        }
    }

    pub(super) fn progress(&self) -> Progress {
        Progress::from(self.connection.stats())
    }

    fn may_be_unsent(&self, ending: &Ending, now: Progress) -> bool {
        let nothing_waits = !ending.mark.has_moved(now) && ending.since.elapsed() >= SILENCE;
        now < self.unsent_bytes.until(&ending.mark) && !nothing_waits
    }

    fn is_outranked(&self, key: StreamKey) -> bool {
        let Some(stream) = self.streams.get(&key) else { return false };
        self.write_scheduler.rivals(stream.priority(), self.patience(&self.pace())).is_outranked
    }

    /// The end that is due first without an acknowledgement.
    fn next_end(&mut self) -> Option<(Instant, StreamKey)> {
        while let Some(end) = self.finishes.ends.first_entry() {
            let (due, key) = *end.key();
            if self.streams.get(&key).is_some_and(|stream| stream.is_finishing && stream.send.is_some()) {
                return Some((due, key));
            }
            end.remove();
        }
        None
    }

    /// Sees to being told when everything is acknowledged, if ends wait for it.
    fn watch(&mut self) {
        if self.window.is_watching() {
            return;
        }
        let Some((_, key)) = self.next_end() else { return };
        if self.write_scheduler.is_any_blocked(self.patience(&self.pace())) {
            return;
        }
        if let Some(send) = self.streams.get_mut(&key).and_then(|stream| stream.send.as_mut()) {
            self.window.watch(&self.connection, key, send, &self.wakers);
        }
    }

    pub(super) fn pace(&self) -> Pace {
        match self.connection.path_stats(PathId::ZERO) {
            Some(path) => Pace { rtt: path.rtt.max(TICK), bytes: self.gating.backlog().unwrap_or(path.cwnd) },
            None => Pace { rtt: ROUND_TRIP, bytes: self.window.size() },
        }
    }

    /// A stream that finds no room for longer is not read by its receiver.
    fn patience(&self, pace: &Pace) -> Duration {
        pace.settles(self.window.size() + RESERVE)
    }
}
