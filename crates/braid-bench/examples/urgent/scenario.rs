//! A broker, a network and two clients, one of them behind a bad link.

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use braid_bench::Failure;
use braid_bench::urgent::{CONVERGENCE, Lanes, Load, Outcome, Ready};
use braid_client::{Builder, Congestion};
use braid_measure::{Latencies, Percentiles};
use braid_transport::sim::{Counters, Direction, Host, Policer, Shaper};
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use crate::house::House;

/// What is on time.
const LIMIT: Duration = Duration::from_millis(250);

/// How long connecting and subscribing may take; after that nothing of the round arrived.
const SET_UP: Duration = Duration::from_secs(60);

/// Bytes of an urgent message with its PUBLISH header, about.
const URGENT_PACKET: u64 = 115;

/// Bytes of a datagram that are QUIC's own, about.
const QUIC_HEAD: u64 = 35;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// A client publishes through the bad link.
    Up,
    /// A client receives through the bad link.
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bad {
    /// A policer of 29 packets a second with a burst of 5; a round trip of 2 ms.
    Policer0,
    /// The same with a round trip of 40 ms.
    Policer40,
    /// The same with a round trip of 100 ms.
    Policer100,
    /// The same with a round trip of 2 ms, and 10 packets a second from the 20th to the 40th second.
    Step,
    /// A queue of 50 packets that leaves at 29 a second; a round trip of 2 ms.
    Shaper0,
    /// The same with a round trip of 40 ms.
    Shaper40,
    /// A queue of 100 packets that leaves at 860 a second (10 Mbit/s), a round trip of 40 ms, and 1 % lost at random.
    Loss1,
    /// The same with 10 % lost.
    Loss10,
}

/// Packets a second of [`Bad::Loss1`] and [`Bad::Loss10`].
const TEN_MEGABIT: f64 = 860.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bulk {
    /// One message of 20 MB.
    One,
    /// Ten messages of 2 MB.
    Ten,
    /// 320 messages of 62,500 bytes.
    Many,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Setting {
    /// What is in force when nobody configures anything.
    Defaults,
    /// The same without the gate.
    Ungated,
    /// The defaults with CUBIC at both ends.
    Cubic,
    /// As many streams as with the defaults, priorities off: all are equal.
    Equal,
    /// All on one stream, without priorities.
    Single,
}

const POLICER: Policer = Policer { rate: 29.0, burst: 5 };

impl Bad {
    fn is_fast(self) -> bool {
        matches!(self, Self::Loss1 | Self::Loss10)
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Scenario {
    pub(crate) way: Way,
    pub(crate) network: Bad,
    pub(crate) bulk: Bulk,
    pub(crate) setting: Setting,
}

/// What one round of a scenario measured.
#[derive(Debug, Serialize)]
pub(crate) struct Reading {
    pub(crate) seed: u64,
    /// From the first packet to the last SUBACK; `None`: that never came.
    pub(crate) set_up_seconds: Option<f64>,
    pub(crate) urgent_due: u64,
    pub(crate) urgent_arrived: u64,
    /// Of those due in the first three seconds, the share that arrived within 250 ms, 0 to 1.
    pub(crate) early_on_time: f64,
    /// Of all others the same. From here on everything is without those three seconds.
    pub(crate) on_time: f64,
    pub(crate) latency_ms: Percentiles,
    /// What came out of the bad link, but for QUIC's own bytes and the urgent messages; repetitions included.
    pub(crate) bulk_bytes_per_second: f64,
    /// Datagrams that passed the bad link.
    pub(crate) packets: u64,
    /// The share of all datagrams that it dropped, 0 to 1.
    pub(crate) dropped: f64,
}

impl Scenario {
    /// Runs it once, on virtual time.
    pub(crate) fn run(&self, seed: u64) -> Result<Reading, Box<dyn Error>> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
        runtime.block_on(self.measure(seed))
    }

    fn lanes(&self) -> Lanes {
        match self.setting {
            Setting::Defaults | Setting::Ungated | Setting::Cubic => Lanes::Priorities,
            Setting::Equal => Lanes::Equal,
            Setting::Single => Lanes::Single,
        }
    }

    fn load(&self) -> Load {
        let (messages, size) = match self.bulk {
            Bulk::One => (1, 20_000_000),
            Bulk::Ten => (10, 2_000_000),
            Bulk::Many => (320, 62_500),
        };
        // There has to be some until the end.
        let times = if self.network.is_fast() { 5 } else { 1 };
        Load::new(messages, size * times, self.lanes())
    }

    fn congestion(&self) -> Congestion {
        if self.setting == Setting::Cubic { Congestion::Cubic } else { Congestion::default() }
    }

    /// Which direction of the device's link is bad.
    fn direction(&self) -> Direction {
        if self.way == Way::Up { Direction::Up } else { Direction::Down }
    }

    fn degrade(&self, host: &Host) {
        let latency = match self.network {
            Bad::Policer0 | Bad::Step | Bad::Shaper0 => Duration::ZERO,
            Bad::Policer40 | Bad::Shaper40 | Bad::Loss1 | Bad::Loss10 => Duration::from_millis(20),
            Bad::Policer100 => Duration::from_millis(50),
        };
        host.change(|link| link.latency = latency);
        host.change_one(self.direction(), |link| match self.network {
            Bad::Policer0 | Bad::Policer40 | Bad::Policer100 | Bad::Step => link.policer = Some(POLICER),
            Bad::Shaper0 | Bad::Shaper40 => link.shaper = Some(Shaper { rate: 29.0, queue: 50 }),
            Bad::Loss1 | Bad::Loss10 => {
                link.shaper = Some(Shaper { rate: TEN_MEGABIT, queue: 100 });
                link.loss = if self.network == Bad::Loss1 { 0.01 } else { 0.1 };
            }
        });
    }

    /// Changes the link under way.
    async fn step(&self, host: &Host) -> Infallible {
        if self.network == Bad::Step {
            for (after, rate) in [(20, 10.0), (20, 29.0)] {
                sleep(Duration::from_secs(after)).await;
                host.change_one(self.direction(), |link| link.policer = Some(Policer { rate, ..POLICER }));
            }
        }
        std::future::pending().await
    }

    fn build(&self, seed: u64) -> Result<House, Box<dyn Error>> {
        let with = |builder: Builder| builder.stream_policy(self.lanes().policy()).connect_timeout(SET_UP);
        let gate = self.setting != Setting::Ungated;
        let house = House::build(seed, self.congestion(), gate, with)?;
        self.degrade(&house.device);
        Ok(house)
    }

    async fn measure(&self, seed: u64) -> Result<Reading, Box<dyn Error>> {
        let house = self.build(seed)?;
        let begun = Instant::now();
        let ready = match timeout(SET_UP, self.set_up(&house)).await {
            Ok(ready) => ready?,
            Err(_elapsed) => return Ok(self.reading(seed, &house, None)),
        };
        let set_up = begun.elapsed();
        let run = async { tokio::join!(ready.run(), self.counters_after_convergence(&house)) };
        let (outcome, before) = tokio::select! {
            (outcome, before) = run => (outcome?, before),
            never = self.step(&house.device) => match never {},
        };
        Ok(self.reading(seed, &house, Some((set_up, outcome, before))))
    }

    async fn counters_after_convergence(&self, house: &House) -> Counters {
        sleep(CONVERGENCE).await;
        house.device.counters(self.direction())
    }

    async fn set_up(&self, house: &House) -> Result<Ready, Failure> {
        let near = house.near.clone().connect().await?;
        let far = house.far.clone().connect().await?;
        match self.way {
            Way::Up => self.load().set_up(far.0, near).await,
            Way::Down => self.load().set_up(near.0, far).await,
        }
    }

    fn reading(&self, seed: u64, house: &House, found: Option<(Duration, Outcome, Counters)>) -> Reading {
        let counters = house.device.counters(self.direction());
        let Some((set_up, outcome, before)) = found else { return Reading::nothing(seed, &self.load()) };
        let (packets, dropped) = (counters.packets - before.packets, counters.dropped - before.dropped);
        let Outcome { latencies, early, elapsed, .. } = outcome;
        let rest = packets * QUIC_HEAD + latencies.arrived() * URGENT_PACKET;
        let bulk = (counters.bytes - before.bytes).saturating_sub(rest) as f64;
        Reading {
            seed,
            set_up_seconds: Some(set_up.as_secs_f64()),
            urgent_due: latencies.due(),
            urgent_arrived: latencies.arrived(),
            early_on_time: early.share_within(LIMIT),
            on_time: latencies.share_within(LIMIT),
            latency_ms: latencies.percentiles(),
            bulk_bytes_per_second: bulk / elapsed.saturating_sub(CONVERGENCE).as_secs_f64(),
            packets,
            dropped: dropped as f64 / (packets + dropped).max(1) as f64,
        }
    }
}

impl Reading {
    /// Nothing was set up in time.
    fn nothing(seed: u64, load: &Load) -> Self {
        let mut nothing = Latencies::default();
        nothing.record_missing((load.urgent_messages - load.early_messages()).into());
        Self {
            seed,
            set_up_seconds: None,
            urgent_due: nothing.due(),
            urgent_arrived: 0,
            early_on_time: 0.0,
            on_time: 0.0,
            latency_ms: nothing.percentiles(),
            bulk_bytes_per_second: 0.0,
            packets: 0,
            dropped: 0.0,
        }
    }
}
