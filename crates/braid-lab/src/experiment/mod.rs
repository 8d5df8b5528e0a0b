//! Execution of a scenario: each variant on each profile with each seed, and a report of the results.
//!
//! The testbed must be entered ([`crate::testbed::enter`]). Runs are sequential and variants alternate, so that changes
//! of the machine's load affect all variants.

mod execute;
mod job;
mod links;
mod machine;
mod measure;
mod outputs;
mod ready;
mod windows;

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::report::{self, Report, Run, SelftestResult};
use crate::scenario::{Metric, Profile, Program, Scenario, Span, Variant, Window};
use crate::testbed::WireChoice;
use job::{Job, Queue, jobs};

pub use job::ExperimentError;
pub use machine::machine;
pub use ready::{PATIENCE, wait_until_ready};

/// Selection of runs of a scenario, with their parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario.
    pub scenario: Scenario,
    /// Program for `braidmq` in its command lines.
    pub program: PathBuf,
    /// Directory in which each run gets its own.
    pub directory: PathBuf,
    /// The short form of the scenario.
    pub quick: bool,
    /// Chosen variants; empty: all.
    pub variants: Vec<String>,
    /// Chosen profiles; empty: all that this machine supports.
    pub profiles: Vec<String>,
    /// Seeds in place of the scenario's.
    pub seeds: Option<Vec<u64>>,
    /// Repetitions in place of the scenario's.
    pub repetitions: Option<u64>,
    /// Duration in place of the scenario's.
    pub duration: Option<Span>,
    /// Command lines in place of those of some programs, by name.
    pub replaced: BTreeMap<String, String>,
    /// Devices of the links.
    pub wire: WireChoice,
    /// Limit of the p99 lateness of an emulated link's packets, above which a run is invalid, in place of
    /// [`lateness_bound`](crate::selftest::lateness_bound).
    pub lateness: Option<Span>,
    /// Limit of repetitions of a run that only a busy machine invalidated. The refused runs stay in the report.
    pub again: u64,
    /// Whether the fate of every packet is logged.
    pub logs: bool,
    /// Earlier part of this experiment to continue; its valid runs are not repeated.
    pub earlier: Option<Report>,
    /// Circumstances, for the report.
    pub stamp: Stamp,
}

/// Circumstances of a report.
#[derive(Clone, Debug, Default)]
pub struct Stamp {
    /// Command line.
    pub command: String,
    /// Start time, RFC 3339.
    pub started: String,
    /// Version of braidmq.
    pub version: String,
    /// `root` or `user namespace`.
    pub privileges: String,
    /// Result of the selftest.
    pub selftest: Option<SelftestResult>,
}

/// Handle to stop an experiment from another thread; finished runs stay in the report.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the current run and starts no other.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Progress of an experiment.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// Start of a run.
    Begins {
        /// Number among `all`, from 1.
        number: usize,
        /// Number of runs.
        all: usize,
        /// [`Variant::name`].
        variant: &'a str,
        /// [`Profile::name`].
        profile: &'a str,
        /// Seed of the links.
        seed: u64,
        /// [`Run::attempt`].
        attempt: u64,
        /// Planned duration of its workload.
        lasts: Duration,
    },
    /// Progress within a run.
    Goes {
        /// Time since its workload began.
        since: Duration,
        /// Last line of the leading program.
        line: Option<&'a str>,
    },
    /// End of a run.
    Ended(&'a Run),
    /// Report with all runs so far.
    SoFar(&'a Report),
    /// Part of the scenario that is omitted, with the reason.
    LeftOut(&'a str),
}

/// Executes a plan and reports progress to `watch`.
///
/// A failed run (a program died, the emulator was late) is in the report as refused, and the others continue. One that
/// only a busy machine invalidated is repeated first, see [`Plan::again`].
///
/// # Errors
/// No run was possible: an unknown name, no namespaces, no wire, a directory that cannot be written.
pub fn run(plan: &Plan, stop: &Stop, watch: &mut dyn FnMut(Progress<'_>)) -> Result<Report, ExperimentError> {
    let jobs = jobs(plan, watch)?;
    let mut report = blank(plan, &jobs);
    let mut queue = Queue::new(&jobs, plan.again, &report.runs);
    if plan.earlier.is_some() {
        report.checks = report::check(&plan.bounds(&report), &report);
        watch(Progress::SoFar(&report));
    }
    while let Some((number, job)) = queue.next().filter(|_| !stop.is_asked()) {
        let job = job.unstarted_in(&plan.directory);
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
                if executed.is_busy {
                    queue.put_back(number, job);
                }
                executed.run
            }
            // Finished runs must not be lost.
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
    /// Checks that there are runs and that every name exists.
    ///
    /// # Errors
    /// See [`run`].
    pub fn check(&self) -> Result<(), ExperimentError> {
        jobs(self, &mut |_| {})?;
        self.check_windows()?;
        if let Some(earlier) = &self.earlier {
            self.continues(earlier)?;
        }
        let mut scenario = self.scenario.clone();
        for program in &mut scenario.programs {
            program.run = self.line_of(program).to_owned();
        }
        scenario.check().map_err(|problem| ExperimentError(format!("--replace: {problem}")))
    }

    /// Checks that the windows of values are over before the workload is.
    fn check_windows(&self) -> Result<(), ExperimentError> {
        let is_used = |name: &str| self.scenario.values().any(|value| value.window() == Some(name));
        let is_late = |window: &&Window| window.until.0 > self.lasts() && is_used(&window.name);
        let Some(late) = self.scenario.windows.iter().find(is_late) else { return Ok(()) };
        let (name, until, lasts) = (&late.name, late.until, Span(self.lasts()));
        Err(ExperimentError(format!(
            "the window {name:?} ends {until} after the start, and the workload lasts {lasts}: give --duration {until} \
             or more"
        )))
    }

    /// Whether a bound of the scenario concerns a run of this plan.
    ///
    /// # Errors
    /// See [`Plan::check`].
    pub fn has_bounds(&self) -> Result<bool, ExperimentError> {
        let jobs = jobs(self, &mut |_| {})?;
        Ok(!self.bounds(&blank(self, &jobs)).is_empty())
    }

    /// Checks that the runs of a report are comparable with those of this plan.
    fn continues(&self, earlier: &Report) -> Result<(), ExperimentError> {
        let machine = machine();
        let differs = [
            ("scenario", earlier.scenario != self.scenario.name),
            ("duration", earlier.duration.to_bits() != self.lasts().as_secs_f64().to_bits()),
            ("form (--quick)", earlier.quick != self.quick),
            ("program (--replace)", earlier.replaced != self.replaced),
            ("kernel", earlier.machine.kernel != machine.kernel),
            ("processor", earlier.machine.processor != machine.processor),
            ("build of braidmq", !earlier.build.is_empty() && earlier.build != build(&self.program)),
        ];
        let what = differs.into_iter().find(|(_, differs)| *differs).map(|(what, _)| what.to_owned());
        let Some(what) = what.or_else(|| self.other_network(earlier)).or_else(|| self.other_input(earlier))
        else {
            return Ok(());
        };
        let remedy = "start a new one with another --out";
        Err(ExperimentError(format!("--resume: the report has another {what}: {remedy}")))
    }

    /// Profile that has other links than in a report.
    fn other_network(&self, earlier: &Report) -> Option<String> {
        let profiles = self.scenario.profiles.iter().map(Profile::described);
        let is_other = |profile: &report::Profile| {
            let before = earlier.profiles.iter().find(|before| before.name == profile.name);
            before.is_some_and(|before| before.links != profile.links)
        };
        let other = profiles.into_iter().find(is_other)?;
        Some(format!("network in the profile {:?}", other.name))
    }

    /// Input that was another one in a report. Variants and profiles may be new.
    fn other_input(&self, earlier: &Report) -> Option<String> {
        let inputs = self.inputs();
        let names = inputs.keys().chain(earlier.inputs.keys());
        let is_other = |name: &&String| match (inputs.get(*name), earlier.inputs.get(*name)) {
            (Some(now), Some(before)) => now != before,
            _ => name.starts_with(PROGRAM) || name.starts_with(FILE),
        };
        // Reports of older versions have none.
        names.filter(|_| !earlier.inputs.is_empty()).find(is_other).cloned()
    }

    /// Command lines and files of the programs and the settings that fill them in, by kind and name.
    fn inputs(&self) -> BTreeMap<String, String> {
        let Scenario { programs, files, variants, profiles, .. } = &self.scenario;
        let settings = |set: &BTreeMap<String, String>| {
            set.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
        };
        let programs =
            programs.iter().map(|one| (format!("{PROGRAM}{}", one.name), self.line_of(one).to_owned()));
        let files = files.iter().map(|(name, text)| (format!("{FILE}{name}"), text.clone()));
        let variants = variants.iter().map(|one| (format!("variant {}", one.name), settings(&one.set)));
        let profiles = profiles.iter().map(|one| (format!("profile {}", one.name), settings(&one.set)));
        programs.chain(files).chain(variants).chain(profiles).collect()
    }

    /// Command line of a program, with placeholders.
    fn line_of<'a>(&'a self, program: &'a Program) -> &'a str {
        self.replaced.get(&program.name).unwrap_or(&program.run)
    }

    /// Duration of the workload of one run.
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

    /// Published figures, if this plan repeats the published experiment.
    fn published(&self) -> report::Published {
        let is_theirs = self.lasts() == self.scenario.duration.0 && self.replaced.is_empty();
        if is_theirs { self.scenario.published.clone() } else { report::Published::new() }
    }

    /// Bounds of the variants and profiles that run.
    fn bounds(&self, report: &Report) -> Vec<report::Bound> {
        let is_variant = |name: Option<&str>| {
            name.is_none_or(|name| report.variants.iter().any(|variant| variant.name == name))
        };
        let is_profile = |name: Option<&str>| {
            name.is_none_or(|name| report.profiles.iter().any(|profile| profile.name == name))
        };
        let ran = |bound: &report::Bound| {
            let bases = bound.bases();
            is_variant(bound.variant.as_deref())
                && bound.profiles().all(|profile| is_profile(Some(profile)))
                && bases.into_iter().all(|(variant, profile)| is_variant(variant) && is_profile(profile))
        };
        let long = if self.quick { &[][..] } else { &self.scenario.long_bounds };
        self.scenario.bounds.iter().chain(long).filter(|bound| ran(bound)).cloned().collect()
    }
}

/// Kinds of inputs, each a part of [`Report::inputs`] that must not change while an experiment is resumed.
const PROGRAM: &str = "program ";
const FILE: &str = "file ";

/// Hash of a program's file, to tell builds apart; empty if it cannot be read.
fn build(program: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    let Ok(mut file) = File::open(program) else { return String::new() };
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return format!("{:016x}", hasher.finish()),
            Ok(count) => hasher.write(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return String::new(),
        }
    }
}

/// Report before the first run.
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
        build: build(&plan.program),
        inputs: plan.inputs(),
        duration: plan.lasts().as_secs_f64(),
        quick: plan.quick,
        replaced: plan.replaced.clone(),
        machine,
        selftest: plan.stamp.selftest.clone(),
        columns: metrics.iter().filter_map(Metric::column).collect(),
        latencies: metrics.iter().filter(|one| one.is_latency()).map(|one| one.name.clone()).collect(),
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
        // Nothing is known of runs of an older program.
        build: earlier.build.clone(),
        inputs: if earlier.inputs.is_empty() { BTreeMap::new() } else { blank.inputs },
        command: earlier.command.clone(),
        started: earlier.started.clone(),
        machine: earlier.machine.clone(),
        selftest: earlier.selftest.clone().or(blank.selftest),
        resumed,
        ..blank
    }
}

#[cfg(test)]
mod tests {
    use super::job::tests::plan;
    use super::*;

    /// Refusal of `plan` to go on with the report of another one.
    fn refusal(plan: &Plan, earlier: &Report) -> String {
        plan.continues(earlier).map_or_else(|error| error.to_string(), |()| "none".to_owned())
    }

    #[test]
    fn another_experiment_is_not_resumed() {
        let before = plan();
        let report = blank(&before, &jobs(&before, &mut |_| {}).expect("something to run"));
        assert_eq!(refusal(&before, &report), "none");
        let refusal_of = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan();
            change(&mut plan);
            refusal(&plan, &report)
        };
        let says = |what: &str| {
            format!("--resume: the report has another {what}: start a new one with another --out")
        };
        let links = |plan: &mut Plan| {
            plan.scenario.profiles[0].links.insert("wire".into(), "delay=7ms".parse().expect("a link"));
        };
        assert_eq!(refusal_of(&links), says("network in the profile \"plain\""));
        assert_eq!(refusal_of(&|plan| plan.scenario.programs[1].run.push('!')), says("program look"));
        let file = |plan: &mut Plan| drop(plan.scenario.files.insert("a.toml".into(), "b".into()));
        assert_eq!(refusal_of(&file), says("file a.toml"));
        let set = |plan: &mut Plan| drop(plan.scenario.variants[1].set.insert("limit".into(), "7".into()));
        assert_eq!(refusal_of(&set), says("variant two"));
        assert_eq!(refusal_of(&|plan| plan.scenario.variants[1].name = "three".into()), "none", "it is new");
    }

    #[test]
    fn metrics_that_are_absent_where_messages_never_arrived_are_latencies() {
        let mut plan = plan();
        let metric = |name: &str, value: &str, per: Option<&str>| Metric {
            name: name.into(),
            value: value.parse().expect("a value"),
            per: per.map(|per| per.parse().expect("a value")),
            ..plan.scenario.metrics[0].clone()
        };
        plan.scenario.metrics = vec![
            metric("p99", "ping:t:p99_ms", Some("look:t:due")),
            metric("in_window", "ping:t:max_ms@late", None),
            metric("connect", "ping::connect_p99_ms", None),
            metric("ratio", "ping:t:max_ms", Some("ping::seconds")),
            metric("lost_at", "ping::first_loss_at", None),
            metric("rate", "ping:t:rate", None),
        ];
        let report = blank(&plan, &jobs(&plan, &mut |_| {}).expect("something to run"));
        assert_eq!(report.latencies, ["p99", "in_window", "connect"]);
    }

    #[test]
    fn windows_end_with_the_workload() {
        let mut plan = plan();
        let window = |until: &str| Window {
            name: "late".into(),
            from: "1s".parse().expect("a time"),
            until: until.parse().expect("a time"),
        };
        plan.scenario.windows = vec![window("2s")];
        plan.scenario.metrics[0].value = "link:wire:up:dropped_share@late".parse().expect("a value");
        assert!(plan.check().is_ok());
        plan.duration = Some("1500ms".parse().expect("a time"));
        let error = plan.check().map_err(|error| error.to_string()).unwrap_err();
        assert!(
            error.starts_with("the window \"late\" ends 2s after the start, and the workload lasts 1500ms"),
            "{error}"
        );
        plan.scenario.metrics[0].value = "link:wire:up:dropped_share".parse().expect("a value");
        assert!(plan.check().is_ok(), "no value asks for it");
    }

    #[test]
    fn another_build_is_not_resumed() {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("braidmq");
        std::fs::write(&program, "one").expect("a file");
        let plan = Plan { program: program.clone(), ..plan() };
        let report = blank(&plan, &jobs(&plan, &mut |_| {}).expect("something to run"));
        assert_eq!((refusal(&plan, &report).as_str(), report.build.len()), ("none", 16));
        std::fs::write(&program, "two").expect("a file");
        assert!(refusal(&plan, &report).contains("another build of braidmq"));
        let older = Report { build: String::new(), inputs: BTreeMap::new(), ..report };
        assert_eq!(refusal(&plan, &older), "none", "older reports do not tell");
    }
}
