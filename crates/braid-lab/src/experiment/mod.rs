//! Runs a scenario: every variant on every profile with every seed, and makes a report of what was found.
//!
//! Needs the namespaces of [`crate::house`] entered. Runs follow each other; variants take turns, so that a machine
//! whose load changes does so to all of them.

mod changes;
mod error;
mod execute;
#[cfg(test)]
mod fixture;
mod gates;
mod job;
mod links;
mod machine;
mod measure;
mod ready;
mod sample;
mod window;
mod written;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::house::WireChoice;
use crate::report::{self, Report, Run, SelftestResult};
use crate::scenario::{Metric, Profile, Program, Scenario, Span, Variant};
use job::{Job, Queue, jobs};

pub use error::ExperimentError;
pub use machine::machine;
pub use ready::{NotReady, PATIENCE, wait_until_ready};

/// Selection of runs of a scenario, with their parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario.
    pub scenario: Scenario,
    /// Program for `braidmq` in its command lines.
    pub program: PathBuf,
    /// Each run gets a directory in this one.
    pub directory: PathBuf,
    /// The short form of the scenario.
    pub quick: bool,
    /// Only these variants; empty: all.
    pub variants: Vec<String>,
    /// Only these profiles; empty: all that this machine can have.
    pub profiles: Vec<String>,
    /// Instead of the scenario's.
    pub seeds: Option<Vec<u64>>,
    /// Instead of the scenario's.
    pub repetitions: Option<u64>,
    /// Instead of the scenario's.
    pub duration: Option<Span>,
    /// Command lines in place of those of some programs, by name.
    pub replaced: BTreeMap<String, String>,
    /// Devices of the links.
    pub wire: WireChoice,
    /// Limit of the p99 lateness of an emulated link's packets, above which a run is invalid, in place of
    /// [`lateness_bound`](crate::selftest::lateness_bound).
    pub lateness: Option<Span>,
    /// A run that is refused only because the machine was too busy is done again so often. The refused ones stay in
    /// the report.
    pub again: u64,
    /// Whether every packet's fate is written down.
    pub logs: bool,
    /// An earlier part of this experiment, which this goes on with: what its runs have found is not looked for again.
    pub earlier: Option<Report>,
    /// Goes into the report.
    pub stamp: Stamp,
}

/// What a report says of its making.
#[derive(Clone, Debug, Default)]
pub struct Stamp {
    /// The command line.
    pub command: String,
    /// The time, RFC 3339.
    pub started: String,
    /// The version of braidmq.
    pub version: String,
    /// `root` or `user namespace`.
    pub privileges: String,
    /// What the selftest said.
    pub selftest: Option<SelftestResult>,
}

/// Ends an experiment from another thread: what runs is stopped, what is done stays.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// No run goes on after this.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is told while an experiment runs.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// A run begins.
    Begins {
        /// Its place among `all`, from 1.
        number: usize,
        /// How many there are.
        all: usize,
        /// [`Variant::name`].
        variant: &'a str,
        /// [`Profile::name`].
        profile: &'a str,
        /// Its seed.
        seed: u64,
        /// [`Run::attempt`].
        attempt: u64,
        /// How long its workload lasts.
        lasts: Duration,
    },
    /// It goes on.
    Goes {
        /// Since its workload began.
        since: Duration,
        /// The last line of the program that leads, or of any.
        line: Option<&'a str>,
    },
    /// It is over.
    Ended(&'a Run),
    /// The report with all runs until now.
    SoFar(&'a Report),
    /// A part of the scenario is left out, and why.
    LeftOut(&'a str),
}

/// Runs what `plan` says and tells `watch` about it.
///
/// A run that goes wrong (a program dies, the emulator is late) is in the report as refused, and the others go on. One
/// that only a busy machine spoilt is done again first: see [`Plan::again`].
///
/// # Errors
/// Nothing could be run: a name that the scenario does not have, no namespaces, no wire, a directory that cannot be
/// written.
pub fn run(plan: &Plan, stop: &Stop, watch: &mut dyn FnMut(Progress<'_>)) -> Result<Report, ExperimentError> {
    let jobs = jobs(plan, watch)?;
    let mut report = blank(plan, &jobs);
    let mut queue = Queue::new(&jobs, plan.again, &report.runs);
    if plan.earlier.is_some() {
        report.checks = report::check(&plan.bounds(&report), &report);
        watch(Progress::SoFar(&report));
    }
    while let Some((number, job)) = queue.next().filter(|_| !stop.is_asked()) {
        watch(Progress::Begins {
            number,
            all: jobs.len(),
            variant: &job.variant.name,
            profile: &job.profile.name,
            seed: job.seed,
            attempt: job.attempt,
            lasts: plan.lasts(),
        });
        let run = match execute::execute(plan, job, stop, watch) {
            Ok(executed) => {
                report.machine.wire = executed.wire;
                report.machine.offloads.extend(executed.offloads);
                report.machine.offloads.sort();
                report.machine.offloads.dedup();
                if executed.is_spoilt {
                    queue.put_back(number, job);
                }
                executed.run
            }
            // Those who are done must not be lost with it.
            Err(error) if !report.runs.is_empty() => job.refused(&error),
            Err(error) => return Err(error),
        };
        if stop.is_asked() {
            break;
        }
        watch(Progress::Ended(&run));
        report.runs.push(run);
        report.checks = report::check(&plan.bounds(&report), &report);
        watch(Progress::SoFar(&report));
    }
    Ok(report)
}

impl Plan {
    /// Whether there is anything to run, and every name is one of the scenario.
    ///
    /// # Errors
    /// As [`run`], without having begun.
    pub fn check(&self) -> Result<(), ExperimentError> {
        jobs(self, &mut |_| {})?;
        if let Some(earlier) = &self.earlier {
            self.goes_on_with(earlier)?;
        }
        let mut scenario = self.scenario.clone();
        for program in &mut scenario.programs {
            program.run = self.line_of(program).to_owned();
        }
        scenario.check().map_err(ExperimentError::Replaced)
    }

    /// Whether a bound of the scenario is about what this plan runs.
    ///
    /// # Errors
    /// As [`Plan::check`].
    pub fn has_bounds(&self) -> Result<bool, ExperimentError> {
        let jobs = jobs(self, &mut |_| {})?;
        Ok(!self.bounds(&blank(self, &jobs)).is_empty())
    }

    /// Whether the runs of a report can stand beside those of this plan.
    fn goes_on_with(&self, earlier: &Report) -> Result<(), ExperimentError> {
        let machine = machine();
        let differs = [
            ("scenario", earlier.scenario != self.scenario.name),
            ("duration", earlier.duration.to_bits() != self.lasts().as_secs_f64().to_bits()),
            ("form (--quick)", earlier.quick != self.quick),
            ("program (--replace)", earlier.replaced != self.replaced),
            ("kernel", earlier.machine.kernel != machine.kernel),
            ("processor", earlier.machine.processor != machine.processor),
        ];
        match differs.into_iter().find(|(_, differs)| *differs) {
            Some((what, _)) => Err(ExperimentError::Another(what)),
            None => Ok(()),
        }
    }

    /// The command line of a program, its placeholders not filled.
    fn line_of<'a>(&'a self, program: &'a Program) -> &'a str {
        self.replaced.get(&program.name).unwrap_or(&program.run)
    }

    /// How long the workload of one run lasts.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let Scenario { duration, quick, .. } = self.scenario;
        self.duration.unwrap_or(if self.quick { quick } else { duration }).0
    }

    fn seeds(&self) -> Vec<u64> {
        let scenario = &self.scenario;
        let quick = || match &scenario.quick_seeds[..] {
            [] => scenario.seeds.iter().take(1).copied().collect(),
            seeds => seeds.to_vec(),
        };
        self.seeds.clone().unwrap_or_else(|| if self.quick { quick() } else { scenario.seeds.clone() })
    }

    /// What others published, if this is what they did.
    fn published(&self) -> report::Published {
        let is_theirs = self.lasts() == self.scenario.duration.0 && self.replaced.is_empty();
        if is_theirs { self.scenario.published.clone() } else { report::Published::new() }
    }

    /// The bounds of variants and profiles that ran.
    fn bounds(&self, report: &Report) -> Vec<report::Bound> {
        let is_variant = |name: Option<&str>| {
            name.is_none_or(|name| report.variants.iter().any(|variant| variant.name == name))
        };
        let is_profile = |name: Option<&str>| {
            name.is_none_or(|name| report.profiles.iter().any(|profile| profile.name == name))
        };
        let ran = |bound: &report::Bound| {
            let (variant, profile) = bound.base().unwrap_or_default();
            is_variant(bound.variant.as_deref())
                && is_profile(bound.profile.as_deref())
                && is_variant(variant)
                && is_profile(profile)
        };
        let long = if self.quick { &[][..] } else { &self.scenario.long_bounds };
        self.scenario.bounds.iter().chain(long).filter(|bound| ran(bound)).cloned().collect()
    }
}

/// The report before the first run.
fn blank(plan: &Plan, jobs: &[Job<'_>]) -> Report {
    let Scenario { name, title, about, metrics, .. } = &plan.scenario;
    let mut machine = machine();
    machine.privileges.clone_from(&plan.stamp.privileges);
    let earlier = plan.earlier.as_ref();
    let runs = earlier.map(|report| report.runs.clone()).unwrap_or_default();
    let has_variant = |name: &str| {
        jobs.iter().any(|job| job.variant.name == name) || runs.iter().any(|run| run.variant == name)
    };
    let has_profile = |name: &str| {
        jobs.iter().any(|job| job.profile.name == name) || runs.iter().any(|run| run.profile == name)
    };
    let blank = Report {
        schema: report::SCHEMA.into(),
        scenario: name.clone(),
        title: title.clone(),
        about: about.clone(),
        command: plan.stamp.command.clone(),
        started: plan.stamp.started.clone(),
        version: plan.stamp.version.clone(),
        duration: plan.lasts().as_secs_f64(),
        quick: plan.quick,
        replaced: plan.replaced.clone(),
        machine,
        selftest: plan.stamp.selftest.clone(),
        columns: metrics.iter().filter_map(Metric::column).collect(),
        variants: (plan.scenario.variants.iter())
            .filter(|variant| has_variant(&variant.name))
            .map(Variant::described)
            .collect(),
        profiles: (plan.scenario.profiles.iter())
            .filter(|profile| has_profile(&profile.name))
            .map(Profile::described)
            .collect(),
        published: plan.published(),
        references: plan.scenario.references.clone(),
        resumed: Vec::new(),
        runs,
        checks: Vec::new(),
    };
    let Some(earlier) = earlier else { return blank };
    let mut resumed = earlier.resumed.clone();
    resumed.push(blank.started.clone());
    Report {
        command: earlier.command.clone(),
        started: earlier.started.clone(),
        machine: earlier.machine.clone(),
        selftest: earlier.selftest.clone().or(blank.selftest),
        resumed,
        ..blank
    }
}
