//! Replay of the committed corpora of the fuzz targets.

use std::fs;
use std::path::Path;

use crate::bodies;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        body(&fs::read(path).unwrap());
        count += 1;
    }
    assert!(count >= 5, "{target} has only {count} files");
}

#[test]
fn client_streams() {
    replay("client_streams", bodies::client_streams);
}

#[test]
fn datagrams() {
    replay("datagrams", bodies::datagrams);
}

#[test]
fn decode_v3() {
    replay("decode_v3", bodies::decode_v3);
}

#[test]
fn decode_v5() {
    replay("decode_v5", bodies::decode_v5);
}

#[test]
fn filter_match() {
    replay("filter_match", bodies::filter_match);
}

#[test]
fn round_trip() {
    replay("round_trip", bodies::round_trip);
}

#[test]
fn session_operations() {
    replay("session_operations", bodies::session_operations);
}

/// Seeds that a fuzzer would try first.
#[test]
fn random_operations() {
    let mut random = fastrand::Rng::with_seed(20);
    for _ in 0..5_000 {
        let mut data = vec![0; random.usize(1..200)];
        random.fill(&mut data);
        bodies::session_operations(&data);
        bodies::client_streams(&data);
        bodies::datagrams(&data);
    }
}
