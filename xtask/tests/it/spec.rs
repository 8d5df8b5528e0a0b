use crate::{folder, xtask};

const FIVE: (&str, &str) = (
    "docs/spec/mqtt-5.0.toml",
    "[[statement]]\nid = \"MQTT-1.1.1-1\"\nbinds = \"server\"\nsummary = \"Answers.\"\n",
);
const THREE: (&str, &str) = (
    "docs/spec/mqtt-3.1.1.toml",
    "[[statement]]\nid = \"MQTT-2.2.2-2\"\nbinds = \"both\"\nsummary = \"Asks.\"\nsame_as = \"MQTT-1.1.1-1\"\n",
);
const OURS: (&str, &str) = ("docs/spec/mqtt-over-quic.md", "# Ours\n\n- **[BQ-1]** The server\n  waits.\n");
const CODE: (&str, &str) = ("crates/a/src/lib.rs", "fn a() {} // [MQTT-1.1.1-1], [BQ-1]\n");
const TEST: (&str, &str) = ("crates/a/tests/it/main.rs", "fn a() {} // [MQTT-1.1.1-1], [BQ-1]\n");

#[test]
fn full_coverage_passes_the_check() {
    let root = folder(&[FIVE, THREE, OURS, CODE, TEST]);
    let (out, _, code) = xtask(root.path(), &["spec", "--check"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(
        out.starts_with("MQTT 5.0: 1 statements, 1 of them bind; 0 exceptions\n  covered      1  100.0 %\n"),
        "{out}"
    );
    assert!(
        out.contains("MQTT 3.1.1: 1 statements, 1 of them bind; 0 exceptions\n  covered      1  100.0 %\n"),
        "{out}"
    );
    assert!(
        out.ends_with(
            "MQTT over QUIC: 1 statements, 1 of them bind; 0 exceptions\n  covered      1  100.0 %\n  untested     0    0.0 %\n  missing      0    0.0 %\n"
        ),
        "{out}"
    );
}

#[test]
fn one_gap_in_our_contract_fails_the_check_until_a_reason_is_written() {
    let tested = ("crates/a/tests/it/main.rs", "fn a() {} // [MQTT-1.1.1-1]\n");
    let root = folder(&[FIVE, THREE, OURS, CODE, tested]);
    let (out, _, code) = xtask(root.path(), &["spec", "--check"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.ends_with(":\n  [BQ-1] The server waits.  <- crates/a/src/lib.rs:1\n"), "{out}");
    let reason = (
        "docs/spec/mqtt-over-quic.toml",
        "[[exception]]\nid = \"BQ-1\"\nreason = \"no code can see it wait.\"\n",
    );
    let root = folder(&[FIVE, THREE, OURS, CODE, tested, reason]);
    let (out, _, code) = xtask(root.path(), &["spec", "--check"]);
    assert_eq!(code, Some(0), "{out}");
}

#[test]
fn gaps_fail_the_check_alone() {
    let root = folder(&[FIVE, THREE, OURS, CODE]);
    let (out, _, code) = xtask(root.path(), &["spec", "--list", "untested"]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("  [MQTT-1.1.1-1] server: Answers.  <- crates/a/src/lib.rs:1\n"), "{out}");
    assert!(
        out.contains("  [MQTT3-2.2.2-2] both: Asks.  (same as [MQTT-1.1.1-1])  <- crates/a/src/lib.rs:1\n"),
        "{out}"
    );
    assert!(out.contains("  [BQ-1] The server waits.  <- crates/a/src/lib.rs:1\n"), "{out}");
    assert_eq!(xtask(root.path(), &["spec", "--check"]).2, Some(1));
}

#[test]
fn a_typo_in_a_tag_fails_the_check() {
    let typo = ("crates/a/src/typo.rs", "fn a() {}\nfn b() {} // [MQTT-1.1.1-2]\n");
    let root = folder(&[FIVE, THREE, OURS, CODE, TEST, typo]);
    let (out, _, code) = xtask(root.path(), &["spec", "--check"]);
    assert_eq!(code, Some(1), "{out}");
    assert!(
        out.contains(
            "crates/a/src/typo.rs:2: no statement has the tag [MQTT-1.1.1-2]; the numbers are in docs/spec/mqtt-5.0.toml\n"
        ),
        "{out}"
    );
}

#[test]
fn missing_statements_are_told() {
    let root = folder(&[FIVE]);
    let (_, error, code) = xtask(root.path(), &["spec"]);
    assert_eq!((error.as_str(), code), ("spec: docs/spec/mqtt-3.1.1.toml is missing\n", Some(2)));
    let root = folder(&[FIVE, THREE]);
    let (_, error, code) = xtask(root.path(), &["spec"]);
    assert_eq!((error.as_str(), code), ("spec: docs/spec/mqtt-over-quic.md is missing\n", Some(2)));
}
