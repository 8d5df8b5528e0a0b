//! Validation of the names and values of a scenario.

use std::collections::BTreeSet;

use super::value::Source;
use super::{Placeholders, Scenario, Value};

/// Placeholders of every program, besides ends and settings.
const OWN: [&str; 6] = ["dir", "json", "gate_log", "duration", "seconds", "seed"];

/// Checks a scenario; the error names the first problem.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    let Scenario { ends, links, profiles, programs, variants, .. } = scenario;
    let ends = unique("end", ends.iter().map(String::as_str))?;
    let link_names = unique("link", links.iter().map(|link| link.name.as_str()))?;
    let profile_names = unique("profile", profiles.iter().map(|profile| profile.name.as_str()))?;
    let variant_names = unique("variant", variants.iter().map(|variant| variant.name.as_str()))?;
    let program_names = unique("program", programs.iter().map(|program| program.name.as_str()))?;
    unique("metric", scenario.metrics.iter().map(|metric| metric.name.as_str()))?;
    unique("seed", scenario.seeds.iter().map(u64::to_string).collect::<Vec<_>>().iter().map(String::as_str))?;
    for (what, is_empty) in [
        ("seeds", scenario.seeds.is_empty()),
        ("repetitions", scenario.repetitions == 0),
        ("duration", scenario.duration.0.is_zero() || scenario.quick.0.is_zero()),
        ("program", programs.is_empty()),
        ("profile", profiles.is_empty()),
        ("variant", variants.is_empty()),
    ] {
        if is_empty {
            return Err(format!("{what} must not be empty or 0"));
        }
    }
    for link in links {
        let [left, right] = &link.between;
        known("end", left, &ends).and(known("end", right, &ends))?;
        if left == right {
            return Err(format!("link {:?} joins {left:?} with itself", link.name));
        }
    }
    for profile in profiles {
        if profile.offloads && !(profile.links.is_empty() && profile.control) {
            return Err(format!(
                "profile {:?} has offloads on: give it control = true and no links, since an emulated link needs \
                 finished packets",
                profile.name
            ));
        }
        profile
            .links
            .keys()
            .chain(profile.rules.keys())
            .try_for_each(|link| known("link", link, &link_names))?;
    }
    for variant in variants {
        variant.profiles.iter().try_for_each(|profile| known("profile", profile, &profile_names))?;
    }
    check_programs(scenario, &ends, &variant_names)?;
    check_sources(scenario, &program_names, &link_names)?;
    for (profile, of_variants) in &scenario.published {
        known("profile", profile, &profile_names)?;
        of_variants.keys().try_for_each(|variant| known("variant", variant, &variant_names))?;
        let metrics = scenario.metrics.iter().map(|metric| metric.name.as_str()).collect();
        of_variants
            .values()
            .flat_map(|of| of.keys())
            .try_for_each(|metric| known("metric", metric, &metrics))?;
    }
    let metrics = scenario.metrics.iter().map(|metric| metric.name.as_str()).collect();
    for reference in &scenario.references {
        reference.profiles.iter().try_for_each(|profile| known("profile", profile, &profile_names))?;
        reference.values.keys().try_for_each(|metric| known("metric", metric, &metrics))?;
    }
    for bound in scenario.bounds.iter().chain(&scenario.long_bounds) {
        check_bound(scenario, bound)?;
    }
    Ok(())
}

fn check_programs(
    scenario: &Scenario,
    ends: &BTreeSet<&str>,
    variants: &BTreeSet<&str>,
) -> Result<(), String> {
    for program in &scenario.programs {
        let name = &program.name;
        known("end", &program.at, ends)?;
        program.only.iter().try_for_each(|variant| known("variant", variant, variants))?;
        for variant in &scenario.variants {
            if !program.runs_in(&variant.name) {
                continue;
            }
            let mut placeholders = Placeholders::default();
            let near = ends.iter().copied().filter(|end| scenario.meet(end, &program.at));
            OWN.iter().copied().chain(near).for_each(|name| placeholders.set(name, "1"));
            // Only settings that all profiles have may be used.
            let names = scenario.profiles.iter().map(|profile| profile.set.keys().collect::<BTreeSet<_>>());
            let common = names.reduce(|all, one| &all & &one).unwrap_or_default();
            common.into_iter().for_each(|name| placeholders.set(name, "1"));
            variant.set.iter().for_each(|(name, value)| placeholders.set(name, value));
            let line = placeholders.fill(&program.run);
            if let Some(unknown) = Placeholders::unknown(&line) {
                let names: Vec<&str> = placeholders.names().collect();
                return Err(format!(
                    "program {name:?} in variant {:?}: no value for {{{unknown}}}; there are {}",
                    variant.name,
                    names.join(", ")
                ));
            }
            if shlex::split(&line).is_none_or(|words| words.is_empty()) {
                return Err(format!(
                    "program {name:?}: a quote is not closed, or there is no command: {line}"
                ));
            }
        }
    }
    Ok(())
}

fn check_sources(
    scenario: &Scenario,
    programs: &BTreeSet<&str>,
    links: &BTreeSet<&str>,
) -> Result<(), String> {
    let values = scenario.metrics.iter().flat_map(|metric| [Some(&metric.value), metric.per.as_ref()]);
    let windows = unique("window", scenario.windows.iter().map(|window| window.name.as_str()))?;
    if let Some(empty) = scenario.windows.iter().find(|window| window.until <= window.from) {
        return Err(format!("window {:?} ends before it begins", empty.name));
    }
    let of_curves = scenario.curves.iter().map(|curve| curve.per.as_ref());
    for value in values.chain(of_curves).flatten() {
        check_source(value, programs, links)?;
        value.window().map_or(Ok(()), |window| known("window", window, &windows))?;
    }
    let flows =
        scenario.curves.iter().map(|curve| &curve.of).chain(scenario.series.iter().map(|one| &one.of));
    flows.into_iter().try_for_each(|flow| known("program", &flow.program, programs))
}

fn check_source(value: &Value, programs: &BTreeSet<&str>, links: &BTreeSet<&str>) -> Result<(), String> {
    match value.source() {
        Source::Program(program) => known("program", program, programs),
        Source::Link(link) => known("link", link, links),
        // The value is absent on a profile that does not set it.
        Source::Set(_) => Ok(()),
    }
}

fn check_bound(scenario: &Scenario, bound: &crate::report::Bound) -> Result<(), String> {
    let metrics = scenario.metrics.iter().map(|metric| metric.name.as_str()).collect();
    known("metric", &bound.metric, &metrics)?;
    let variants = scenario.variants.iter().map(|variant| variant.name.as_str()).collect();
    let profiles = scenario.profiles.iter().map(|profile| profile.name.as_str()).collect();
    let (base_variant, base_profile) = bound.base().unwrap_or_default();
    let named = [bound.variant.as_deref(), base_variant];
    named.into_iter().flatten().try_for_each(|variant| known("variant", variant, &variants))?;
    let named = [bound.profile.as_deref(), base_profile];
    named.into_iter().flatten().try_for_each(|profile| known("profile", profile, &profiles))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<BTreeSet<&'a str>, String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("{what} {name:?} is there twice or has no name"));
        }
    }
    Ok(seen)
}

fn known(what: &str, name: &str, names: &BTreeSet<&str>) -> Result<(), String> {
    if names.contains(name) {
        return Ok(());
    }
    let names: Vec<&str> = names.iter().copied().collect();
    Err(format!("there is no {what} {name:?}; there are {}", names.join(", ")))
}
