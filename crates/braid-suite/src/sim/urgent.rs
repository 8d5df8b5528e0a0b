//! `bench urgent`: urgent messages beside bulk, with one client behind a bad link.

use std::convert::Infallible;
use std::time::Duration;

use braid_bench::urgent::{CONVERGENCE, Lanes, Outcome, UrgentLoad};
use braid_client::{Builder, Congestion};
use braid_measure::Percentiles;
use braid_transport::sim::{Host, Policer, Shaper};
use clap::ValueEnum;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::{Fallible, LinkDirection, RunOptions, Scenario, Testbed, median, name, or_all};

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
    network: Vec<Impairment>,
    /// Messages of the 20 MB; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    bulk: Vec<Bulk>,
    /// Settings of clients and broker; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    let mut scenarios = Vec::new();
    for way in or_all(&args.run.way) {
        for network in or_all(&args.network) {
            for bulk in or_all(&args.bulk) {
                let settings = or_all(&args.setting).into_iter();
                scenarios.extend(settings.map(|setting| Mix { way, network, bulk, setting }));
            }
        }
    }
    args.run.measure(HEAD, scenarios)
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
enum Impairment {
    /// A policer of 29 packets a second with a burst of 5; a round trip of 2 ms.
    Policer0,
    /// Same policer with a round trip of 40 ms.
    Policer40,
    /// Same policer with a round trip of 100 ms.
    Policer100,
    /// Same policer with a round trip of 2 ms, and 10 packets a second from the 20th to the 40th second.
    Step,
    /// A queue of 50 packets that leaves at 29 a second; a round trip of 2 ms.
    Shaper0,
    /// Same queue with a round trip of 40 ms.
    Shaper40,
    /// A queue of 100 packets that leaves at 860 a second (10 Mbit/s), a round trip of 40 ms, and 1 % lost at random.
    Loss1,
    /// Same queue with 10 % lost.
    Loss10,
}

/// Packets a second of [`Impairment::Loss1`] and [`Impairment::Loss10`].
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

impl Impairment {
    fn is_fast(self) -> bool {
        matches!(self, Self::Loss1 | Self::Loss10)
    }
}

/// Parameters of a row.
#[derive(Clone, Copy, Debug, Serialize)]
struct Mix {
    way: LinkDirection,
    network: Impairment,
    bulk: Bulk,
    setting: Setting,
}

/// Measurements of one round.
#[derive(Debug, Default, Serialize)]
struct Reading {
    seed: u64,
    /// Time from the first packet to the last SUBACK; `None` if that never came.
    set_up_seconds: Option<f64>,
    urgent_due: u64,
    urgent_arrived: u64,
    /// Share of the messages due in the first three seconds that arrived within 250 ms, 0 to 1.
    early_on_time: f64,
    /// Such a share of all later messages. All fields below are without the first three seconds.
    on_time: f64,
    latency_ms: Percentiles,
    /// Bytes that passed the bad link, without QUIC's own bytes and the urgent messages, with retransmissions.
    bulk_bytes_per_second: f64,
    /// Datagrams that passed the bad link.
    packets: u64,
    /// Share of all datagrams that it dropped, 0 to 1.
    dropped: f64,
}

impl Mix {
    fn lanes(&self) -> Lanes {
        match self.setting {
            Setting::Defaults | Setting::Ungated | Setting::Cubic => Lanes::Priorities,
            Setting::Equal => Lanes::Equal,
            Setting::Single => Lanes::Single,
        }
    }

    fn load(&self) -> UrgentLoad {
        let (messages, size) = match self.bulk {
            Bulk::One => (1, 20_000_000),
            Bulk::Ten => (10, 2_000_000),
            Bulk::Many => (320, 62_500),
        };
        // Bulk has to last until the end.
        let times = if self.network.is_fast() { 5 } else { 1 };
        UrgentLoad::new(messages, size * times, self.lanes())
    }

    fn congestion(&self) -> Congestion {
        if self.setting == Setting::Cubic { Congestion::Cubic } else { Congestion::default() }
    }

    fn degrade(&self, host: &Host) {
        let latency = match self.network {
            Impairment::Policer0 | Impairment::Step | Impairment::Shaper0 => Duration::ZERO,
            Impairment::Policer40 | Impairment::Shaper40 | Impairment::Loss1 | Impairment::Loss10 => {
                Duration::from_millis(20)
            }
            Impairment::Policer100 => Duration::from_millis(50),
        };
        host.change(|link| link.latency = latency);
        host.change_one(self.way.direction(), |link| match self.network {
            Impairment::Policer0 | Impairment::Policer40 | Impairment::Policer100 | Impairment::Step => {
                link.policer = Some(POLICER)
            }
            Impairment::Shaper0 | Impairment::Shaper40 => {
                link.shaper = Some(Shaper { rate: 29.0, queue: 50 })
            }
            Impairment::Loss1 | Impairment::Loss10 => {
                link.shaper = Some(Shaper { rate: TEN_MEGABIT, queue: 100 });
                link.loss = if self.network == Impairment::Loss1 { 0.01 } else { 0.1 };
            }
        });
    }

    /// Changes the link during the run.
    async fn step(&self, host: &Host) -> Infallible {
        if self.network == Impairment::Step {
            for (after, rate) in [(20, 10.0), (20, 29.0)] {
                sleep(Duration::from_secs(after)).await;
                host.change_one(self.way.direction(), |link| {
                    link.policer = Some(Policer { rate, ..POLICER })
                });
            }
        }
        std::future::pending().await
    }
}

impl Scenario for Mix {
    type Reading = Reading;

    async fn measure(&self, seed: u64) -> Fallible<Reading> {
        let with = |builder: Builder| builder.stream_policy(self.lanes().policy()).connect_timeout(SET_UP);
        let testbed = Testbed::build(seed, self.congestion(), self.setting != Setting::Ungated, with)?;
        self.degrade(&testbed.device);
        let (load, begun) = (self.load(), Instant::now());
        let set_up = async {
            let (publisher, subscriber) = testbed.connect(self.way).await?;
            load.set_up(publisher, subscriber).await
        };
        let Ok(ready) = timeout(SET_UP, set_up).await else {
            let urgent_due = (load.urgent_messages - load.early_messages()).into();
            return Ok(Reading { seed, urgent_due, ..Reading::default() });
        };
        let (ready, set_up) = (ready?, begun.elapsed());
        let counters = || testbed.device.counters(self.way.direction());
        let before = async {
            sleep(CONVERGENCE).await;
            counters()
        };
        let run = async { tokio::join!(ready.run(), before) };
        let (outcome, before) = tokio::select! {
            (outcome, before) = run => (outcome?, before),
            never = self.step(&testbed.device) => match never {},
        };
        let (packets, dropped) = testbed.passed(self.way, &before);
        let Outcome { latencies, early, elapsed, .. } = outcome;
        let rest = packets * QUIC_HEAD + latencies.arrived() * URGENT_PACKET;
        let bulk = (counters().bytes - before.bytes).saturating_sub(rest) as f64;
        Ok(Reading {
            seed,
            set_up_seconds: Some(set_up.as_secs_f64()),
            urgent_due: latencies.due(),
            urgent_arrived: latencies.arrived(),
            early_on_time: early.share_within(LIMIT),
            on_time: latencies.share_within(LIMIT),
            latency_ms: latencies.percentiles(),
            bulk_bytes_per_second: bulk / elapsed.saturating_sub(CONVERGENCE).as_secs_f64(),
            packets,
            dropped,
        })
    }

    fn line(&self, rounds: &[Reading]) -> String {
        let worst = rounds.iter().map(|round| round.on_time).fold(1.0, f64::min);
        let of = |of: fn(&Reading) -> f64| median(rounds, |round| Some(of(round))).unwrap_or_default();
        let millis = |of: fn(&Reading) -> Option<f64>| {
            median(rounds, of).map_or_else(|| "never".to_owned(), |median| format!("{median:.0}"))
        };
        let set_up = median(rounds, |round| round.set_up_seconds);
        format!(
            "{:4} {:10} {:4} {:9} {:7.0} % {:5.1} % {:4.0} % {:>7} {:>7} {:>7} {:11.1} {:7.0} {:5.1} % {:>9}",
            name(&self.way),
            name(&self.network),
            name(&self.bulk),
            name(&self.setting),
            of(|round| round.early_on_time) * 100.0,
            of(|round| round.on_time) * 100.0,
            worst * 100.0,
            millis(|round| round.latency_ms.p50),
            millis(|round| round.latency_ms.p90),
            millis(|round| round.latency_ms.p99),
            of(|round| round.bulk_bytes_per_second) / 1000.0,
            of(|round| round.packets as f64),
            of(|round| round.dropped) * 100.0,
            set_up.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.2}")),
        )
    }
}
