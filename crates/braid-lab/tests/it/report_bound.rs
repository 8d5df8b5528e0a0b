//! Bounds of scenarios: checks and syntax.

use braid_lab::report::{Bound, Check, Report, check};

use crate::report_fixture::{column, profile, refused, run, small};

fn bound(text: &str) -> Result<Bound, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

fn checked(text: &str, report: &Report) -> Vec<(bool, String)> {
    let checks: Vec<Check> = check(&[bound(text).unwrap()], report);
    checks.into_iter().map(|check| (check.holds, check.bound)).collect()
}

#[test]
fn limits_hold_for_medians() {
    let report = small(&[1.0, 9.0, 10.0], &[100.0, 60.0]);
    let text = "metric = 'rate'\nvariant = 'tcp'\nprofile = 'lan'\n";
    let words = |limit: &str| checked(&format!("{text}{limit}"), &report).remove(0);
    assert_eq!(words("at_least = 9"), (true, "tcp on lan: rate 9 (bound: at least 9)".into()));
    assert_eq!(words("at_least = 9.01"), (false, "tcp on lan: rate 9 (bound: at least 9.01)".into()));
    assert_eq!(words("at_most = 9"), (true, "tcp on lan: rate 9 (bound: at most 9)".into()));
    assert_eq!(words("at_most = 8.5"), (false, "tcp on lan: rate 9 (bound: at most 8.5)".into()));
    let both = (true, "tcp on lan: rate 9 (bound: at least 8 and at most 10)".into());
    assert_eq!(words("at_least = 8\nat_most = 10"), both);
}

#[test]
fn a_bound_without_names_is_for_all_that_ran() {
    let mut report = small(&[9.0], &[80.0]);
    report.profiles.insert(0, profile("4g"));
    report.runs.push(run("quic", "4g", 1, "rate", 70.0));
    let words = checked("metric = 'rate'\nat_least = 75", &report);
    let expected = [
        (false, "quic on 4g: rate 70 (bound: at least 75)"),
        (false, "tcp on lan: rate 9 (bound: at least 75)"),
        (true, "quic on lan: rate 80 (bound: at least 75)"),
    ];
    assert_eq!(words, expected.map(|(holds, words)| (holds, words.to_owned())), "tcp never ran on 4g");
}

#[test]
fn multiples_of_another_variant() {
    let report = small(&[10.0], &[52.0]);
    let words = |factor: &str| checked(&format!("metric = 'rate'\ntimes = 'tcp'\n{factor}"), &report);
    let held = [(true, "quic on lan: rate 52 (bound: at least 50, 5 times tcp)".to_owned())];
    assert_eq!(words("at_least = 5.0"), held, "the variant it is compared with is not checked");
    assert!(!words("at_least = 5.3")[0].0);
    assert!(!words("at_most = 5")[0].0);
    assert!(words("at_most = 5.2")[0].0);
    let mut report = report;
    report.runs[0].refused.push("late".into());
    let words = checked("metric = 'rate'\ntimes = 'tcp'\nat_most = 1000", &report);
    let expected = "quic on lan: rate 52 (bound: at most 1000 times tcp, which has no usable run)";
    assert_eq!(words, [(false, expected.to_owned())]);
    report.runs[0].refused.clear();
    report.runs[0].metrics.clear();
    let words = checked("metric = 'rate'\ntimes = 'tcp'\nat_most = 1000", &report);
    let expected = "quic on lan: rate 52 (bound: at most 1000 times tcp, which has no rate)";
    assert_eq!(words, [(false, expected.to_owned())]);
}

#[test]
fn a_lower_limit_with_a_base_of_0_fails() {
    let report = small(&[0.0], &[0.0]);
    let words = |limit: &str| checked(&format!("metric = 'rate'\ntimes = 'tcp'\n{limit}"), &report);
    let failed = (false, "quic on lan: rate 0 (bound: at least 5 times tcp, which is 0)".to_owned());
    assert_eq!(words("at_least = 5"), [failed]);
    let none_lost = (true, "quic on lan: rate 0 (bound: at most 5 times tcp, which is 0)".to_owned());
    assert_eq!(words("at_most = 5"), [none_lost]);
}

/// `tcp` and `quic` without loss and with 5 %.
fn with_loss() -> Report {
    let mut report = small(&[10.0], &[52.0]);
    report.profiles.push(profile("loss-5"));
    report.runs.push(run("tcp", "loss-5", 1, "rate", 2.0));
    report.runs.push(run("quic", "loss-5", 1, "rate", 40.0));
    report
}

#[test]
fn multiples_on_another_profile() {
    let report = with_loss();
    let words = |text: &str| checked(&format!("metric = 'rate'\n{text}"), &report);
    let both = [
        (false, "tcp on loss-5: rate 2 (bound: at least 5, 0.5 times tcp on lan)".to_owned()),
        (true, "quic on loss-5: rate 40 (bound: at least 26, 0.5 times quic on lan)".to_owned()),
    ];
    assert_eq!(words("at_least = 0.5\ntimes = { profile = 'lan' }"), both, "its own on the other profile");
    let both = [
        (true, "quic on lan: rate 52 (bound: at least 40, 4 times tcp on lan)".to_owned()),
        (true, "quic on loss-5: rate 40 (bound: at least 40, 4 times tcp on lan)".to_owned()),
    ];
    let text = "at_least = 4\nvariant = 'quic'\ntimes = { variant = 'tcp', profile = 'lan' }";
    assert_eq!(words(text), both);
    let three = words("at_least = 4\ntimes = { variant = 'tcp', profile = 'lan' }");
    assert_eq!(three.len(), 3, "only what is compared with is not held to itself: {three:?}");
    assert_eq!(
        words("at_least = 4\ntimes = { variant = 'tcp' }"),
        words("at_least = 4\ntimes = 'tcp'"),
        "both mean the same profile"
    );
    let nowhere = "quic on lan: rate 52 (bound: at most 2 times quic on 4g, which has no usable run)";
    let text = "at_most = 2\nvariant = 'quic'\nprofile = 'lan'\ntimes = { profile = '4g' }";
    assert_eq!(words(text), [(false, nowhere.to_owned())]);
}

#[test]
fn absent_requires_that_no_usable_run_has_the_metric() {
    let mut report = small(&[1.0, 1.0, 1.0], &[1.0]);
    let checked = |report: &Report| {
        let checks =
            check(&[bound("metric = 'lost_after'\nvariant = 'tcp'\nabsent = true").unwrap()], report);
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        (check.holds, check.measured, check.bound.clone())
    };
    assert_eq!(checked(&report), (true, None, "tcp on lan: lost_after absent (bound: absent)".into()));
    report.runs[1].metrics.insert("lost_after".into(), 12.5);
    let expected = "tcp on lan: lost_after 12.5 in 1 of 3 runs (bound: absent)";
    assert_eq!(checked(&report), (false, Some(12.5), expected.into()));
    report.runs[1].refused.push("late".into());
    assert!(checked(&report).0, "it is in no run that counts");
    report.runs.iter_mut().for_each(|run| run.refused.push("late".into()));
    let expected = "tcp on lan: lost_after unknown, no run can be used (bound: absent)";
    assert_eq!(checked(&report), (false, None, expected.into()), "without a usable run it is unknown");
    report.runs.clear();
    let expected = "tcp on every profile: lost_after unknown, it did not run (bound: absent)";
    assert_eq!(checked(&report), (false, None, expected.into()));
}

#[test]
fn a_bound_without_a_median_does_not_hold() {
    let mut report = small(&[9.0], &[]);
    report.runs.push(refused(run("quic", "lan", 1, "rate", 80.0), "the emulator was late"));
    report.columns.push(column("p50", "p50", "ms", 1));
    let one = |text: &str| {
        let checks = check(&[bound(text).unwrap()], &report);
        let [check] = checks.as_slice() else { panic!("{checks:?}") };
        assert_eq!((check.holds, check.measured), (false, None));
        check.bound.clone()
    };
    assert_eq!(
        one("metric = 'rate'\nvariant = 'quic'\nat_most = 1e9"),
        "quic on lan: rate unknown, no run can be used (bound: at most 1,000,000,000)"
    );
    assert_eq!(
        one("metric = 'p50'\nvariant = 'tcp'\nat_most = 5"),
        "tcp on lan: p50 unknown, no usable run has it (bound: at most 5)"
    );
    assert_eq!(
        one("metric = 'rate'\nvariant = 'ws'\nat_least = 0"),
        "ws on every profile: rate unknown, it did not run (bound: at least 0)"
    );
}

/// The first run of `tcp` has no rate, as a latency of messages that never arrived.
fn with_a_missing_value(tcp: &[f64]) -> Report {
    let mut report = small(tcp, &[50.0]);
    report.runs[0].metrics.clear();
    report
}

#[test]
fn a_limit_fails_if_a_usable_run_lacks_the_metric() {
    let text = "metric = 'rate'\nvariant = 'tcp'\n";
    let words = |report: &Report, limit: &str| checked(&format!("{text}{limit}"), report).remove(0);
    let mut report = with_a_missing_value(&[1.0, 2.0, 4.0]);
    let expected = "tcp on lan: rate 3 in 2 of 3 runs (bound: at most 10)";
    assert_eq!(words(&report, "at_most = 10"), (false, expected.into()));
    report.latencies.push("rate".into());
    let expected = "tcp on lan: rate 4 in 2 of 3 runs (bound: at most 10)";
    assert_eq!(words(&report, "at_most = 10"), (false, expected.into()), "the missing one is the slowest");
    report.runs[1].metrics.clear();
    let expected = "tcp on lan: rate infinite, in 1 of 3 runs (bound: at least 1)";
    assert_eq!(words(&report, "at_least = 1"), (false, expected.into()));
    report.runs[0].refused.push("late".into());
    report.runs[1].refused.push("late".into());
    let expected = "tcp on lan: rate 4 (bound: at most 10)";
    assert_eq!(words(&report, "at_most = 10"), (true, expected.into()), "refused runs do not count");
}

#[test]
fn a_base_is_the_median_of_all_usable_runs() {
    let words = |report: &Report| checked("metric = 'rate'\ntimes = 'tcp'\nat_least = 10", report).remove(0);
    let mut report = with_a_missing_value(&[1.0, 2.0, 4.0]);
    let missing =
        "quic on lan: rate 50 (bound: at least 10 times tcp, which has no rate in more than 2 of 3 runs)";
    assert_eq!(words(&report), (false, missing.into()));
    report.latencies.push("rate".into());
    let expected = "quic on lan: rate 50 (bound: at least 40, 10 times tcp)";
    assert_eq!(words(&report), (true, expected.into()));
    report.runs[1].metrics.clear();
    assert!(!words(&report).0, "the median is infinite");
}

#[test]
fn bad_bounds_say_what_to_change() {
    for (text, error) in [
        (
            "metric = 'rate'",
            "the bound of \"rate\" says neither at_least nor at_most nor absent: give it one of them",
        ),
        ("metric = 'rate'\nat_least = nan", "the bound of \"rate\" is no finite number: write one"),
        (
            "metric = 'rate'\nat_least = 2\nat_most = 1",
            "the bound of \"rate\" has at_least above at_most: no number can hold it",
        ),
        (
            "metric = 'rate'\nat_least = 2\nvariant = 'tcp'\ntimes = 'tcp'",
            "the bound of \"rate\" compares with itself: name another variant or profile in times",
        ),
        (
            "metric = 'rate'\nat_least = 2\nvariant = 'tcp'\nprofile = 'lan'\ntimes = { profile = 'lan' }",
            "the bound of \"rate\" compares with itself: name another variant or profile in times",
        ),
        (
            "metric = 'rate'\nat_least = 2\nvariant = 'tcp'\nprofile = 'lan'\n\
             times = { variant = 'tcp', profile = 'lan' }",
            "the bound of \"rate\" compares with itself: name another variant or profile in times",
        ),
        (
            "metric = 'rate'\nat_least = 2\ntimes = {}",
            "the bound of \"rate\" compares with itself: name another variant or profile in times",
        ),
        (
            "metric = 'rate'\nabsent = true\nat_least = 0",
            "the bound of \"rate\" has a limit beside absent: leave out at_least, at_most and times, or absent",
        ),
        (
            "metric = 'rate'\nabsent = true\ntimes = 'tcp'",
            "the bound of \"rate\" has a limit beside absent: leave out at_least, at_most and times, or absent",
        ),
        (
            "metric = 'rate'\nat_least = 2\ntimes = { best_of = [] }",
            "the bound of \"rate\" compares with the best of no variant: name some in best_of",
        ),
        (
            "metric = 'rate'\nat_least = 1\nat_most = 2\ntimes = { best_of = ['tcp', 'quic'] }",
            "the bound of \"rate\" has two limits and best_of, whose base is that of one: leave one limit out",
        ),
        (
            "metric = 'rate'\nat_least = 1\nvariant = 'quic'\nmean_of = ['lan']",
            "the bound of \"rate\" has mean_of: give it a variant and times, and leave out profile",
        ),
        (
            "metric = 'rate'\nabsent = false",
            "the bound of \"rate\" says neither at_least nor at_most nor absent: give it one of them",
        ),
    ] {
        assert_eq!(bound(text), Err(error.into()), "{text}");
    }
    assert!(bound("metric = 'rate'\nat_lest = 1").unwrap_err().contains("unknown field `at_lest`"));
    assert!(bound("at_least = 1").unwrap_err().contains("missing field `metric`"));
    let times = |times: &str| bound(&format!("metric = 'rate'\nat_least = 1\ntimes = {times}")).unwrap_err();
    for bad in ["5", "{ on = 'lan' }"] {
        let expected = "times is the name of a variant, or { variant = \"NAME\", profile = \"NAME\" } or one of these two, \
                        or { best_of = [\"NAME\", \"NAME\"] }";
        assert_eq!(times(bad), expected, "{bad}");
    }
}

#[test]
fn a_bound_is_written_as_it_was_read() {
    for rest in [
        "at_least = 5.0\ntimes = \"tcp\"\n",
        "at_least = 5.0\n\n[times]\nprofile = \"lan\"\n",
        "at_least = 5.0\n\n[times]\nvariant = \"tcp\"\nprofile = \"lan\"\n",
        "at_least = 5.0\nmean_of = [\"lan\"]\n\n[times]\nbest_of = [\"tcp\"]\n",
        "absent = true\n",
    ] {
        let text = format!("metric = \"rate\"\nvariant = \"quic\"\n{rest}");
        assert_eq!(toml::to_string(&bound(&text).unwrap()).unwrap(), text);
    }
}

#[test]
fn a_bound_tells_what_it_compares_with() {
    let bases = |times: &str| {
        let bound = bound(&format!("metric = 'rate'\nat_least = 1\n{times}")).unwrap();
        let bases = bound.bases().into_iter();
        bases
            .map(|(variant, profile)| [variant, profile].map(|name| name.map(str::to_owned)))
            .collect::<Vec<_>>()
    };
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(bases(""), Vec::<[Option<String>; 2]>::new());
    assert_eq!(bases("times = 'tcp'"), [[name("tcp"), None]]);
    assert_eq!(bases("times = { profile = 'lan' }"), [[None, name("lan")]]);
    assert_eq!(bases("times = { variant = 'tcp', profile = 'lan' }"), [[name("tcp"), name("lan")]]);
    assert_eq!(bases("times = { best_of = ['a', 'b'] }"), [[name("a"), None], [name("b"), None]]);
}

/// `tcp` with 10 and 2, `quic` with 52 and 40, `auto` with 50 and 44.
fn with_policy() -> Report {
    let mut report = with_loss();
    report.variants.push(braid_lab::report::Variant { name: "auto".into(), title: "auto".into() });
    report.runs.push(run("auto", "lan", 1, "rate", 50.0));
    report.runs.push(run("auto", "loss-5", 1, "rate", 44.0));
    report
}

#[test]
fn the_better_of_several_variants_depends_on_the_side_of_the_limit() {
    let report = with_policy();
    let words = |limit: &str| {
        checked(
            &format!("metric = 'rate'\nvariant = 'auto'\n{limit}\ntimes = {{ best_of = ['tcp', 'quic'] }}"),
            &report,
        )
    };
    let expected = [
        (false, "auto on lan: rate 50 (bound: at least 52, 1 times quic)".to_owned()),
        (true, "auto on loss-5: rate 44 (bound: at least 40, 1 times quic)".to_owned()),
    ];
    assert_eq!(words("at_least = 1"), expected);
    let expected = [
        (true, "auto on lan: rate 50 (bound: at most 50, 5 times tcp)".to_owned()),
        (false, "auto on loss-5: rate 44 (bound: at most 10, 5 times tcp)".to_owned()),
    ];
    assert_eq!(words("at_most = 5"), expected);
}

#[test]
fn a_mean_is_that_of_the_ratios_on_each_profile() {
    let mut report = with_policy();
    let words = |report: &Report, limit: &str| {
        let text = "metric = 'rate'\nvariant = 'auto'\nmean_of = ['lan', 'loss-5']\ntimes = { best_of = ['tcp', 'quic'] }";
        checked(&format!("{limit}\n{text}"), report)
    };
    let mean = f64::midpoint(50.0 / 52.0, 44.0 / 40.0);
    assert!((1.03..1.04).contains(&mean));
    let (held, text) = words(&report, "at_least = 1.03").remove(0);
    let expected =
        "auto, mean of rate over lan, loss-5: 1.031 times the better of tcp and quic (bound: at least 1.03)";
    assert_eq!((held, text.as_str()), (true, expected));
    assert!(!words(&report, "at_least = 1.04")[0].0);
    report.runs.pop();
    let (held, text) = words(&report, "at_least = 0").remove(0);
    assert!(!held && text.contains("loss-5: unknown times"), "{text}");
}
