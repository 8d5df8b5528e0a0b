//! `cargo xtask bench bulk`: one large message over good and middling networks, with broker, network and clients in
//! this process on virtual time.

#[path = "../house/mod.rs"]
mod house;
mod report;
mod scenario;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use report::Row;
use scenario::{Path, Scenario, Setting, Way};

/// How long one message takes on a fresh connection, beside what the link alone would take.
#[derive(Parser)]
struct Args {
    /// The seed of the first round; each further round takes the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each row is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Which way the message goes; both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    way: Vec<Way>,
    /// Networks; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    path: Vec<Path>,
    /// Congestion control of both ends; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
    /// Megabytes (2^20 bytes) of the message; by default 10, and 100 too where the link has 1 Gbit/s.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=250))]
    megabytes: Vec<u32>,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut rows = Vec::new();
    println!("{}", report::HEAD);
    for path in or_all(&args.path) {
        let sizes = if args.megabytes.is_empty() { path.sizes() } else { &args.megabytes };
        for &megabytes in sizes {
            for way in or_all(&args.way) {
                for setting in or_all(&args.setting) {
                    let scenario = Scenario { way, path, megabytes, setting };
                    let rounds = args.seed..args.seed.saturating_add(args.rounds);
                    let rounds: Result<Vec<_>, _> = rounds.map(|seed| scenario.run(seed)).collect();
                    let row =
                        Row { scenario, limit_seconds: scenario.limit().as_secs_f64(), rounds: rounds? };
                    println!("{row}");
                    rows.push(row);
                }
            }
        }
    }
    if let Some(path) = &args.json {
        std::fs::write(path, report::json(&rows)?)?;
    }
    Ok(())
}

fn or_all<T: ValueEnum + Copy>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}
