//! Files of the committed corpora, and mutations that a fuzzer would try first, for replays as ordinary tests.

use std::fs;
use std::path::Path;

use fastrand::Rng;

/// Files of the corpus of a fuzz target.
pub(crate) fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("it is committed")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 5, "{target} has only {} files", paths.len());
    paths.iter().map(|path| fs::read(path).expect("it can be read")).collect()
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
