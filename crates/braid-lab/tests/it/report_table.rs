//! Table of a report for terminals.

use std::collections::BTreeMap;

use braid_lab::report::{Reference, html, table};

use crate::report_fixture::{
    column, empty, map, profile, published, refused, run, small, urgent_behind_large,
};

#[test]
fn medians_ranges_and_published_figures() {
    let mut report = small(&[10.0, 30.0, 20.5], &[7.0]);
    report.runs.push(refused(run("tcp", "lan", 9, "rate", 1e6), "late"));
    report.published = published("lan", "quic", "rate", 8.0);
    let expected = "Urgent messages behind a large one\n\n\
                    lan\n\
                    \x20                Rate    Runs\n\
                    \x20               msg/s\n\
                    tcp   20.5 10.0..30.0  3 of 4\n\
                    quic        7.0 [8.0]       1\n\n\
                    5 runs, 1 refused: it is not in the table\n\
                    Medians over the usable runs, smallest..largest.\n\
                    In brackets: the published figure.\n";
    assert_eq!(table(&report), expected);
}

#[test]
fn figures_from_elsewhere_stand_below_those_measured() {
    let mut report = small(&[10.0], &[7.0]);
    let values = map(&[("rate", 29.0)]);
    report.references = vec![
        Reference { title: "limit".into(), profiles: vec!["lan".into()], values: values.clone() },
        Reference { title: "elsewhere".into(), profiles: vec!["4g".into()], values },
    ];
    let text = table(&report);
    assert!(text.contains("quic     7.0     1\nlimit   29.0     –\n\n"), "{text}");
    assert!(!text.contains("elsewhere"), "{text}");
    let page = html(&report);
    assert!(page.contains("<th scope=\"row\">limit</th><td><span class=\"published\">29.0</span>"), "{page}");
    assert!(page.contains("Rows in grey were not measured here") && !page.contains("elsewhere"));
}

#[test]
fn missing_values_have_no_number() {
    let mut report = small(&[f64::NAN, f64::INFINITY], &[]);
    report.runs[1].metrics.insert("other".into(), 5.0);
    let text = table(&report);
    assert!(text.contains("tcp      –     2\n"), "{text}");
    assert!(!text.contains("quic"), "what did not run has no row: {text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    assert_eq!(table(&empty()), "Urgent messages behind a large one\n\n0 runs\n");
}

#[test]
fn figures_that_some_runs_lack_name_their_number() {
    let mut report = small(&[10.0, 30.0, 20.5], &[7.0]);
    report.runs[0].metrics.clear();
    let text = table(&report);
    assert!(text.contains("tcp   25.2 20.5..30.0 (2 of 3)     3\n"), "{text}");
    assert!(text.contains("In parentheses: the runs that have the figure."), "{text}");
    report.latencies.push("rate".into());
    assert!(table(&report).contains("tcp   30.0 20.5..– (2 of 3)     3\n"), "{}", table(&report));
    assert!(html(&report).contains("<span class=\"range\">in 2 of 3 runs</span>"));
}

#[test]
fn values_are_shown_as_they_are() {
    let mut report = small(&[0.5], &[]);
    report.columns = vec![column("delivered_share", "of all due", "%", 1)];
    report.runs[0].metrics = BTreeMap::from([("delivered_share".to_owned(), 99.67)]);
    let text = table(&report);
    assert!(text.contains("tcp        99.7     1\n"), "{text}");
    assert_eq!(report.columns[0].shown_with_unit(0.5), "0.5 %");
}

#[test]
fn a_profile_without_runs_has_no_table() {
    let mut report = small(&[1.0], &[2.0]);
    let before = table(&report);
    report.profiles.insert(0, profile("4g"));
    assert_eq!(table(&report), before);
}

#[test]
fn deviations_from_the_scenario_are_named() {
    let mut report = small(&[1.0], &[2.0]);
    let before = table(&report);
    report.duration = 150.0;
    assert_eq!(table(&report), before);
    report.quick = true;
    report.duration = 30.0;
    report.replaced = BTreeMap::from([("broker".into(), "mosquitto -c x.conf".into())]);
    let added = "Short form of the scenario.\nbroker was replaced by: mosquitto -c x.conf\n";
    assert_eq!(table(&report), format!("{before}{added}"));
}

#[test]
fn wide_tables_are_broken_and_failures_named() {
    let text = table(&urgent_behind_large());
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest}\n{text}");
    assert!(text.contains("LAN, 29 packets/s, continued\n"), "{text}");
    assert!(
        text.ends_with(
            "\n1 of 3 bounds do not hold:\n  quic-multi on 4g: latency_p99 141.2 (bound: at most 100)\n"
        ),
        "{text}"
    );
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let mut report = small(&[1.0], &[2.0]);
    let evil = "\x1b]0;owned\x07\r\u{9b}2J";
    report.title = evil.into();
    report.replaced = BTreeMap::from([(evil.into(), evil.into())]);
    report.columns[0].title = evil.into();
    report.columns[0].unit = evil.into();
    report.variants[0].title = evil.into();
    report.profiles[0].title = evil.into();
    let text = table(&report);
    assert!(text.contains("owned"));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
}
