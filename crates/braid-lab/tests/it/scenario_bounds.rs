//! Bounds of the built-in scenarios: a laboratory that measures nothing must not pass.

use std::collections::BTreeMap;

use braid_lab::report::{Bound, Check, Profile, Report, Run, Variant, check};
use braid_lab::scenario::{Scenario, builtin};

use crate::report_fixture::empty;

/// A usable run of every variant on each of its profiles, with `metrics`.
fn report(scenario: &Scenario, metrics: &BTreeMap<String, f64>) -> Report {
    let mut report = empty();
    for variant in &scenario.variants {
        report.variants.push(Variant { name: variant.name.clone(), title: variant.title.clone() });
        let is_on =
            |profile: &str| variant.profiles.is_empty() || variant.profiles.iter().any(|on| on == profile);
        for profile in scenario.profiles.iter().filter(|profile| is_on(&profile.name)) {
            report.runs.push(Run {
                variant: variant.name.clone(),
                profile: profile.name.clone(),
                metrics: metrics.clone(),
                ..Run::default()
            });
        }
    }
    for profile in &scenario.profiles {
        let (name, title) = (profile.name.clone(), profile.title.clone());
        report.profiles.push(Profile { name, title, links: BTreeMap::new() });
    }
    report
}

/// Fails unless some of the bounds do not hold, and no lower one does.
fn assert_fails(scenario: &Scenario, metrics: &BTreeMap<String, f64>, what: &str) {
    let report = report(scenario, metrics);
    let checks = |bounds: &[Bound]| -> Vec<Check> { check(bounds, &report) };
    let all = checks(&scenario.bounds);
    assert!(all.iter().any(|check| !check.holds), "{} with {what}: {all:?}", scenario.name);
    let lower = scenario.bounds.iter().chain(&scenario.long_bounds).filter(|bound| bound.at_least.is_some());
    for bound in lower {
        for check in checks(std::slice::from_ref(bound)) {
            assert!(!check.holds, "{} with {what}: {}", scenario.name, check.bound);
        }
    }
}

#[test]
fn no_scenario_passes_with_zeros_or_without_numbers() {
    for one in builtin() {
        let scenario = Scenario::parse(one.file, one.text).unwrap();
        let zeros = scenario.metrics.iter().map(|metric| (metric.name.clone(), 0.0)).collect();
        assert_fails(&scenario, &zeros, "zeros");
        assert_fails(&scenario, &BTreeMap::new(), "nothing");
    }
}

#[test]
fn without_numbers_no_limit_holds() {
    for one in builtin() {
        let scenario = Scenario::parse(one.file, one.text).unwrap();
        let report = report(&scenario, &BTreeMap::new());
        for bound in scenario.bounds.iter().chain(&scenario.long_bounds).filter(|bound| !bound.absent) {
            let checks = check(std::slice::from_ref(bound), &report);
            assert!(
                !checks.is_empty() && checks.iter().all(|check| !check.holds),
                "{}: {checks:?}",
                one.name
            );
        }
    }
}
