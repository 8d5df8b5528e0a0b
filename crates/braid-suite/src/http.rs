//! `bench http`: processor time of a request for a small file, beside nginx in the same run, over HTTP/1.1, 2 and 3.

mod generator;
mod report;
mod servers;

use std::path::PathBuf;
use std::process::ExitCode;

use braid_measure::machine::load_average;
use braid_measure::{Machine, RaisedPriority};

use self::generator::{Generator, Load, Measurement, Program};
use self::report::{HttpReport, HttpRow, Readings};
use self::servers::{Server, Servers};
use super::brokers::{self, Broker, installed};
use super::system::raise_open_files;
use super::{Tuning, wants};

/// Arguments of `bench http`.
#[derive(clap::Args)]
pub(crate) struct HttpArgs {
    /// The server, braidmq or braidmq=PROGRAM.
    #[arg(long, default_value = "braidmq", value_name = "NAME[=PROGRAM]")]
    broker: String,
    /// The braidmq that puts load on the servers; that of --broker by default. To compare two servers, name one.
    #[arg(long, value_name = "PROGRAM")]
    generator: Option<PathBuf>,
    /// Rows to measure; default all.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = ROWS)]
    rows: Vec<String>,
    /// Rounds of each row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Percentage of the requests of each run.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    requests: u64,
    /// Count no instructions, which takes valgrind and a minute.
    #[arg(long)]
    no_instructions: bool,
    /// On a busy machine, as root: run servers and generator alike at nice -10, the session too.
    #[arg(long)]
    go_first: bool,
    /// Write the report into this directory, as http.md and http.json.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Quotient of requests per processor second that a row must reach.
const BESIDE_NGINX: f64 = 0.8;
const BESIDE_HTTP2: f64 = 0.5;

/// Loads: few connections with one request in flight, and many with a hundred.
const LOW: (u32, u32) = (10, 1);
const HIGH: (u32, u32) = (100, 100);

/// Names of the rows.
const ROWS: [&str; 6] = ["http1", "http1-tls", "http2", "http3", "http1-h2load", "http2-h2load"];

/// A row: name, version, generator, load, requests of a run, server to compare with, and bar.
type Case = (&'static str, &'static Load, Program, (u32, u32), u64, Server, f64);

static HTTP1: Load = Load { title: "HTTP/1.1", is_tls: false, options: &["--h1"] };
static HTTP1_TLS: Load = Load { title: "HTTP/1.1, TLS", is_tls: true, options: &["--h1"] };
static HTTP2: Load = Load { title: "HTTP/2, TLS", is_tls: true, options: &[] };
static HTTP3: Load = Load { title: "HTTP/3", is_tls: true, options: &["--h3"] };

const CASES: [Case; 10] = [
    ("http1", &HTTP1, Program::Braidmq, LOW, 30_000, Server::Nginx, BESIDE_NGINX),
    ("http1", &HTTP1, Program::Braidmq, HIGH, 100_000, Server::Nginx, BESIDE_NGINX),
    ("http1-tls", &HTTP1_TLS, Program::Braidmq, LOW, 30_000, Server::Nginx, BESIDE_NGINX),
    ("http1-tls", &HTTP1_TLS, Program::Braidmq, HIGH, 100_000, Server::Nginx, BESIDE_NGINX),
    ("http2", &HTTP2, Program::Braidmq, LOW, 30_000, Server::Nginx, BESIDE_NGINX),
    ("http2", &HTTP2, Program::Braidmq, HIGH, 60_000, Server::Nginx, BESIDE_NGINX),
    ("http3", &HTTP3, Program::Braidmq, LOW, 15_000, Server::BraidmqTls, BESIDE_HTTP2),
    ("http3", &HTTP3, Program::Braidmq, HIGH, 40_000, Server::BraidmqTls, BESIDE_HTTP2),
    ("http1-h2load", &HTTP1, Program::H2load, HIGH, 100_000, Server::Nginx, BESIDE_NGINX),
    ("http2-h2load", &HTTP2, Program::H2load, HIGH, 60_000, Server::Nginx, BESIDE_NGINX),
];

/// Fewer requests under valgrind, which is slower by a factor of about 50.
const COUNTED: u64 = 3000;

/// Measures and prints; fails if a bar is missed.
///
/// # Errors
/// A server does not start, a program is missing, or a run has another outcome than expected.
pub(crate) fn run(args: &HttpArgs) -> Result<ExitCode, String> {
    raise_open_files(2 * HIGH.0)?;
    let broker = brokers::select(std::slice::from_ref(&args.broker), &Tuning::default())?.pop();
    let broker = broker.filter(Broker::is_braidmq).ok_or("only braidmq serves HTTP here")?;
    let nginx = installed("nginx", "apt-get install nginx-light")?;
    let generator = Generator::new(args.generator.as_deref().unwrap_or(broker.program()));
    let priority = if args.go_first { Some(RaisedPriority::take()?) } else { None };
    let machine = Machine::here();
    let cases = CASES.iter().filter(|(name, ..)| wants(&args.rows, name));
    let mut rows: Vec<_> = cases.map(|case| (case, Readings::default())).collect();
    let servers = Servers::start(&broker, &nginx, false)?;
    for round in 0..args.rounds {
        for (case, readings) in &mut rows {
            let requests = case.4 * args.requests / 100;
            let pair = pair(case, round, requests, |measurement| generator.cost(&servers, measurement))?;
            eprintln!("# {} {:?}: {:.2} and {:.2} us", case.0, case.3, pair[0], pair[1]);
            readings.cpu_us.push(pair);
        }
    }
    let versions = servers.versions.clone();
    drop(servers);
    if !args.no_instructions {
        installed("callgrind_control", "apt-get install valgrind, or --no-instructions")?;
        let servers = Servers::start(&broker, &nginx, true)?;
        for (case, readings) in &mut rows {
            let pair = pair(case, 0, COUNTED, |measurement| generator.instructions(&servers, measurement))?;
            eprintln!("# {} {:?}: {:.0} and {:.0} instructions", case.0, case.3, pair[0], pair[1]);
            readings.instructions = Some(pair);
        }
    }
    drop(priority);
    let report = HttpReport {
        machine,
        load_average_at_end: load_average(),
        command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
        versions,
        rows: rows.into_iter().map(|(case, readings)| HttpRow::new(case, readings)).collect(),
    };
    print!("{}", report.markdown());
    if let Some(directory) = &args.out {
        report.write(directory)?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Readings of the reference and of braidmq. The order changes, so that a machine that becomes slower favours neither.
fn pair(
    &(_, load, program, clients, _, reference, _): &Case,
    round: u32,
    requests: u64,
    mut measure: impl FnMut(&Measurement<'_>) -> Result<f64, String>,
) -> Result<[f64; 2], String> {
    let own = if load.is_tls { Server::BraidmqTls } else { Server::Braidmq };
    // HTTP/3 is compared with HTTP/2 of the same server.
    let other = if reference == own { &HTTP2 } else { load };
    let mut pair = [0.0; 2];
    for turn in 0..2 {
        let which = (round as usize + turn) % 2;
        let (server, load) = [(reference, other), (own, load)][which];
        pair[which] = measure(&Measurement { program, server, load, clients, requests })
            .map_err(|reason| format!("{}, {} connections: {reason}", load.title, clients.0))?;
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: HttpArgs,
    }

    #[test]
    fn a_row_that_does_not_exist_is_refused() {
        let rows = |names: &str| Cli::try_parse_from(["", "--rows", names]).map(|cli| cli.args.rows);
        for (name, ..) in CASES {
            assert_eq!(rows(name).unwrap(), [name]);
        }
        assert!(rows("http4").is_err() && rows("http1,http4").is_err());
        assert!(ROWS.iter().all(|row| CASES.iter().any(|(name, ..)| name == row)));
    }
}
