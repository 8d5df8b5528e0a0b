//! Validation of the names and values of a scenario.

use std::collections::{BTreeMap, BTreeSet};

use super::value::Source;
use super::{Placeholders, Program, Scenario};

/// Placeholders of every program, besides ends and settings.
const OWN: [&str; 6] = ["dir", "json", "gate_log", "duration", "seconds", "seed"];

/// Names of a scenario by kind, each kind without duplicates.
struct Names<'a>(BTreeMap<&'static str, BTreeSet<&'a str>>);

impl<'a> Names<'a> {
    fn of(scenario: &'a Scenario) -> Result<Self, String> {
        let Scenario { ends, links, profiles, variants, programs, metrics, windows, .. } = scenario;
        let kinds: [(&str, Vec<&String>); 7] = [
            ("end", ends.iter().collect()),
            ("link", links.iter().map(|link| &link.name).collect()),
            ("profile", profiles.iter().map(|profile| &profile.name).collect()),
            ("variant", variants.iter().map(|variant| &variant.name).collect()),
            ("program", programs.iter().map(|program| &program.name).collect()),
            ("metric", metrics.iter().map(|metric| &metric.name).collect()),
            ("window", windows.iter().map(|window| &window.name).collect()),
        ];
        let kinds = kinds.into_iter().map(|(kind, names)| Ok((kind, unique(kind, names)?)));
        kinds.collect::<Result<_, _>>().map(Self)
    }

    /// Checks that all `names` of a kind exist.
    fn check<N: AsRef<str>>(&self, kind: &str, names: impl IntoIterator<Item = N>) -> Result<(), String> {
        let there = &self.0[kind];
        match names.into_iter().find(|name| !there.contains(name.as_ref())) {
            None => Ok(()),
            Some(unknown) => {
                let there: Vec<&str> = there.iter().copied().collect();
                Err(format!("there is no {kind} {:?}; there are {}", unknown.as_ref(), there.join(", ")))
            }
        }
    }
}

/// Checks a scenario; the error names the first problem.
pub(super) fn check(scenario: &Scenario) -> Result<(), String> {
    let names = Names::of(scenario)?;
    let Scenario { links, profiles, programs, variants, seeds, .. } = scenario;
    unique("seed", &seeds.iter().map(u64::to_string).collect::<Vec<_>>())?;
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
        names.check("end", [left, right])?;
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
        names.check("link", profile.links.keys().chain(profile.rules.keys()))?;
    }
    variants.iter().try_for_each(|variant| names.check("profile", &variant.profiles))?;
    programs.iter().try_for_each(|program| check_program(scenario, program, &names))?;
    check_sources(scenario, &names)?;
    for (profile, of_variants) in &scenario.published {
        names.check("profile", [profile])?;
        names.check("variant", of_variants.keys())?;
        names.check("metric", of_variants.values().flat_map(BTreeMap::keys))?;
    }
    for reference in &scenario.references {
        names.check("profile", &reference.profiles)?;
        names.check("metric", reference.values.keys())?;
    }
    for bound in scenario.bounds.iter().chain(&scenario.long_bounds) {
        let bases = bound.bases();
        names.check("metric", [&bound.metric])?;
        let variants = bases.iter().filter_map(|(variant, _)| *variant);
        names.check("variant", bound.variant.as_deref().into_iter().chain(variants))?;
        names.check("profile", bound.profiles().chain(bases.iter().filter_map(|(_, profile)| *profile)))?;
    }
    Ok(())
}

fn check_program(scenario: &Scenario, program: &Program, names: &Names<'_>) -> Result<(), String> {
    let name = &program.name;
    names.check("end", [&program.at])?;
    names.check("variant", &program.only)?;
    for variant in scenario.variants.iter().filter(|variant| program.runs_in(&variant.name)) {
        let mut placeholders = Placeholders::default();
        let near = names.0["end"].iter().copied().filter(|end| scenario.meet(end, &program.at));
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
    for value in scenario.values() {
        match value.source() {
            Source::Program(program) => names.check("program", [program])?,
            Source::Link(link) => names.check("link", [link])?,
            // The value is absent on a profile that does not set it.
            Source::Set(_) => {}
        }
        names.check("window", value.window())?;
    }
    let curves = scenario.curves.iter().map(|curve| &curve.of.program);
    names.check("program", curves.chain(scenario.series.iter().map(|series| &series.of.program)))
}

fn unique<'a>(what: &str, names: impl IntoIterator<Item = &'a String>) -> Result<BTreeSet<&'a str>, String> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name.as_str()) {
            return Err(format!("{what} {name:?} is there twice or has no name"));
        }
    }
    Ok(seen)
}
