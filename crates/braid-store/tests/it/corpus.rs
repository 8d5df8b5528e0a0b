//! Replay of the committed corpora of the fuzz targets, with mutations that a fuzzer would try first.

use std::fs;
use std::path::PathBuf;

use crate::stored;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../fuzz/corpus", target].iter().collect();
    let entries = fs::read_dir(folder).expect("it is committed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{target} has only {} files", paths.len());
    paths.iter().map(|path| fs::read(path).expect("it can be read")).collect()
}

fn replay(target: &str, body: fn(&[u8]), seed: u64) {
    let corpus = corpus(target);
    for input in &corpus {
        body(input);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..400 {
        let mut input = corpus[random.usize(..corpus.len())].clone();
        for _ in 0..random.usize(1..4) {
            change(&mut input, &mut random);
        }
        body(&input);
    }
}

/// Changes, removes or repeats some bytes.
fn change(input: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random.usize(..=input.len());
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
