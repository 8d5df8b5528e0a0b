//! What waits for time or for acknowledgements: ends of streams, and addresses to be validated.
//!
//! FIN must not travel with payload that was not sent before [BQ-31], and best after the payload was
//! acknowledged, so that it does not travel with a repetition either. The library tells of a stream's
//! acknowledgements only once it is finished. So a stream is finished when nothing on the whole
//! connection is unacknowledged; or, while others keep it busy, three round trips after it was
//! asked for, and at least a tenth of a second; or, while streams wait for room, after 3 seconds.
//! Nothing is lost in any case.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq::PathId;
use tokio::time::{Instant, Sleep, sleep_until};

use super::parts::Parts;
use crate::link::Read;

/// What was written is taken to be sent by then, unless streams wait for room.
const ROUND_TRIPS: u32 = 3;

/// And never sooner than that.
const LEAST: Duration = Duration::from_millis(100);

/// An end does not wait any longer: the peer needs its credit back.
const MOST: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(super) struct Settling {
    /// Streams to finish, and since when; the oldest first.
    ends: VecDeque<(StreamKey, Instant)>,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Parts {
    pub(super) fn finish(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key).filter(|stream| stream.is_writable()) else { return };
        if stream.has_written {
            stream.is_finishing = true;
            self.settling.ends.push_back((key, Instant::now()));
            // The next read sees to it.
            self.connection_bell.wake_by_ref();
        } else {
            self.finish_now(key);
        }
    }

    fn finish_now(&mut self, key: StreamKey) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.finish();
            self.sending_ended(key);
        }
    }

    /// A watch has come to its end.
    pub(super) fn acknowledged(&mut self, number: u32) {
        if self.window.is_watch(number) {
            self.window.open(&self.connection);
            while let Some((key, _)) = self.settling.ends.pop_front() {
                self.finish_now(key);
            }
        }
    }

    /// Does what is due, and sees to being woken for the rest.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) -> Option<Read> {
        loop {
            self.watch();
            let end = self.next_end();
            let look = self.whereabouts.as_ref().and_then(|peer| peer.next_look());
            let Some(due) = end.into_iter().chain(look).min() else {
                self.settling.alarm = None;
                return None;
            };
            let alarm = self.settling.alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if due < alarm.deadline() {
                alarm.as_mut().reset(due);
            }
            if alarm.as_mut().poll(cx).is_pending() {
                return None;
            }
            self.settling.alarm = None;
            if let Some(address) = self.whereabouts.as_mut().and_then(|peer| peer.moved()) {
                return Some(Read::Moved(address));
            }
            while self.next_end().is_some_and(|end| end <= Instant::now())
                && let Some((key, _)) = self.settling.ends.pop_front()
            {
                self.finish_now(key);
            }
        }
    }

    /// When the oldest end is due without an acknowledgement.
    fn next_end(&mut self) -> Option<Instant> {
        while let Some((key, since)) = self.settling.ends.front().copied() {
            if !self.streams.get(&key).is_some_and(|stream| stream.is_finishing && stream.send.is_some()) {
                self.settling.ends.pop_front();
                continue;
            }
            let rtt = self.connection.rtt(PathId::ZERO).unwrap_or(LEAST);
            let settled = if self.blocked.is_empty() { (rtt * ROUND_TRIPS).clamp(LEAST, MOST) } else { MOST };
            return Some(since + settled);
        }
        None
    }

    /// Sees to being told when everything is acknowledged, if ends wait for it.
    fn watch(&mut self) {
        if self.window.is_watching() || !self.blocked.is_empty() || self.next_end().is_none() {
            return;
        }
        if let Some((key, _)) = self.settling.ends.front()
            && let Some(send) = self.streams.get_mut(key).and_then(|stream| stream.send.as_mut())
        {
            self.window.watch(&self.connection, *key, send, &self.bells);
        }
    }
}
