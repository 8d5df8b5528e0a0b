//! Case `recovery`: starts over many sessions and queued messages.

use std::path::Path;
use std::process::{Command, Stdio};

use braid_measure::process::Resident;
use serde::Serialize;

use super::Setup;
use super::yardstick::build_example;
use crate::brokers::Broker;
use crate::load::session::take_queue;
use crate::system::{drop_page_cache, of_broker};

/// Contents of the store.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    pub(crate) sessions: u64,
}

/// Starts over one file.
#[derive(Serialize)]
pub(crate) struct Recovery {
    pub(crate) amount: Amount,
    pub(crate) file_bytes: u64,
    pub(crate) starts: Vec<Start>,
}

/// One start.
#[derive(Serialize)]
pub(crate) struct Start {
    /// State of the file before.
    pub(crate) from: &'static str,
    /// Time from the start of the process until it accepted a client.
    pub(crate) seconds: f64,
    pub(crate) memory: Resident,
}

/// Builds a store and starts a broker over it `rounds` times, with and without the page cache.
///
/// # Errors
/// The store cannot be built, or the broker does not start or has lost messages.
pub(crate) fn run(setup: &Setup<'_>) -> Result<Recovery, String> {
    let (directory, broker) = (&setup.directory, &setup.brokers[0]);
    let amount = Amount { messages: setup.args.stored, sessions: setup.args.stored / 10 };
    let home = tempfile::TempDir::with_prefix_in("braidmq-bench-", directory)
        .map_err(|error| format!("cannot make a directory in {}: {error}", directory.display()))?;
    let data = home.path().join("data");
    let file = data.join("store.redb");
    build(&data, amount)?;
    let length = || std::fs::metadata(&file).map(|of| of.len()).map_err(|error| error.to_string());
    let mut recovery = Recovery { amount, file_bytes: length()?, starts: Vec::new() };
    // The first start follows a clean end, the others SIGKILL.
    for round in 0..setup.args.rounds {
        let from = if round == 0 { "closed" } else { "killed" };
        recovery.starts.push(start(broker, home.path(), from)?);
        for file in [&file, &data.join("store.journal")] {
            drop_page_cache(file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        recovery.starts.push(start(broker, home.path(), "killed, not in the page cache")?);
    }
    let running = broker.start_at(home.path())?;
    // Sessions are filled in turn, from the second on. One of them has all its messages.
    take_queue(running.address, "client-1", amount.messages / amount.sessions, |_| Ok(()))?;
    Ok(recovery)
}

/// Writes a store with the example `recover` of `braid-store`.
fn build(data: &Path, amount: Amount) -> Result<(), String> {
    let program = build_example("recover")?;
    let status = Command::new(&program)
        .arg(data)
        .args([amount.messages.to_string(), amount.sessions.to_string(), "build".to_owned()])
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    if status.success() { Ok(()) } else { Err("the store to recover was not built".to_owned()) }
}

fn start(broker: &Broker, home: &Path, from: &'static str) -> Result<Start, String> {
    let running = broker.start_at(home)?;
    let memory = of_broker(Resident::of(running.pid()))?;
    let seconds = running.started_in.as_secs_f64();
    eprintln!("# recovery, {from}: {seconds:.2} s, {} MiB", memory.anonymous >> 20);
    Ok(Start { from, seconds, memory })
}
