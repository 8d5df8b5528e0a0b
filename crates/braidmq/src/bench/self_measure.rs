//! `braidmq bench self`: capacity of this load generator.

use std::io::{self, Write};
use std::time::Duration;

use braid_bench::generator::{SelfMeasure, SelfMeasured, measure_self};
use braid_client::QoS;

use super::failure::Failure;
use super::options::duration;
use crate::client::parse_qos;

const EXAMPLES: &str = "\
Examples:
  braidmq bench self
      QoS 0, 64 bytes, as fast as it goes.
  braidmq bench self -q 1 -I 10 -c 1000
      QoS 1, a message every 10 ms from each of 1000 clients.
  braidmq bench self --at-least 300000
      for scripts: ends with 1 if it is fewer.

Exit codes:
  0  it was measured, and --at-least is reached
  1  it is below --at-least
  2  wrong options, or it could not be measured";

/// Measure this program itself: how many messages a second one core publishes.
///
/// Some clients publish to a sink in this process that only reads, and acknowledges with QoS 1, over TCP on the
/// loopback interface. Only the CPU time of the publishing thread counts.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Number of clients.
    #[arg(short, long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// The length of the payload in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    size: u32,
    /// The QoS: 0 or 1.
    #[arg(short, long, value_name = "QOS", value_parser = zero_or_one, default_value = "0")]
    qos: QoS,
    /// The pause between two messages of a client, in milliseconds; 0 is as fast as it goes.
    #[arg(short = 'I', long = "interval_of_msg", value_name = "MS", default_value_t = 0)]
    interval_of_msg: u32,
    /// Duration of the measurement.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2s")]
    duration: Duration,
    /// End with 1 if it is fewer messages per second of CPU time.
    #[arg(long, value_name = "MESSAGES")]
    at_least: Option<u64>,
}

/// Runs `braidmq bench self`.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let how = SelfMeasure {
        clients: args.count,
        size: args.size as usize,
        time: args.duration,
        qos: args.qos,
        interval: Duration::from_millis(args.interval_of_msg.into()),
    };
    let measured = measure_self(how)?;
    // Standard output may be closed.
    let _ = writeln!(io::stdout(), "{}", line(args, &measured));
    check(measured.per_cpu_second(), args.at_least)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 messages a second")]
fn check(measured: f64, at_least: Option<u64>) -> Result<(), Failure> {
    match at_least {
        Some(at_least) if measured < at_least as f64 => Err(Failure::TooSlow { measured, at_least }),
        _ => Ok(()),
    }
}

fn line(args: &Args, measured: &SelfMeasured) -> String {
    let Args { qos, size, count, .. } = args;
    let pace = match args.interval_of_msg {
        0 => "as fast as it goes".to_owned(),
        interval => format!("every {interval} ms"),
    };
    let (per_second, per_cpu_second) = (measured.per_second(), measured.per_cpu_second());
    format!(
        "QoS {qos}, {size} B, {count} clients, {pace}: {per_second:.0} messages/s, \
         {per_cpu_second:.0} messages per CPU-second"
    )
}

fn zero_or_one(word: &str) -> Result<QoS, String> {
    match parse_qos(word) {
        Ok(qos) if qos < QoS::ExactlyOnce => Ok(qos),
        _ => Err("use 0 or 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_than_wanted_is_a_failure() {
        assert!(check(300_000.0, Some(300_000)).is_ok() && check(0.0, None).is_ok());
        let failure = check(299_999.0, Some(300_000)).unwrap_err();
        assert_eq!(failure.to_string(), "299999 messages per CPU-second are fewer than 300000");
    }

    #[test]
    fn qos_2_is_not_measured() {
        assert_eq!(zero_or_one("1"), Ok(QoS::AtLeastOnce));
        assert!(zero_or_one("2").is_err() && zero_or_one("x").is_err());
    }
}
