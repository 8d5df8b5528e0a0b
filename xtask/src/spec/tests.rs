use super::*;

const FIVE: &str = r#"
[[statement]]
id = "MQTT-1.1.1-1"
binds = "both"
summary = "First."

[[statement]]
id = "MQTT-1.1.1-2"
binds = "server"
summary = "Second."

[[statement]]
id = "MQTT-1.1.1-3"
binds = "none"
summary = "Third."
"#;

const THREE: &str = r#"
[[statement]]
id = "MQTT-2.2.2-1"
binds = "both"
summary = "Both of them."
same_as = ["MQTT-1.1.1-1", "MQTT-1.1.1-2"]

[[statement]]
id = "MQTT-1.1.1-2"
binds = "client"
summary = "Another rule with the same number."
"#;

const CODE: &str = "crates/a/src/lib.rs";
const TEST: &str = "crates/a/tests/it/main.rs";

fn coverages(five: &str, three: &str, code: &str, test: &str) -> Vec<Coverage> {
    let tree = Tree::of(&[
        ("docs/spec/mqtt-5.0.toml", five),
        ("docs/spec/mqtt-3.1.1.toml", three),
        (CODE, code),
        (TEST, test),
    ]);
    coverage::join(&statement::read(&tree).unwrap(), &tag::read(&tree))
}

fn states(coverage: &Coverage) -> Vec<State> {
    coverage.rows.iter().map(|row| row.state.clone()).collect()
}

#[test]
fn a_statement_is_covered_when_enforced_and_tested() {
    let none = coverages(FIVE, THREE, "", "");
    assert_eq!(states(&none[0]), [State::Missing, State::Missing, State::Free]);
    let code = "// [MQTT-1.1.1-1]\nfn a() {} // [MQTT-1.1.1-2]\n";
    let some = coverages(FIVE, THREE, code, "// [MQTT-1.1.1-1]\n");
    assert_eq!(states(&some[0]), [State::Covered, State::Untested, State::Free]);
    assert!(summary(&some[0]).contains("covered      1   50.0 %\n"), "{}", summary(&some[0]));
    assert_eq!(
        listing(&some[0], List::Untested),
        "  [MQTT-1.1.1-2] server: Second.  <- crates/a/src/lib.rs:2\n"
    );
}

#[test]
fn a_tag_in_a_test_alone_enforces_nothing() {
    let only_tested = coverages(FIVE, THREE, "#[cfg(test)]\nmod tests {\n // [MQTT-1.1.1-1]\n}\n", "");
    assert_eq!(states(&only_tested[0])[0], State::Missing);
    let listed = listing(&only_tested[0], List::Missing);
    assert!(listed.contains("First.  (only tested: crates/a/src/lib.rs:3)\n"), "{listed}");
}

#[test]
fn one_tag_covers_both_versions_where_they_mean_the_same() {
    let half = coverages(FIVE, THREE, "// [MQTT-1.1.1-1]\n", "");
    assert_eq!(states(&half[1]), [State::Missing, State::Missing], "the statement is the same as two of 5.0");
    let full = coverages(FIVE, THREE, "// [MQTT-1.1.1-1] [MQTT-1.1.1-2]\n", "// [MQTT3-2.2.2-1]\n");
    assert_eq!(states(&full[1]), [State::Covered, State::Missing]);
    let own = coverages(FIVE, THREE, "// [MQTT3-2.2.2-1] [MQTT3-1.1.1-2]\n", "");
    assert_eq!(states(&own[1]), [State::Untested, State::Untested]);
    assert_eq!(states(&own[0])[..2], [State::Missing, State::Missing], "3.1.1's own tag says nothing of 5.0");
}

#[test]
fn check_complains_of_what_is_missing_and_untested() {
    let complete = "// [MQTT-1.1.1-1] [MQTT-1.1.1-2] [MQTT3-1.1.1-2]\n";
    let good = coverages(FIVE, THREE, complete, complete);
    assert_eq!(good.iter().flat_map(complaints).collect::<Vec<_>>(), [""; 0]);
    let untested = coverages(FIVE, THREE, complete, "// [MQTT-1.1.1-1] [MQTT3-1.1.1-2] [MQTT3-2.2.2-1]\n");
    let lines: Vec<_> = untested.iter().flat_map(complaints).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("MQTT 5.0: less than 95 %"), "{lines:?}");
    let missing = coverages(FIVE, THREE, "// [MQTT-1.1.1-1] [MQTT-1.1.1-2]\n", complete);
    let lines: Vec<_> = missing.iter().flat_map(complaints).collect();
    assert!(lines[0].starts_with("MQTT 3.1.1: 1 statements are neither"), "{lines:?}");
}

#[test]
fn an_unknown_tag_is_a_typo() {
    let code = "// [MQTT-1.1.1-9]\n// [MQTT3-2.2.2-7]\n// [MQTT-1.1.1-1, 2]\n// [MQTT-2.2.2-1]\n";
    let found = coverages(FIVE, THREE, code, "");
    let lines: Vec<_> = found
        .iter()
        .flat_map(|coverage| &coverage.unknown)
        .map(|tag| (tag.found.line, &*tag.found.id))
        .collect();
    assert_eq!(
        lines,
        [(1, "MQTT-1.1.1-9"), (3, "MQTT-1.1.1-1, 2"), (4, "MQTT-2.2.2-1"), (2, "MQTT3-2.2.2-7")]
    );
    let lines = complaints(&found[0]);
    let file = "crates/a/src/lib.rs";
    assert_eq!(
        lines[0],
        format!(
            "{file}:1: no statement has the tag [MQTT-1.1.1-9]; the numbers are in docs/spec/mqtt-5.0.toml"
        )
    );
    assert_eq!(
        lines[2],
        format!(
            "{file}:4: no statement has the tag [MQTT-2.2.2-1]; 3.1.1 has that number: write [MQTT3-2.2.2-1]"
        )
    );
}

#[test]
fn an_exception_needs_no_code_and_becomes_stale_with_it() {
    let five =
        FIVE.replace("summary = \"Second.\"", "summary = \"Second.\"\nexception = \"never happens here\"");
    let excepted = coverages(&five, THREE, "// [MQTT-1.1.1-1]\n", "");
    assert_eq!(states(&excepted[0]), [State::Untested, State::Exception, State::Free]);
    assert_eq!(
        states(&excepted[1])[0],
        State::Exception,
        "what it is the same as is enforced or an exception"
    );
    assert!(listing(&excepted[0], List::Exceptions).ends_with("because: never happens here\n"));
    let stale = coverages(&five, THREE, "// [MQTT-1.1.1-2]\n", "");
    let lines = complaints(&stale[0]);
    assert_eq!(
        lines[0],
        "crates/a/src/lib.rs:1: [MQTT-1.1.1-2] is enforced; remove its exception from docs/spec/mqtt-5.0.toml"
    );
}

const OURS: &str = "\
- **[BQ-1]** A server opens no stream. See [MQTT-1.1.1-1].
- **[BQ-2]** A client opens
  the first. It may open more, as [BQ-1] says.
- **[BQ-10]** A peer sends nothing else.
";

fn contract(ours: &str, exceptions: &str, code: &str, test: &str) -> Coverage {
    let tree = Tree::of(&[
        ("docs/spec/mqtt-over-quic.md", ours),
        ("docs/spec/mqtt-over-quic.toml", exceptions),
        (CODE, code),
        ("peers/run.py", test),
    ]);
    let ours = contract::read(&tree).unwrap();
    coverage::join(&[ours], &tag::read(&tree)).remove(0)
}

#[test]
fn check_names_every_gap_of_our_contract() {
    let found = contract(OURS, "", "fn a() {} // [BQ-1], [BQ-2]\n", "# [BQ-1] [BQ-10]\n");
    assert_eq!(states(&found), [State::Covered, State::Untested, State::Missing]);
    assert_eq!(
        summary(&found),
        "MQTT over QUIC: 3 statements, 3 of them bind; 0 exceptions
  covered      1   33.3 %\n  untested     1   33.3 %\n  missing      1   33.3 %\n"
    );
    let missing = "\
MQTT over QUIC: 1 statements are not enforced; tag the line of code that keeps each, or write the reason into docs/spec/mqtt-over-quic.toml:
  [BQ-10] A peer sends nothing else.  (only tested: peers/run.py:1)";
    let untested = "\
MQTT over QUIC: 1 statements are enforced and not tested; tag the test that shows each, or write the reason into docs/spec/mqtt-over-quic.toml:
  [BQ-2] A client opens the first.  <- crates/a/src/lib.rs:1";
    assert_eq!(complaints(&found), [missing, untested]);
    let all = "// [BQ-1] [BQ-2] [BQ-10]\n";
    assert_eq!(complaints(&contract(OURS, "", all, all)), [""; 0]);
}

#[test]
fn an_exception_from_our_contract_excuses_code_or_test() {
    let exceptions = "[[exception]]\nid = \"BQ-2\"\nreason = \"needs two machines\"\n";
    let (others, all) = ("// [BQ-1] [BQ-10]\n", "// [BQ-1] [BQ-2] [BQ-10]\n");
    for code in [others, all] {
        let found = contract(OURS, exceptions, code, others);
        assert_eq!(states(&found), [State::Covered, State::Exception, State::Covered]);
        assert_eq!(complaints(&found), [""; 0]);
        assert!(listing(&found, List::Exceptions).ends_with("because: needs two machines\n"));
    }
    let stale = "crates/a/src/lib.rs:1: [BQ-2] is enforced and tested; \
                 remove its exception from docs/spec/mqtt-over-quic.toml";
    assert_eq!(complaints(&contract(OURS, exceptions, all, all)), [stale]);
}

#[test]
fn our_contract_and_the_code_name_only_what_is_there() {
    let all = "// [BQ-1] [BQ-2] [BQ-10]\n";
    let cites = format!("{OURS}\nSee [BQ-3].\n");
    let code = format!("{all}// [BQ-10, BQ-11]\n");
    let line = |place: &str, id: &str| {
        format!("{place}: no statement has the tag [{id}]; the numbers are in docs/spec/mqtt-over-quic.md")
    };
    assert_eq!(
        complaints(&contract(&cites, "", &code, all)),
        [line("crates/a/src/lib.rs:2", "BQ-10, BQ-11"), line("docs/spec/mqtt-over-quic.md:6", "BQ-3")]
    );
}

#[test]
fn every_item_of_this_repository_s_contract_is_a_statement() {
    let tree = Tree::read(&tree::root()).unwrap();
    let text = &tree.files.iter().find(|file| file.path == contract::FILE).unwrap().text;
    let items: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("- ")).collect();
    let statements = contract::read(&tree).unwrap().statements;
    assert_eq!(items.len(), statements.len());
    for (item, statement) in items.iter().zip(&statements) {
        assert!(item.starts_with(&format!("**[{}]** ", statement.id)), "{item}");
    }
}

#[test]
fn this_repository_lists_both_standards_whole() {
    let tree = Tree::read(&tree::root()).unwrap();
    let standards = statement::read(&tree).unwrap();
    let sizes: Vec<_> =
        standards.iter().map(|standard| (standard.edition.name, standard.statements.len())).collect();
    assert_eq!(sizes, [("MQTT 5.0", 251), ("MQTT 3.1.1", 141)]);
    // Within a section the numbers run from 1 without a gap, but for the 2.2.1-1 that 5.0 does not have.
    for standard in &standards {
        let mut last = ("", 0);
        for statement in &standard.statements {
            let (section, number) = statement.id.rsplit_once('-').unwrap();
            let next = if section == last.0 { last.1 + 1 } else { 1 };
            let number: usize = number.parse().unwrap();
            assert!(number == next || statement.id == "MQTT-2.2.1-2", "{} follows {last:?}", statement.id);
            last = (section, number);
        }
    }
}
