//! `bench broker`: every case in rounds, in which the brokers take turns.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use braid_measure::RaisedPriority;
use braid_measure::machine::{Machine, load_average};
use braid_measure::process::wait_for_quiet;

use super::BrokerArgs;
use super::brokers::{self, Broker};
use super::case::{self, Case, Work};
use super::report::{CaseReport, Outcome, Report, Run};
use super::system::{raise_open_files, write_json};
use super::{idle, load};

/// Duration and number of runs.
struct Schedule {
    rounds: u32,
    warm_up: Duration,
    measured: Duration,
    quiet_wait: Duration,
}

/// Measures and prints.
///
/// # Errors
/// An unknown name, a missing program, or a limit of the system.
pub(crate) fn run(args: &BrokerArgs) -> Result<ExitCode, String> {
    let idle_connections =
        if args.quick { args.tuning.idle_connections.min(1000) } else { args.tuning.idle_connections };
    let cases = case::select(&args.cases, idle_connections, args.tuning.window)?;
    if args.list {
        for case in &cases {
            println!("{:<14}{}", case.name, describe(case));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let schedule = schedule(args)?;
    let brokers = brokers::select(&args.brokers, &args.tuning)?;
    raise_open_files(idle_connections)?;
    // After the build of the broker, which needs no priority.
    let priority = if args.go_first { Some(RaisedPriority::take()?) } else { None };
    let mut report = Report {
        machine: Machine::here(),
        first: args.go_first,
        load_average_at_end: String::new(),
        rounds: schedule.rounds,
        seconds: schedule.measured.as_secs_f64(),
        warm_up_seconds: schedule.warm_up.as_secs_f64(),
        brokers: brokers.clone(),
        cases: Vec::new(),
    };
    print!("{}", report.head());
    for case in &cases {
        let measured = measure(case, &brokers, &schedule);
        print!("{}", measured.table(&report.brokers));
        report.cases.push(measured);
    }
    drop(priority);
    report.load_average_at_end = load_average();
    println!("\nload average at the end: {}", report.load_average_at_end);
    write_json(&report, args.json.as_deref())?;
    Ok(if report.whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn schedule(args: &BrokerArgs) -> Result<Schedule, String> {
    let duration = |flag: &str, seconds: f64| {
        let sensible = (0.1..=3600.0).contains(&seconds);
        sensible
            .then(|| Duration::from_secs_f64(seconds))
            .ok_or(format!("{flag} must be 0.1 to 3600 seconds"))
    };
    let (rounds, seconds, warm_up) =
        if args.quick { (1, 1.0, 0.5) } else { (args.rounds, args.seconds, args.warm_up) };
    Ok(Schedule {
        rounds,
        warm_up: duration("--warm-up", warm_up)?,
        measured: duration("--seconds", seconds)?,
        quiet_wait: Duration::try_from_secs_f64(args.quiet_wait).map_err(|e| format!("--quiet-wait: {e}"))?,
    })
}

fn describe(case: &Case) -> String {
    match &case.work {
        Work::Flow(flow) => flow.describe(),
        Work::Idle(connections) => format!("{connections} TCP connections that only said CONNECT"),
    }
}

fn measure(case: &Case, brokers: &[Broker], schedule: &Schedule) -> CaseReport {
    let mut runs = Vec::new();
    for round in 1..=schedule.rounds {
        for broker in brokers {
            let outcome = once(case, broker, schedule).unwrap_or_else(Outcome::Failed);
            eprintln!("# {} round {round} {}: {}", case.name, broker.label, outcome.line());
            runs.push(Run { broker: broker.label.clone(), round, outcome });
        }
    }
    CaseReport::new(case, describe(case), runs, brokers.iter().map(|broker| broker.label.as_str()))
}

/// One run against a new process of `broker`; no other broker runs meanwhile.
fn once(case: &Case, broker: &Broker, schedule: &Schedule) -> Result<Outcome, String> {
    wait_for_quiet(Instant::now() + schedule.quiet_wait).map_err(|error| error.to_string())?;
    let running = broker.start()?;
    let (address, pid) = (running.address, running.pid());
    let outcome = match &case.work {
        Work::Flow(flow) => {
            load::run(flow, address, pid, schedule.warm_up, schedule.measured).map(Outcome::Flow)
        }
        Work::Idle(connections) => idle::run(*connections, address, pid).map(Outcome::Idle),
    };
    outcome.map_err(|reason| match running.last_words() {
        words if words.is_empty() => reason,
        words => format!("{reason} (the broker's log: {words})"),
    })
}
