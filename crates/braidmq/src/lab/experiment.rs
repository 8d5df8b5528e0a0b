//! `braidmq lab run SCENARIO`.

use std::collections::BTreeMap;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use braid_lab::experiment::{self, Plan, Stamp, Stop};
use braid_lab::report::{self, Report, SelftestResult};
use braid_lab::scenario::{Scenario, builtin};
use jiff::{SpanRound, Timestamp, Unit, Zoned};

use super::options::Args;
use super::progress::Watch;
use super::{BROKEN, Refusal, STOPPED, UNTRUSTED, at_path, list, selftest, signals};

/// Subdirectory of a report for its runs.
const RUNS: &str = "runs";
/// File of the report.
const REPORT: &str = "report.json";

pub(super) fn run(args: &Args, scenario: &str) -> Result<ExitCode, Refusal> {
    // Arguments are checked before the testbed is entered.
    let plan = plan(args, scenario)?;
    if let Err(code) = signals::enter() {
        return Ok(code);
    }
    let ours: Vec<PathBuf> =
        plan.directory.ancestors().take_while(|dir| !dir.exists()).map(PathBuf::from).collect();
    let outcome = run_inside(args, plan);
    if let Some(outermost) = ours.last() {
        remove_empty(outermost);
    }
    outcome
}

fn plan(args: &Args, name: &str) -> Result<Plan, Refusal> {
    let scenario = load(name)?;
    let replaced = args.replace.iter().map(|text| {
        let (program, command) =
            text.split_once('=').ok_or_else(|| format!("--replace {text:?}: write PROGRAM=COMMAND"))?;
        Ok((program.to_owned(), command.to_owned()))
    });
    let replaced = replaced.collect::<Result<BTreeMap<_, _>, Refusal>>()?;
    let out = args.out.clone().unwrap_or_else(|| {
        let now = Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
        Path::new("braidmq-lab").join(format!("{}-{now}", scenario.name))
    });
    // Absolute, since programs have working directories of their own.
    let out = std::path::absolute(&out).map_err(|error| at_path(&out, &error))?;
    let earlier = match args.resume {
        true => Some(report::load(&out.join(REPORT))?),
        false if out.join(RUNS).exists() => {
            let path = out.display();
            let taken = "has the runs of another report: give another --out, or go on with it by --resume";
            return Err(format!("{path} {taken}").into());
        }
        false => None,
    };
    let plan = Plan {
        scenario,
        program: std::env::current_exe().map_err(|error| at_path(Path::new("braidmq"), &error))?,
        directory: out.join(RUNS),
        quick: args.quick,
        variants: args.variant.clone(),
        profiles: args.profile.clone(),
        seeds: args.seeds.clone(),
        repetitions: args.repetitions,
        duration: args.duration,
        replaced,
        wire: args.wire.into(),
        lateness: args.lateness,
        again: args.again,
        logs: args.logs,
        earlier,
        stamp: Stamp::default(),
    };
    plan.check()?;
    if args.check && !plan.has_bounds()? {
        return Err(
            "--check: no bound of the scenario is about what was chosen: leave out --variant and --profile, \
                    or --check"
                .into(),
        );
    }
    Ok(plan)
}

fn load(name: &str) -> Result<Scenario, Refusal> {
    if let Some(one) = builtin().iter().find(|one| one.name == name) {
        return Ok(Scenario::parse(one.file, one.text)?);
    }
    if !name.contains(['/', '.']) {
        return Err(list::unknown(name).into());
    }
    let text = std::fs::read_to_string(name).map_err(|error| at_path(Path::new(name), &error))?;
    Ok(Scenario::parse(name, &text)?)
}

fn run_inside(args: &Args, mut plan: Plan) -> Result<ExitCode, Refusal> {
    let stop = Stop::default();
    let asked = stop.clone();
    signals::listen(move |_| asked.stop())?;
    std::fs::create_dir_all(&plan.directory).map_err(|error| at_path(&plan.directory, &error))?;
    let began = Timestamp::now();
    plan.stamp = stamp(began);
    if !args.no_selftest {
        plan.stamp.selftest = Some(tested(args, &stop));
    }
    if let Some(SelftestResult { refused, .. }) = &plan.stamp.selftest
        && !refused.is_empty()
        && !stop.is_asked()
    {
        for reason in refused {
            eprintln!("braidmq: the selftest refused this machine: {reason}");
        }
        eprintln!("braidmq: run `braidmq lab selftest` to see more, or add --no-selftest to measure anyway");
        return Ok(ExitCode::from(UNTRUSTED));
    }
    let mut watch = Watch::new(&plan);
    let out = plan.directory.parent().unwrap_or(&plan.directory).to_owned();
    let mut written = None;
    let report = experiment::run(&plan, &stop, &mut |progress| {
        // Written after each run, so that a crash loses only the last one.
        if let experiment::Progress::SoFar(report) = &progress {
            written = Some(report::write(report, &out));
        }
        watch.show(&progress);
    })?;
    watch.finish();
    let is_stopped = stop.is_asked();
    let Some(written) = written.transpose()? else {
        eprintln!("braidmq: stopped before the first run was over; no report was written");
        return Ok(ExitCode::from(STOPPED));
    };
    let mut out = stdout().lock();
    // Standard output may be closed.
    let _ = write!(out, "\n{}", report::table(&report));
    let took = began
        .until(Timestamp::now())
        .and_then(|span| span.round(SpanRound::new().largest(Unit::Minute).smallest(Unit::Second)));
    let _ = writeln!(out, "\nreport: {}", written.html.display());
    if let Ok(took) = took {
        let _ = writeln!(out, "it took {took:#}");
    }
    Ok(verdict(args, &report, is_stopped))
}

/// Result of the selftest, repeated while the machine is too busy, at most `--again` times.
fn tested(args: &Args, stop: &Stop) -> SelftestResult {
    let mut result = selftest::before(args.wire.into(), args.lateness, stop);
    for attempt in 1..=args.again {
        let Some(reason) = result.refused.first().filter(|_| result.busy && !stop.is_asked()) else { break };
        eprintln!("repeating the selftest ({attempt} of {}), the machine was too busy: {reason}", args.again);
        result = selftest::before(args.wire.into(), args.lateness, stop);
    }
    result
}

/// Removes a directory tree that has no files.
fn remove_empty(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // Fails for a directory with content, which stays.
    let _ = std::fs::remove_dir(dir);
}

fn verdict(args: &Args, report: &Report, is_stopped: bool) -> ExitCode {
    if is_stopped {
        eprintln!("braidmq: stopped; the report has the runs that were over");
        return ExitCode::from(STOPPED);
    }
    if report.runs.iter().all(|run| !run.refused.is_empty()) {
        eprintln!("braidmq: no run can be used; the report says why");
        return ExitCode::from(UNTRUSTED);
    }
    let broken = || report.checks.iter().filter(|check| !check.holds);
    if args.check && broken().any(|check| check.measured.is_some()) {
        return ExitCode::from(BROKEN);
    }
    // A bound that could not be measured is unknown, not broken, if runs were refused.
    if args.check && broken().next().is_some() {
        let refused = report.runs.iter().any(|run| !run.refused.is_empty());
        return ExitCode::from(if refused { UNTRUSTED } else { BROKEN });
    }
    ExitCode::SUCCESS
}

fn stamp(began: Timestamp) -> Stamp {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let command = shlex::try_join(words).unwrap_or_default();
    Stamp {
        command: format!("braidmq {command}"),
        started: began.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        version: env!("CARGO_PKG_VERSION").into(),
        privileges: braid_lab::testbed::privileges().into(),
        selftest: None,
    }
}
