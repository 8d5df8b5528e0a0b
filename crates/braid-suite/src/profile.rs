//! `bench profile`: one case under `perf record`, and the symbols with most samples.
//!
//! The release is stripped, so that the broker is built in the profile `symbols`; a given program needs its symbols
//! too.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use super::brokers;
use super::case::{self, Work};
use super::load;
use super::system::raise_open_files;
use super::{ProfileArgs, Tuning};

/// Time of load before the recording.
const WARM_UP: Duration = Duration::from_secs(1);
/// Samples per second and processor: a prime number, which does not beat with the kernel's ticks.
const FREQUENCY: &str = "997";

/// Profiles and prints.
///
/// # Errors
/// perf is missing or refused, a name is unknown, or the run failed.
pub(crate) fn run(args: &ProfileArgs) -> Result<ExitCode, String> {
    let perf = brokers::installed("perf", "apt-get install linux-perf")?;
    if !(0.1..=3600.0).contains(&args.seconds) {
        return Err("--seconds must be 0.1 to 3600".to_owned());
    }
    let cases =
        case::select(std::slice::from_ref(&args.case), args.tuning.idle_connections, args.tuning.window)?;
    let Some(Work::Flow(flow)) = cases.first().map(|case| &case.work) else {
        return Err(format!("`{}` uses no processor time: profile another case", args.case));
    };
    let tuning = Tuning { has_symbols: true, ..args.tuning.clone() };
    let broker = brokers::select(std::slice::from_ref(&args.broker), &tuning)?;
    let broker = broker.first().ok_or("no broker is named")?;
    raise_open_files(0)?;
    let directory = tempfile::tempdir().map_err(|error| format!("cannot make a directory: {error}"))?;
    let recording = args.keep.clone().unwrap_or_else(|| directory.path().join("perf.data"));
    let running = broker.start()?;
    let (address, pid) = (running.address, running.pid());
    let measured = Duration::from_secs_f64(args.seconds);
    let (recorded, flowed) = std::thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            std::thread::sleep(WARM_UP);
            record(&perf, pid, &recording, args.seconds)
        });
        // The load outlives the recording, which needs some time to start.
        let flowed = load::run(flow, address, pid, WARM_UP, measured + Duration::from_secs(1));
        (recorder.join().unwrap_or_else(|_| Err("the recorder's thread died".to_owned())), flowed)
    });
    drop(running);
    recorded?;
    let flowed = flowed?;
    println!("{} ({}), case {}: {}", broker.label, broker.version, args.case, flow.describe());
    println!(
        "{:.0} ns of broker CPU per message while being sampled, {:.0} msg/s, {:.0} % of it in user mode\n",
        flowed.cpu_nanoseconds,
        flowed.throughput,
        flowed.shares.broker_user_part * 100.0
    );
    let lines = top(&perf, &recording, args.top)?;
    if lines.is_empty() {
        return Err("perf recorded no sample; see /proc/sys/kernel/perf_event_paranoid".to_owned());
    }
    lines.iter().for_each(|line| println!("{line}"));
    if let Some(kept) = &args.keep {
        println!("\ncall graphs: perf report -i {}", kept.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn record(perf: &PathBuf, pid: u32, recording: &Path, seconds: f64) -> Result<(), String> {
    let output = Command::new(perf)
        .args(["record", "--quiet", "-g", "-F", FREQUENCY, "-p", &pid.to_string(), "-o"])
        .arg(recording)
        .args(["--", "sleep", &seconds.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start perf: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("perf record failed: {}; see /proc/sys/kernel/perf_event_paranoid", said.trim()))
}

/// First `count` lines of perf's table of symbols by own time.
fn top(perf: &PathBuf, recording: &Path, count: usize) -> Result<Vec<String>, String> {
    let output = Command::new(perf)
        .args(["report", "--stdio", "--no-children", "-g", "none", "-F", "overhead,dso,symbol", "-i"])
        .arg(recording)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start perf: {error}"))?;
    if !output.status.success() {
        return Err(format!("perf report failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(symbols(&String::from_utf8_lossy(&output.stdout), count))
}

/// perf's table without comments and empty lines.
fn symbols(report: &str, count: usize) -> Vec<String> {
    let lines = report.lines().map(str::trim_end);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).take(count).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::symbols;

    #[test]
    fn comments_and_empty_lines_are_left_out() {
        let report =
            "# Overhead  Symbol\n#\n\n    40.00%  [.] route   \n    30.00%  [k] writev\n     1.00%  [.] x\n";
        assert_eq!(symbols(report, 2), ["    40.00%  [.] route", "    30.00%  [k] writev"]);
    }
}
