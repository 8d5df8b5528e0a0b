//! Time of the cluster: that of its servers, carried on by the monotonic clock of the node.
//!
//! Messages, sessions and Wills expire by times of day, which one node records and another one compares. The wall clock
//! of a machine may be set at any time; the median of those of the servers stays where it is as long as most of them
//! are right.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_store::Now;
use futures_util::future::join_all;

use crate::preflight::{CLOCKS_APART, ServerFacts};

/// Time between two looks at the servers.
const LOOK: Duration = Duration::from_secs(10);

/// Clock of a node.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    began: Instant,
    /// Time of day when it began, microseconds since 1970.
    epoch: AtomicU64,
}

/// Wall clock of a server.
#[derive(Clone, Copy, Debug)]
struct Reading {
    clock: SystemTime,
    /// Time of this node at which the server told it.
    at: Instant,
}

impl ClusterClock {
    /// A clock that is right now by the wall clock of this machine.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), epoch: AtomicU64::new(micros(SystemTime::now())) }
    }

    /// The time of day.
    pub(crate) fn wall(&self) -> SystemTime {
        self.wall_at(Instant::now())
    }

    /// The present time on both clocks.
    pub(crate) fn now(&self) -> Now {
        let instant = Instant::now();
        Now { instant, system: self.wall_at(instant) }
    }

    fn wall_at(&self, at: Instant) -> SystemTime {
        let epoch = Duration::from_micros(self.epoch.load(Ordering::Relaxed));
        SystemTime::UNIX_EPOCH + epoch + at.saturating_duration_since(self.began)
    }

    /// Follows the clocks of the servers at these monitoring ports; without any, that of this machine.
    pub(crate) async fn follow(&self, monitors: &[String], ca_files: &[PathBuf]) {
        let mut is_apart = false;
        loop {
            self.look(monitors, ca_files).await;
            let (own, time) = (SystemTime::now(), self.wall());
            let apart = own.duration_since(time).or_else(|_| time.duration_since(own)).unwrap_or_default();
            if apart >= CLOCKS_APART && !is_apart {
                let seconds = apart.as_secs();
                tracing::warn!(
                    "the clock of this machine is {seconds} s {} those of the NATS servers, by which messages and sessions expire: \
                     set it",
                    if own > time { "ahead of" } else { "behind" },
                );
            }
            is_apart = apart >= CLOCKS_APART;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks the servers once.
    pub(crate) async fn look(&self, monitors: &[String], ca_files: &[PathBuf]) {
        if monitors.is_empty() {
            self.set(&[Reading { clock: SystemTime::now(), at: Instant::now() }], 1);
            return;
        }
        let readings = join_all(monitors.iter().map(async |monitor| {
            let began = Instant::now();
            let facts = ServerFacts::ask(monitor, ca_files).await;
            let clock = facts.inspect_err(|error| tracing::debug!(%error, "a server does not tell its time"));
            // The server told it half way.
            Some(Reading { clock: clock.ok()?.now, at: began + began.elapsed() / 2 })
        }));
        let readings: Vec<_> = readings.await.into_iter().flatten().collect();
        self.set(&readings, monitors.len());
    }

    /// Sets the clock to the median of the readings, if most of the servers told theirs. The clock itself decides
    /// between an even number of them.
    fn set(&self, readings: &[Reading], servers: usize) {
        if readings.len() * 2 <= servers {
            return;
        }
        let epoch = |reading: &Reading| {
            let since = reading.at.saturating_duration_since(self.began);
            micros(reading.clock).saturating_sub(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
        };
        let own = readings.len().is_multiple_of(2).then(|| self.epoch.load(Ordering::Relaxed));
        let mut epochs: Vec<_> = readings.iter().map(epoch).chain(own).collect();
        epochs.sort_unstable();
        self.epoch.store(epochs[epochs.len() / 2], Ordering::Relaxed);
    }
}

fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    /// The clock, in seconds from the start, after it was set at 10 s by servers that are so many seconds ahead.
    fn set(ahead: &[i64], servers: usize) -> i64 {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let clock = ClusterClock { began: Instant::now(), epoch: AtomicU64::new(micros(start)) };
        let at = clock.began + Duration::from_secs(10);
        let readings = ahead.iter().map(|ahead| {
            let told = start + Duration::from_secs(10);
            let ahead_by = Duration::from_secs(ahead.unsigned_abs());
            Reading { clock: if *ahead < 0 { told - ahead_by } else { told + ahead_by }, at }
        });
        clock.set(&readings.collect::<Vec<_>>(), servers);
        let (time, due) = (clock.wall_at(at), start + Duration::from_secs(10));
        time.duration_since(due).map_or_else(
            |early| -early.duration().as_secs().cast_signed(),
            |late| late.as_secs().cast_signed(),
        )
    }

    #[test]
    fn the_clock_is_the_median_of_those_of_the_servers() {
        for (ahead, servers, expected) in [
            (&[1, 2, 3][..], 3, 2),
            (&[0, HOUR, 0], 3, 0),
            (&[-HOUR, 5, 4], 3, 4),
            // Two of three, of which one is wrong, and both.
            (&[HOUR, 2], 3, 2),
            (&[-HOUR, -2], 3, -2),
            (&[HOUR, HOUR], 3, HOUR),
            // No majority.
            (&[HOUR], 3, 0),
            (&[], 3, 0),
            (&[HOUR], 1, HOUR),
        ] {
            assert_eq!(set(ahead, servers), expected, "{ahead:?} of {servers}");
        }
    }

    #[tokio::test]
    async fn without_monitoring_ports_it_is_the_clock_of_this_machine() {
        let clock = ClusterClock { began: Instant::now(), epoch: AtomicU64::new(0) };
        clock.look(&["http://127.0.0.1:9".to_owned()], &[]).await;
        assert!(clock.wall() < SystemTime::UNIX_EPOCH + Duration::from_secs(1000));
        clock.look(&[], &[]).await;
        let apart = SystemTime::now().duration_since(clock.wall()).unwrap_or_default();
        assert!(apart < Duration::from_secs(60));
    }
}
