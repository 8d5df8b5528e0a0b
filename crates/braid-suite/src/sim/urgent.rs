//! `bench urgent`: urgent messages beside bulk, with one client behind a bad link.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use braid_bench::Failure;
use braid_bench::urgent::{CONVERGENCE, Lanes, Load, Outcome, Ready};
use braid_client::{Builder, Congestion};
use braid_measure::{Latencies, Percentiles};
use braid_transport::sim::{Counters, Host, Policer, Shaper};
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::{Fallible, RunOptions, Testbed, Way, add, median, name, or_all, write_lines};

const HEAD: &str = "\
way  network    bulk setting   first 3 s on time  worst     p50     p90     p99   bulk KB/s packets dropped  set-up s";

/// 100 B of QoS 0 every 100 ms for a minute beside 20 MB of QoS 1, through a link that carries 29 packets a second.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench urgent", bin_name = "cargo xtask bench urgent")]
pub(crate) struct Args {
    #[command(flatten)]
    run: RunOptions,
    /// Networks; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    network: Vec<Bad>,
    /// Messages of the 20 MB; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    bulk: Vec<Bulk>,
    /// Settings of clients and broker; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    let mut rows = Vec::new();
    println!("{HEAD}");
    for way in or_all(&args.run.way) {
        for network in or_all(&args.network) {
            for bulk in or_all(&args.bulk) {
                for setting in or_all(&args.setting) {
                    let scenario = Scenario { way, network, bulk, setting };
                    let rounds = args.run.rounds(|seed| async move { scenario.measure(seed).await })?;
                    add(&mut rows, Row { scenario, rounds });
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
    rounds: Vec<Reading>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { way, network, bulk, setting } = &self.scenario;
        let worst = self.rounds.iter().map(|round| round.on_time).fold(1.0, f64::min);
        let of = |of: fn(&Reading) -> f64| median(&self.rounds, |round| Some(of(round))).unwrap_or_default();
        let millis = |of: fn(&Reading) -> Option<f64>| {
            median(&self.rounds, of).map_or_else(|| "never".to_owned(), |median| format!("{median:.0}"))
        };
        write!(
            f,
            "{:4} {:10} {:4} {:9} {:7.0} % {:5.1} % {:4.0} % {:>7} {:>7} {:>7} {:11.1} {:7.0} {:5.1} % ",
            name(way),
            name(network),
            name(bulk),
            name(setting),
            of(|round| round.early_on_time) * 100.0,
            of(|round| round.on_time) * 100.0,
            worst * 100.0,
            millis(|round| round.latency_ms.p50),
            millis(|round| round.latency_ms.p90),
            millis(|round| round.latency_ms.p99),
            of(|round| round.bulk_bytes_per_second) / 1000.0,
            of(|round| round.packets as f64),
            of(|round| round.dropped) * 100.0,
        )?;
        match median(&self.rounds, |round| round.set_up_seconds) {
            Some(set_up) => write!(f, "{set_up:9.2}"),
            None => f.write_str("    never"),
        }
    }
}

/// Latency up to which a message is on time.
const LIMIT: Duration = Duration::from_millis(250);

/// Time limit of connecting and subscribing; after that every message of the round counts as lost.
const SET_UP: Duration = Duration::from_secs(60);

/// Approximate bytes of an urgent message with its PUBLISH header.
const URGENT_PACKET: u64 = 115;

/// Approximate bytes of a datagram that are QUIC's own.
const QUIC_HEAD: u64 = 35;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Bad {
    /// A policer of 29 packets a second with a burst of 5; a round trip of 2 ms.
    Policer0,
    /// That policer with a round trip of 40 ms.
    Policer40,
    /// That policer with a round trip of 100 ms.
    Policer100,
    /// That policer with a round trip of 2 ms, and 10 packets a second from the 20th to the 40th second.
    Step,
    /// A queue of 50 packets that leaves at 29 a second; a round trip of 2 ms.
    Shaper0,
    /// That queue with a round trip of 40 ms.
    Shaper40,
    /// A queue of 100 packets that leaves at 860 a second (10 Mbit/s), a round trip of 40 ms, and 1 % lost at random.
    Loss1,
    /// That queue with 10 % lost.
    Loss10,
}

/// Packets a second of [`Bad::Loss1`] and [`Bad::Loss10`].
const TEN_MEGABIT: f64 = 860.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Bulk {
    /// One message of 20 MB.
    One,
    /// Ten messages of 2 MB.
    Ten,
    /// 320 messages of 62,500 bytes.
    Many,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Setting {
    /// Defaults.
    Defaults,
    /// Defaults without the gate.
    Ungated,
    /// Defaults with CUBIC at both ends.
    Cubic,
    /// As many streams as with the defaults, all of equal priority.
    Equal,
    /// One stream without priorities.
    Single,
}

const POLICER: Policer = Policer { rate: 29.0, burst: 5 };

impl Bad {
    fn is_fast(self) -> bool {
        matches!(self, Self::Loss1 | Self::Loss10)
    }
}

/// Parameters of a row.
#[derive(Clone, Copy, Debug, Serialize)]
struct Scenario {
    way: Way,
    network: Bad,
    bulk: Bulk,
    setting: Setting,
}

/// Measurements of one round.
#[derive(Debug, Serialize)]
struct Reading {
    seed: u64,
    /// Time from the first packet to the last SUBACK; `None` if that never came.
    set_up_seconds: Option<f64>,
    urgent_due: u64,
    urgent_arrived: u64,
    /// Share of the messages due in the first three seconds that arrived within 250 ms, 0 to 1.
    early_on_time: f64,
    /// That share of all later messages. All fields below are without the first three seconds.
    on_time: f64,
    latency_ms: Percentiles,
    /// Bytes that passed the bad link, without QUIC's own bytes and the urgent messages, with retransmissions.
    bulk_bytes_per_second: f64,
    /// Datagrams that passed the bad link.
    packets: u64,
    /// Share of all datagrams that it dropped, 0 to 1.
    dropped: f64,
}

impl Scenario {
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
        // Bulk has to last until the end.
        let times = if self.network.is_fast() { 5 } else { 1 };
        Load::new(messages, size * times, self.lanes())
    }

    fn congestion(&self) -> Congestion {
        if self.setting == Setting::Cubic { Congestion::Cubic } else { Congestion::default() }
    }

    fn degrade(&self, host: &Host) {
        let latency = match self.network {
            Bad::Policer0 | Bad::Step | Bad::Shaper0 => Duration::ZERO,
            Bad::Policer40 | Bad::Shaper40 | Bad::Loss1 | Bad::Loss10 => Duration::from_millis(20),
            Bad::Policer100 => Duration::from_millis(50),
        };
        host.change(|link| link.latency = latency);
        host.change_one(self.way.direction(), |link| match self.network {
            Bad::Policer0 | Bad::Policer40 | Bad::Policer100 | Bad::Step => link.policer = Some(POLICER),
            Bad::Shaper0 | Bad::Shaper40 => link.shaper = Some(Shaper { rate: 29.0, queue: 50 }),
            Bad::Loss1 | Bad::Loss10 => {
                link.shaper = Some(Shaper { rate: TEN_MEGABIT, queue: 100 });
                link.loss = if self.network == Bad::Loss1 { 0.01 } else { 0.1 };
            }
        });
    }

    /// Changes the link during the run.
    async fn step(&self, host: &Host) -> Infallible {
        if self.network == Bad::Step {
            for (after, rate) in [(20, 10.0), (20, 29.0)] {
                sleep(Duration::from_secs(after)).await;
                host.change_one(self.way.direction(), |link| {
                    link.policer = Some(Policer { rate, ..POLICER })
                });
            }
        }
        std::future::pending().await
    }

    fn build(&self, seed: u64) -> Fallible<Testbed> {
        let with = |builder: Builder| builder.stream_policy(self.lanes().policy()).connect_timeout(SET_UP);
        let gate = self.setting != Setting::Ungated;
        let testbed = Testbed::build(seed, self.congestion(), gate, with)?;
        self.degrade(&testbed.device);
        Ok(testbed)
    }

    async fn measure(&self, seed: u64) -> Fallible<Reading> {
        let testbed = self.build(seed)?;
        let begun = Instant::now();
        let ready = match timeout(SET_UP, self.set_up(&testbed)).await {
            Ok(ready) => ready?,
            Err(_elapsed) => return Ok(self.reading(seed, &testbed, None)),
        };
        let set_up = begun.elapsed();
        let run = async { tokio::join!(ready.run(), self.counters_after_convergence(&testbed)) };
        let (outcome, before) = tokio::select! {
            (outcome, before) = run => (outcome?, before),
            never = self.step(&testbed.device) => match never {},
        };
        Ok(self.reading(seed, &testbed, Some((set_up, outcome, before))))
    }

    async fn counters_after_convergence(&self, testbed: &Testbed) -> Counters {
        sleep(CONVERGENCE).await;
        testbed.device.counters(self.way.direction())
    }

    async fn set_up(&self, testbed: &Testbed) -> Result<Ready, Failure> {
        let near = testbed.near.clone().connect().await?;
        let far = testbed.far.clone().connect().await?;
        match self.way {
            Way::Up => self.load().set_up(far.0, near).await,
            Way::Down => self.load().set_up(near.0, far).await,
        }
    }

    fn reading(&self, seed: u64, testbed: &Testbed, found: Option<(Duration, Outcome, Counters)>) -> Reading {
        let counters = testbed.device.counters(self.way.direction());
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
    /// Measurements of a round without a set-up in time.
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
