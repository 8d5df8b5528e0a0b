//! `cargo xtask torture-cluster`: three servers of NATS and three brokers in namespaces of their own, under load, with
//! faults of processes, disks and networks.

mod clients;
mod clock;
mod faults;
mod kind;
mod network;
mod report;
mod run;
mod server;
mod testbed;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use braid_torture::broker_binary;

use crate::namespace;
use kind::{Kind, Parts, Plan};
use report::Record;
use run::Cluster;
use testbed::Programs;

/// Folder of the programs that `make` installs for tests.
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.peers/bin/nats-server");

/// Arguments of `torture-cluster`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kinds of faults with the number of their rounds, for example kill-broker:20,stop-leader:10. kill-broker,
    /// stop-broker, end-broker (SIGTERM); kill-leader, kill-follower, stop-leader, stop-follower: servers of NATS, by
    /// their role for the stream of messages; cut-node, split, one-way, cut-broker (from NATS), cut-clients (from a
    /// broker), shatter (all servers from each other); slow; full; jump-clock (of a broker); restart-all; mixed
    /// (several in a row).
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "KIND[:ROUNDS]",
        default_value = "kill-broker,kill-leader"
    )]
    kind: Vec<Plan>,
    /// Rounds of a kind that names no number.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Rounds after which all that was acknowledged must have arrived, the history is checked, and another cluster
    /// begins.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    rounds_per_cluster: u32,
    /// Longest duration of a fault, seconds.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=60))]
    longest: u64,
    /// Mixes the rounds of all kinds.
    #[arg(long)]
    shuffle: bool,
    /// Processes of the testbed: broker is one broker without a cluster, servers are those of NATS without clients.
    #[arg(long, value_enum, default_value = "cluster", value_name = "PARTS")]
    only: Parts,
    /// Seed of all random choices; the timing of the machine differs all the same. Default: random.
    #[arg(long)]
    seed: Option<u64>,
    /// The braidmq binary; without it, one is built with the profile of this program.
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The server of NATS; without it, the one that `make nats-server` installs.
    #[arg(long, value_name = "PATH", default_value = INSTALLED)]
    nats_server: PathBuf,
    /// Folder for histories, logs and stores, which must be new or empty; without it, a temporary one that is kept when
    /// a fault is found.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Also write the findings as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The process is in the namespaces.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Args {
    /// Kinds of all rounds in their order.
    fn schedule(&self, random: &mut fastrand::Rng) -> Vec<Kind> {
        let rounds = |plan: &Plan| plan.rounds.unwrap_or(self.rounds) as usize;
        let mut kinds: Vec<_> =
            self.kind.iter().flat_map(|plan| std::iter::repeat_n(plan.kind, rounds(plan))).collect();
        if self.shuffle {
            random.shuffle(&mut kinds);
        }
        kinds
    }
}

/// Runs all rounds in namespaces; true without faults.
///
/// # Errors
/// The testbed cannot be made.
pub(crate) fn run(args: &Args) -> Result<bool, String> {
    if args.inside {
        namespace::end_with_caller()?;
        return run_inside(args);
    }
    args.kind.iter().try_for_each(|plan| plan.kind.needs(args.only))?;
    if args.only != Parts::Broker {
        check_program(&args.nats_server, "run `make nats-server`, or say --nats-server PATH")?;
    }
    let mut more: Vec<OsString> = Vec::new();
    if args.only != Parts::Servers && args.binary.is_none() {
        // Cargo finds no network inside.
        more.extend(["--binary".into(), broker_binary(None)?.into()]);
    }
    namespace::run_in_networks(&more).map(|status| status.success())
}

fn check_program(program: &Path, remedy: &str) -> Result<(), String> {
    match Command::new(program).arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(format!("{} does not start: {remedy}", program.display())),
    }
}

fn run_inside(args: &Args) -> Result<bool, String> {
    let home = Home::open(args.dir.as_deref())?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let programs =
        Programs { broker: args.binary.clone().unwrap_or_default(), server: args.nats_server.clone() };
    let mut random = fastrand::Rng::with_seed(seed);
    if args.only == Parts::Cluster {
        clock::mount_shared_memory()?;
    }
    let mut record = Record::begin(&programs, args.only, seed);
    let schedule = args.schedule(&mut random);
    println!("torture-cluster: {} rounds, seed {seed}, files in {}", schedule.len(), home.path().display());
    for (index, kinds) in schedule.chunks(args.rounds_per_cluster as usize).enumerate() {
        let home = home.path().join((index + 1).to_string());
        let cluster = Cluster {
            parts: args.only,
            programs: &programs,
            home: &home,
            longest: Duration::from_secs(args.longest),
        };
        if let Err(reason) = cluster.run(kinds, &mut random, &mut record) {
            record.wrong.push(reason);
        }
        record.clusters += 1;
        if !record.is_good() {
            break;
        }
    }
    println!("{record}");
    if let Some(file) = &args.json {
        record.write(file)?;
    }
    if !record.is_good() {
        println!("torture-cluster: histories, logs and stores are in {}", home.keep().display());
    }
    Ok(record.is_good())
}

/// Folder of a run.
enum Home {
    Temporary(tempfile::TempDir),
    Given(PathBuf),
}

impl Home {
    fn open(given: Option<&Path>) -> Result<Self, String> {
        let Some(dir) = given else {
            let dir = tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
            return Ok(Self::Temporary(dir));
        };
        let wrong = |error| format!("{}: {error}", dir.display());
        std::fs::create_dir_all(dir).map_err(wrong)?;
        if std::fs::read_dir(dir).map_err(wrong)?.next().is_some() {
            return Err(format!("{} is not empty: name another --dir, or empty it", dir.display()));
        }
        std::path::absolute(dir).map(Self::Given).map_err(wrong)
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(dir) => dir.path(),
            Self::Given(dir) => dir,
        }
    }

    /// Keeps the folder.
    fn keep(self) -> PathBuf {
        match self {
            Self::Temporary(dir) => dir.keep(),
            Self::Given(dir) => dir,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::parse_from(line.split(' ')).args
    }

    #[test]
    fn the_schedule_has_the_rounds_of_each_kind() {
        let mut random = fastrand::Rng::with_seed(7);
        let given = args("x --kind full:2,one-way --rounds 3").schedule(&mut random);
        let (full, one_way) = (Kind::Full, Kind::OneWay);
        assert_eq!(given, [full, full, one_way, one_way, one_way]);
        let mut mixed = args("x --kind one-way:20,full:20 --shuffle").schedule(&mut random);
        assert!(!mixed.is_sorted());
        mixed.sort();
        assert_eq!(mixed, args("x --kind one-way:20,full:20").schedule(&mut random));
    }

    #[test]
    fn a_folder_with_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Home::open(Some(&dir.path().join("new/one"))).unwrap().path(), dir.path().join("new/one"));
        let refused = Home::open(Some(dir.path())).err().unwrap();
        assert!(refused.ends_with("is not empty: name another --dir, or empty it"), "{refused}");
    }

    #[test]
    fn a_server_that_does_not_start_is_named() {
        let refused = check_program(Path::new("/no/nats-server"), "install it").unwrap_err();
        assert_eq!(refused, "/no/nats-server does not start: install it");
    }
}
