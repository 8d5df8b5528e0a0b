//! `braidmq cluster`: a demo of a cluster, its state, a balancer for it, and import of a single broker.

mod balance;
mod demo;
mod import;
mod options;
mod page;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use braid_cluster::ServerUrl;
use braid_cluster::status::ClusterStatus;
use clap::Subcommand;

use self::progress::{Step, with_progress};
use crate::config::{Config, Layers, environment, merge};
use crate::output;
use crate::printable::printable;
pub(crate) use options::lock_instance;

/// Exit code when the cluster is degraded.
const DEGRADED: u8 = 1;

/// Exit code when nothing is known, or nothing could be started: no connection, or a wrong configuration.
const UNKNOWN: u8 = 2;

/// Look at a cluster of brokers, try one on this machine, balance its clients, or move a single broker into it
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Status(StatusArgs),
    Demo(demo::DemoArgs),
    Balance(balance::BalanceArgs),
    Import(import::Args),
}

/// Cluster that a command is about.
#[derive(clap::Args, Debug)]
struct Location {
    /// Read this TOML file, as `braidmq serve` does
    #[arg(long, value_name = "FILE", env = "BRAIDMQ_CONFIG")]
    config: Option<PathBuf>,
    /// Connect to this NATS server, instead of those in cluster.nats; repeatable
    #[arg(long, value_name = "URL")]
    nats: Vec<ServerUrl>,
    /// Set any key of the configuration, for example --set cluster.name=test; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Show nodes, streams, sessions and NATS servers of a cluster
///
/// Reads [cluster] of the broker's configuration, and connects without joining: no node is needed, none is disturbed.
/// The records of all sessions are read to count them, which takes seconds for a million.
#[derive(clap::Args, Debug)]
#[command(after_help = STATUS_HELP)]
struct StatusArgs {
    #[command(flatten)]
    location: Location,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const STATUS_HELP: &str = "\
Examples:
  braidmq cluster status --config /etc/braidmq/braidmq.toml
  braidmq cluster status --nats nats://127.0.0.1:4222 --set cluster.monitor='[\"http://127.0.0.1:8222\"]'
  braidmq cluster status --json | jq -r '.problems[]'

Exit codes:
  0  all is well
  1  degraded: the lines below \"problems\" say what; a stream without a leader or with too few live replicas, a replica
     that lags, no node, a server that would lose messages
  2  no NATS server takes the connection, or the configuration is wrong";

pub(crate) fn run(args: &Args) -> ExitCode {
    let outcome = match &args.command {
        Command::Status(args) => status(args),
        Command::Balance(args) => balance::run(args),
        Command::Import(args) => return import::run(args),
        Command::Demo(args) => demo::run(args),
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("braidmq: {}", printable(&message));
        ExitCode::from(UNKNOWN)
    })
}

fn status(args: &StatusArgs) -> Result<ExitCode, String> {
    let config = args.location.configure()?;
    let options = config.cluster_watch_options().map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the system refuses an event queue: {error}"))?;
    let asked = runtime.block_on(with_progress(|report| async move {
        ClusterStatus::ask(&options, &|stage| report(Step::Status(stage))).await
    }));
    let status = asked.map_err(|error| error.to_string())?;
    let text = if args.json { format!("{:#}\n", page::json(&status)) } else { page::text(&status) };
    output::print(&text).map_err(|error| format!("cannot write standard output: {error}"))?;
    Ok(if status.problems().is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DEGRADED) })
}

impl Location {
    /// Merges all sources of the configuration, and checks `[cluster]` alone.
    fn configure(&self) -> Result<Config, String> {
        let environment = environment().map_err(|error| error.to_string())?;
        let layers = Layers { file: self.config.clone(), environment, settings: self.set.clone() };
        let mut config = merge(&layers).map_err(|error| error.to_string())?;
        if !self.nats.is_empty() {
            config.cluster.nats.clone_from(&self.nats);
        }
        config.cluster.check().map_err(|error| error.in_file(self.config.as_deref()).to_string())?;
        if !config.cluster.is_on() {
            return Err(
                "there is no cluster: name a configuration with cluster.nats by --config, or a server by --nats"
                    .to_owned(),
            );
        }
        Ok(config)
    }
}
