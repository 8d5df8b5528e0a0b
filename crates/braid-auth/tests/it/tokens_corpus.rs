//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use std::fs;
use std::path::PathBuf;

use crate::tokens;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect();
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("it is committed")
        .map(|entry| entry.expect("it is committed").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 5, "{target} has only {} files", paths.len());
    paths.iter().map(|path| fs::read(path).expect("it is committed")).collect()
}

fn replay(target: &str, body: fn(&[u8]), seed: u64) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..4_000 {
        let mut input = corpus[random.usize(..corpus.len())].clone();
        for _ in 0..random.usize(1..4) {
            change(&mut input, &mut random);
        }
        body(&input);
    }
}

/// Changes, removes or repeats some bytes behind the first one.
fn change(input: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(1..=input.len());
    let part = at..(at + random.usize(..20)).min(input.len());
    match random.u8(..4) {
        0 => drop(input.drain(part)),
        1 => input.extend_from_within(part),
        2 => input.insert(at, random.u8(..)),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
        }
    }
}

#[test]
fn jwt() {
    replay("jwt", tokens::jwt, 5);
}
