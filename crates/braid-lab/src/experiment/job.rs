//! Runs of an experiment: their order and repetitions, and the errors that prevent them.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use thiserror::Error;

use super::{Plan, Progress, ready};
use crate::report::Run;
use crate::scenario::{Profile, Scenario, Variant};
use crate::testbed::TestbedError;

/// Run to be done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) variant: &'a Variant,
    pub(super) profile: &'a Profile,
    pub(super) seed: u64,
    pub(super) repetition: u64,
    /// As in [`Run::attempt`].
    pub(super) attempt: u64,
}

impl Job<'_> {
    /// Job with the first attempt that has no directory in `parent`: an interrupted run leaves one behind, and no run
    /// in the report.
    pub(super) fn unstarted_in(mut self, parent: &Path) -> Self {
        while parent.join(self.directory()).exists() {
            self.attempt += 1;
        }
        self
    }

    /// Name of its directory.
    pub(super) fn directory(&self) -> String {
        let Self { variant, profile, seed, repetition, attempt } = self;
        let again = if *attempt > 0 { format!("-again{attempt}") } else { String::new() };
        format!("{}-{}-{seed}-{repetition}{again}", variant.name, profile.name)
    }

    /// Whether `run` is a result of this job.
    pub(super) fn is_of(&self, run: &Run) -> bool {
        let Self { variant, profile, seed, repetition, .. } = self;
        (&variant.name, &profile.name, *seed, *repetition)
            == (&run.variant, &run.profile, run.seed, run.repetition)
    }

    /// Refused run for a job that failed with `error`.
    pub(super) fn refused(&self, error: &ExperimentError) -> Run {
        Run {
            variant: self.variant.name.clone(),
            profile: self.profile.name.clone(),
            seed: self.seed,
            repetition: self.repetition,
            attempt: self.attempt,
            refused: vec![error.to_string()],
            ..Run::default()
        }
    }
}

/// Queue of jobs.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    /// Jobs with their number among all, from 1.
    jobs: VecDeque<(usize, Job<'a>)>,
    /// Limit of repetitions of a run that a busy machine invalidated.
    again: u64,
}

impl<'a> Queue<'a> {
    /// Queue without the jobs that have a valid run in `kept`, the runs of an earlier part of the experiment.
    pub(super) fn new(jobs: &[Job<'a>], again: u64, kept: &[Run]) -> Self {
        let left = (1..).zip(jobs.iter().copied()).filter_map(|(number, job)| {
            let before = || kept.iter().filter(|run| job.is_of(run));
            let attempt = before().map(|run| run.attempt + 1).max().unwrap_or(job.attempt);
            let is_done = before().any(|run| run.refused.is_empty());
            (!is_done).then_some((number, Job { attempt, ..job }))
        });
        Self { jobs: left.collect(), again }
    }

    /// Next job and its number.
    pub(super) fn next(&mut self) -> Option<(usize, Job<'a>)> {
        self.jobs.pop_front()
    }

    /// Repeats a job that a busy machine invalidated: at once, so that it stays close in time to its comparison.
    pub(super) fn put_back(&mut self, number: usize, job: Job<'a>) {
        if job.attempt < self.again {
            self.jobs.push_front((number, Job { attempt: job.attempt + 1, ..job }));
        }
    }
}

/// All jobs of a plan in order.
pub(super) fn jobs<'a>(
    plan: &'a Plan,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Job<'a>>, ExperimentError> {
    let Scenario { variants, profiles, .. } = &plan.scenario;
    known("variant", &plan.variants, variants.iter().map(|variant| variant.name.as_str()))?;
    known("profile", &plan.profiles, profiles.iter().map(|profile| profile.name.as_str()))?;
    let programs = plan.scenario.programs.iter().map(|program| program.name.as_str());
    known("program", &plan.replaced.keys().cloned().collect::<Vec<_>>(), programs)?;
    let seeds = plan.seeds();
    if let Some(twice) = seeds.iter().find(|seed| seeds.iter().filter(|other| other == seed).count() > 1) {
        return Err(ExperimentError(format!("--seeds: {twice} is there twice: a run is known by its seed")));
    }
    let is_wanted = |names: &[String], name: &str, is_left_out: bool| match names {
        [] => !is_left_out,
        names => names.iter().any(|wanted| wanted == name),
    };
    let mut usable = Vec::new();
    let is_left_out_unless_named = |one: &Profile| one.control || (plan.quick && one.long_only);
    for profile in
        profiles.iter().filter(|one| is_wanted(&plan.profiles, &one.name, is_left_out_unless_named(one)))
    {
        match ready::missing(profile, ready::has_iptables) {
            Some(missing) if plan.profiles.is_empty() => {
                watch(Progress::LeftOut(&format!("profile {} is left out: {missing}", profile.name)));
            }
            Some(missing) => return Err(ExperimentError(missing)),
            None => usable.push(profile),
        }
    }
    let variants = installed(
        plan,
        variants.iter(),
        |one| is_wanted(&plan.variants, &one.name, plan.quick && one.long_only),
        watch,
    )?;
    let mut jobs = Vec::new();
    for repetition in 1..=plan.repetitions.unwrap_or(plan.scenario.repetitions) {
        for &seed in &seeds {
            for &profile in &usable {
                let fits = |variant: &&&Variant| {
                    variant.profiles.is_empty() || variant.profiles.contains(&profile.name)
                };
                let of = variants.iter().filter(fits);
                jobs.extend(of.map(|&variant| Job { variant, profile, seed, repetition, attempt: 0 }));
            }
        }
    }
    if jobs.is_empty() {
        return Err(ExperimentError("nothing to run: no variant fits the profiles that were chosen".into()));
    }
    Ok(jobs)
}

/// Wanted variants, without those whose programs are not installed.
///
/// # Errors
/// One of those was named.
fn installed<'a>(
    plan: &Plan,
    variants: impl Iterator<Item = &'a Variant>,
    is_wanted: impl Fn(&Variant) -> bool,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<&'a Variant>, ExperimentError> {
    let mut installed = Vec::new();
    for variant in variants.filter(|one| is_wanted(one)) {
        match ready::not_installed(variant) {
            None => installed.push(variant),
            Some(program) => {
                let why = format!("variant {} needs the program {program}: install it", variant.name);
                if !plan.variants.is_empty() {
                    return Err(ExperimentError(why));
                }
                watch(Progress::LeftOut(&format!("{why}; it is left out")));
            }
        }
    }
    Ok(installed)
}

// === Errors ===

/// Error that prevents an experiment: one line that says what to change.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct ExperimentError(pub(super) String);

impl ExperimentError {
    /// A directory or file of a run cannot be written.
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self(format!("{}: {error}", path.display()))
    }
}

impl From<TestbedError> for ExperimentError {
    fn from(error: TestbedError) -> Self {
        Self(error.to_string())
    }
}

/// Checks that all `names` are in the scenario.
fn known<'a>(
    what: &'static str,
    names: &[String],
    there: impl Iterator<Item = &'a str>,
) -> Result<(), ExperimentError> {
    let there: Vec<&str> = there.collect();
    let Some(name) = names.iter().find(|name| !there.contains(&name.as_str())) else { return Ok(()) };
    Err(ExperimentError(format!("the scenario has no {what} {name:?}; it has {}", there.join(", "))))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::Stamp;
    use super::*;
    use crate::testbed::WireChoice;

    /// Two variants on one profile; `ping` writes a summary, `look` does not.
    const SCENARIO: &str = r#"
name = "small"
title = "small"
about = "small"
duration = "2s"
quick = "1s"
ends = ["a", "b"]
[[link]]
name = "wire"
between = ["a", "b"]
[[link]]
name = "clean"
between = ["b", "a"]
[[profile]]
name = "plain"
title = "plain"
links = { wire = "delay=1ms ; t=1s delay=5ms" }
[[program]]
name = "ping"
at = "a"
run = "ping {b} {json}"
[[program]]
name = "look"
at = "b"
run = "look"
[[variant]]
name = "one"
title = "one"
[[variant]]
name = "two"
title = "two"
[[metric]]
name = "lost"
value = "link:wire:up:dropped_share"
"#;

    /// Plan of that scenario in a directory that does not exist.
    pub(in crate::experiment) fn plan() -> Plan {
        Plan {
            scenario: Scenario::parse("small.toml", SCENARIO).expect("a scenario"),
            program: "braidmq".into(),
            directory: "nowhere".into(),
            quick: false,
            variants: Vec::new(),
            profiles: Vec::new(),
            seeds: None,
            repetitions: None,
            duration: None,
            replaced: BTreeMap::new(),
            wire: WireChoice::Auto,
            lateness: None,
            again: 0,
            logs: false,
            earlier: None,
            stamp: Stamp::default(),
        }
    }

    /// Directories of the runs of a plan.
    fn order(plan: &Plan) -> Vec<String> {
        jobs(plan, &mut |_| {}).expect("something to run").iter().map(Job::directory).collect()
    }

    #[test]
    fn variants_take_turns_on_each_profile_with_each_seed() {
        let mut plan = plan();
        plan.seeds = Some(vec![3, 4]);
        plan.repetitions = Some(2);
        let runs = ["one-plain-3-1", "two-plain-3-1", "one-plain-4-1", "two-plain-4-1"];
        let again = runs.map(|run| run.replace("-1", "-2"));
        assert_eq!(order(&plan), [runs.map(String::from), again].concat());
        plan.variants = vec!["two".into()];
        assert_eq!(order(&plan).len(), 4);
    }

    #[test]
    fn long_only_variants_run_in_the_short_form_only_if_named() {
        let mut plan = plan();
        plan.scenario.variants[1].long_only = true;
        assert_eq!(order(&plan), ["one-plain-1-1", "two-plain-1-1"]);
        plan.quick = true;
        assert_eq!(order(&plan), ["one-plain-1-1"]);
        plan.variants = vec!["two".into()];
        assert_eq!(order(&plan), ["two-plain-1-1"]);
        plan.scenario.variants[1].profiles = vec!["another".into()];
        let error = jobs(&plan, &mut |_| {}).map(|jobs| jobs.len()).unwrap_err();
        assert_eq!(error.to_string(), "nothing to run: no variant fits the profiles that were chosen");
    }
    #[test]
    fn a_variant_without_its_programs_is_left_out_and_refused_if_named() {
        let mut plan = plan();
        plan.scenario.variants[0].needs = vec!["no-such-program".into()];
        let mut said = Vec::new();
        let mut watch = |progress: Progress<'_>| {
            if let Progress::LeftOut(why) = progress {
                said.push(why.to_owned());
            }
        };
        let found =
            jobs(&plan, &mut watch).expect("something to run").iter().map(Job::directory).collect::<Vec<_>>();
        assert_eq!(found, ["two-plain-1-1"]);
        assert_eq!(said, ["variant one needs the program no-such-program: install it; it is left out"]);
        plan.variants = vec!["one".into()];
        let error = jobs(&plan, &mut |_| {}).map(|jobs| jobs.len()).unwrap_err();
        assert_eq!(error.to_string(), "variant one needs the program no-such-program: install it");
    }

    #[test]
    fn a_control_runs_only_if_named() {
        let mut plan = plan();
        let control = Profile { name: "control".into(), control: true, ..plan.scenario.profiles[0].clone() };
        plan.scenario.profiles.push(control);
        assert_eq!(order(&plan), ["one-plain-1-1", "two-plain-1-1"]);
        plan.profiles = vec!["control".into()];
        assert_eq!(order(&plan), ["one-control-1-1", "two-control-1-1"]);
    }

    #[test]
    fn a_seed_that_is_there_twice_is_refused() {
        let plan = Plan { seeds: Some(vec![3, 4, 3]), ..plan() };
        let error = jobs(&plan, &mut |_| {}).map(|jobs| jobs.len()).unwrap_err();
        assert_eq!(error.to_string(), "--seeds: 3 is there twice: a run is known by its seed");
    }

    #[test]
    fn an_interrupted_run_leaves_its_directory_to_no_other() {
        let folder = tempfile::tempdir().expect("a directory");
        let plan = plan();
        let job = jobs(&plan, &mut |_| {}).expect("something to run")[0];
        assert_eq!(job.unstarted_in(folder.path()).directory(), "one-plain-1-1");
        for directory in ["one-plain-1-1", "one-plain-1-1-again1"] {
            std::fs::create_dir(folder.path().join(directory)).expect("a directory");
        }
        assert_eq!(job.unstarted_in(folder.path()).directory(), "one-plain-1-1-again2");
    }

    #[test]
    fn an_invalidated_run_is_repeated_at_once_up_to_the_limit() {
        let plan = plan();
        let jobs = jobs(&plan, &mut |_| {}).expect("something to run");
        let order = |again, invalidated: &[&str]| {
            let mut queue = Queue::new(&jobs, again, &[]);
            let mut done = Vec::new();
            while let Some((number, job)) = queue.next() {
                done.push((number, job.directory()));
                if invalidated.contains(&job.variant.name.as_str()) {
                    queue.put_back(number, job);
                }
            }
            done
        };
        let run = |number: usize, name: &str| (number, name.to_owned());
        let (one, two) = (run(1, "one-plain-1-1"), run(2, "two-plain-1-1"));
        assert_eq!(order(0, &["one"]), [one.clone(), two.clone()]);
        assert_eq!(order(2, &[]), [one.clone(), two.clone()]);
        let again = [1, 2].map(|attempt| run(1, &format!("one-plain-1-1-again{attempt}")));
        assert_eq!(order(2, &["one"]), [&[one][..], &again, &[two]].concat());
    }
}
