//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use fastrand::Rng;

use crate::credentials;
use crate::seeds::{change, corpus};

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut rng = Rng::with_seed(4);
    for _ in 0..400 {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        for _ in 0..rng.usize(1..4) {
            change(&mut input, 0, &mut rng);
        }
        body(&input);
    }
}

#[test]
fn password_file() {
    replay("password_file", credentials::password_file);
}

#[test]
fn scram() {
    replay("scram", credentials::scram);
}
