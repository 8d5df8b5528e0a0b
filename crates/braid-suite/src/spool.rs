//! `bench spool`: memory of a broker while many clients are in the middle of a large PUBLISH on a slow link. In the end
//! they send the rest, and a subscriber verifies every byte.

mod pattern;
mod reader;
mod senders;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use braid_measure::machine::{Machine, load_average};
use braid_measure::process::{CpuReading, CpuShares, Resident};
use serde::Serialize;

use super::Tuning;
use super::brokers;
use super::idle::settled;
use super::load::session::connect;
use super::system::{disk_directory, free_bytes, of_broker, raise_open_files, write_json};
use pattern::Pattern;
use reader::Reader;
use senders::Senders;

/// Prefix of each client's topic, before its number.
const TOPIC: &str = "large/";

/// Aim for the broker's anonymous memory, bytes.
const AIM: u64 = 300_000_000;
/// Bytes of the disk that must stay free.
const SPARE: u64 = 2 << 30;
/// Time between two samples that are kept.
const SAMPLE: Duration = Duration::from_secs(5);
/// Time between two readings of the broker's memory for its peak, and between two checks for the end of the run.
const STEP: Duration = Duration::from_millis(50);

/// Arguments of `bench spool`.
#[derive(clap::Args)]
pub(crate) struct SpoolArgs {
    /// The broker, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// Clients that send at the same time.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Bytes of each PUBLISH.
    #[arg(long, default_value_t = 100_000_000, value_name = "BYTES")]
    size: u32,
    /// Bytes per second of each client.
    #[arg(long, default_value_t = 40_000, value_name = "BYTES")]
    rate: u32,
    /// Seconds at that rate; then the clients send the rest as fast as the broker takes it, one after the other.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    seconds: u32,
    /// Clients that send the rest; the others leave in the middle. Default: all.
    #[arg(long, value_name = "CLIENTS")]
    complete: Option<u32>,
    /// Directory of the broker's spool, on a disk. Default: bench-spool beside the built programs.
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Use debug builds, as `make test` does: slower, with the same memory.
    #[arg(long)]
    pub(crate) debug: bool,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    machine: Machine,
    load_average_at_end: String,
    broker: String,
    settings: String,
    clients: u32,
    size: u32,
    rate: u32,
    seconds: u32,
    /// Without any client.
    before: Resident,
    looks: Vec<Sample>,
    /// Largest anonymous memory during the load, bytes.
    peak: u64,
    /// Messages that a subscriber received and verified, and the seconds that their rest took.
    completed: u32,
    completion_seconds: f64,
    /// Without clients again.
    after: Resident,
    /// Bytes per second of all clients together.
    sent_rate: f64,
    /// Largest delay of a client behind its rate, seconds.
    behind: f64,
    shares: CpuShares,
    /// Largest time from CONNECT to CONNACK of another client.
    slowest_connect_milliseconds: f64,
}

/// Sample of the broker.
#[derive(Clone, Copy, Serialize)]
struct Sample {
    /// Since the start of the load.
    seconds: f64,
    #[serde(flatten)]
    progress: Progress,
    memory: Resident,
    connect_milliseconds: f64,
}

/// Progress of all clients.
#[derive(Clone, Copy, Serialize)]
struct Progress {
    /// Bytes sent.
    sent: u64,
    /// Bytes of the disk in use since the start.
    on_disk: u64,
    /// Messages delivered.
    completed: u32,
}

/// Measures and prints.
///
/// # Errors
/// The disk has no room, or the broker does not start or ends a connection.
pub(crate) fn run(args: &SpoolArgs) -> Result<ExitCode, String> {
    let tuning = Tuning::default();
    let broker =
        brokers::select(std::slice::from_ref(&args.broker), &tuning)?.pop().ok_or("no broker is named")?;
    raise_open_files(args.clients)?;
    let directory = disk_directory(args.dir.as_deref(), "bench-spool")?;
    enough_room(args, &directory)?;
    let mut report = measure(args, &broker, &directory)?;
    report.load_average_at_end = load_average();
    let worst = report.peak;
    let word = if worst <= AIM { "met" } else { "MISSED" };
    println!(
        "{:.1} MB/s came, clients at most {:.2} s behind; broker {:.2} cores, others {:.2}; CONNECT beside it at most {:.1} ms",
        report.sent_rate / 1e6,
        report.behind,
        report.shares.broker,
        report.shares.others,
        report.slowest_connect_milliseconds
    );
    println!(
        "{} of {} messages of {} bytes came to a subscriber, each byte as it was sent; the rest of them within {:.1} s",
        report.completed, args.clients, args.size, report.completion_seconds
    );
    println!("aim: RssAnon below {} MB: {word}, {:.1} MB", AIM / 1_000_000, worst as f64 / 1e6);
    write_json(&report, args.json.as_deref())?;
    Ok(if worst <= AIM { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Bytes that will be on the disk at once: the parts sent by all clients, and two messages while they are completed.
fn amount(args: &SpoolArgs) -> u64 {
    let of_each = (u64::from(args.rate) * u64::from(args.seconds)).min(args.size.into());
    of_each * u64::from(args.clients) + 2 * u64::from(args.size)
}

fn enough_room(args: &SpoolArgs, directory: &Path) -> Result<(), String> {
    let needed = amount(args) + SPARE;
    let free = free_bytes(directory)?;
    if free < needed {
        return Err(format!("{} has {free} bytes free, and {needed} are needed", directory.display()));
    }
    Ok(())
}

fn measure(args: &SpoolArgs, broker: &brokers::Broker, directory: &Path) -> Result<Report, String> {
    let running = broker.start_in(directory)?;
    let (address, pid) = (running.address, running.pid());
    let read = || of_broker(CpuReading::of(pid));
    let (before, free_before) = (of_broker(Resident::of(pid))?, free_bytes(directory)?);
    let pattern = Arc::new(Pattern::new());
    let count = args.complete.unwrap_or(args.clients).min(args.clients);
    let reader = Reader::connect(address, args.size, Arc::clone(&pattern))?;
    let whole = reader.whole();
    let mut senders = Senders::connect(address, args.clients, args.size, pattern)?;
    println!(
        "{}: {} clients, each in the middle of a PUBLISH of {} bytes at {} bytes per second",
        broker.label, args.clients, args.size, args.rate
    );
    println!(" seconds    sent MB  on disk MB  RssAnon MB  RssFile MB  CONNECT ms  completed");
    let start = Instant::now();
    let end = start + Duration::from_secs(args.seconds.into());
    let (sent, shares, looks, peak) = thread::scope(|scope| {
        let progress = senders.progress();
        let (tell, deliveries) = mpsc::channel();
        let (stop_senders, stop_reader) = (senders.stop(), reader.stop());
        // A failure of one ends the other.
        let reading = scope.spawn(move || reader.read(count, &tell).inspect_err(|_| stop_senders()));
        let sending = scope.spawn(move || {
            let send = || {
                let began = read()?;
                let sent = senders.send(args.rate, end)?;
                let shares = read()?.since(&began);
                senders.complete(count, &deliveries)?;
                Ok((sent, shares))
            };
            send().inspect_err(|_: &String| stop_reader())
        });
        let is_over = || sending.is_finished() && reading.is_finished();
        let (mut looks, mut peak) = (Vec::new(), before.anonymous);
        let mut looked = Ok(());
        while looked.is_ok() && !is_over() {
            looked = pause(pid, &mut peak, is_over).and_then(|()| {
                let sent = progress.load(Ordering::Relaxed);
                let on_disk = free_before.saturating_sub(free_bytes(directory)?);
                let completed = whole.load(Ordering::Relaxed);
                let sample = sample(pid, address, start.elapsed(), Progress { sent, on_disk, completed })?;
                println!("{}", sample.line());
                looks.push(sample);
                Ok(())
            });
        }
        let sent = sending.join().unwrap_or_else(|_| Err("the senders' thread died".to_owned()));
        let read = reading.join().unwrap_or_else(|_| Err("the subscriber's thread died".to_owned()));
        match (looked.and(read), sent) {
            (Ok(()), Ok((sent, shares))) => Ok((sent, shares, looks, peak)),
            (Err(read), Err(sent)) => Err(format!("{read}; {sent}")),
            (Err(reason), _) | (_, Err(reason)) => Err(reason),
        }
    })?;
    let completion_seconds = start.elapsed().as_secs_f64() - sent.seconds;
    settled(pid)?;
    let after = of_broker(Resident::of(pid))?;
    let slowest = looks.iter().map(|sample: &Sample| sample.connect_milliseconds).fold(0.0, f64::max);
    Ok(Report {
        machine: Machine::here(),
        load_average_at_end: String::new(),
        broker: broker.version.clone(),
        settings: broker.settings.clone(),
        clients: args.clients,
        size: args.size,
        rate: args.rate,
        seconds: args.seconds,
        before,
        looks,
        peak,
        completed: count,
        completion_seconds,
        after,
        sent_rate: sent.bytes as f64 / sent.seconds,
        behind: sent.behind.as_secs_f64(),
        shares,
        slowest_connect_milliseconds: slowest,
    })
}

/// Waits until the next sample, or until the run is over, and raises the peak of the anonymous memory meanwhile.
fn pause(pid: u32, peak: &mut u64, is_over: impl Fn() -> bool) -> Result<(), String> {
    let end = Instant::now() + SAMPLE;
    loop {
        *peak = of_broker(Resident::of(pid))?.anonymous.max(*peak);
        if Instant::now() >= end || is_over() {
            return Ok(());
        }
        thread::sleep(STEP);
    }
}

/// Samples the broker's memory and the time it takes to accept another client.
fn sample(pid: u32, address: SocketAddr, since: Duration, progress: Progress) -> Result<Sample, String> {
    let asked = Instant::now();
    connect(address, "bench-look")?;
    let connect_milliseconds = asked.elapsed().as_secs_f64() * 1e3;
    let memory = of_broker(Resident::of(pid))?;
    Ok(Sample { seconds: since.as_secs_f64(), progress, memory, connect_milliseconds })
}

impl Sample {
    fn line(&self) -> String {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        format!(
            "{:8.0}  {:9.0}  {:10.0}  {:10.1}  {:10.1}  {:10.1}  {:9}",
            self.seconds,
            megabytes(self.progress.sent),
            megabytes(self.progress.on_disk),
            megabytes(self.memory.anonymous),
            megabytes(self.memory.file),
            self.connect_milliseconds,
            self.progress.completed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_until_the_run_is_over() {
        let own = std::process::id();
        let (mut peak, mut highest) = (0, u64::MAX);
        pause(own, &mut peak, || true).expect("this process runs");
        assert!(peak > 0);
        pause(own, &mut highest, || true).expect("this process runs");
        assert_eq!(highest, u64::MAX, "a peak does not fall");
        assert!(pause(u32::MAX, &mut peak, || true).is_err(), "a broker that has ended");
    }
}
