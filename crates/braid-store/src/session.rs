use std::time::{Duration, SystemTime};

use braid_proto::packet::{ClientId, Will};
use braid_proto::session::SessionExpiry;

use crate::identity::SessionId;

/// A session without what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its name for ever.
    pub id: SessionId,
    /// Whose it is.
    pub client_id: ClientId,
    /// How long it outlives its connection.
    pub expiry: SessionExpiry,
    /// When its last connection ended; `None` while it is connected, and for one whose broker ended first.
    pub parked_at: Option<SystemTime>,
}

impl SessionRecord {
    /// How long it has to live at `now`; `None` when it never expires. Not parked means parked at `now`. A
    /// clock that was set back never gives more than the whole interval.
    pub fn expires_in(&self, now: SystemTime) -> Option<Duration> {
        self.expiry.interval().map(|interval| interval.saturating_sub(self.parked_for(now)))
    }

    /// How long its Will waits at `now`: until the Will Delay Interval has passed or the session ends,
    /// whichever happens first (MQTT 5, 3.1.3.2.2).
    pub fn will_due_in(&self, will: &Will, now: SystemTime) -> Duration {
        let delay = Duration::from_secs(will.delay.into()).saturating_sub(self.parked_for(now));
        self.expires_in(now).map_or(delay, |left| delay.min(left))
    }

    fn parked_for(&self, now: SystemTime) -> Duration {
        self.parked_at.and_then(|at| now.duration_since(at).ok()).unwrap_or(Duration::ZERO)
    }
}
