//! One message through one kind of network.

use std::error::Error;
use std::time::Duration;

use braid_bench::bulk::Bulk;
use braid_client::Congestion;
use braid_transport::sim::{Direction, Shaper};
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::timeout;

use crate::house::House;

/// What takes longer counts as never.
const PATIENCE: Duration = Duration::from_secs(300);

/// Bytes of a datagram, once the size that fits is known. The simulation counts datagrams, not bytes.
const DATAGRAM: u32 = 1452;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// A client publishes across the network.
    Up,
    /// A client receives across the network.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Path {
    /// 1 Gbit/s, 2 ms.
    Local,
    /// 1 Gbit/s, 50 ms.
    Giga50,
    /// 1 Gbit/s, 200 ms.
    Giga200,
    /// 100 Mbit/s, 50 ms.
    Fast50,
    /// 100 Mbit/s, 50 ms, and a queue of a quarter of what is on its way.
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
pub(crate) enum Setting {
    /// What is in force when nobody configures anything.
    Defaults,
    /// The same without the gate.
    Ungated,
    /// CUBIC at both ends.
    Cubic,
    /// `NewReno` at both ends.
    Newreno,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Scenario {
    pub(crate) path: Path,
    pub(crate) megabytes: u32,
    pub(crate) way: Way,
    pub(crate) setting: Setting,
}

/// What one round of a scenario measured.
#[derive(Debug, Serialize)]
pub(crate) struct Reading {
    pub(crate) seed: u64,
    /// From publishing until the subscriber has all of it; `None`: it never had.
    pub(crate) seconds: Option<f64>,
    /// Datagrams that passed the link in the direction of the message.
    pub(crate) packets: u64,
    /// The share of those sent that was dropped there, 0 to 1.
    pub(crate) dropped: f64,
}

impl Path {
    /// In 2^20 bytes.
    pub(crate) fn sizes(self) -> &'static [u32] {
        if self.megabits() >= 1000 { &[10, 100] } else { &[10] }
    }

    fn megabits(self) -> u32 {
        match self {
            Self::Local | Self::Giga50 | Self::Giga200 => 1000,
            Self::Fast50 | Self::Shallow50 => 100,
            Self::Slow100 => 10,
            Self::Lossy1 | Self::Lossy2 | Self::Jitter5 => 20,
        }
    }

    fn round_trip(self) -> Duration {
        Duration::from_millis(self.round_trip_millis().into())
    }

    fn round_trip_millis(self) -> u32 {
        match self {
            Self::Local => 2,
            Self::Giga50 | Self::Fast50 | Self::Shallow50 => 50,
            Self::Giga200 => 200,
            Self::Slow100 => 100,
            Self::Lossy1 | Self::Lossy2 | Self::Jitter5 => 40,
        }
    }

    fn loss(self) -> f64 {
        match self {
            Self::Lossy1 => 0.01,
            Self::Lossy2 => 0.02,
            _ => 0.0,
        }
    }

    /// A queue of as many datagrams as are on their way, or a quarter of them.
    fn shaper(self) -> Shaper {
        let rate = f64::from(self.megabits()) * 1e6 / 8.0 / f64::from(DATAGRAM);
        // Megabits a second by milliseconds are 125 bytes.
        let on_the_way = self.megabits() * self.round_trip_millis() * 125;
        let share = if self == Self::Shallow50 { 4 } else { 1 };
        Shaper { rate, queue: on_the_way.div_ceil(DATAGRAM * share) }
    }
}

impl Scenario {
    /// Runs it once, on virtual time.
    pub(crate) fn run(&self, seed: u64) -> Result<Reading, Box<dyn Error>> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        runtime.block_on(self.measure(seed))
    }

    /// What the link takes for the bytes of the message alone, and one and a half round trips.
    pub(crate) fn limit(&self) -> Duration {
        let bits = f64::from(self.megabytes) * f64::from(1 << 20) * 8.0;
        let on_the_link = Duration::from_secs_f64(bits / (f64::from(self.path.megabits()) * 1e6));
        on_the_link + self.path.round_trip().mul_f64(1.5)
    }

    fn congestion(&self) -> Congestion {
        match self.setting {
            Setting::Defaults | Setting::Ungated => Congestion::default(),
            Setting::Cubic => Congestion::Cubic,
            Setting::Newreno => Congestion::NewReno,
        }
    }

    async fn measure(&self, seed: u64) -> Result<Reading, Box<dyn Error>> {
        let house =
            House::build(seed, self.congestion(), self.setting != Setting::Ungated, |builder| builder)?;
        let direction = if self.way == Way::Up { Direction::Up } else { Direction::Down };
        house.device.change(|link| link.latency = self.path.round_trip() / 2);
        house.device.change_one(direction, |link| {
            link.shaper = Some(self.path.shaper());
            link.loss = self.path.loss();
            if self.path == Path::Jitter5 {
                link.jitter = Duration::from_millis(5);
            }
        });
        let (near, far) = (house.near.connect().await?, house.far.connect().await?);
        let mut bulk = match self.way {
            Way::Up => Bulk::set_up(far.0, near).await?,
            Way::Down => Bulk::set_up(near.0, far).await?,
        };
        let before = house.device.counters(direction);
        let seconds = match timeout(PATIENCE, bulk.transfer((self.megabytes as usize) << 20)).await {
            Ok(took) => Some(took?.as_secs_f64()),
            Err(_elapsed) => None,
        };
        let after = house.device.counters(direction);
        let (packets, dropped) = (after.packets - before.packets, after.dropped - before.dropped);
        let dropped = dropped as f64 / (packets + dropped).max(1) as f64;
        Ok(Reading { seed, seconds, packets, dropped })
    }
}
