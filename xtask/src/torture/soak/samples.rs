//! What a broker takes at a moment, and whether that grows.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::WARM_UP;

/// What may be more in the last third than in the first: a tenth, ...
const PART: f64 = 0.1;
/// ... and so many MiB.
const ROOM: f64 = 4.0;
const MIB: f64 = 1_048_576.0;

/// A look at a broker.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    /// Since the beginning.
    pub(super) seconds: f64,
    /// Anonymous memory that is resident, in MiB.
    pub(super) memory: f64,
    /// The store's file, in MiB.
    pub(super) file: f64,
}

impl Sample {
    pub(super) fn take(since: Duration, process_id: u32, store: &Path) -> Result<Self, String> {
        let status = fs::read_to_string(format!("/proc/{process_id}/status"));
        let memory = status.ok().as_deref().and_then(resident);
        let memory = memory.ok_or("the broker has ended before its time")?;
        let file = fs::metadata(store).map_err(|error| format!("{}: {error}", store.display()))?;
        // MiB with two places are more than enough.
        let round = |value: f64| (value * 100.0).round() / 100.0;
        #[expect(clippy::cast_precision_loss, reason = "below 2^52")]
        Ok(Self {
            seconds: round(since.as_secs_f64()),
            memory: round(memory as f64 / 1024.0),
            file: round(file.len() as f64 / MIB),
        })
    }
}

/// Anonymous memory in KiB, of `/proc/PID/status`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How much of something there was, in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Growth {
    /// On average in the first third, without the warm-up.
    pub(super) first_third: f64,
    pub(super) last_third: f64,
    pub(super) most: f64,
}

impl Growth {
    pub(super) fn of(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "few"
        )]
        let warm = &samples[(samples.len() as f64 * WARM_UP) as usize..];
        let third = warm.len() / 3;
        #[expect(clippy::cast_precision_loss, reason = "few")]
        let mean = |part: &[Sample]| part.iter().map(&of).sum::<f64>() / part.len().max(1) as f64;
        let most = samples.iter().map(&of).fold(0.0, f64::max);
        Self { first_third: mean(&warm[..third]), last_third: mean(&warm[warm.len() - third..]), most }
    }

    /// What is wrong with it, if it is.
    pub(super) fn wrong(&self, what: &str) -> Option<String> {
        let allowed = self.first_third * (1.0 + PART) + ROOM;
        let grows = self.last_third > allowed;
        grows.then(|| format!("{what} grows: {self}, where {allowed:.1} are allowed"))
    }
}

impl Display for Growth {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { first_third, last_third, most } = self;
        write!(out, "{first_third:.1} MiB in the first third, {last_third:.1} in the last, {most:.1} at most")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(memory: impl Fn(f64) -> f64) -> Vec<Sample> {
        let seconds = (0..100).map(f64::from);
        seconds.map(|seconds| Sample { seconds, memory: memory(seconds), file: 1.0 }).collect()
    }

    #[test]
    fn a_third_is_compared_with_a_third_behind_the_warm_up() {
        let steep = samples(|seconds| if seconds < 10.0 { 1000.0 } else { seconds });
        let growth = Growth::of(&steep, |sample| sample.memory);
        assert_eq!(growth, Growth { first_third: 24.5, last_third: 84.5, most: 1000.0 });
        assert!(growth.wrong("memory").is_some_and(|line| line.starts_with("memory grows: 24.5 MiB")));
    }

    #[test]
    fn what_stays_within_a_tenth_and_some_room_is_flat() {
        for (rise, grows) in [(0.0, false), (0.2, false), (0.35, true)] {
            let growth = Growth::of(&samples(|seconds| 80.0 + rise * seconds), |sample| sample.memory);
            assert_eq!(growth.wrong("memory").is_some(), grows, "{growth}");
        }
    }

    #[test]
    fn memory_is_what_the_kernel_calls_anonymous() {
        assert_eq!(resident("VmRSS:\t  900 kB\nRssAnon:\t  812 kB\nRssFile:\t 88 kB\n"), Some(812));
        assert_eq!(resident("VmRSS:\t  900 kB\n"), None);
    }
}
