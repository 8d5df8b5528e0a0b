//! Random topics from few levels, so that they meet.

use std::num::NonZeroU32;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{MAX_LEVELS, TopicFilter, TopicName};
use fastrand::Rng;

/// Levels that differ little: empty, one a prefix of another, case, `$`, characters around `/` in ASCII,
/// longer than what a trie node holds inline, and two spellings of one letter.
const LEVELS: [&str; 13] = [
    "",
    "a",
    "b",
    "ab",
    "A",
    "$a",
    "$SYS",
    "a!",
    "a\u{1}",
    "a0",
    "é",
    "e\u{301}",
    "a level of more than 22 bytes",
];
const SHARES: [&str; 2] = ["x", "y"];

/// Runs `operations` for many seeds, and prints the seed of a failure.
pub(crate) fn for_each_seed(seeds: u64, mut operations: impl FnMut(&mut Rng)) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("failed with seed {}", self.0);
            }
        }
    }
    for seed in 0..seeds {
        let seed = Seed(seed);
        operations(&mut Rng::with_seed(seed.0));
    }
}

fn level(rng: &mut Rng) -> &'static str {
    // Half of them "a" and "b": deep matches are then frequent.
    if rng.bool() { LEVELS[rng.usize(1..3)] } else { LEVELS[rng.usize(..LEVELS.len())] }
}

fn depth(rng: &mut Rng) -> usize {
    if rng.u8(..) == 0 { MAX_LEVELS - 2 } else { rng.usize(1..5) }
}

pub(crate) fn name(rng: &mut Rng) -> TopicName {
    loop {
        let levels: Vec<_> = (0..depth(rng)).map(|_| level(rng)).collect();
        if let Ok(name) = TopicName::parse(&levels.join("/")) {
            return name;
        }
    }
}

pub(crate) fn filter(rng: &mut Rng) -> TopicFilter {
    loop {
        let mut levels: Vec<_> =
            (0..depth(rng)).map(|_| if rng.u8(..4) == 0 { "+" } else { level(rng) }).collect();
        if rng.u8(..4) == 0 {
            levels.pop();
            levels.push("#");
        }
        let pattern = levels.join("/");
        let text = match rng.u8(..4) {
            0 => format!("$share/{}/{pattern}", SHARES[rng.usize(..SHARES.len())]),
            _ => pattern,
        };
        if let Ok(filter) = TopicFilter::parse(&text) {
            return filter;
        }
    }
}

/// Order of the levels as a list: a level sorts before those below it.
pub(crate) fn levels(name: &TopicName) -> Vec<String> {
    name.as_str().split('/').map(str::to_owned).collect()
}

/// Subscriptions that differ in their identifier.
pub(crate) fn subscription(id: u32) -> Subscription {
    Subscription { id: NonZeroU32::new(id), ..Subscription::default() }
}

/// Subscription with an identifier, on a stream.
pub(crate) fn subscription_on(stream: StreamKey, id: u32) -> Subscription {
    Subscription { stream, ..subscription(id) }
}

/// A few streams: the control stream and data streams of both directions.
pub(crate) fn stream(rng: &mut Rng) -> StreamKey {
    [StreamKey::CONTROL, StreamKey::bidi(1), StreamKey::bidi(70_000), StreamKey::uni(0)][rng.usize(..4)]
}

pub(crate) fn parse_filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a filter")
}

pub(crate) fn parse_name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}
