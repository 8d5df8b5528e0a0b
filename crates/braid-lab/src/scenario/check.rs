//! Validation of the names and values of a scenario.

use std::collections::{BTreeMap, BTreeSet};

use super::value::Source;
use super::{Placeholders, Program, Scenario};

/// Placeholders of every program, besides ends and settings.
const OWN: [&str; 6] = ["dir", "json", "gate_log", "duration", "seconds", "seed"];

/// Names of a scenario by kind, each kind without duplicates.
struct Names<'a> {
    ends: BTreeSet<&'a str>,
    links: BTreeSet<&'a str>,
    profiles: BTreeSet<&'a str>,
    variants: BTreeSet<&'a str>,
    programs: BTreeSet<&'a str>,
    metrics: BTreeSet<&'a str>,
    windows: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(scenario: &'a Scenario) -> Result<Self, String> {
        Ok(Self {
            ends: unique("end", scenario.ends.iter())?,
            links: unique("link", scenario.links.iter().map(|link| &link.name))?,
            profiles: unique("profile", scenario.profiles.iter().map(|profile| &profile.name))?,
            variants: unique("variant", scenario.variants.iter().map(|variant| &variant.name))?,
            programs: unique("program", scenario.programs.iter().map(|program| &program.name))?,
            metrics: unique("metric", scenario.metrics.iter().map(|metric| &metric.name))?,
            windows: unique("window", scenario.windows.iter().map(|window| &window.name))?,
        })
    }
}

/// Checks a scenario; the error names the first problem.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    let names = Names::of(scenario)?;
    let Scenario { links, profiles, programs, variants, seeds, .. } = scenario;
    unique("seed", seeds.iter().map(u64::to_string).collect::<Vec<_>>().iter())?;
    for (what, is_empty) in [
        ("seeds", seeds.is_empty()),
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
        known("end", &names.ends, [left, right])?;
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
        known("link", &names.links, profile.links.keys().chain(profile.rules.keys()))?;
    }
    variants.iter().try_for_each(|variant| known("profile", &names.profiles, &variant.profiles))?;
    programs.iter().try_for_each(|program| check_program(scenario, program, &names))?;
    check_sources(scenario, &names)?;
    for (profile, of_variants) in &scenario.published {
        known("profile", &names.profiles, [profile])?;
        known("variant", &names.variants, of_variants.keys())?;
        known("metric", &names.metrics, of_variants.values().flat_map(BTreeMap::keys))?;
    }
    for reference in &scenario.references {
        known("profile", &names.profiles, &reference.profiles)?;
        known("metric", &names.metrics, reference.values.keys())?;
    }
    for bound in scenario.bounds.iter().chain(&scenario.long_bounds) {
        let (variant, profile) = bound.base().unwrap_or_default();
        known("metric", &names.metrics, [&bound.metric])?;
        known("variant", &names.variants, bound.variant.as_deref().into_iter().chain(variant))?;
        known("profile", &names.profiles, bound.profile.as_deref().into_iter().chain(profile))?;
    }
    Ok(())
}

fn check_program(scenario: &Scenario, program: &Program, names: &Names<'_>) -> Result<(), String> {
    let name = &program.name;
    known("end", &names.ends, [&program.at])?;
    known("variant", &names.variants, &program.only)?;
    for variant in scenario.variants.iter().filter(|variant| program.runs_in(&variant.name)) {
        let mut placeholders = Placeholders::default();
        let near = names.ends.iter().copied().filter(|end| scenario.meet(end, &program.at));
        OWN.into_iter().chain(near).for_each(|name| placeholders.set(name, "1"));
        // Only settings that all profiles have may be used.
        let settings = scenario.profiles.iter().map(|profile| profile.set.keys().collect::<BTreeSet<_>>());
        let common = settings.reduce(|all, one| &all & &one).unwrap_or_default();
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
            return Err(format!("program {name:?}: a quote is not closed, or there is no command: {line}"));
        }
    }
    Ok(())
}

fn check_sources(scenario: &Scenario, names: &Names<'_>) -> Result<(), String> {
    if let Some(empty) = scenario.windows.iter().find(|window| window.until <= window.from) {
        return Err(format!("window {:?} ends before it begins", empty.name));
    }
    let of_metrics = scenario.metrics.iter().flat_map(|metric| [Some(&metric.value), metric.per.as_ref()]);
    let of_curves = scenario.curves.iter().map(|curve| curve.per.as_ref());
    for value in of_metrics.chain(of_curves).flatten() {
        match value.source() {
            Source::Program(program) => known("program", &names.programs, [program])?,
            Source::Link(link) => known("link", &names.links, [link])?,
            // The value is absent on a profile that does not set it.
            Source::Set(_) => {}
        }
        known("window", &names.windows, value.window())?;
    }
    let curves = scenario.curves.iter().map(|curve| &curve.of.program);
    known("program", &names.programs, curves.chain(scenario.series.iter().map(|series| &series.of.program)))
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> Result<BTreeSet<&'a str>, String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name.as_str()) {
            return Err(format!("{what} {name:?} is there twice or has no name"));
        }
    }
    Ok(seen)
}

fn known<N: AsRef<str>>(
    what: &str,
    there: &BTreeSet<&str>,
    names: impl IntoIterator<Item = N>,
) -> Result<(), String> {
    let unknown = names.into_iter().find(|name| !there.contains(name.as_ref()));
    unknown.map_or(Ok(()), |name| {
        let there: Vec<&str> = there.iter().copied().collect();
        Err(format!("there is no {what} {:?}; there are {}", name.as_ref(), there.join(", ")))
    })
}
