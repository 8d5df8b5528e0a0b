//! How fast a client may publish: what comes faster stays under flow control.

use std::time::Instant;

use braid_proto::stream::StreamKey;

use super::{Driver, now};
use crate::config::LimitsConfig;
use crate::token_bucket::TokenBucket;

/// The smallest read of a client whose rate is limited.
const LEAST_READ: usize = 1024;

/// Bytes of a PUBLISH with next to nothing in it: a read of as many as a second may bring overdraws by no more.
const SMALL_PUBLISH: u64 = 8;

/// What a client has used of its rates.
///
/// Nobody is disconnected for being too fast, and nothing is dropped: the connection is not read until what came is
/// paid for. Of several streams the control stream is read on, for PINGREQ, unless it is where the messages come from.
pub(super) struct Pace {
    publishes: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// The control stream was read in this turn.
    has_read_control: bool,
    /// The control stream brought messages that are not paid for.
    stops_control: bool,
}

impl Pace {
    /// `None` where nothing is limited.
    pub(super) fn new(limits: &LimitsConfig, now: Instant) -> Option<Box<Self>> {
        let publishes = TokenBucket::new(limits.publishes_per_second, now);
        let bytes = TokenBucket::new(limits.publish_bytes_per_second, now);
        let is_limited = publishes.is_some() || bytes.is_some();
        is_limited.then(|| Box::new(Self { publishes, bytes, has_read_control: false, stops_control: false }))
    }

    /// How many bytes may be read at a time, of `most`.
    fn read_size(&self, most: usize) -> usize {
        let publishes = self.publishes.as_ref().map(|bucket| bucket.rate().saturating_mul(SMALL_PUBLISH));
        let bytes = self.bytes.as_ref().map(TokenBucket::rate);
        let least = publishes.into_iter().chain(bytes).min().unwrap_or(u64::MAX);
        usize::try_from(least).unwrap_or(usize::MAX).max(LEAST_READ).min(most)
    }

    /// Until when this stream is not read.
    fn stops_until(&self, stream: StreamKey, now: Instant) -> Option<Instant> {
        let bytes = self.bytes.as_ref().and_then(|bucket| bucket.in_debt_until(now));
        let is_concerned = !stream.is_control() || self.stops_control;
        let publishes = self.publishes.as_ref().filter(|_| is_concerned);
        bytes.max(publishes.and_then(|bucket| bucket.in_debt_until(now)))
    }
}

/// Whether a stream is not read because the client is too fast.
pub(super) fn is_too_fast(pace: Option<&Pace>, stream: StreamKey) -> bool {
    pace.is_some_and(|pace| pace.stops_until(stream, now()).is_some())
}

/// How many bytes may be read at a time, of `most`.
pub(super) fn read_size(pace: Option<&Pace>, most: usize) -> usize {
    pace.map_or(most, |pace| pace.read_size(most))
}

impl Driver {
    /// So many bytes came on a stream.
    pub(super) fn pay_for_bytes(&mut self, stream: StreamKey, bytes: usize, now: Instant) {
        let Some(pace) = &mut self.pace else { return };
        pace.has_read_control |= stream.is_control();
        if let Some(bucket) = &mut pace.bytes {
            bucket.take(bytes as u64, now);
        }
    }

    /// So many messages were in what was read.
    pub(super) fn pay_for_messages(&mut self, messages: usize) {
        let Some(pace) = &mut self.pace else { return };
        if let Some(bucket) = &mut pace.publishes {
            bucket.take(messages as u64, now());
            pace.stops_control |= pace.has_read_control;
        }
    }

    /// The turn ends: the next one begins to read anew. A debt that is paid is forgotten.
    pub(super) fn end_pace_turn(&mut self) {
        let has_events = self.server.has_events();
        let Some(pace) = self.pace.as_mut().filter(|_| !has_events) else { return };
        pace.has_read_control = false;
        if pace.publishes.as_ref().is_some_and(|bucket| bucket.in_debt_until(now()).is_none()) {
            pace.stops_control = false;
        }
    }

    /// A client that is held back is not silent: its PINGREQ may be among what is not read.
    pub(super) fn reset_keep_alive(&mut self, now: Instant) {
        if self.pace.is_some() && !self.refused.is_empty() || self.is_held_back() {
            self.server.reset_keep_alive(now);
        }
    }

    /// When a stream that is not read because of its rate may be read again.
    pub(super) fn paid_at(&self) -> Option<Instant> {
        let pace = self.pace.as_ref()?;
        let now = now();
        self.refused.iter().filter_map(|stream| pace.stops_until(*stream, now)).min()
    }
}
