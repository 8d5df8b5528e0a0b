//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use std::fs;
use std::path::PathBuf;

use fastrand::Rng;

use crate::credentials;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect();
    let entries = fs::read_dir(folder).expect("it is committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{target} has only {} files", paths.len());
    paths.iter().map(|path| fs::read(path).expect("it can be read")).collect()
}

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut rng = Rng::with_seed(4);
    for _ in 0..400 {
        let mut input = corpus[rng.usize(..corpus.len())].clone();
        for _ in 0..rng.usize(1..4) {
            change(&mut input, &mut rng);
        }
        body(&input);
    }
}

/// Changes, removes or repeats some bytes.
fn change(input: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.usize(..=input.len());
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

#[test]
fn password_file() {
    replay("password_file", credentials::password_file);
}

#[test]
fn scram() {
    replay("scram", credentials::scram);
}
