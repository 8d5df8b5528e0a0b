//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use std::fs;
use std::path::Path;

use fastrand::Rng;

use crate::rules;

/// Files of the corpus of a fuzz target.
pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{target} has only {} files", paths.len());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Changes, removes or repeats some bytes, none of them before `from`.
pub(crate) fn change(input: &mut Vec<u8>, from: usize, rng: &mut Rng) {
    let at = rng.usize(from..=input.len());
    let part = at..(at + rng.usize(..20)).min(input.len());
    match rng.u8(..4) {
        0 => drop(input.drain(part)),
        1 => input.extend_from_within(part),
        2 => input.insert(at, rng.u8(..)),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.u8(..8);
            }
        }
    }
}

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
