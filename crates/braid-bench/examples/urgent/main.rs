//! `cargo xtask bench urgent`: the urgent-versus-bulk test, with broker, network and clients in this process on
//! virtual time.

#[path = "../house/mod.rs"]
mod house;
mod report;
mod scenario;

use std::error::Error;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use report::Row;
use scenario::{Bad, Bulk, Scenario, Setting, Way};

/// 100 B of QoS 0 every 100 ms for a minute beside 20 MB of QoS 1, through a link that carries 29 packets a second.
#[derive(Parser)]
struct Args {
    /// The seed of the first round; each further round takes the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often each row is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Which way the bad link is passed; both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    way: Vec<Way>,
    /// Networks; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    network: Vec<Bad>,
    /// How the 20 MB come; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    bulk: Vec<Bulk>,
    /// How clients and broker are set; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
    /// Also write everything measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut rows = Vec::new();
    println!("{}", report::HEAD);
    for way in or_all(&args.way) {
        for network in or_all(&args.network) {
            for bulk in or_all(&args.bulk) {
                for setting in or_all(&args.setting) {
                    let scenario = Scenario { way, network, bulk, setting };
                    let rounds = args.seed..args.seed.saturating_add(args.rounds);
                    let rounds: Result<Vec<_>, _> = rounds.map(|seed| scenario.run(seed)).collect();
                    let row = Row { scenario, rounds: rounds? };
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
