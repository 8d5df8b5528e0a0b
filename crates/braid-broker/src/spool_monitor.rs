//! Monitor of the spool: logs and publishes when large messages are refused for want of room, and when that is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::core::Core;
use crate::log_throttle::{LOG_EVERY, LogThrottle};
use crate::sys;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// State of a shortage of spool space.
#[derive(Debug, Default)]
struct SpoolMonitor {
    /// Total of refused packets at the last check.
    refused: u64,
    /// Time of the last check that saw refused packets, until the shortage is over.
    refused_at: Option<Instant>,
    log: LogThrottle,
}

/// Log line that is due, with the number of packets refused since the last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogLine {
    Refused(u64),
    /// No packet was refused for [`LOG_EVERY`].
    Over(u64),
}

/// Watches the spool, if there is one.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(spool) = core.server_options.spool.clone() else { return };
    let mut monitor = SpoolMonitor::default();
    let mut checks = interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = checks.tick().await;
        let line = monitor.check(spool.refused(), now);
        if core.statistics.set_spool_full(monitor.refused_at.is_some()) {
            sys::publish_spool(&core);
        }
        let used = spool.used();
        match line {
            None => {}
            Some(LogLine::Refused(refused)) => tracing::warn!(
                refused,
                used,
                "large messages are refused: the spool is full (spool.bytes), its disk is (spool.keep_free), or it has too many (vm.max_map_count)"
            ),
            Some(LogLine::Over(refused)) => {
                tracing::info!(refused, used, "large messages are not refused any more")
            }
        }
    }
}

impl SpoolMonitor {
    /// `refused`: total of refused packets since the start.
    fn check(&mut self, refused: u64, now: Instant) -> Option<LogLine> {
        let more = refused.saturating_sub(self.refused);
        self.refused = refused;
        if more > 0 {
            self.refused_at = Some(now);
        } else if self.refused_at.is_some_and(|at| now.saturating_duration_since(at) >= LOG_EVERY) {
            self.refused_at = None;
            return self.log.end().map(LogLine::Over);
        }
        self.log.note(more, now.into_std()).map(LogLine::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_ends_ten_seconds_after_the_last_refused_packet() {
        let (mut monitor, start) = (SpoolMonitor::default(), Instant::now());
        let mut check = |second, refused| {
            let line = monitor.check(refused, start + Duration::from_secs(second));
            (line, monitor.refused_at.is_some())
        };
        assert_eq!(check(0, 0), (None, false));
        assert_eq!(check(1, 2), (Some(LogLine::Refused(2)), true), "at once");
        assert_eq!(check(2, 5), (None, true));
        assert_eq!(check(3, 6), (None, true));
        assert_eq!(check(11, 6), (Some(LogLine::Refused(4)), true), "every ten seconds");
        assert_eq!(check(12, 7), (None, true));
        assert_eq!(check(21, 7), (Some(LogLine::Refused(1)), true));
        assert_eq!(check(22, 7), (Some(LogLine::Over(0)), false));
        assert_eq!(check(60, 7), (None, false));
        assert_eq!(check(61, 8), (Some(LogLine::Refused(1)), true));
        assert_eq!(check(71, 8), (Some(LogLine::Over(0)), false));
    }
}
