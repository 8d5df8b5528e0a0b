//! Tests with correct random histories, mutations of them, and damaged files.

mod cases;
mod damage;
mod model;
mod mutation;

use std::collections::BTreeMap;

use fastrand::Rng;

use super::{Counts, Kind, Report, check};
use model::{Entry, Model, texts, write};

const SEEDS: std::ops::Range<u64> = 0..6;
const STEPS: usize = 1000;

fn check_history(history: &[Entry]) -> Result<Report, String> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &texts(history));
    check(dir.path())
}

#[test]
fn correct_histories_have_no_violations() {
    let mut sums = [0; 5];
    for seed in SEEDS {
        let report = check_history(&Model::run(seed, STEPS)).unwrap();
        assert!(report.is_good(), "seed {seed}:\n{report}");
        let Counts { moved, required, wills_due, retained_looks, repeated, .. } = report.counts;
        for (sum, count) in sums.iter_mut().zip([moved, required, wills_due, retained_looks, repeated]) {
            *sum += count;
        }
    }
    assert!(sums.iter().all(|sum| *sum > 0), "not all is tested: {sums:?}");
}

#[test]
fn each_mutation_is_found_as_exactly_its_violation() {
    let mut applied: BTreeMap<&str, u32> =
        mutation::TABLE.iter().map(|mutation| (mutation.name, 0)).collect();
    for seed in SEEDS {
        let correct = Model::run(seed, STEPS);
        for mutation in mutation::TABLE {
            let name = mutation.name;
            let mut history = correct.clone();
            if (mutation.apply)(&mut history, &mut Rng::with_seed(seed)).is_none() {
                continue;
            }
            applied.entry(name).and_modify(|count| *count += 1);
            let report =
                check_history(&history).unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
            let expected: BTreeMap<Kind, u64> = mutation.expected.iter().map(|kind| (*kind, 1)).collect();
            assert_eq!(report.violations, expected, "{name}, seed {seed}:\n{report}");
            let is_proved = report.described.iter().all(|one| one.evidence.len() >= 2);
            assert!(is_proved, "{name}, seed {seed}: too little evidence:\n{report}");
        }
    }
    assert!(applied.values().all(|count| *count > 0), "mutations that no history took: {applied:?}");
}

#[test]
fn a_report_names_times_connections_nodes_and_faults() {
    let lines = [
        r#"{"t":1000000,"kind":"connect","client":"s","conn":"c1","node":"n1","clean":false}"#,
        r#"{"t":2000000,"kind":"connack","client":"s","conn":"c1","node":"n1","present":false,"reason":0}"#,
        r#"{"t":3000000,"kind":"subscribe","client":"s","conn":"c1","filter":"a/#","qos":1}"#,
        r#"{"t":4000000,"kind":"subscribed","client":"s","conn":"c1","filter":"a/#","reason":1}"#,
        r#"{"t":5000000,"kind":"connect","client":"p","conn":"c2","node":"n2","clean":true}"#,
        r#"{"t":6000000,"kind":"connack","client":"p","conn":"c2","node":"n2","present":false,"reason":0}"#,
        r#"{"t":7000000,"kind":"fault","name":"partition","on":"n1","phase":"begin"}"#,
        r#"{"t":8000000,"kind":"publish","client":"p","conn":"c2","topic":"a/b","qos":1,"id":"p:7","pid":1,"dup":false,"retain":false}"#,
        r#"{"t":9000000,"kind":"acked","client":"p","conn":"c2","id":"p:7","reason":0}"#,
        r#"{"t":10000000,"kind":"fault","name":"partition","on":"n1","phase":"end"}"#,
        r#"{"t":11000000,"kind":"end"}"#,
    ];
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &BTreeMap::from([("all".to_owned(), lines.join("\n"))]));
    let report = check(dir.path()).unwrap().to_string();
    let expected = "\
lost message: p:7 did not reach s, which had subscribed to a/#
    0.001000 s  CONNACK for s, connection c1 at n1
    0.003000 s  a/# granted to s with QoS 1, connection c1 at n1
    0.006000 s  fault partition on n1, ended at 0.009000 s
    0.007000 s  p:7 published to a/b, QoS 1, connection c2 at n2, sent 1 times in all
    0.008000 s  p:7 acknowledged, connection c2 at n2
    0.010000 s  end of the history, s is connected
history: 11 events, 1 faults, 0 moves of a session between nodes
history: 1 messages published, 1 acknowledged, 0 delivered, 0 repeated as allowed, 0 of QoS 2 with another packet identifier
history: checked 1 required deliveries, 0 Wills due, 0 retained messages seen
history: 0 incomplete files, 0 subscriptions without a promise that can be checked
history: VIOLATIONS: 1 × lost message";
    assert_eq!(report, expected);
}
