//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use fastrand::Rng;

use crate::rules;
use crate::seeds::corpus;

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = corpus(target);
    corpus.iter().for_each(|input| body(input));
    let mut rng = Rng::with_seed(1);
    for _ in 0..1000 {
        // Lines of several files, so that many mutants are lists.
        let mut lines = Vec::new();
        for _ in 0..rng.usize(1..10) {
            let input = &corpus[rng.usize(..corpus.len())];
            let of_input: Vec<_> = input.split_inclusive(|byte| *byte == b'\n').collect();
            lines.push(of_input[rng.usize(..of_input.len())]);
        }
        let mut input = lines.concat();
        if rng.bool() {
            let at = rng.usize(..input.len());
            input[at] ^= 1 << rng.u8(..8);
        }
        body(&input);
    }
}

#[test]
fn acl_file() {
    replay("acl_file", rules::acl_file);
}

#[test]
fn mosquitto_acl() {
    replay("mosquitto_acl", rules::mosquitto_acl);
}
