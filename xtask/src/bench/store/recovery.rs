//! A broker that starts with many sessions and queued messages.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;

use super::example;
use crate::bench::brokers::{Broker, Running};
use crate::bench::kernel;
use crate::bench::load::resume;
use crate::bench::packets::{Packet, Readable, push_puback, read_packets};
use crate::bench::usage::Resident;

/// How much there is.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Amount {
    pub(super) messages: u64,
    pub(super) sessions: u64,
}

/// Several starts over the same file.
#[derive(Serialize)]
pub(super) struct Recovery {
    pub(super) amount: Amount,
    pub(super) file_bytes: u64,
    pub(super) starts: Vec<Start>,
}

/// One start.
#[derive(Serialize)]
pub(super) struct Start {
    /// What the file was before.
    pub(super) from: &'static str,
    /// From the start of the process until it answered a client.
    pub(super) seconds: f64,
    pub(super) memory: Resident,
}

/// Builds a store and starts a broker over it, `rounds` times after each kind of end.
///
/// # Errors
/// The store cannot be built, the broker does not start or has not what it should have.
pub(super) fn run(
    directory: &Path,
    broker: &Broker,
    rounds: u32,
    amount: Amount,
) -> Result<Recovery, String> {
    let home = tempfile::TempDir::with_prefix_in("braidmq-bench-", directory)
        .map_err(|error| format!("cannot make a directory in {}: {error}", directory.display()))?;
    let data = home.path().join("data");
    let file = data.join("store.redb");
    build(&data, amount)?;
    let length = || std::fs::metadata(&file).map(|of| of.len()).map_err(|error| error.to_string());
    let mut recovery = Recovery { amount, file_bytes: length()?, starts: Vec::new() };
    // The first start is after an end in good order, each of the others after SIGKILL: nobody stops it.
    for round in 0..rounds {
        let from = if round == 0 { "closed" } else { "killed" };
        recovery.starts.push(start(broker, home.path(), from)?);
        for file in [&file, &data.join("store.journal")] {
            kernel::forget_pages(file).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        recovery.starts.push(start(broker, home.path(), "killed, not in the page cache")?);
    }
    let running = broker.start_at(home.path())?;
    // Sessions are filled in turn, from the second on.
    verify(&running, amount.messages / amount.sessions)?;
    Ok(recovery)
}

/// Has the example write what a broker would have written.
fn build(data: &Path, amount: Amount) -> Result<(), String> {
    let program: PathBuf = example::build("recover")?;
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
    let (seconds, memory) = (running.started_in.as_secs_f64(), Resident::of(running.pid())?);
    eprintln!("# recovery, {from}: {seconds:.2} s, {} MiB", memory.anonymous >> 20);
    Ok(Start { from, seconds, memory })
}

/// One of the sessions is there with all its messages.
fn verify(running: &Running, expected: u64) -> Result<(), String> {
    let taken = take_all(running.address, "client-1", expected)?;
    if taken == expected { Ok(()) } else { Err(format!("{taken} messages came of {expected}")) }
}

fn take_all(address: SocketAddr, client_id: &str, expected: u64) -> Result<u64, String> {
    let (mut socket, present) = resume(address, client_id)?;
    if !present {
        return Err(format!("the session of {client_id} is gone"));
    }
    let (mut buffer, mut carry, mut acks, mut taken) = (vec![0; 256 * 1024], Vec::new(), Vec::new(), 0);
    while taken < expected {
        let state = read_packets(&mut socket, &mut buffer, &mut carry, |packet: &Packet<'_>| {
            let publish =
                packet.publish().ok_or_else(|| format!("got {packet:02x?} instead of a PUBLISH"))?;
            push_puback(&mut acks, publish.packet_id);
            taken += 1;
            Ok(())
        })?;
        if state == Readable::Drained && acks.is_empty() {
            break;
        }
        acks.clear();
    }
    Ok(taken)
}
