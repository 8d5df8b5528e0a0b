//! One run: builds the network, starts the programs, waits for the workload, stops everything and reads the results.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_measure::machine::load_averages;
use braid_measure::process::cpu_time;

use super::job::ExperimentError;
use super::links::{self, Changes, RulesByLink, Sample, Samples};
use super::measure::Evidence;
use super::ready::{PATIENCE, wait_until_ready};
use super::{Job, Plan, Progress, Stop, outputs};
use crate::report::{ProgramRun, Run};
use crate::scenario::{self, Placeholders};
use crate::testbed::{Launch, Program, Termination, Topology, own_command};

/// Interval of checks of the run.
const TICK: Duration = Duration::from_millis(100);
/// Time after the workload for a leading program, which may have to connect first.
const OVERTIME: Duration = Duration::from_secs(30);
/// Share of the planned time below which a workload is refused.
const SHORT: f64 = 0.95;
/// Number of last lines of each program in the report.
const TAIL: usize = 12;

/// Finished run, with its emulated links.
pub(super) struct Executed {
    pub(super) run: Run,
    pub(super) wire: String,
    pub(super) offloads: Vec<String>,
    /// Whether a busy machine is the only reason to refuse it.
    pub(super) is_busy: bool,
}

pub(super) fn execute(
    plan: &Plan,
    job: Job<'_>,
    stop: &Stop,
    watch: &mut dyn FnMut(Progress<'_>),
) -> Result<Executed, ExperimentError> {
    let Job { variant, profile, seed, repetition, attempt } = job;
    let dir = plan.directory.join(job.directory());
    // The directory must be new: files of an earlier run would be read as those of this one.
    fs::create_dir(&dir).map_err(ExperimentError::file(&dir))?;
    let topology = Topology::build(&plan.scenario.ends, links::plans(plan, job, &dir), plan.wire)?;
    let mut workload = Workload::new(plan, job, &dir, &topology);
    workload.write_files()?;
    let is_ready = workload.start(stop)?;
    let mut samples = Samples::new();
    let [load_before, ..] = load_averages();
    let seconds = if is_ready { workload.perform(stop, &mut samples, watch) } else { Duration::ZERO };
    let Workload { cast, mut refused, origin_unix_us, .. } = workload;
    let (programs, ended_badly) = end(cast, plan.scenario.grace.0);
    let lasts = plan.lasts();
    let is_short = !plan.scenario.counted && seconds < lasts.mul_f64(SHORT);
    if is_ready && refused.is_empty() && ended_badly.is_empty() && is_short {
        let (seconds, lasts) = (seconds.as_secs_f64(), lasts.as_secs_f64());
        refused.push(format!("the workload was over after {seconds:.1} of {lasts} s"));
    }
    refused.extend(ended_badly);
    let names: Vec<&str> = plan.scenario.links.iter().map(|link| link.name.as_str()).collect();
    let mut series = samples.series(&names);
    let (wire, offloads) = (topology.wire_kind().to_owned(), topology.offloads());
    refused.extend(offloads.iter().map(|offload| format!("an offload is on: {offload}")));
    let paths = outputs::gate_paths(plan, &topology);
    let (links, doubts) = links::link_runs(topology, plan, profile);
    let busy = doubts.iter().filter(|doubt| doubt.is_busy).count();
    refused.extend(doubts.into_iter().map(|doubt| doubt.what));
    let summaries = outputs::summaries(plan, &variant.name, &dir, &mut refused);
    let gates = outputs::gates(&dir, &paths, origin_unix_us, &mut refused);
    let evidence = Evidence {
        summaries,
        programs: &programs,
        links: &links,
        origin_unix_us,
        lasts,
        samples: &samples,
        link_names: &names,
        windows: &plan.scenario.windows,
        sets: [&profile.set, &variant.set],
    };
    series.extend(evidence.series(&plan.scenario));
    refused.extend(evidence.incomplete_traces(&plan.scenario));
    let is_busy = busy > 0 && busy == refused.len();
    let run = Run {
        variant: variant.name.clone(),
        profile: profile.name.clone(),
        seed,
        repetition,
        attempt,
        seconds: seconds.as_secs_f64(),
        load: [load_before, load_averages()[0]],
        metrics: evidence.metrics(&plan.scenario),
        cdfs: evidence.cdfs(&plan.scenario),
        gates,
        events: outputs::events(&evidence),
        series,
        refused,
        links,
        programs,
    };
    Ok(Executed { run, wire, offloads, is_busy })
}

/// Running program.
struct Started<'a> {
    part: &'a scenario::Program,
    command: String,
    program: Program,
    /// Number of lines read.
    lines: u64,
    last: String,
}

impl Started<'_> {
    /// Last line that it printed.
    fn last_line(&mut self) -> &str {
        if let Some(line) = self.program.lines(self.lines).pop() {
            self.lines = line.number + 1;
            self.last = line.text;
        }
        &self.last
    }
}

/// Running workload.
struct Workload<'a> {
    plan: &'a Plan,
    job: Job<'a>,
    dir: &'a Path,
    topology: &'a Topology,
    cast: Vec<Started<'a>>,
    refused: Vec<String>,
    /// Start of the workload: time 0 of the report.
    origin: Instant,
    /// Origin in microseconds since the Unix epoch.
    origin_unix_us: u64,
}

impl<'a> Workload<'a> {
    fn new(plan: &'a Plan, job: Job<'a>, dir: &'a Path, topology: &'a Topology) -> Self {
        let (origin, origin_unix_us) = now();
        Self { plan, job, dir, topology, cast: Vec::new(), refused: Vec::new(), origin, origin_unix_us }
    }

    /// Placeholders for a program at an end.
    fn placeholders(&self, at: &str, program: &str) -> Placeholders {
        let mut placeholders = Placeholders::default();
        for end in &self.plan.scenario.ends {
            if let Some(address) = self.topology.address(end, at) {
                placeholders.set(end, address.to_string());
            }
        }
        let lasts = self.plan.lasts();
        // Relative paths, so that the command lines in reports are valid on other machines.
        placeholders.set("dir", ".");
        placeholders.set("json", format!("./{program}.json"));
        placeholders.set("gate_log", format!("./{}", outputs::gate_log(program)));
        placeholders.set("duration", format!("{}ms", lasts.as_millis()));
        placeholders.set("seconds", lasts.as_secs_f64().to_string());
        placeholders.set("seed", self.job.seed.to_string());
        let sets = [&self.job.profile.set, &self.job.variant.set];
        sets.into_iter().flatten().for_each(|(name, value)| placeholders.set(name, value));
        placeholders
    }

    fn write_files(&self) -> Result<(), ExperimentError> {
        let mut placeholders = self.placeholders("", "");
        for end in &self.plan.scenario.ends {
            // Files have no peer: the address is that on the first link of the end.
            if let Some(address) = self.topology.address(end, end) {
                placeholders.set(end, address.to_string());
            }
        }
        for (name, text) in &self.plan.scenario.files {
            let path = self.dir.join(name);
            fs::write(&path, placeholders.fill(text)).map_err(ExperimentError::file(&path))?;
        }
        Ok(())
    }

    /// Starts the programs in order. `false`: a program did not become ready; the reason is in `refused`.
    fn start(&mut self, stop: &Stop) -> Result<bool, ExperimentError> {
        let plan = self.plan;
        for program in plan.scenario.programs.iter().filter(|one| one.runs_in(&self.job.variant.name)) {
            let placeholders = self.placeholders(&program.at, &program.name);
            let command = placeholders.fill(plan.line_of(program));
            let failed = |problem| ExperimentError(format!("{}: {problem}: {command}", program.name));
            let words = shlex::split(&command).ok_or_else(|| failed("a quote is not closed"))?;
            if words.is_empty() {
                return Err(failed("there is no command"));
            }
            let launch = Launch {
                name: program.name.clone(),
                argv: own_command(words.into_iter().map(OsString::from).collect(), &plan.program),
                dir: self.dir.to_owned(),
                log: self.dir.join(format!("{}.log", program.name)),
                env: Vec::new(),
                echo: false,
            };
            let Some(end) = self.topology.end(&program.at) else { return Err(failed("its end is missing")) };
            if program.leads || self.cast.is_empty() {
                (self.origin, self.origin_unix_us) = now();
            }
            let started = match Program::start(end, launch) {
                Ok(started) => started,
                Err(error) => {
                    self.refused.push(error.to_string());
                    return Ok(false);
                }
            };
            let address = self.topology.address(&program.at, &program.at);
            let ready = program.ready.as_ref().map(|ready| {
                wait_until_ready(&started, end, address, ready, PATIENCE, &mut || stop.is_asked())
            });
            self.cast.push(Started {
                part: program,
                command,
                program: started,
                lines: 0,
                last: String::new(),
            });
            match ready.unwrap_or(Ok(true)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    self.refused.push(error.to_string());
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Waits for the end of the workload; returns its duration.
    fn perform(
        &mut self,
        stop: &Stop,
        samples: &mut Samples,
        watch: &mut dyn FnMut(Progress<'_>),
    ) -> Duration {
        let lasts = self.plan.lasts();
        let has_lead = self.cast.iter().any(|actor| actor.part.leads);
        let limit = if has_lead { lasts + OVERTIME } else { lasts };
        let mut changes = Changes::new(self.job.profile);
        loop {
            let since = self.origin.elapsed();
            let next = changes.apply(since, self.topology);
            if samples.is_due(since) {
                let links = self.plan.scenario.links.iter();
                let rules = RulesByLink::read(self.topology, self.plan).unwrap_or_default();
                let links = links.map(|link| rules.counters(self.topology, &link.name)).collect();
                samples.push(Sample { links, processor: self.processor() });
                let lead = self.cast.iter().position(|actor| actor.part.leads);
                let reporter = lead.and_then(|lead| self.cast.get_mut(lead)).map(Started::last_line);
                watch(Progress::Goes { since, line: reporter });
            }
            if stop.is_asked() || self.is_over() {
                return since;
            }
            if since >= limit {
                if has_lead {
                    self.refused
                        .push(format!("the workload was not over {} s after its time", OVERTIME.as_secs()));
                }
                return since;
            }
            let until = next.unwrap_or(limit).min(limit).saturating_sub(since);
            std::thread::sleep(TICK.min(until));
        }
    }

    /// Processor time that each running program has used.
    fn processor(&self) -> BTreeMap<String, Duration> {
        let used = |actor: &Started<'_>| Some((actor.part.name.clone(), cpu_time(actor.program.id()).ok()?));
        self.cast.iter().filter_map(used).collect()
    }

    /// Whether a program has ended. The end of one that does not lead refuses the run.
    fn is_over(&mut self) -> bool {
        let mut is_over = false;
        for actor in &self.cast {
            if let Some(end) = actor.program.try_end() {
                is_over = true;
                if !actor.part.leads {
                    self.refused.push(format!("before the workload was over, {}", actor.program.ended(end)));
                }
            }
        }
        is_over
    }
}

/// Stops the programs in reverse order; also returns reasons to refuse the run.
fn end(cast: Vec<Started<'_>>, grace: Duration) -> (Vec<ProgramRun>, Vec<String>) {
    let mut programs = Vec::new();
    let mut refused = Vec::new();
    for Started { part, command, program, .. } in cast.into_iter().rev() {
        let by_itself = program.try_end().is_some();
        program.interrupt();
        match program.wait(grace) {
            None => refused.push(format!(
                "{} did not end within {} s after SIGINT and was killed",
                part.name,
                grace.as_secs_f64()
            )),
            // An early end of a program that does not lead has been reported already.
            Some(end)
                if (part.leads || !by_itself) && !is_fine(end.termination, by_itself, &part.may_end) =>
            {
                refused.push(program.ended(end).to_string());
            }
            Some(_) => {}
        }
        let mut lines = program.lines(0);
        let tail = lines.split_off(lines.len().saturating_sub(TAIL));
        let end = program.stop(Duration::ZERO);
        programs.push(ProgramRun {
            name: part.name.clone(),
            command,
            end: end.to_string(),
            cpu_seconds: end.cpu.as_secs_f64(),
            peak_memory: end.peak_memory,
            tail: tail.into_iter().map(|line| line.text).collect(),
        });
    }
    programs.reverse();
    (programs, refused)
}

/// Whether an end is expected. `by_itself`: before SIGINT. `codes`: exit codes that the scenario permits.
fn is_fine(termination: Termination, by_itself: bool, codes: &[i32]) -> bool {
    match termination {
        Termination::Exit(code) => codes.contains(&code) || !by_itself && [0, 130, 143].contains(&code),
        Termination::Signal(signal) => !by_itself && [2, 15].contains(&signal),
    }
}

/// Current time of the monotonic clock, and of the wall clock in microseconds.
fn now() -> (Instant, u64) {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (Instant::now(), u64::try_from(unix.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_may_end_a_stopped_program_and_only_an_expected_code_any_other() {
        let none: &[i32] = &[];
        for termination in [
            Termination::Exit(0),
            Termination::Exit(130),
            Termination::Exit(143),
            Termination::Signal(2),
            Termination::Signal(15),
        ] {
            assert!(is_fine(termination, false, none), "{termination:?} after SIGINT");
            assert!(!is_fine(termination, true, none), "{termination:?} by itself");
        }
        for by_itself in [false, true] {
            assert!(is_fine(Termination::Exit(7), by_itself, &[0, 7]));
            assert!(!is_fine(Termination::Exit(1), by_itself, &[0, 7]));
            assert!(!is_fine(Termination::Signal(9), by_itself, &[0, 9]), "a signal is not an exit code");
        }
    }
}
