//! Times in which large messages find no room in the spool: they are told, and they end.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::core::Core;
use crate::log_throttle::{LOG_EVERY, LogThrottle};
use crate::sys;

/// Between two looks at it.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of it.
#[derive(Debug, Default)]
struct SpoolMonitor {
    /// Packets that were refused until the last look.
    refused: u64,
    /// When some were seen to be refused, while it is not over.
    at: Option<Instant>,
    told: LogThrottle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// So many were refused since the last line.
    Refused(u64),
    /// None was for a while; so many were since the last line.
    Over(u64),
}

/// Watches over the spool, if there is one.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(spool) = core.server_options.spool.clone() else { return };
    let mut shortage = SpoolMonitor::default();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = looks.tick().await;
        let news = shortage.look(spool.refused(), now);
        if core.statistics.set_spool_full(shortage.at.is_some()) {
            sys::publish_spool(&core);
        }
        let used = spool.used();
        match news {
            None => {}
            Some(News::Refused(refused)) => tracing::warn!(
                refused,
                used,
                "large messages are refused: the spool is full (spool.bytes), its disk is (spool.keep_free), or it has too many (vm.max_map_count)"
            ),
            Some(News::Over(refused)) => {
                tracing::info!(refused, used, "large messages are not refused any more")
            }
        }
    }
}

impl SpoolMonitor {
    /// So many packets were refused since the beginning.
    fn look(&mut self, refused: u64, now: Instant) -> Option<News> {
        let more = refused.saturating_sub(self.refused);
        self.refused = refused;
        if more > 0 {
            self.at = Some(now);
        } else if self.at.is_some_and(|at| now.saturating_duration_since(at) >= LOG_EVERY) {
            self.at = None;
            return self.told.end().map(News::Over);
        }
        self.told.note(more, now.into_std()).map(News::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_as_long_as_packets_are_refused_and_a_little_longer() {
        let (mut shortage, start) = (SpoolMonitor::default(), Instant::now());
        let mut look = |second, refused| {
            let news = shortage.look(refused, start + Duration::from_secs(second));
            (news, shortage.at.is_some())
        };
        assert_eq!(look(0, 0), (None, false));
        assert_eq!(look(1, 2), (Some(News::Refused(2)), true), "at once");
        assert_eq!(look(2, 5), (None, true));
        assert_eq!(look(3, 6), (None, true));
        assert_eq!(look(11, 6), (Some(News::Refused(4)), true), "every ten seconds");
        assert_eq!(look(12, 7), (None, true));
        assert_eq!(look(21, 7), (Some(News::Refused(1)), true));
        assert_eq!(look(22, 7), (Some(News::Over(0)), false));
        assert_eq!(look(60, 7), (None, false));
        assert_eq!(look(61, 8), (Some(News::Refused(1)), true));
        assert_eq!(look(71, 8), (Some(News::Over(0)), false));
    }
}
