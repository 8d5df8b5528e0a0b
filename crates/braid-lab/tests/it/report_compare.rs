//! Comparison of two reports.

use std::collections::BTreeMap;

use braid_lab::report::{ComparedMetric, Comparison, Report, SelftestResult, compare};

use crate::report_fixture::{refused, run, small, urgent_behind_large};

fn row<'a>(comparison: &'a Comparison, variant: &str) -> &'a ComparedMetric {
    comparison.rows.iter().find(|row| row.variant == variant).unwrap()
}

#[test]
fn medians_ratio_and_ranges() {
    let mut before = small(&[10.0, 12.0, 11.0], &[50.0, 60.0]);
    // A refused run would shift the median and widen the range.
    before.runs.push(refused(run("tcp", "lan", 3, "rate", 1e6), "late"));
    let after = small(&[21.0, 22.0, 23.0], &[59.0, 70.0]);
    let comparison = compare(&before, &after).unwrap();
    let tcp = row(&comparison, "tcp");
    let medians = (tcp.a.unwrap().median, tcp.b.unwrap().median);
    assert_eq!((medians, tcp.ratio, tcp.overlap), ((11.0, 22.0), Some(2.0), Some(false)));
    assert_eq!(row(&comparison, "quic").overlap, Some(true));
    let text = comparison.to_string();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = text.lines().filter(|line| line.starts_with("Rate")).map(words).collect();
    assert_eq!(rows[0], ["Rate", "11.0", "msg/s", "22.0", "msg/s", "2", "x", "apart"]);
    assert_eq!(rows[1].last().unwrap(), "overlap");
    assert!(!text.contains("different"), "{text}");
}

#[test]
fn missing_values_of_one_side_are_named() {
    let mut after = small(&[5.0], &[]);
    after.machine.kernel = "Linux 6.18".into();
    after.machine.cores = 4;
    let comparison = compare(&small(&[0.0], &[7.0]), &after).unwrap();
    assert_eq!(comparison.rows.len(), 1, "quic ran in one of them only");
    let tcp = row(&comparison, "tcp");
    assert_eq!(
        (tcp.ratio, tcp.overlap),
        (None, None),
        "nothing is a multiple of 0, and one run has no range"
    );
    assert_eq!(comparison.differences, ["kernel:  and Linux 6.18", "cores: 0 and 4"]);
    let text = comparison.to_string();
    assert!(text.contains("different: cores: 0 and 4") && text.contains("two usable runs"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"));
}

#[test]
fn runs_whose_messages_never_arrived_are_the_slowest() {
    let before = small(&[10.0, 11.0, 12.0], &[5.0, 6.0]);
    let mut after = small(&[1.0, 10.0, 11.0], &[5.0, 6.0]);
    {
        let report = &mut after;
        report.latencies.push("rate".into());
        report.runs[0].metrics.clear();
        report.runs[3].metrics.clear();
    }
    let comparison = compare(&before, &after).unwrap();
    let tcp = row(&comparison, "tcp").b.unwrap();
    assert_eq!((tcp.median, tcp.low, tcp.high, tcp.count, tcp.runs), (11.0, 10.0, f64::INFINITY, 2, 3));
    let quic = row(&comparison, "quic");
    assert_eq!((quic.b.unwrap().median, quic.ratio), (f64::INFINITY, None));
    let text = comparison.to_string();
    assert!(text.contains("11.0 msg/s (2 of 3)") && text.contains("(1 of 2)"), "{text}");
    let json = serde_json::to_string(&comparison).unwrap();
    assert!(serde_json::from_str::<Comparison>(&json).unwrap() == comparison, "{json}");
}

#[test]
fn differing_circumstances_are_listed() {
    let before = small(&[1.0, 2.0], &[]);
    let mut after = small(&[1.0, 2.0], &[]);
    after.machine.load = [0.9, 3.0, 3.0];
    assert_eq!(
        compare(&before, &after).unwrap().differences,
        Vec::<String>::new(),
        "a load of 1 per core is none"
    );
    after.duration = 30.0;
    after.quick = true;
    after.replaced = BTreeMap::from([("broker".into(), "mosquitto -p 1883".into())]);
    after.runs[1].seed = 7;
    after.machine.offloads = vec!["lq0l: tso".into(), "lq0r: gro".into()];
    after.machine.cores = 2;
    after.machine.load[0] = 3.0;
    after.selftest = Some(SelftestResult { refused: vec!["too late".into()], ..SelftestResult::default() });
    let expected = [
        "form: full and short",
        "duration: not known and 30 s",
        "seeds: 1,2 and 1,7",
        "replaced programs: none and broker by mosquitto -p 1883",
        "cores: 0 and 2",
        "load per core: at most 1 and 1.5",
        "offloads: all off and lq0l: tso, lq0r: gro",
        "selftest: none and refused (too late)",
    ];
    assert_eq!(compare(&before, &after).unwrap().differences, expected);
}

#[test]
fn a_comparison_survives_json() {
    let report = urgent_behind_large();
    let comparison = compare(&report, &report).unwrap();
    assert_eq!(comparison.rows.len(), 2 * 4 * report.columns.len());
    let json = serde_json::to_string(&comparison).unwrap();
    assert!(serde_json::from_str::<Comparison>(&json).unwrap() == comparison, "something changed on the way");
}

#[test]
fn reports_that_cannot_be_compared() {
    let report = small(&[1.0], &[]);
    let schema = Report { schema: "braidmq-lab/2".into(), ..report.clone() };
    assert_eq!(
        compare(&report, &schema).unwrap_err().to_string(),
        "the first report has the schema \"braidmq-lab/1\", the second \"braidmq-lab/2\": compare reports of one version of \
         the schema"
    );
    let mut other = small(&[], &[1.0]);
    other.scenario = "one-or-ten".into();
    assert_eq!(
        compare(&report, &other).unwrap_err().to_string(),
        "the reports of \"hol\" and \"one-or-ten\" have no variant, profile and column in common: compare two reports of one \
         scenario"
    );
}
