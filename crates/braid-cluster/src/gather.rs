//! Size of groups: a wait for the messages that follow acknowledgements.
//!
//! A publisher with a full window sends its next messages when the last ones are acknowledged. They come a moment after
//! the next group would have left without them, so that half of the window would wait while the other half is on its
//! way, and each message for two groups. A short wait makes the window one group, in the manner of the commit delay of
//! databases.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds of the wait, which is half of the time that the last group took.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(10);

/// Most groups without a wait after waits in vain.
const MOST_SKIPPED: u32 = 256;

/// Policy of waits, which are as many as are useful: after each one in vain, twice as many groups go at once.
#[derive(Debug)]
pub(crate) struct Gather {
    /// Messages with which the next group is whole.
    whole: usize,
    /// Latest time at which the next group goes.
    until: Instant,
    /// Groups that go at once after the next wait in vain, and those of the last one that are left.
    skips: u32,
    skipped: u32,
}

impl Default for Gather {
    fn default() -> Self {
        Self { whole: 0, until: Instant::now(), skips: 1, skipped: 0 }
    }
}

impl Gather {
    /// Notes a group that took `took` until `now`, when so many messages waited.
    pub(crate) fn note_stored(&mut self, messages: usize, waiting: usize, took: Duration, now: Instant) {
        if self.skipped > 0 {
            self.skipped -= 1;
            self.whole = 0;
            return;
        }
        self.whole = messages + waiting;
        self.until = now + (took / 2).clamp(SHORTEST, LONGEST);
    }

    /// Time until which a group of so many messages waits for others; `None`: it goes.
    pub(crate) fn waits_until(&mut self, messages: usize, now: Instant) -> Option<Instant> {
        if self.whole == 0 {
            return None;
        }
        if messages < self.whole && now < self.until {
            return Some(self.until);
        }
        if messages >= self.whole {
            self.skips = 1;
        } else {
            self.skipped = self.skips;
            self.skips = MOST_SKIPPED.min(self.skips * 2);
        }
        self.whole = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_window_becomes_one_group() {
        let (mut gather, mut now) = (Gather::default(), Instant::now());
        assert_eq!(gather.waits_until(8, now), None, "the first one");
        for _ in 0..3 {
            now += 4 * MS;
            gather.note_stored(8, 8, 4 * MS, now);
            for (after, messages, waits) in [(0, 8, true), (1, 15, true), (1, 16, false), (1, 16, false)] {
                let until = gather.waits_until(messages, now + after * MS);
                assert_eq!(until, waits.then_some(now + 2 * MS));
            }
        }
        gather.note_stored(900, 0, Duration::from_secs(2), now);
        assert_eq!(gather.waits_until(1, now), Some(now + LONGEST));
        gather.note_stored(1, 0, Duration::ZERO, now);
        assert_eq!(gather.waits_until(0, now), Some(now + SHORTEST));
        assert_eq!(gather.waits_until(1, now), None, "a window of one waits for nothing");
    }

    #[test]
    fn waits_in_vain_become_rare() {
        let (mut gather, mut now) = (Gather::default(), Instant::now());
        let mut waits = 0;
        for _ in 0..1000 {
            gather.note_stored(4, 0, 2 * MS, now);
            waits += u32::from(gather.waits_until(1, now).is_some());
            now += 5 * MS;
            assert_eq!(gather.waits_until(1, now), None);
        }
        assert!((8..14).contains(&waits), "{waits}");
        // One that is useful makes them frequent again.
        while gather.waits_until(1, now).is_none() {
            gather.note_stored(4, 0, 2 * MS, now);
        }
        assert_eq!(gather.waits_until(4, now), None);
        gather.note_stored(4, 0, 2 * MS, now);
        gather.waits_until(1, now + 5 * MS);
        gather.note_stored(4, 0, 2 * MS, now);
        gather.note_stored(4, 0, 2 * MS, now);
        assert!(gather.waits_until(1, now).is_some(), "after one group");
    }
}
