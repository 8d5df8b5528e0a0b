//! `bench real-links`: urgent messages beside bulk on links as they are found, with the gate and without.

use std::time::Duration;

use braid_bench::urgent::{Lanes, UrgentLoad};
use braid_client::Builder;
use braid_emulator::LinkSpec;
use braid_measure::Percentiles;
use serde::Serialize;
use tokio::time::timeout;

use super::{Fallible, LinkDirection, Rounds, Setting, Testbed, is_chosen, median, name, or_all};

/// 100 B of QoS 0 every 100 ms beside bulk of QoS 1, as much as the link takes, in each of the links.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench real-links", bin_name = "cargo xtask bench real-links")]
pub(crate) struct Args {
    /// Links whose names begin with one of these; all by default.
    #[arg(long, value_delimiter = ',')]
    link: Vec<String>,
    /// Settings of clients and broker; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
    /// Direction of the messages; both by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    way: Vec<LinkDirection>,
    #[command(flatten)]
    rounds: Rounds,
    /// Seconds of a round.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
}

/// Bounds of a row. Those beside "without" are ratios to BBR version 3 alone.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Least bulk, beside without.
    bulk: Option<f64>,
    /// Least bulk, of the rate of the link.
    of_limit: Option<f64>,
    /// Greatest p99, beside without.
    p99: Option<f64>,
    /// Greatest p99 in milliseconds.
    p99_ms: Option<f64>,
}

const NONE: Bound = Bound { bulk: None, of_limit: None, p99: None, p99_ms: None };
const JITTER: Bound = Bound { bulk: Some(0.95), p99: Some(1.0), ..NONE };
const MOBILE: Bound = Bound { bulk: Some(0.9), p99: Some(0.7), ..NONE };
const SATELLITE: Bound = Bound { bulk: Some(0.95), p99: Some(1.1), ..NONE };
const POLICER: Bound = Bound { of_limit: Some(0.85), ..NONE };
const WIRELESS: Bound = Bound { bulk: Some(0.95), p99: Some(1.0), ..NONE };

const fn managed(p99_ms: f64) -> Bound {
    Bound { p99_ms: Some(p99_ms), ..NONE }
}

/// A link: name, its specification with the messages upward, the rate in Mbit/s that it can carry, and its bounds.
type Link = (&'static str, &'static str, f64, Bound);

const LINKS: &[Link] = &[
    ("jitter-5", "delay=20ms / up: rate=20mbit limit=100p order=line delay=20ms jitter=5ms", 20.0, JITTER),
    ("jitter-10", "delay=20ms / up: rate=20mbit limit=100p order=line delay=20ms jitter=10ms", 20.0, JITTER),
    ("jitter-20", "delay=20ms / up: rate=20mbit limit=100p order=line delay=20ms jitter=20ms", 20.0, JITTER),
    ("jitter-30", "delay=30ms / up: rate=20mbit limit=100p order=line delay=30ms jitter=30ms", 20.0, JITTER),
    ("steady-5", "delay=20ms / up: rate=20mbit limit=200p delay=20ms jitter=5ms", 20.0, JITTER),
    ("steady-10", "delay=20ms / up: rate=20mbit limit=200p delay=20ms jitter=10ms", 20.0, JITTER),
    ("steady-20", "delay=20ms / up: rate=20mbit limit=200p delay=20ms jitter=20ms", 20.0, JITTER),
    ("steady-30", "delay=30ms / up: rate=20mbit limit=200p delay=30ms jitter=30ms", 20.0, JITTER),
    (
        "lte-300",
        "delay=20ms / up: rate=2mbit-30mbit/100ms stall=30ms-300ms/2s limit=300p order=line",
        14.7,
        MOBILE,
    ),
    (
        "lte-1000",
        "delay=20ms / up: rate=2mbit-30mbit/100ms stall=30ms-300ms/2s limit=1000p order=line",
        14.7,
        MOBILE,
    ),
    ("lte-driving", "delay=20ms / up: trace=lte-driving limit=300p order=line", 10.05, MOBILE),
    ("lte-walking", "delay=20ms / up: trace=lte-walking limit=300p order=line", 11.66, MOBILE),
    ("geo-200", "delay=300ms / up: rate=20mbit limit=200p order=line", 20.0, SATELLITE),
    ("geo-1000", "delay=300ms / up: rate=20mbit limit=1000p order=line", 20.0, SATELLITE),
    ("leo", LEO, 20.0, SATELLITE),
    ("bytes-1m-3k", "delay=20ms / up: policer=1mbit/3kb", 1.0, POLICER),
    ("bytes-1m-32k", "delay=20ms / up: policer=1mbit/32kb", 1.0, POLICER),
    ("bytes-1m-256k", "delay=20ms / up: policer=1mbit/256kb", 1.0, POLICER),
    ("bytes-10m-3k", "delay=20ms / up: policer=10mbit/3kb", 10.0, POLICER),
    ("bytes-10m-32k", "delay=20ms / up: policer=10mbit/32kb", 10.0, POLICER),
    ("bytes-10m-256k", "delay=20ms / up: policer=10mbit/256kb", 10.0, POLICER),
    ("bytes-50m-3k", "delay=20ms / up: policer=50mbit/3kb", 50.0, POLICER),
    ("bytes-50m-32k", "delay=20ms / up: policer=50mbit/32kb", 50.0, POLICER),
    ("bytes-50m-256k", "delay=20ms / up: policer=50mbit/256kb", 50.0, POLICER),
    ("packets-1", "delay=20ms / up: policer=100pps/1", 1.2, POLICER),
    ("packets-2", "delay=20ms / up: policer=100pps/2", 1.2, POLICER),
    ("packets-20", "delay=20ms / up: policer=100pps/20", 1.2, POLICER),
    ("packets-100", "delay=20ms / up: policer=100pps/100", 1.2, POLICER),
    ("queue-9", "delay=20ms / up: rate=10mbit limit=9p order=line", 10.0, JITTER),
    ("queue-400", "delay=20ms / up: rate=10mbit limit=400p order=line", 10.0, JITTER),
    ("codel", "delay=20ms / up: rate=10mbit queue=codel limit=1000p", 10.0, managed(35.0)),
    ("codel-ecn", "delay=20ms / up: rate=10mbit queue=codel ecn=on limit=1000p", 10.0, managed(35.0)),
    ("fq-codel", "delay=20ms / up: rate=10mbit queue=fq_codel limit=1000p", 10.0, managed(35.0)),
    ("fq-codel-ecn", "delay=20ms / up: rate=10mbit queue=fq_codel ecn=on limit=1000p", 10.0, managed(35.0)),
    ("ecn-5ms", "delay=20ms / up: rate=10mbit ecn=5ms limit=1000p", 10.0, managed(35.0)),
    ("longer-8", "delay=20ms / up: rate=20mbit limit=100p order=line ; t=30s delay=24ms", 20.0, JITTER),
    ("longer-20", "delay=20ms / up: rate=20mbit limit=100p order=line ; t=30s delay=30ms", 20.0, JITTER),
    (
        "wifi",
        "delay=10ms / up: rate=30mbit limit=300p order=line aggregate=2ms-10ms loss=gemodel:0.4%,40%",
        30.0,
        WIRELESS,
    ),
];

/// Satellites that change every 15 s: 200 ms without one, then 10 ms more or less each way.
const LEO: &str = "delay=25ms / up: rate=20mbit limit=200p order=line \
                   ; t=15s loss=100% ; t=15200ms loss=none delay=35ms ; t=30s loss=100% ; t=30200ms loss=none delay=15ms \
                   ; t=45s loss=100% ; t=45200ms loss=none delay=25ms ; t=60s loss=100% ; t=60200ms loss=none delay=35ms \
                   ; t=75s loss=100% ; t=75200ms loss=none delay=15ms ; t=90s loss=100% ; t=90200ms loss=none delay=25ms \
                   ; t=105s loss=100% ; t=105200ms loss=none delay=35ms";

/// Time limit of connecting and subscribing; after that every message of the round counts as lost.
const SET_UP: Duration = Duration::from_secs(60);

/// Bulk that is offered, of the rate of the link.
const OFFERED: f64 = 1.25;

/// Bytes of a bulk message.
const BULK: usize = 250_000;

/// Measurements of one round.
#[derive(Debug, Default, Serialize)]
struct Reading {
    seed: u64,
    urgent_due: u64,
    urgent_arrived: u64,
    /// Without the first three seconds.
    latency_ms: Percentiles,
    bulk_megabits: f64,
    /// Share of all datagrams that the link dropped, 0 to 1.
    dropped: f64,
    /// Packets with a mark of congestion.
    marked: u64,
}

/// Rounds of a link with a setting.
#[derive(Debug, Serialize)]
struct Row {
    link: &'static str,
    specification: &'static str,
    way: LinkDirection,
    setting: Setting,
    rounds: Vec<Reading>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    println!(
        "link            way  setting     p50     p90     p99  slowest    bulk Mbit/s  of link  dropped   marks"
    );
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    let chosen: Vec<&Link> = LINKS.iter().filter(|link| is_chosen(&args.link, link.0)).collect();
    if chosen.is_empty() {
        let names: Vec<_> = LINKS.iter().map(|link| link.0).collect();
        return Err(format!("no link is called so; there are {}", names.join(", ")).into());
    }
    for link in chosen {
        for way in or_all(&args.way) {
            let measured =
                or_all(&args.setting).into_iter().map(|setting| Row::measure(link, way, setting, args));
            let measured = measured.collect::<Fallible<Vec<_>>>()?;
            missed.extend(misses(link, way, &measured));
            rows.extend(measured);
        }
    }
    println!("\n{} bounds missed", missed.len());
    missed.iter().for_each(|line| println!("{line}"));
    args.rounds.write(&rows)
}

impl Row {
    fn measure(link: &Link, way: LinkDirection, setting: Setting, args: &Args) -> Fallible<Self> {
        let &(label, specification, rate, _) = link;
        let round = async |seed| measure((specification, rate), way, setting, seed, args.seconds).await;
        let rounds = args.rounds.measure(round)?;
        let row = Self { link: label, specification, way, setting, rounds };
        let millis =
            |value: Option<f64>| value.map_or_else(|| "never".to_owned(), |value| format!("{value:.0}"));
        println!(
            "{label:15} {:4} {:8} {:>6}  {:>6}  {:>6}  {:>7}  {:13.2}  {:5.0} %  {:5.1} %  {:6.0}",
            name(&way),
            name(&setting),
            millis(row.median(|reading| reading.latency_ms.p50)),
            millis(row.median(|reading| reading.latency_ms.p90)),
            millis(row.p99()),
            millis(row.median(|reading| reading.latency_ms.max)),
            row.bulk(),
            row.bulk() / rate * 100.0,
            row.median(|reading| Some(reading.dropped)).unwrap_or_default() * 100.0,
            row.median(|reading| Some(reading.marked as f64)).unwrap_or_default(),
        );
        Ok(row)
    }

    fn median(&self, of: impl Fn(&Reading) -> Option<f64>) -> Option<f64> {
        median(&self.rounds, of)
    }

    fn p99(&self) -> Option<f64> {
        self.median(|reading| reading.latency_ms.p99)
    }

    fn bulk(&self) -> f64 {
        self.median(|reading| Some(reading.bulk_megabits)).unwrap_or_default()
    }
}

/// Lines about the bounds of a link that are missed with the gate.
fn misses(link: &Link, way: LinkDirection, rows: &[Row]) -> Vec<String> {
    let &(label, _, rate, bound) = link;
    let of = |setting| rows.iter().find(|row| row.setting == setting);
    let Some(gate) = of(Setting::Gate) else { return Vec::new() };
    let mut lines = Vec::new();
    let mut check = |holds: bool, text: String| {
        if !holds {
            lines.push(format!("{label} {}: {text}", name(&way)));
        }
    };
    let (p99, bulk) = (gate.p99().unwrap_or(f64::INFINITY), gate.bulk());
    if let Some(without) = of(Setting::Bbr3) {
        let (p99_without, bulk_without) = (without.p99().unwrap_or(f64::INFINITY), without.bulk());
        if let Some(least) = bound.bulk {
            let ratio = bulk / bulk_without;
            check(ratio >= least, format!("bulk {ratio:.2} of without, bound {least}"));
        }
        if let Some(most) = bound.p99 {
            let ratio = p99 / p99_without;
            // A millisecond is the granularity of the clock.
            check(
                ratio <= most || p99 - p99_without <= 1.0,
                format!("p99 {ratio:.2} of without, bound {most}"),
            );
        }
    }
    if let Some(least) = bound.of_limit {
        check(bulk >= least * rate, format!("bulk {:.2} of the link, bound {least}", bulk / rate));
    }
    if let Some(most) = bound.p99_ms {
        check(p99 <= most, format!("p99 {p99:.0} ms, bound {most}"));
    }
    lines
}

/// One round.
async fn measure(
    (specification, rate): (&str, f64),
    way: LinkDirection,
    setting: Setting,
    seed: u64,
    seconds: u32,
) -> Fallible<Reading> {
    let with = |builder: Builder| builder.connect_timeout(SET_UP);
    let testbed = Testbed::build(seed, setting.congestion(), setting == Setting::Gate, with)?;
    let mut link: LinkSpec = specification.parse()?;
    if way == LinkDirection::Down {
        std::mem::swap(&mut link.up, &mut link.down);
    }
    testbed.device.replace_link(&link);
    let mut load = UrgentLoad::new(u32::MAX, BULK, Lanes::Priorities);
    load.urgent_messages = seconds * 10;
    // More than the link can carry, but not without limit: a broker acknowledges what it drops.
    load.bulk_rate = Some(OFFERED * rate * 1e6 / 8.0 / BULK as f64);
    let set_up = async {
        let (publisher, subscriber) = testbed.connect(way).await?;
        load.set_up(publisher, subscriber).await
    };
    let urgent_due = u64::from(load.urgent_messages - load.early_messages());
    let Ok(ready) = timeout(SET_UP, set_up).await else {
        return Ok(Reading { seed, urgent_due, ..Reading::default() });
    };
    let before = testbed.device.counters(way.direction());
    let outcome = ready?.run().await?;
    let (_, dropped) = testbed.passed(way, &before);
    let arrived = outcome.latencies.arrived();
    Ok(Reading {
        seed,
        urgent_due,
        urgent_arrived: arrived,
        latency_ms: outcome.latencies.percentiles(),
        bulk_megabits: outcome.bulk_messages as f64 * BULK as f64 * 8.0 / outcome.elapsed.as_secs_f64() / 1e6,
        dropped,
        marked: testbed.device.path_counters(way.direction()).marked.packets,
    })
}

#[cfg(test)]
mod tests {
    use super::super::on_virtual_time;
    use super::*;

    /// Links on which a wrong model of the gate once cost most, or the right one gains most. Ratios to BBR version 3 on
    /// the same link, with room for its own random numbers: least bulk, and greatest p99.
    const REDUCED: [(&str, f64, f64); 6] = [
        ("jitter-5", 0.6, 2.0),
        ("jitter-20", 0.6, 2.0),
        ("steady-5", 0.8, 1.0),
        ("queue-400", 0.9, 0.9),
        ("codel", 0.9, 0.9),
        ("packets-20", 0.9, 1.0),
    ];

    #[test]
    fn the_gate_helps_or_stands_aside() {
        let mut failed = Vec::new();
        for (label, least, most) in REDUCED {
            let &(_, specification, rate, _) = LINKS.iter().find(|link| link.0 == label).expect("a link");
            let [gate, without] = [Setting::Gate, Setting::Bbr3].map(|setting| {
                let measured = measure((specification, rate), LinkDirection::Up, setting, 1, 30);
                on_virtual_time(measured).expect("a reading")
            });
            let bulk = gate.bulk_megabits / without.bulk_megabits;
            let p99 = gate.latency_ms.p99.unwrap_or(f64::INFINITY)
                / without.latency_ms.p99.unwrap_or(f64::INFINITY);
            let line = format!("{label:12} bulk {bulk:.2} (at least {least}), p99 {p99:.2} (at most {most})");
            println!("{line}");
            if bulk < least || p99 > most {
                failed.push(line);
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
