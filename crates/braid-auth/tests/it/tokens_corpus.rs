//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use crate::seeds::{change, corpus};
use crate::tokens;

fn replay(target: &str, body: fn(&[u8]), seed: u64) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..4_000 {
        let mut input = corpus[random.usize(..corpus.len())].clone();
        for _ in 0..random.usize(1..4) {
            change(&mut input, 1, &mut random);
        }
        body(&input);
    }
}

#[test]
fn jwt() {
    replay("jwt", tokens::jwt, 5);
}
