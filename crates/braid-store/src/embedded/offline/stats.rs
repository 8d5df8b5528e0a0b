use super::super::error::{OpenError, ReadError};
use super::super::keys::{self, meta};
use super::OfflineStore;

/// How much is in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The format of the file; 0 for one that nothing was written to.
    pub format: u64,
    /// How often it was opened by a broker.
    pub opens: u64,
    /// Sessions.
    pub sessions: u64,
    /// Subscriptions of all sessions.
    pub subscriptions: u64,
    /// Wills that are not published.
    pub wills: u64,
    /// QoS 2 messages of clients whose PUBREL has not come.
    pub received: u64,
    /// Entries of all queues, but those that were released.
    pub queued: u64,
    /// Entries that were sent or released.
    pub inflight: u64,
    /// Topics with a retained message.
    pub retained: u64,
    /// Different messages.
    pub messages: u64,
    /// Bytes of the file before it was opened.
    pub length: u64,
    /// Bytes of the pages that hold something; the others are used again before the file grows.
    pub used: u64,
}

impl OfflineStore {
    /// Counts.
    ///
    /// # Errors
    /// [`OpenError`] when the device cannot be read.
    pub fn stats(&self) -> Result<Stats, OpenError> {
        let mut stats = self.count().map_err(|error| self.open_error(error))?;
        stats.used = self.file.used()?;
        Ok(stats)
    }

    fn count(&self) -> Result<Stats, ReadError> {
        let snapshot = self.file.snapshot()?;
        Ok(Stats {
            format: snapshot.number(meta::FORMAT)?.unwrap_or(0),
            opens: snapshot.number(meta::OPENS)?.unwrap_or(0),
            sessions: snapshot.rows(keys::SESSION)?,
            subscriptions: snapshot.rows(keys::SUBSCRIPTION)?,
            wills: snapshot.rows(keys::WILL)?,
            received: snapshot.rows(keys::RECEIVED)?,
            queued: snapshot.rows(keys::QUEUE)?,
            inflight: snapshot.rows(keys::INFLIGHT)?,
            retained: snapshot.rows(keys::RETAINED)?,
            messages: snapshot.rows(keys::MESSAGE)?,
            length: self.length,
            used: 0,
        })
    }
}
