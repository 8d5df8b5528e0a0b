//! `bench bulk`: one large message through good and middling networks.

use std::fmt;
use std::time::Duration;

use braid_bench::bulk::Bulk;
use braid_client::Congestion;
use braid_transport::sim::Shaper;
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::timeout;

use super::{Fallible, RunOptions, Testbed, Way, add, median, name, or_all, write_lines};

const HEAD: &str = "\
path        MiB way  setting   limit s  median s  ratio   worst  dropped";

/// Time of one message on a fresh connection, beside the time that the link alone would need.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench bulk", bin_name = "cargo xtask bench bulk")]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunOptions,
    /// Networks; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    path: Vec<Path>,
    /// Congestion control of both ends; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
    /// Megabytes (2^20 bytes) of the message; by default 10, and 100 too where the link has 1 Gbit/s.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=250))]
    megabytes: Vec<u32>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    let mut rows = Vec::new();
    println!("{HEAD}");
    for path in or_all(&args.path) {
        let sizes = if args.megabytes.is_empty() { path.sizes() } else { &args.megabytes };
        for &megabytes in sizes {
            for way in or_all(&args.run.way) {
                for setting in or_all(&args.setting) {
                    let scenario = Scenario { path, megabytes, way, setting };
                    let rounds = args.run.rounds(|seed| async move { scenario.measure(seed).await })?;
                    add(&mut rows, Row { scenario, limit_seconds: scenario.limit().as_secs_f64(), rounds });
                }
            }
        }
    }
    write_lines(&rows, args.run.json.as_deref())
}

/// Rounds of a scenario.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    scenario: Scenario,
    /// Time that the link needs without any protocol.
    limit_seconds: f64,
    rounds: Vec<Reading>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { path, megabytes, way, setting } = &self.scenario;
        let middle = median(&self.rounds, |round| round.seconds).unwrap_or(f64::INFINITY);
        let worst =
            self.rounds.iter().map(|round| round.seconds.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
        let dropped = median(&self.rounds, |round| Some(round.dropped)).unwrap_or_default();
        write!(
            f,
            "{:11} {megabytes:3} {:4} {:8} {:8.3} {middle:9.3} {:6.2} {:7.2} {:6.1} %",
            name(path),
            name(way),
            name(setting),
            self.limit_seconds,
            middle / self.limit_seconds,
            worst / self.limit_seconds,
            dropped * 100.0,
        )
    }
}

/// Time limit of a transfer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Bytes of a datagram, once the size that fits is known. The simulation counts datagrams, not bytes.
const DATAGRAM: u32 = 1452;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Path {
    /// 1 Gbit/s, 2 ms.
    Local,
    /// 1 Gbit/s, 50 ms.
    Giga50,
    /// 1 Gbit/s, 200 ms.
    Giga200,
    /// 100 Mbit/s, 50 ms.
    Fast50,
    /// 100 Mbit/s, 50 ms, and a queue of a quarter of the bandwidth-delay product.
    Shallow50,
    /// 10 Mbit/s, 100 ms.
    Slow100,
    /// 20 Mbit/s, 40 ms, 1 % lost at random.
    Lossy1,
    /// 20 Mbit/s, 40 ms, 2 % lost at random.
    Lossy2,
    /// 20 Mbit/s, 40 ms, and up to 5 ms more for each datagram, at random: they overtake each other.
    Jitter5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Setting {
    /// Defaults.
    Defaults,
    /// Defaults without the gate.
    Ungated,
    /// CUBIC at both ends.
    Cubic,
    /// `NewReno` at both ends.
    Newreno,
}

/// Parameters of a row.
#[derive(Clone, Copy, Debug, Serialize)]
struct Scenario {
    path: Path,
    megabytes: u32,
    way: Way,
    setting: Setting,
}

/// Measurements of one round.
#[derive(Debug, Serialize)]
struct Reading {
    seed: u64,
    /// Time from the PUBLISH until the subscriber had all of it; `None` if it never had.
    seconds: Option<f64>,
    /// Datagrams that passed the link in the direction of the message.
    packets: u64,
    /// Share of the datagrams that were dropped there, 0 to 1.
    dropped: f64,
}

impl Path {
    /// Sizes of the message, 2^20 bytes.
    fn sizes(self) -> &'static [u32] {
        if self.link().0 >= 1000 { &[10, 100] } else { &[10] }
    }

    /// Megabits per second, round trip in milliseconds, and share of the datagrams lost at random.
    fn link(self) -> (u32, u32, f64) {
        match self {
            Self::Local => (1000, 2, 0.0),
            Self::Giga50 => (1000, 50, 0.0),
            Self::Giga200 => (1000, 200, 0.0),
            Self::Fast50 | Self::Shallow50 => (100, 50, 0.0),
            Self::Slow100 => (10, 100, 0.0),
            Self::Lossy1 => (20, 40, 0.01),
            Self::Lossy2 => (20, 40, 0.02),
            Self::Jitter5 => (20, 40, 0.0),
        }
    }

    fn round_trip(self) -> Duration {
        Duration::from_millis(self.link().1.into())
    }

    /// A queue of the bandwidth-delay product in datagrams, or a quarter of it.
    fn shaper(self) -> Shaper {
        let (megabits, millis, _) = self.link();
        let rate = f64::from(megabits) * 1e6 / 8.0 / f64::from(DATAGRAM);
        // Megabits a second by milliseconds are 125 bytes.
        let on_the_way = megabits * millis * 125;
        let share = if self == Self::Shallow50 { 4 } else { 1 };
        Shaper { rate, queue: on_the_way.div_ceil(DATAGRAM * share) }
    }
}

impl Scenario {
    /// Time that the link needs for the bytes of the message alone, and one and a half round trips.
    fn limit(&self) -> Duration {
        let bits = f64::from(self.megabytes) * f64::from(1 << 20) * 8.0;
        let on_the_link = Duration::from_secs_f64(bits / (f64::from(self.path.link().0) * 1e6));
        on_the_link + self.path.round_trip().mul_f64(1.5)
    }

    fn congestion(&self) -> Congestion {
        match self.setting {
            Setting::Defaults | Setting::Ungated => Congestion::default(),
            Setting::Cubic => Congestion::Cubic,
            Setting::Newreno => Congestion::NewReno,
        }
    }

    async fn measure(&self, seed: u64) -> Fallible<Reading> {
        let testbed =
            Testbed::build(seed, self.congestion(), self.setting != Setting::Ungated, |builder| builder)?;
        let direction = self.way.direction();
        testbed.device.change(|link| link.latency = self.path.round_trip() / 2);
        testbed.device.change_one(direction, |link| {
            link.shaper = Some(self.path.shaper());
            link.loss = self.path.link().2;
            if self.path == Path::Jitter5 {
                link.jitter = Duration::from_millis(5);
            }
        });
        let (near, far) = (testbed.near.connect().await?, testbed.far.connect().await?);
        let mut bulk = match self.way {
            Way::Up => Bulk::set_up(far.0, near).await?,
            Way::Down => Bulk::set_up(near.0, far).await?,
        };
        let before = testbed.device.counters(direction);
        let seconds = match timeout(PATIENCE, bulk.transfer((self.megabytes as usize) << 20)).await {
            Ok(took) => Some(took?.as_secs_f64()),
            Err(_elapsed) => None,
        };
        let after = testbed.device.counters(direction);
        let (packets, dropped) = (after.packets - before.packets, after.dropped - before.dropped);
        let dropped = dropped as f64 / (packets + dropped).max(1) as f64;
        Ok(Reading { seed, seconds, packets, dropped })
    }
}
