//! `bench bulk`: one large message through good and middling networks.

use std::time::Duration;

use braid_bench::bulk::Bulk;
use braid_client::Congestion;
use braid_transport::sim::Shaper;
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::timeout;

use super::{Fallible, LinkDirection, RunOptions, Scenario, Testbed, median, name, or_all};

const HEAD: &str = "\
path        MiB way  setting    limit s  median s  ratio   worst  dropped";

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
    let mut scenarios = Vec::new();
    for path in or_all(&args.path) {
        let sizes = if args.megabytes.is_empty() { path.sizes() } else { &args.megabytes };
        for &megabytes in sizes {
            for way in or_all(&args.run.way) {
                let limit_seconds = path.limit(megabytes).as_secs_f64();
                let settings = or_all(&args.setting).into_iter();
                scenarios.extend(settings.map(|setting| Transfer {
                    path,
                    megabytes,
                    way,
                    setting,
                    limit_seconds,
                }));
            }
        }
    }
    args.run.measure(HEAD, scenarios)
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
    /// 20 Mbit/s, 600 ms.
    Geo,
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
    /// Defaults, after a connection that has carried as much.
    Returning,
    /// Defaults without the gate.
    Ungated,
    /// CUBIC at both ends.
    Cubic,
    /// `NewReno` at both ends.
    Newreno,
}

/// Parameters of a row.
#[derive(Clone, Copy, Debug, Serialize)]
struct Transfer {
    path: Path,
    megabytes: u32,
    way: LinkDirection,
    setting: Setting,
    /// Time that the link needs without any protocol.
    limit_seconds: f64,
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
            Self::Geo => (20, 600, 0.0),
            Self::Lossy1 => (20, 40, 0.01),
            Self::Lossy2 => (20, 40, 0.02),
            Self::Jitter5 => (20, 40, 0.0),
        }
    }

    /// Time that the link needs for the bytes of the message alone, and one and a half round trips.
    fn limit(self, megabytes: u32) -> Duration {
        let bits = f64::from(megabytes) * f64::from(1 << 20) * 8.0;
        let on_the_link = Duration::from_secs_f64(bits / (f64::from(self.link().0) * 1e6));
        on_the_link + self.round_trip().mul_f64(1.5)
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

impl Transfer {
    async fn connected(&self, testbed: &Testbed) -> Fallible<Bulk> {
        let (publisher, subscriber) = testbed.connect(self.way).await?;
        Ok(Bulk::set_up(publisher, subscriber).await?)
    }
}

impl Scenario for Transfer {
    type Reading = Reading;

    async fn measure(&self, seed: u64) -> Fallible<Reading> {
        let congestion = match self.setting {
            Setting::Defaults | Setting::Returning | Setting::Ungated => Congestion::default(),
            Setting::Cubic => Congestion::Cubic,
            Setting::Newreno => Congestion::NewReno,
        };
        let testbed = Testbed::build(seed, congestion, self.setting != Setting::Ungated, |builder| builder)?;
        let direction = self.way.direction();
        testbed.device.change(|link| link.latency = self.path.round_trip() / 2);
        testbed.device.change_one(direction, |link| {
            link.shaper = Some(self.path.shaper());
            link.loss = self.path.link().2;
            if self.path == Path::Jitter5 {
                link.jitter = Duration::from_millis(5);
            }
        });
        let bytes = (self.megabytes as usize) << 20;
        if self.setting == Setting::Returning {
            self.connected(&testbed).await?.transfer(bytes).await?;
        }
        let mut bulk = self.connected(&testbed).await?;
        let before = testbed.device.counters(direction);
        let seconds = match timeout(PATIENCE, bulk.transfer(bytes)).await {
            Ok(took) => Some(took?.as_secs_f64()),
            Err(_elapsed) => None,
        };
        let (packets, dropped) = testbed.passed(self.way, &before);
        Ok(Reading { seed, seconds, packets, dropped })
    }

    fn line(&self, rounds: &[Reading]) -> String {
        let Self { path, megabytes, way, setting, limit_seconds: limit } = self;
        let middle = median(rounds, |round| round.seconds).unwrap_or(f64::INFINITY);
        let worst = rounds.iter().map(|round| round.seconds.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
        let dropped = median(rounds, |round| Some(round.dropped)).unwrap_or_default();
        format!(
            "{:11} {megabytes:3} {:4} {:9} {limit:8.3} {middle:9.3} {:6.2} {:7.2} {:6.1} %",
            name(path),
            name(way),
            name(setting),
            middle / limit,
            worst / limit,
            dropped * 100.0,
        )
    }
}
