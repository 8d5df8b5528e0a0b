//! Decisions by counter: what happens to packet `n` is a function of the seed, the direction, the stage and `n`.

use super::direction::Direction;

/// Stage of the pipeline. Each has random numbers of its own, so that switching one on or off does not change the
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Whether the packet is duplicated.
    Duplicate,
    /// Whether it is lost.
    Loss,
    /// Next state of the Markov chain of a loss model.
    LossState,
    /// Whether a bit of it flips.
    Corrupt,
    /// Which bit.
    CorruptBit,
    /// Delay of the packet.
    Delay,
    /// Whether the packet is sent ahead.
    Reorder,
    /// Which port the NAT gives to a flow.
    NatPort,
    /// Rate of the line in an interval.
    Rate,
    /// Time at which the line stands still in a period.
    Stall,
    /// Length of that time.
    StallLength,
    /// Length of an interval of aggregation.
    Aggregate,
}

const STAGES: usize = 12;

/// A pseudo-random function with a counter: the same arguments give the same roll, in any order and at any time.
///
/// The mixing is that of SplitMix64 (Steele, Lea, Flood 2014), twice, keyed. It is not for secrets.
#[derive(Debug, Clone)]
pub struct CounterPrf {
    keys: [[u64; 2]; STAGES],
}

impl CounterPrf {
    /// The rolls of one direction of a link.
    pub fn new(seed: u64, direction: Direction) -> Self {
        let root = mix(seed ^ mix(direction as u64 + 1));
        let key = |stage: usize, copy: u64| mix(root ^ mix(((stage as u64) << 8) | (copy << 1) | 1));
        let keys = std::array::from_fn(|stage| [key(stage, 0), key(stage, 1)]);
        Self { keys }
    }

    /// 64 evenly distributed bits for packet `n`, or for its duplicate when `copy` is set.
    pub fn roll(&self, stage: Stage, n: u64, copy: bool) -> u64 {
        let key = self.keys[stage as usize][usize::from(copy)];
        mix(mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key).wrapping_add(key))
    }

    /// A number below `bound`, evenly; 0 when `bound` is 0.
    pub fn below(&self, stage: Stage, n: u64, copy: bool, bound: u64) -> u64 {
        share_of(self.roll(stage, n, copy), bound)
    }
}

/// `roll`, from the whole range of u64, on the scale from 0 to `bound`, never `bound` itself.
pub(crate) fn share_of(roll: u64, bound: u64) -> u64 {
    ((u128::from(roll) * u128::from(bound)) >> 64) as u64
}

/// Mixes the bits of a number.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
