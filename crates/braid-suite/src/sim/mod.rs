//! `bench urgent`, `bulk`, `real-links` and `neighbours`: a broker, a simulated network and clients in this process, on
//! virtual time.

pub(crate) mod bulk;
pub(crate) mod neighbours;
pub(crate) mod real_links;
pub(crate) mod urgent;

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use braid_broker::{Anonymous, Broker, BrokerConfig, SysConfig};
use braid_client::{Builder, Client, ClientTlsOptions, Congestion, Messages};
use braid_measure::Spread;
use braid_store::MemoryStore;
use braid_transport::mem;
use braid_transport::sim::{Counters, Direction, Host, Network};
use braid_transport::{ClientAuth, ListenOptions, Listener, ServerTls, self_signed};
use clap::ValueEnum;
use serde::Serialize;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Rounds and output of a suite.
#[derive(clap::Args)]
pub(crate) struct Rounds {
    /// The seed of the first round; each further round takes the next.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds of each row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Also write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Rounds {
    /// Measures each round on virtual time; `measure` gets its seed.
    fn measure<R>(&self, measure: impl AsyncFn(u64) -> Fallible<R>) -> Fallible<Vec<R>> {
        let seeds = self.seed..self.seed.saturating_add(self.rounds);
        seeds.map(|seed| on_virtual_time(measure(seed))).collect()
    }

    /// Writes rows as a JSON array with a line for each, if that is wanted.
    fn write(&self, rows: &[impl Serialize]) -> Fallible<()> {
        let Some(file) = &self.json else { return Ok(()) };
        let lines = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
        Ok(std::fs::write(file, format!("[\n{}\n]\n", lines.join(",\n")))?)
    }
}

/// Runs a measurement on virtual time.
fn on_virtual_time<R>(measurement: impl Future<Output = Fallible<R>>) -> Fallible<R> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(measurement)
}

/// Links that are chosen by the begin of their names; all are if nothing is named.
///
/// # Errors
/// A begin that no link has.
fn choose<'a, T>(begins: &[String], links: &'a [T], name: impl Fn(&T) -> &str) -> Fallible<Vec<&'a T>> {
    let has = |link: &T, begin: &String| name(link).starts_with(begin.as_str());
    if let Some(begin) = begins.iter().find(|begin| !links.iter().any(|link| has(link, begin))) {
        let names: Vec<_> = links.iter().map(&name).collect();
        return Err(format!("no link is called `{begin}`; there are {}", names.join(", ")).into());
    }
    let is_chosen = |link: &&T| begins.is_empty() || begins.iter().any(|begin| has(link, begin));
    Ok(links.iter().filter(is_chosen).collect())
}

/// Rounds and directions.
#[derive(clap::Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    rounds: Rounds,
    /// Direction of the message through the network; both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    way: Vec<LinkDirection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LinkDirection {
    /// A client publishes across the network.
    Up,
    /// A client receives across the network.
    Down,
}

impl LinkDirection {
    /// Direction of the device's link.
    fn direction(self) -> Direction {
        if self == Self::Up { Direction::Up } else { Direction::Down }
    }
}

/// Congestion control of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Setting {
    /// Defaults.
    Gate,
    /// Defaults without the gate.
    Bbr3,
    /// CUBIC without the gate.
    Cubic,
}

impl Setting {
    fn congestion(self) -> Congestion {
        if self == Self::Cubic { Congestion::Cubic } else { Congestion::default() }
    }
}

/// Combination of parameters that is measured in rounds.
trait Scenario: Serialize {
    /// Measurements of a round.
    type Reading: Serialize;

    async fn measure(&self, seed: u64) -> Fallible<Self::Reading>;

    /// Line of the console.
    fn line(&self, rounds: &[Self::Reading]) -> String;
}

/// Rounds of a scenario.
#[derive(Serialize)]
struct Row<S: Scenario> {
    #[serde(flatten)]
    scenario: S,
    rounds: Vec<S::Reading>,
}

impl RunOptions {
    /// Measures the scenarios on virtual time, prints a line for each, and writes them.
    fn measure<S: Scenario>(&self, head: &str, scenarios: impl IntoIterator<Item = S>) -> Fallible<()> {
        println!("{head}");
        let mut rows = Vec::new();
        for scenario in scenarios {
            let rounds = self.rounds.measure(async |seed| scenario.measure(seed).await)?;
            println!("{}", scenario.line(&rounds));
            rows.push(Row { scenario, rounds });
        }
        self.rounds.write(&rows)
    }
}

/// The chosen values, or all.
fn or_all<T: ValueEnum + Copy>(chosen: &[T]) -> Vec<T> {
    if chosen.is_empty() { T::value_variants().to_vec() } else { chosen.to_vec() }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Median over the rounds, where a missing value is above all others; `None` if it is then a missing one.
fn median<T>(rounds: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    Spread::median_of_all(rounds.iter().map(of))
}

/// A broker, and two clients of which one is across a network.
pub(crate) struct Testbed {
    /// Host of the far client.
    device: Host,
    /// Across the network, over QUIC.
    far: Builder,
    /// In memory.
    near: Builder,
    /// Holds the certificate that the far client reads when it connects.
    _files: tempfile::TempDir,
}

impl Testbed {
    /// Builds all; `congestion` and `gate` are for both ends of the far client's connection, `with` for both clients.
    fn build(
        seed: u64,
        congestion: Congestion,
        gate: bool,
        with: impl Fn(Builder) -> Builder,
    ) -> Fallible<Self> {
        let directory = tempfile::tempdir()?;
        let files = self_signed(directory.path(), &["localhost".to_owned()])?;
        let ca_files = vec![files.certificate.clone()];
        let network = Network::new(seed);
        let mut options = ListenOptions::default();
        options.quic.congestion = congestion;
        options.quic.gate = gate;
        let listener = network.listen(ServerTls::load(files, ClientAuth::None)?, &options)?;
        let server = listener.local_addr().ok_or("no address")?;
        let (in_memory, connector) = mem::listener();
        start_broker(vec![listener, in_memory])?;
        let device = network.host("device");
        let builder = |id: &str| with(Client::builder("quic://localhost").client_id(id));
        let near = builder("near").in_memory(connector);
        let tls = ClientTlsOptions { ca_files, ..ClientTlsOptions::default() };
        let far =
            builder("far").tls(tls).congestion(congestion).gate(gate).in_simulation(device.clone(), server);
        Ok(Self { device, far, near, _files: directory })
    }

    /// A further client on the host of the far one.
    fn neighbour(&self, n: usize, setting: Setting) -> Builder {
        let builder = self.far.clone().client_id(&format!("neighbour-{n}"));
        builder.congestion(setting.congestion()).gate(setting == Setting::Gate)
    }

    /// Connects both clients: the publisher, and the subscriber with its messages.
    async fn connect(&self, way: LinkDirection) -> Result<(Client, (Client, Messages)), braid_client::Error> {
        let near = self.near.clone().connect().await?;
        let far = self.far.clone().connect().await?;
        Ok(if way == LinkDirection::Up { (far.0, near) } else { (near.0, far) })
    }

    /// Datagrams that passed the bad link since `before`, and the share of all that it dropped.
    fn passed(&self, way: LinkDirection, before: &Counters) -> (u64, f64) {
        let after = self.device.counters(way.direction());
        let (packets, dropped) = (after.packets - before.packets, after.dropped - before.dropped);
        (packets, dropped as f64 / (packets + dropped).max(1) as f64)
    }
}

fn start_broker(listeners: Vec<Listener>) -> Fallible<()> {
    let config = BrokerConfig { sys: SysConfig { interval_secs: 0 }, ..BrokerConfig::default() };
    let rule = Anonymous { from_anywhere: true };
    let broker = Broker::build(config, Box::new(rule), Arc::new(MemoryStore::new()), listeners)?;
    tokio::spawn(broker.run(Duration::from_secs(1)));
    Ok(())
}
