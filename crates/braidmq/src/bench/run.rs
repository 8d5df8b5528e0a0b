//! Execution of a run: name resolution, load, output, exit code.

use std::future::pending;
use std::io::{self, Write};

use braid_bench::emqtt::Counter;
use braid_bench::generator::{self, Clock, Ended, RunStatistics, TimerService};
use braid_bench::summary::RunSummary;
use braid_transport::Target;
use serde::Serialize;
use serde_json::Value;
use tokio::net::lookup_host;
use tokio::runtime::{Builder, Runtime};

use super::failure::Failure;
use super::output::{JsonFile, Metrics, Screen, table};
use super::plan::Job;
use crate::client::{key_log, stopped};
use crate::printable::printable;

/// Files that a process needs besides its connections.
const OTHER_FILES: u64 = 64;

/// Executes a run.
pub(super) fn run(job: Job) -> Result<(), Failure> {
    let json = job.output.json.clone().map(JsonFile::prepare).transpose()?;
    runtime(job.plan.clients.count)?.block_on(measure(job, json))
}

/// A thread for each core, or for each client if those are fewer.
fn runtime(clients: u64) -> Result<Runtime, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = usize::try_from(clients).unwrap_or(cores).clamp(1, cores);
    let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.map_err(Failure::Runtime)
}

async fn measure(mut job: Job, json: Option<JsonFile>) -> Result<(), Failure> {
    for target in &job.targets {
        find(target).await?;
    }
    let metrics = match job.output.metrics() {
        Some(address) => Some(Metrics::bind(address).await?),
        None => None,
    };
    job.notes.extend(too_many_files(job.plan.clients.count));
    job.notes.extend(
        metrics.as_ref().map(|metrics| format!("metrics are at http://{}/metrics", metrics.address())),
    );
    if !job.output.quiet {
        say(&job.notes.iter().map(|note| format!("Note: {note}\n")).collect::<String>());
    }
    let server = job.servers.join(", ");
    let timers = TimerService::exact().map_err(Failure::Runtime)?;
    let statistics = RunStatistics::new(Clock::now());
    if job.output.trace {
        statistics.keep_traces();
    }
    let mut screen = Screen::new(&job.output, job.role, &server);
    // A closed standard output is noticed with the next lines, and ends the run.
    let _ = screen.begin(&statistics, key_log().as_deref(), &job.start_line);
    let stop = async {
        tokio::select! {
            () = stopped() => {}
            () = screen.watch(&statistics) => {}
            () = serve(metrics, statistics.clone()) => {}
        }
    };
    let ended = generator::run(job.plan, job.dialer, timers, statistics.clone(), stop).await;
    screen.end(&statistics, ended);
    let summary = statistics.summary(job.role);
    if !job.output.quiet {
        say(&table(&summary));
    }
    if let Some(json) = json {
        json.write(&Document { summary: &summary, settings: job.settings.as_ref() })?;
    }
    outcome(ended, &summary, server)
}

/// Contents of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    summary: &'a RunSummary,
    settings: Option<&'a Value>,
}

/// Prints to standard error, which may be closed.
fn say(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

async fn serve(metrics: Option<Metrics>, statistics: RunStatistics) {
    match metrics {
        Some(metrics) => metrics.serve(statistics).await,
        None => pending().await,
    }
}

/// Resolves the name of the server before the run, so that a wrong one is not reported as failed connections.
async fn find(target: &Target) -> Result<(), Failure> {
    let found = lookup_host((target.host.as_str(), target.port)).await;
    let found = found.and_then(|mut addresses| {
        addresses.next().map(drop).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    });
    found.map_err(|source| Failure::UnknownHost { host: target.host.clone(), source })
}

/// Note on a limit of open files that is too low for the clients.
pub(super) fn too_many_files(clients: u64) -> Option<String> {
    let wanted = clients.saturating_add(OTHER_FILES);
    let most = rlimit::increase_nofile_limit(wanted).ok()?;
    (most < wanted).then(|| {
        format!("this system allows {most} open files, too few for {clients} clients: raise ulimit -n")
    })
}

/// True if the run ended as requested.
fn outcome(ended: Ended, summary: &RunSummary, server: String) -> Result<(), Failure> {
    // A failure's line begins with the client, `client(7): connect error - `, which is any of them here.
    let mut told = summary.events.iter().rev().map(|event| event.what.as_str());
    let last = told.find(|what| what.starts_with("client("));
    let last = last.map(|what| what.split_once(" error - ").map_or(what, |(_, cause)| cause));
    let cause = |otherwise: &str| printable(last.unwrap_or(otherwise)).into_owned();
    let has_failed = summary.counters.get(Counter::ConnectFail.name()).is_some_and(|&count| count > 0);
    match ended {
        Ended::Stopped if !has_failed => Ok(()),
        _ if summary.connections.established == 0 => {
            Err(Failure::Unreachable { server, cause: cause("it did not answer in time") })
        }
        Ended::NoClients => Err(Failure::Lost { cause: cause("the server closed it") }),
        Ended::Time | Ended::Complete | Ended::Stopped => Ok(()),
    }
}
