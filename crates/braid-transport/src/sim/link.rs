//! One direction of a link: its conditions, and their effect on datagrams.

use std::time::Duration;

use tokio::time::Instant;

/// Direction of a link, seen from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the host into the network.
    Up,
    /// From the network to the host.
    Down,
}

/// One direction of a link. The default carries everything at once.
///
/// A datagram meets the fields in this order: `cut`, `mtu`, `loss`, `policer`, `shaper`, `latency`
/// and `jitter`.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Nothing passes; datagrams in flight still arrive.
    pub cut: bool,
    /// Bytes of UDP payload that fit; larger datagrams are lost.
    pub mtu: usize,
    /// The share of datagrams that is lost at random, 0 to 1.
    pub loss: f64,
    /// Drops datagrams above its rate.
    pub policer: Option<Policer>,
    /// Queues datagrams above its rate.
    pub shaper: Option<Shaper>,
    /// Delay of every datagram.
    pub latency: Duration,
    /// Upper bound of a random further delay. Datagrams that are sent within it overtake each other.
    pub jitter: Duration,
}

/// A token bucket without a queue: nftables' `limit rate 29/second burst 5`. Every datagram takes
/// one token, whatever its size, or is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// Tokens per second.
    pub rate: f64,
    /// Tokens that the bucket holds; it starts full.
    pub burst: u32,
}

/// A queue that lets datagrams out one at a time, whatever their size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shaper {
    /// Datagrams per second.
    pub rate: f64,
    /// Datagrams that wait; more are dropped.
    pub queue: u32,
}

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that passed.
    pub packets: u64,
    /// The UDP payload of those that passed.
    pub bytes: u64,
    /// Datagrams that did not pass, for whatever reason.
    pub dropped: u64,
}

impl Conditions {
    /// A delay of `latency`, and no loss.
    #[must_use]
    pub fn delayed(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            cut: false,
            mtu: 1472,
            loss: 0.0,
            policer: None,
            shaper: None,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    conditions: Conditions,
    counters: Counters,
    /// `None`: full since ever.
    bucket: Option<Bucket>,
    /// Time at which the shaper is done with all that it holds.
    busy_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Lane {
    pub(super) fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// A policer or shaper that differs from the last begins anew: full, or empty.
    pub(super) fn set(&mut self, conditions: Conditions) {
        if conditions.policer != self.conditions.policer {
            self.bucket = None;
        }
        if conditions.shaper != self.conditions.shaper {
            self.busy_until = None;
        }
        self.conditions = conditions;
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// Time at which a datagram of `size` bytes that comes now is through; `None` if it is dropped.
    pub(super) fn pass(&mut self, now: Instant, size: usize, random: &mut Random) -> Option<Instant> {
        let through = self.admit(now, size, random);
        match through {
            Some(_) => {
                self.counters.packets += 1;
                self.counters.bytes += u64::try_from(size).unwrap_or(u64::MAX);
            }
            None => self.counters.dropped += 1,
        }
        through
    }

    fn admit(&mut self, now: Instant, size: usize, random: &mut Random) -> Option<Instant> {
        let Conditions { cut, mtu, loss, policer, shaper, latency, jitter } = self.conditions;
        if cut || size > mtu || (loss > 0.0 && random.fraction() < loss) {
            return None;
        }
        if let Some(policer) = policer {
            self.take_token(policer, now)?;
        }
        let left = match shaper {
            Some(shaper) => self.queue(shaper, now)?,
            None => now,
        };
        let jitter = if jitter.is_zero() { jitter } else { jitter.mul_f64(random.fraction()) };
        Some(left + latency + jitter)
    }

    fn take_token(&mut self, Policer { rate, burst }: Policer, now: Instant) -> Option<()> {
        let full = f64::from(burst);
        let bucket = self.bucket.get_or_insert(Bucket { tokens: full, at: now });
        let since = now.saturating_duration_since(bucket.at);
        bucket.tokens = (bucket.tokens + since.as_secs_f64() * rate).min(full);
        bucket.at = now;
        // Sums of many short refills must not miss a whole token by a rounding error.
        if bucket.tokens < 1.0 - 1e-9 {
            return None;
        }
        bucket.tokens -= 1.0;
        Some(())
    }

    /// Time at which the datagram has left the queue.
    fn queue(&mut self, Shaper { rate, queue }: Shaper, now: Instant) -> Option<Instant> {
        let each = Duration::from_secs_f64(1.0 / rate);
        let free = self.busy_until.map_or(now, |busy| busy.max(now));
        // The one in service does not wait; those behind it do.
        if free - now > each * queue {
            return None;
        }
        self.busy_until = Some(free + each);
        self.busy_until
    }
}

/// `SplitMix64` by Guy Steele and others: every seed is good, every state is 8 bytes.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// At least 0, less than 1, in steps of 2^-32.
    pub(super) fn fraction(&mut self) -> f64 {
        let [.., a, b, c, d] = self.next().to_le_bytes();
        f64::from(u32::from_le_bytes([a, b, c, d])) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(change: impl FnOnce(&mut Conditions)) -> Lane {
        let mut conditions = Conditions::default();
        change(&mut conditions);
        let mut lane = Lane::default();
        lane.set(conditions);
        lane
    }

    /// The milliseconds after which each of `count` datagrams is through, one sent every `every`.
    fn run(lane: &mut Lane, count: u32, every: Duration) -> Vec<Option<u128>> {
        let (start, mut random) = (Instant::now(), Random::new(1));
        (0..count)
            .map(|n| {
                let now = start + every * n;
                lane.pass(now, 1200, &mut random).map(|through| (through - start).as_millis())
            })
            .collect()
    }

    #[test]
    fn a_policer_lets_its_burst_through_and_then_its_rate() {
        let mut lane = lane(|conditions| conditions.policer = Some(Policer { rate: 29.0, burst: 5 }));
        let at_once = run(&mut lane, 7, Duration::ZERO);
        assert_eq!(at_once, [Some(0), Some(0), Some(0), Some(0), Some(0), None, None]);
        let (start, mut random) = (Instant::now() + Duration::from_secs(60), Random::new(1));
        let passed = (0..10_000_u32)
            .filter(|n| lane.pass(start + Duration::from_millis(1) * *n, 100, &mut random).is_some())
            .count();
        assert_eq!(passed, 5 + 289, "five at once, then 29 a second for ten seconds");
        assert_eq!(lane.counters().packets, 5 + 294);
    }

    #[test]
    fn a_shaper_queues_and_drops_what_finds_no_room() {
        let mut lane = lane(|conditions| conditions.shaper = Some(Shaper { rate: 100.0, queue: 3 }));
        let through = run(&mut lane, 6, Duration::ZERO);
        assert_eq!(through, [Some(10), Some(20), Some(30), Some(40), None, None]);
        assert_eq!(lane.counters(), Counters { packets: 4, bytes: 4800, dropped: 2 });
    }

    #[test]
    fn latency_and_jitter_add_up_and_reorder() {
        let mut lane = lane(|conditions| {
            conditions.latency = Duration::from_millis(40);
            conditions.jitter = Duration::from_millis(20);
        });
        let through: Vec<_> =
            run(&mut lane, 1000, Duration::ZERO).into_iter().map(|at| at.expect("through")).collect();
        assert!(through.iter().all(|at| (40..60).contains(at)));
        assert!(!through.is_sorted());
    }

    #[test]
    fn loss_mtu_and_cut_drop() {
        let lost = |change: fn(&mut Conditions)| {
            run(&mut lane(change), 1000, Duration::ZERO).iter().filter(|through| through.is_none()).count()
        };
        assert_eq!(lost(|_| {}), 0);
        assert!((250..350).contains(&lost(|conditions| conditions.loss = 0.3)));
        assert_eq!(lost(|conditions| conditions.mtu = 1200), 0);
        assert_eq!(lost(|conditions| conditions.mtu = 1199), 1000);
        assert_eq!(lost(|conditions| conditions.cut = true), 1000);
    }

    #[test]
    fn fractions_are_spread_and_repeat_with_their_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            std::iter::repeat_with(move || random.fraction()).take(10_000).collect::<Vec<_>>()
        };
        let drawn = draw(7);
        assert_eq!(drawn, draw(7));
        assert_ne!(drawn, draw(8));
        let mean = drawn.iter().sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
        assert!(drawn.iter().all(|x| (0.0..1.0).contains(x)));
    }
}
