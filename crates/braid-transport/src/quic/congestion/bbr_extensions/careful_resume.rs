//! Careful resume (RFC 9959): a start that remembers the capacity of the path.
//!
//! Slow start takes ten round trips to fill a gigabit of 200 ms, each time. A connection that has measured its path
//! notes it in the cache, and the next one on the same path soon sends at half of that rate: once a window was
//! acknowledged without a loss, in a round trip like the one before, and while more is to be sent. A loss ends it, and
//! the controller goes on with what was acknowledged.
//!
//! RFC 9959 sends half of the known window at once. If the path has become a hundred times slower, that is a queue of
//! half a hundred round trips, in which alarms wait. So an eighth goes first, and the half when it has arrived on time.

use std::time::{Duration, Instant};

use super::{Floor, PathNow};
use crate::quic::known_paths::{Capacity, KnownPath, PARTS};

/// Range of round trips in which the path counts as the same, in percent of the one before. RFC 9959 (4.2) excludes
/// those of less than half and more than ten times. The upper bound is lower here: where a queue is, alarms would wait
/// in it behind what is sent now.
const SAME: [u32; 2] = [50, 150];
const GRANULARITY: Duration = Duration::from_millis(2);

/// Round trips in which a step has to be acknowledged: it is sent within one.
const STEP_TIME: u32 = 4;

/// Phases of RFC 9959 of one connection.
#[derive(Clone, Debug)]
pub(super) struct CarefulResume {
    path: KnownPath,
    phase: Phase,
    /// Number of the last packet that was sent.
    last: u64,
    /// Bytes that were acknowledged.
    acked: u64,
    /// Round trip of the last acknowledged packet, and the shortest.
    latest: Duration,
    shortest: Duration,
    /// The window was full since the last acknowledgement.
    is_limited: bool,
    /// The last one found nothing more to send.
    is_app_limited: bool,
    /// The path has a policer.
    is_policed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The path has yet to show that it is the same.
    Reconnaissance,
    /// More is sent than the controller permits, from this packet on, of which nothing is acknowledged.
    Unvalidated { step: Step, first: u64 },
    /// Its first packet was acknowledged, and its last was not.
    Validating { step: Step, last: u64 },
    /// The controller decides alone.
    Normal,
}

/// Flight beyond what the controller permits, by a capacity that was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    known: Capacity,
    /// Part of the known window.
    part: u64,
    begun: Instant,
}

impl Step {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begun) > self.known.round_trip * STEP_TIME
    }

    fn floor(&self) -> Floor {
        Floor { rate: self.known.rate / PARTS[1], window: self.known.window() / self.part }
    }
}

impl CarefulResume {
    pub(super) fn new(path: KnownPath) -> Self {
        Self {
            path,
            phase: Phase::Reconnaissance,
            last: 0,
            acked: 0,
            latest: Duration::ZERO,
            shortest: Duration::MAX,
            is_limited: false,
            is_app_limited: false,
            is_policed: false,
        }
    }

    /// Lower limit while more is sent than the controller knows to fit.
    pub(super) fn floor(&self) -> Option<Floor> {
        let step = self.step().filter(|_| !self.path.is_left())?;
        Some(step.floor())
    }

    fn step(&self) -> Option<Step> {
        match self.phase {
            Phase::Unvalidated { step, .. } | Phase::Validating { step, .. } => Some(step),
            Phase::Reconnaissance | Phase::Normal => None,
        }
    }

    /// Notes a packet that is sent. A step that was not used ends: by now the path may be another.
    pub(super) fn handle_sent(&mut self, number: u64, now: Instant) {
        self.last = self.last.max(number);
        if self.step().is_some_and(|step| step.is_over(now)) {
            self.phase = Phase::Normal;
        }
    }

    pub(super) fn handle_full(&mut self) {
        self.is_limited = true;
    }

    /// Notes a packet that was acknowledged. `took`: its round trip.
    pub(super) fn handle_acked(&mut self, number: u64, bytes: u64, took: Duration, now: Instant) {
        self.acked = self.acked.saturating_add(bytes);
        self.latest = took;
        self.shortest = self.shortest.min(took);
        match self.phase {
            Phase::Unvalidated { step, first } if number >= first => {
                self.phase = Phase::Validating { step, last: self.last };
            }
            Phase::Validating { step, last } if number >= last => self.phase = self.after(step, now),
            _ => {}
        }
    }

    /// Notes a loss or another sign of congestion: what was taken for the capacity is not, or not known to be.
    pub(super) fn handle_lost(&mut self) {
        self.phase = Phase::Normal;
    }

    /// Ends the packets of one acknowledgement on a path with a policer, whose bucket passes bursts at any rate.
    pub(super) fn handle_policer(&mut self) {
        self.phase = Phase::Normal;
        // Once: all connections share the cache.
        if !std::mem::replace(&mut self.is_policed, true) {
            self.path.forget_capacity();
        }
    }

    /// Ends the packets of one acknowledgement on another path.
    pub(super) fn handle_end_of_acks(&mut self, path: &PathNow, app_limited: bool, now: Instant) {
        (self.is_app_limited, self.is_policed) = (app_limited, false);
        let was_limited = std::mem::take(&mut self.is_limited);
        if self.phase == Phase::Reconnaissance && was_limited && self.acked >= path.initial_window {
            self.phase = self.jump(path, now);
        }
        if let Some(rate) = path.rate.filter(|_| self.phase == Phase::Normal) {
            self.path.observe(rate, self.shortest, !app_limited, now);
        }
    }

    fn jump(&self, path: &PathNow, now: Instant) -> Phase {
        let Some(known) = self.path.capacity(now).filter(|known| is_same(known.round_trip, self.latest))
        else {
            return Phase::Normal;
        };
        if known.resumed_window() <= path.window || self.path.take_capacity(now).is_none() {
            return Phase::Normal;
        }
        Phase::Unvalidated { step: Step { known, part: PARTS[0], begun: now }, first: self.last + 1 }
    }

    /// Phase after a flight that was acknowledged.
    fn after(&self, Step { known, part, .. }: Step, now: Instant) -> Phase {
        if part == PARTS[1] || self.is_app_limited || !is_same(known.round_trip, self.latest) {
            return Phase::Normal;
        }
        Phase::Unvalidated { step: Step { known, part: PARTS[1], begun: now }, first: self.last + 1 }
    }
}

/// Tests whether a round trip may be one of the path that had this one.
fn is_same(known: Duration, latest: Duration) -> bool {
    let [least, most] = SAME.map(|percent| known * percent / 100);
    (least..=most + GRANULARITY).contains(&latest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quic::known_paths::KnownPaths;

    const MS: Duration = Duration::from_millis(1);
    const IW: u64 = 12_000;

    fn known_path() -> KnownPath {
        KnownPath::new(KnownPaths::default(), [192, 0, 2, 1].into(), None)
    }

    const NOW: PathNow = PathNow { rate: None, pacing: None, window: 2 * IW, initial_window: IW };

    /// A connection on a path that had 10 MB/s in 100 ms, whose first ten packets were acknowledged.
    fn begun(path: &KnownPath, latest: Duration, now: Instant) -> CarefulResume {
        path.clone().observe(10_000_000, 100 * MS, true, now);
        let mut resume = CarefulResume::new(path.clone());
        resume.handle_full();
        (0..10).for_each(|number| resume.handle_sent(number, now));
        resume.handle_acked(9, IW, latest, now);
        resume.handle_end_of_acks(&NOW, false, now);
        resume
    }

    #[test]
    fn an_eighth_and_half_of_the_capacity_are_used_until_they_are_acknowledged() {
        let now = Instant::now();
        for (took, is_late) in [(152, false), (153, true)] {
            let path = known_path();
            let mut resume = begun(&path, 110 * MS, now);
            let [eighth, half] = [125_000, 500_000].map(|window| Some(Floor { rate: 5_000_000, window }));
            assert_eq!((resume.floor(), path.capacity(now)), (eighth, None));
            (10..100).for_each(|number| resume.handle_sent(number, now));
            resume.handle_acked(9, 1200, 100 * MS, now);
            resume.handle_acked(10, 1200, 100 * MS, now);
            (100..200).for_each(|number| resume.handle_sent(number, now));
            assert_eq!(resume.floor(), eighth);
            resume.handle_acked(99, 1200, took * MS, now);
            assert_eq!(resume.floor(), half.filter(|_| !is_late), "{took} ms");
            (200..600).for_each(|number| resume.handle_sent(number, now));
            resume.handle_acked(200, 1200, took * MS, now);
            resume.handle_acked(598, 1200, took * MS, now);
            assert_eq!(resume.floor(), half.filter(|_| !is_late));
            resume.handle_acked(599, 1200, 100 * MS, now);
            assert_eq!(resume.floor(), None);
        }
    }

    #[test]
    fn a_path_that_may_be_another_is_not_resumed() {
        let now = Instant::now();
        for (latest, is_resumed) in [(49, false), (50, true), (152, true), (153, false)] {
            let resume = begun(&known_path(), latest * MS, now);
            assert_eq!(resume.floor().is_some(), is_resumed, "{latest} ms");
        }
    }

    /// Each case lacks one condition of the first, which lacks none.
    #[test]
    fn a_window_has_to_be_acknowledged_without_loss_before_while_more_is_to_be_sent() {
        let now = Instant::now();
        for (case, is_resumed) in [
            ("all", true),
            ("not limited", false),
            ("not acknowledged", false),
            ("lost", false),
            ("taken", false),
            ("too old", false),
            ("larger window", false),
        ] {
            let path = known_path();
            path.clone().observe(10_000_000, 100 * MS, true, now);
            let mut resume = CarefulResume::new(path.clone());
            let mut state = NOW;
            match case {
                "lost" => resume.handle_lost(),
                "taken" => drop(path.take_capacity(now)),
                "larger window" => state.window = 500_000,
                _ => {}
            }
            if case != "not limited" {
                resume.handle_full();
            }
            resume.handle_acked(9, if case == "not acknowledged" { IW - 1 } else { IW }, 100 * MS, now);
            let later = if case == "too old" { Duration::from_secs(600) } else { MS };
            resume.handle_end_of_acks(&state, false, now + later);
            assert_eq!(resume.floor().is_some(), is_resumed, "{case}");
        }
    }

    #[test]
    fn a_loss_ends_it_and_the_capacity_is_measured_anew() {
        let now = Instant::now();
        for acked in [None, Some(10)] {
            let path = known_path();
            let mut resume = begun(&path, 100 * MS, now);
            (10..400).for_each(|number| resume.handle_sent(number, now));
            acked.into_iter().for_each(|number| resume.handle_acked(number, 1200, 100 * MS, now));
            assert!(resume.floor().is_some());
            resume.handle_lost();
            assert_eq!((resume.floor(), path.capacity(now)), (None, None));
            resume.handle_end_of_acks(&PathNow { rate: Some(600_000), ..NOW }, false, now);
            let later = now + Duration::from_secs(5);
            assert_eq!(path.capacity(later), Some(path.measured(600_000, 100 * MS)));
        }
    }

    #[test]
    fn a_controller_that_decides_alone_notes_what_it_measures_unless_there_is_a_policer() {
        let (path, now) = (known_path(), Instant::now());
        let mut resume = CarefulResume::new(path.clone());
        resume.handle_acked(0, 1200, 100 * MS, now);
        let measures = PathNow { rate: Some(10_000_000), ..NOW };
        resume.handle_end_of_acks(&measures, false, now);
        assert_eq!(path.capacity(now), None, "it has yet to begin");
        resume.handle_lost();
        resume.handle_end_of_acks(&measures, false, now);
        assert_eq!(path.capacity(now), Some(path.measured(10_000_000, 100 * MS)));
        resume.handle_policer();
        assert_eq!(path.capacity(now), None);
    }

    #[test]
    fn a_step_that_is_not_used_ends_and_so_does_one_on_a_path_that_was_left() {
        let now = Instant::now();
        let path = known_path();
        let mut resume = begun(&path, 100 * MS, now);
        resume.handle_sent(10, now + 400 * MS);
        assert!(resume.floor().is_some());
        resume.handle_sent(11, now + 401 * MS);
        assert_eq!(resume.floor(), None);
        let path = known_path();
        let resume = begun(&path, 100 * MS, now);
        path.leave();
        assert_eq!(resume.floor(), None);
    }

    #[test]
    fn the_half_follows_only_if_there_is_more_to_send() {
        let now = Instant::now();
        for app_limited in [false, true] {
            let mut resume = begun(&known_path(), 100 * MS, now);
            resume.handle_sent(10, now);
            resume.handle_acked(10, 1200, 100 * MS, now);
            resume.handle_end_of_acks(&NOW, app_limited, now);
            resume.handle_acked(10, 1200, 100 * MS, now);
            assert_eq!(resume.floor().is_some(), !app_limited);
        }
    }
}
