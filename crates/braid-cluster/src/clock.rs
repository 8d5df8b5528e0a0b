//! Time of the cluster: that of its servers, carried on by the monotonic clock of the node.
//!
//! Messages, sessions and Wills expire by times of day, which one node records and another one compares. The wall clock
//! of a machine may be set at any time; the median of those of the servers is right as long as most of them are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_store::Now;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::preflight::{CLOCKS_APART, ServerFacts};

/// Time between two polls of the servers.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Polls without an answer of most servers after which the log says so.
const UNHEARD: u32 = 6;

/// Clock of a node.
#[derive(Debug)]
pub(crate) struct ClusterClock {
    began: Instant,
    /// Time of day when it began, microseconds since 1970.
    wall_at_start: AtomicU64,
}

/// Wall clock of a server, which it told between two times of this node.
#[derive(Clone, Copy, Debug)]
struct Reading {
    clock: SystemTime,
    asked: Instant,
    answered: Instant,
}

/// Wall clocks of servers by their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings(BTreeMap<String, Reading>);

impl Readings {
    /// Adds what a server that was `asked` has told just now.
    pub(crate) fn note(&mut self, facts: &ServerFacts, asked: Instant) {
        self.0.insert(facts.server.clone(), Reading { clock: facts.now, asked, answered: Instant::now() });
    }

    /// The clock of one server, told now.
    #[cfg(test)]
    pub(crate) fn of(server: &str, clock: SystemTime) -> Self {
        let now = Instant::now();
        Self([(server.to_owned(), Reading { clock, asked: now, answered: now })].into())
    }
}

impl ClusterClock {
    /// A clock that begins with the wall clock of this machine.
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), wall_at_start: AtomicU64::new(micros(SystemTime::now())) }
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
        let start = Duration::from_micros(self.wall_at_start.load(Ordering::Relaxed));
        SystemTime::UNIX_EPOCH + start + at.saturating_duration_since(self.began)
    }

    /// Follows the clocks of the servers at these monitoring ports; without any, that of this machine.
    pub(crate) async fn keep_synchronized(&self, monitors: &[String], ca_files: &[PathBuf]) {
        let (mut unheard, mut is_apart) = (0, false);
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            if monitors.is_empty() {
                self.wall_at_start.store(self.start_of(SystemTime::now(), Instant::now()), Ordering::Relaxed);
                continue;
            }
            if !self.set_to_median(&poll(monitors, ca_files).await, monitors.len()) {
                unheard += 1;
                if unheard == UNHEARD {
                    tracing::warn!(
                        "most of cluster.monitor have not told their time for a minute: expiry goes on by the clock of this node"
                    );
                }
                continue;
            }
            if unheard >= UNHEARD {
                tracing::info!("most of cluster.monitor tell their time again");
            }
            unheard = 0;
            is_apart = self.compare(SystemTime::now(), is_apart);
        }
    }

    /// Tests whether the clock of the machine is far from this one, and says so when it begins to be.
    fn compare(&self, machine: SystemTime, was_apart: bool) -> bool {
        let time = self.wall();
        let apart =
            machine.duration_since(time).or_else(|_| time.duration_since(machine)).unwrap_or_default();
        let is_apart = apart >= CLOCKS_APART;
        if is_apart && !was_apart {
            tracing::warn!(
                "the clock of this machine is {} s {} those of the NATS servers, by which messages and sessions expire: set it, or \
                 the next start is refused",
                apart.as_secs(),
                if machine > time { "ahead of" } else { "behind" },
            );
        }
        is_apart
    }

    /// Sets the clock to the median of the readings, if most of the servers told theirs: false otherwise. The clock is
    /// right by a reading that it is within, since an answer may take long. With an even number of readings its own
    /// time is one more.
    pub(crate) fn set_to_median(&self, readings: &Readings, servers: usize) -> bool {
        if readings.0.len() * 2 <= servers {
            return false;
        }
        let own = self.wall_at_start.load(Ordering::Relaxed);
        let starts = readings.0.values().map(|Reading { clock, asked, answered }| {
            own.clamp(self.start_of(*clock, *answered), self.start_of(*clock, *asked))
        });
        let one_more = readings.0.len().is_multiple_of(2).then_some(own);
        let mut starts: Vec<_> = starts.chain(one_more).collect();
        starts.sort_unstable();
        self.wall_at_start.store(starts[starts.len() / 2], Ordering::Relaxed);
        true
    }

    /// Time of day when this clock began, by another one `at` a time, which may be before that: a node asks the servers
    /// while it joins.
    fn start_of(&self, clock: SystemTime, at: Instant) -> u64 {
        let (since, until) =
            (at.saturating_duration_since(self.began), self.began.saturating_duration_since(at));
        micros(clock).saturating_sub(whole_micros(since)).saturating_add(whole_micros(until))
    }
}

/// Asks the servers for their time.
async fn poll(monitors: &[String], ca_files: &[PathBuf]) -> Readings {
    let ask = async |monitor| (Instant::now(), ServerFacts::ask(monitor, ca_files).await);
    let mut answers: FuturesUnordered<_> = monitors.iter().map(|monitor| ask(monitor)).collect();
    let mut readings = Readings::default();
    while let Some((asked, facts)) = answers.next().await {
        match facts {
            Ok(facts) => readings.note(&facts, asked),
            Err(error) => tracing::debug!(%error, "a server does not tell its time"),
        }
    }
    readings
}

fn micros(time: SystemTime) -> u64 {
    whole_micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3600;

    fn moved(time: SystemTime, seconds: i64) -> SystemTime {
        let by = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 { time - by } else { time + by }
    }

    /// A clock, and its time of day when it began.
    fn clock() -> (ClusterClock, SystemTime) {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        (ClusterClock { began: Instant::now(), wall_at_start: AtomicU64::new(micros(start)) }, start)
    }

    /// Seconds by which a clock that began at `start` is ahead.
    fn ahead(clock: &ClusterClock, start: SystemTime) -> i64 {
        let (time, due) = (clock.wall_at(clock.began + POLL_INTERVAL), start + POLL_INTERVAL);
        time.duration_since(due).map_or_else(
            |early| -early.duration().as_secs().cast_signed(),
            |late| late.as_secs().cast_signed(),
        )
    }

    /// Seconds by which a clock is ahead that was set by servers that are so many seconds ahead, asked one after the
    /// other, 10 s apart. Without a majority: none.
    fn set(seconds: &[i64], servers: usize) -> Option<i64> {
        let (clock, start) = clock();
        let mut readings = Readings::default();
        for (number, ahead) in (1_u32..).zip(seconds) {
            let after = number * POLL_INTERVAL;
            let at = clock.began + after;
            let reading = Reading { clock: moved(start + after, *ahead), asked: at, answered: at };
            readings.0.insert(format!("n{number}"), reading);
        }
        let is_set = clock.set_to_median(&readings, servers);
        assert!(is_set || ahead(&clock, start) == 0, "{seconds:?}");
        is_set.then_some(ahead(&clock, start))
    }

    #[test]
    fn an_answer_counts_from_before_the_beginning_and_only_as_exactly_as_it_is_known() {
        for (asked, answered, told, expected) in [
            // Asked before the clock began.
            (-30, -30, -30, 0),
            (-30, -30, -25, 5),
            (-30, -20, -30, 0),
            // The server told it at any time of the exchange.
            (10, 15, 10, 0),
            (10, 15, 15, 0),
            (10, 15, 16, 1),
            (10, 15, 7, -3),
        ] {
            let (clock, start) = clock();
            let Some(origin) = clock.began.checked_sub(Duration::from_secs(60)) else { return };
            let at = |seconds: i64| origin + Duration::from_secs((60 + seconds).unsigned_abs());
            let reading = Reading { clock: moved(start, told), asked: at(asked), answered: at(answered) };
            assert!(clock.set_to_median(&Readings([("n1".to_owned(), reading)].into()), 1));
            assert_eq!(ahead(&clock, start), expected, "{asked} {answered} {told}");
        }
    }

    #[test]
    fn the_clock_is_the_median_of_those_of_the_servers() {
        for (ahead, servers, expected) in [
            (&[1, 2, 3][..], 3, Some(2)),
            (&[0, HOUR, 0], 3, Some(0)),
            (&[-HOUR, 5, 4], 3, Some(4)),
            // Two of three, of which one is wrong, and both.
            (&[HOUR, 2], 3, Some(2)),
            (&[-HOUR, -2], 3, Some(-2)),
            (&[HOUR, HOUR], 3, Some(HOUR)),
            // No majority.
            (&[HOUR], 3, None),
            (&[], 3, None),
            (&[HOUR], 1, Some(HOUR)),
        ] {
            assert_eq!(set(ahead, servers), expected, "{ahead:?} of {servers}");
        }
    }

    #[test]
    fn a_server_counts_once() {
        let facts = |server: &str| ServerFacts {
            server: server.to_owned(),
            version: String::new(),
            syncs_always: true,
            servers: 3,
            storage: 0,
            now: SystemTime::now(),
        };
        let mut readings = Readings::default();
        for name in ["n1", "n2", "n1"] {
            readings.note(&facts(name), Instant::now());
        }
        assert_eq!(readings.0.len(), 2);
    }

    #[test]
    fn a_machine_is_told_once_that_its_clock_is_apart() {
        let clock = ClusterClock::new();
        let near = |seconds| moved(clock.wall(), seconds);
        assert!(!clock.compare(near(30), false) && !clock.compare(near(-30), false));
        assert!(clock.compare(near(HOUR), false) && clock.compare(near(-HOUR), true));
        assert!(!clock.compare(near(1), true));
    }
}
