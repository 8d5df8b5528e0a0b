//! `braidmq bench http`: load on HTTP servers, with the options and the output of h2load.

mod options;
mod screen;

use std::fs;
use std::io::{self, Write};

use braid_bench::http::{HttpLoad, HttpSummary, Progress, Report, run as measure};
use tokio::net::lookup_host;
use tokio::runtime::Builder;

pub(super) use self::options::HttpOptions;
use self::screen::Screen;
use super::failure::Failure;
use super::output::JsonFile;
use super::run::too_many_files;
use crate::client::stopped;
use crate::printable::printable;

/// Runs `braidmq bench http`.
pub(super) fn run(options: &HttpOptions) -> Result<(), Failure> {
    let body = match &options.data {
        Some(path) => {
            let read = fs::read(path).map_err(|source| Failure::Read { path: path.clone(), source })?;
            Some(read.into())
        }
        None => None,
    };
    let load = options.load(body)?;
    if let Some(path) = &options.qlog_dir {
        fs::create_dir_all(path).map_err(|source| Failure::Directory { path: path.clone(), source })?;
    }
    let json = options.json.clone().map(JsonFile::prepare).transpose()?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let has_expectation = load.expectation.is_given();
    let summary = runtime.block_on(execute(load, options))?;
    // Standard output may be closed; the file is written anyway.
    if !summary.protocol.is_empty() {
        let _ = writeln!(io::stdout(), "Application protocol: {}", summary.protocol);
    }
    let _ = write!(io::stdout(), "\n{}", Report { summary: &summary, has_expectation });
    for error in &summary.errors {
        let _ = writeln!(io::stderr(), "{}: {}", clients(error.clients), printable(&error.what));
    }
    if let Some(json) = json {
        json.write(&summary)?;
    }
    outcome(&summary)
}

async fn execute(mut load: HttpLoad, options: &HttpOptions) -> Result<HttpSummary, Failure> {
    let (host, port) = options.target(&load.request);
    let found = lookup_host((host.as_str(), port)).await.map(Iterator::collect::<Vec<_>>);
    load.route.addresses = found.map_err(|source| Failure::UnknownServer { host, source })?;
    if let Some(note) = too_many_files(load.clients.into()) {
        let _ = writeln!(io::stderr(), "Note: {note}");
    }
    let progress = Progress::new(load.threads);
    let mut screen = Screen::new(&load, progress.clone());
    let _ = writeln!(io::stdout(), "starting benchmark...");
    let stop = async {
        tokio::select! {
            () = stopped() => {}
            () = screen.watch() => {}
        }
    };
    let summary = measure(load, progress, stop).await?;
    screen.end();
    Ok(summary)
}

fn outcome(summary: &HttpSummary) -> Result<(), Failure> {
    if summary.requests.completed() > 0 {
        return Ok(());
    }
    let cause =
        summary.errors.first().map_or("the time was over before the first came", |error| error.what.as_str());
    Err(Failure::NoResponse(printable(cause).into_owned()))
}

fn clients(count: u64) -> String {
    if count == 1 { "1 client".to_owned() } else { format!("{count} clients") }
}
