use std::io::{self, Write};
use std::time::Duration;

use braid_bench::generator::{SelfMeasure, SelfMeasured, measure_self};

use super::failure::Failure;
use super::options::duration;

/// Measure this program itself: how many messages a second one core publishes.
///
/// Some clients publish as fast as they can to a sink in this process that only reads, over TCP on the loopback
/// interface. Only the CPU time of the publishing thread counts.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// How many clients.
    #[arg(short, long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// The length of the payload in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    size: u32,
    /// How long.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    duration: Duration,
}

/// Runs `braidmq bench self`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Args { count, size, duration } = *args;
    let measured = measure_self(SelfMeasure { clients: count, size: size as usize, time: duration })?;
    // Whoever does not listen does not want to know.
    let _ = writeln!(io::stdout(), "{}", line(args, &measured));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "two decimals are shown")]
fn line(args: &Args, measured: &SelfMeasured) -> String {
    let micros = measured.cpu.as_secs_f64() * 1e6 / measured.messages.max(1) as f64;
    format!(
        "{:.0} messages/s per core ({} B, QoS 0, {} clients): {micros:.2} us of CPU per message",
        measured.per_cpu_second(),
        args.size,
        args.count,
    )
}
