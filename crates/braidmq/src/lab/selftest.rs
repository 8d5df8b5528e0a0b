//! `braidmq lab selftest`.

use std::io::{self, Write, stdout};
use std::process::ExitCode;
use std::time::Duration;

use braid_lab::experiment::{Stop, machine};
use braid_lab::report::SelftestResult;
use braid_lab::scenario::Span;
use braid_lab::selftest;
use braid_lab::testbed::WireChoice;

use super::options::{WireOption, some_time};
use super::{UNTRUSTED, signals};

/// Test whether this machine emulates links accurately now
///
/// Sends packets over emulated links for a few seconds each and compares arrivals with the configuration: delay, loss,
/// duplication, corruption, rate, policer, offloads, and processor time per packet.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Duration of each test
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = some_time)]
    cell: Span,
    /// Devices of the links
    #[arg(long, value_enum, default_value_t = WireOption::Auto)]
    wire: WireOption,
    /// Refuse only if 99 % of a link's packets were later than this [default: 1ms, or 5 % of the delay]
    #[arg(long, value_name = "TIME")]
    lateness: Option<Span>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if let Err(code) = signals::enter() {
        return code;
    }
    eprintln!("testing this machine (some seconds; --cell sets the time of each test)");
    let lateness = args.lateness.map(|span| span.0);
    let wire = args.wire.into();
    let options = selftest::Options {
        cell: args.cell.0,
        wire,
        lateness,
        realtime: true,
        ..selftest::Options::default()
    };
    let result = selftest::run(&options);
    // Standard output may be closed.
    let _ = if args.json {
        writeln!(stdout(), "{}", serde_json::to_string_pretty(&result).unwrap_or_default())
    } else {
        print(&mut stdout().lock(), &result)
    };
    if result.refused.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(UNTRUSTED) }
}

/// Short selftest before an experiment.
pub(super) fn before(wire: WireChoice, lateness: Option<Span>, stop: &Stop) -> SelftestResult {
    eprintln!("testing this machine (some seconds; --no-selftest leaves it out)");
    let options = selftest::Options {
        cell: Duration::from_secs(1),
        wire,
        first_only: true,
        lateness: lateness.map(|span| span.0),
        realtime: true,
        ..selftest::Options::default()
    };
    selftest::run_until(&options, &|| stop.is_asked())
}

/// Aim of a figure on an idle machine, if there is one (docs/decisions/0008-the-laboratory.md).
fn aim(figure: &str) -> &'static str {
    match figure.split_once('_').map(|(_, figure)| figure) {
        Some("delay_error_p99_us") => "  (aim: 200 on an idle machine)",
        Some("cpu_per_packet_us") => "  (aim: 7)",
        _ => "",
    }
}

fn print(out: &mut impl Write, result: &SelftestResult) -> io::Result<()> {
    let machine = machine();
    writeln!(
        out,
        "{}, {} cores ({}), load {:.2}",
        machine.kernel, machine.cores, machine.processor, machine.load[0]
    )?;
    let width = result.figures.keys().map(String::len).max().unwrap_or(0);
    for (name, value) in &result.figures {
        writeln!(out, "  {name:width$}  {value:.3}{}", aim(name))?;
    }
    match &result.refused[..] {
        [] => writeln!(out, "trusted: this machine emulates links accurately now"),
        reasons => reasons.iter().try_for_each(|reason| writeln!(out, "refused: {reason}")),
    }
}
