//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use crate::seeds::{change, corpus};
use crate::stored;

fn replay(target: &str, body: fn(&[u8]), seed: u64) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..400 {
        let mut input = corpus[random.usize(..corpus.len())].clone();
        for _ in 0..random.usize(1..4) {
            change(&mut input, 0, &mut random);
        }
        body(&input);
    }
}

#[test]
fn imported_lines() {
    replay("imported_lines", stored::imported_lines, 1);
}

#[test]
fn journal_record() {
    replay("journal_record", stored::journal_record, 3);
}

#[test]
fn stored_rows() {
    replay("stored_rows", stored::stored_rows, 2);
}
