//! `bench real-links`: urgent messages beside bulk on links as they are found, with the gate and without.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use braid_bench::urgent::{Lanes, UrgentLoad};
use braid_client::Builder;
use braid_emulator::LinkSpec;
use braid_measure::Percentiles;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::{Fallible, LinkDirection, Rounds, Setting, Testbed, choose, median, name, or_all};

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
    /// Policers and queues of 10 to 100 packets a second that change, in place of links as they are found.
    #[arg(long)]
    slow: bool,
    /// Measure connections that come back to a link which an earlier one has used for ten seconds.
    #[arg(long)]
    returning: bool,
    #[command(flatten)]
    rounds: Rounds,
    /// Seconds of a round.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(10..=3600))]
    seconds: u32,
}

/// Links and bounds: those of the laboratory's scenario of this name.
const REAL: &str = include_str!("../../../../lab/scenarios/real-links.toml");

/// Slow links, without bounds.
const SLOW: &str = include_str!("slow-links.toml");

#[derive(Debug, Deserialize)]
struct Scenario {
    profile: Vec<Link>,
    #[serde(default)]
    bound: Vec<Bound>,
}

#[derive(Debug, Deserialize)]
struct Link {
    name: String,
    links: Ends,
    set: Set,
}

#[derive(Debug, Deserialize)]
struct Ends {
    /// Specification with the messages upward.
    bad: String,
}

#[derive(Debug, Deserialize)]
struct Set {
    /// Bytes per second that it can carry.
    limit: String,
    /// Bytes of a bulk message.
    bulk: Option<usize>,
    /// Messages per second without a priority, in place of urgent ones and bulk.
    alone: Option<u32>,
}

impl Link {
    /// Mbit/s that it can carry.
    fn rate(&self) -> Fallible<f64> {
        Ok(self.limit()? * 8e-6)
    }

    /// Bytes per second that it can carry.
    fn limit(&self) -> Fallible<f64> {
        Ok(self.set.limit.parse()?)
    }
}

/// Bound of a metric with the gate on a link.
#[derive(Debug, Deserialize)]
struct Bound {
    metric: String,
    profile: String,
    at_least: Option<f64>,
    at_most: Option<f64>,
    /// Setting of whose metric the limits are multiples.
    times: Option<String>,
}

impl Scenario {
    fn read(is_slow: bool) -> Fallible<Self> {
        Ok(toml::from_str(if is_slow { SLOW } else { REAL })?)
    }
}

/// Time limit of connecting and subscribing; after that every message of the round counts as lost.
const SET_UP: Duration = Duration::from_secs(60);

/// Bulk that is offered, of the rate of the link.
const OFFERED: f64 = 1.25;

/// Time by which a round begins later than that of the seed before. Most of what is random on these links is when
/// messages meet a change of the link: rounds that begin at the same time are nearly the same.
const BEGIN: Duration = Duration::from_millis(13);

/// Seconds for which an earlier connection uses the link.
const EARLIER: u32 = 10;

/// Bytes of a bulk message, unless the link has its own.
const BULK: usize = 250_000;

/// Measurements of one round.
#[derive(Debug, Default, Serialize)]
struct Reading {
    seed: u64,
    urgent_due: u64,
    urgent_arrived: u64,
    /// Without the first three seconds.
    latency_ms: Percentiles,
    /// In the first three seconds.
    early_ms: Percentiles,
    /// Throughput of bulk, or of the messages that are alone.
    bulk_megabits: f64,
    /// Share of all datagrams that the link dropped, 0 to 1.
    dropped: f64,
    /// Packets with a mark of congestion.
    marked: u64,
}

/// Rounds of a link with a setting.
#[derive(Debug, Serialize)]
struct Row {
    link: String,
    specification: String,
    way: LinkDirection,
    setting: Setting,
    rounds: Vec<Reading>,
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    let Scenario { profile: links, bound: bounds } = Scenario::read(args.slow)?;
    let chosen = choose(&args.link, &links, |link| &link.name)?;
    println!(
        "link            way  setting     p50     p90     p99  slowest  first 3 s    bulk Mbit/s  of link  dropped   marks"
    );
    let (mut rows, mut verdict) = (Vec::new(), Verdict::default());
    for link in chosen {
        for way in or_all(&args.way) {
            let measured =
                or_all(&args.setting).into_iter().map(|setting| Row::measure(link, way, setting, args));
            let measured = measured.collect::<Fallible<Vec<_>>>()?;
            let bounds = bounds.iter().filter(|bound| bound.profile == link.name);
            verdict.check(link.rate()?, bounds, &measured);
            rows.extend(measured);
        }
    }
    println!("\n{verdict}");
    args.rounds.write(&rows)
}

impl Row {
    fn measure(link: &Link, way: LinkDirection, setting: Setting, args: &Args) -> Fallible<Self> {
        let rate = link.rate()?;
        let earlier = args.returning.then_some(EARLIER);
        let round = async |seed| measure(link, way, setting, seed, (earlier, args.seconds)).await;
        let rounds = args.rounds.measure(round)?;
        let (label, specification) = (link.name.clone(), link.links.bad.clone());
        let row = Self { link: label, specification, way, setting, rounds };
        let millis =
            |value: Option<f64>| value.map_or_else(|| "never".to_owned(), |value| format!("{value:.0}"));
        println!(
            "{:15} {:4} {:8} {:>6}  {:>6}  {:>6}  {:>7}  {:>9}  {:13.2}  {:5.0} %  {:5.1} %  {:6.0}",
            row.link,
            name(&way),
            name(&setting),
            millis(row.median(|reading| reading.latency_ms.p50)),
            millis(row.median(|reading| reading.latency_ms.p90)),
            millis(row.p99()),
            millis(row.median(|reading| reading.latency_ms.max)),
            millis(row.median(|reading| reading.early_ms.max)),
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

/// Verdict about the bounds with the gate.
#[derive(Debug, Default)]
struct Verdict {
    met: usize,
    /// Lines about the bounds that are missed.
    missed: Vec<String>,
    /// Bounds of settings that were not measured.
    unchecked: usize,
}

impl Verdict {
    /// Checks the bounds with the rows of a link in one direction. `rate`: Mbit/s of the link.
    fn check<'a>(&mut self, rate: f64, bounds: impl Iterator<Item = &'a Bound>, rows: &[Row]) {
        let of = |setting: &str, metric: &str| {
            let row = rows.iter().find(|row| name(&row.setting) == setting)?;
            Some(match metric {
                "p99" => row.p99().unwrap_or(f64::INFINITY),
                "bulk_share" => row.bulk() / rate * 100.0,
                _ => row.bulk(),
            })
        };
        for Bound { metric, profile, at_least, at_most, times } in bounds {
            let base = times.as_deref().map_or(Some(1.0), |times| of(times, metric));
            let (Some(value), Some(base)) = (of("gate", metric), base) else {
                self.unchecked += 1;
                continue;
            };
            // A millisecond is the granularity of the clock.
            let is_met = value.is_finite()
                && base.is_finite()
                && at_least.is_none_or(|least| value >= least * base)
                && at_most.is_none_or(|most| value <= most * base || value - base <= 1.0);
            if is_met {
                self.met += 1;
                continue;
            }
            let way = rows.first().map_or_else(String::new, |row| name(&row.way));
            let limit = at_least.or(*at_most).unwrap_or_default();
            let of = times.as_ref().map_or_else(String::new, |times| format!(" of {times}"));
            self.missed.push(format!("{profile} {way}: {metric} {:.2}{of}, bound {limit}", value / base));
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { met, missed, unchecked } = self;
        write!(out, "{} bounds missed, {met} met, {unchecked} not checked", missed.len())?;
        missed.iter().try_for_each(|line| write!(out, "\n{line}"))
    }
}

/// One round. `earlier`: seconds of a connection before the one that is measured.
async fn measure(
    link: &Link,
    way: LinkDirection,
    setting: Setting,
    seed: u64,
    (earlier, seconds): (Option<u32>, u32),
) -> Fallible<Reading> {
    let with = |builder: Builder| builder.connect_timeout(SET_UP);
    let testbed = Testbed::build(seed, setting.congestion(), setting == Setting::Gate, with)?;
    let mut path: LinkSpec = link.links.bad.parse()?;
    if way == LinkDirection::Down {
        std::mem::swap(&mut path.up, &mut path.down);
    }
    testbed.device.replace_link(&path);
    let bulk = link.set.bulk.unwrap_or(BULK);
    let mut load = UrgentLoad::new(u32::MAX, bulk, Lanes::Priorities);
    load.urgent_messages = seconds * 10;
    // More than the link can carry, but not without limit: a broker acknowledges what it drops.
    load.bulk_rate = Some(OFFERED * link.limit()? / bulk as f64);
    if let Some(rate) = link.set.alone {
        load = UrgentLoad::new(0, bulk, Lanes::Equal);
        (load.urgent_rate, load.urgent_messages) = (rate.into(), seconds * rate);
    }
    let set_up = async |load: UrgentLoad| {
        let (publisher, subscriber) = testbed.connect(way).await?;
        load.set_up(publisher, subscriber).await
    };
    if let Some(earlier) = earlier {
        let mut load = load;
        load.urgent_messages = load.urgent_messages * earlier / seconds;
        set_up(load).await?.run().await?;
    }
    sleep(BEGIN * u32::try_from(seed % 16)?).await;
    let urgent_due = u64::from(load.urgent_messages - load.early_messages());
    let Ok(ready) = timeout(SET_UP, set_up(load)).await else {
        return Ok(Reading { seed, urgent_due, ..Reading::default() });
    };
    let before = testbed.device.counters(way.direction());
    let outcome = ready?.run().await?;
    let (_, dropped) = testbed.passed(way, &before);
    let arrived = outcome.latencies.arrived();
    let bytes = match link.set.alone {
        Some(_) => arrived * load.urgent_size as u64,
        None => outcome.bulk_messages * bulk as u64,
    };
    Ok(Reading {
        seed,
        urgent_due,
        urgent_arrived: arrived,
        latency_ms: outcome.latencies.percentiles(),
        early_ms: outcome.early.percentiles(),
        bulk_megabits: bytes as f64 * 8.0 / outcome.elapsed.as_secs_f64() / 1e6,
        dropped,
        marked: testbed.device.path_counters(way.direction()).marked.packets,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::super::on_virtual_time;
    use super::*;

    /// Links on which a wrong model of the gate once cost most, or the right one gains most. Ratios to BBR version 3 on
    /// the same link, with room for its own random numbers: least bulk, and greatest p99.
    const REDUCED: [(&str, f64, f64); 21] = [
        ("jitter-5", 0.95, 1.6),
        ("jitter-20", 0.95, 1.3),
        ("steady-5", 0.8, 1.0),
        ("steady-20", 0.8, 1.6),
        ("lte-1000", 0.75, 0.9),
        ("geo-200", 0.95, 0.7),
        ("queue-400", 0.95, 0.8),
        ("codel", 0.9, 1.0),
        ("packets-20", 0.95, 1.2),
        ("wifi", 0.85, 2.5),
        ("policer-steps", 0.9, 0.9),
        ("policer-rises", 0.8, 0.9),
        ("policer-outages", 0.9, 1.2),
        ("queue-longer-20", 0.8, 0.9),
        ("queue-jitter", 0.8, 0.9),
        ("policer-queue", 0.8, 0.9),
        ("fast-policer", 0.8, 1.6),
        ("alone-50-loss", 0.99, 0.9),
        ("alone-50-loss-20", 0.99, 0.9),
        ("alone-50-weak", 0.99, 0.9),
        ("alone-10-weak", 0.99, 0.8),
    ];

    #[test]
    fn a_bound_without_figures_is_not_met() {
        let row = |setting, p99| Row {
            link: "l".to_owned(),
            specification: String::new(),
            way: LinkDirection::Up,
            setting,
            rounds: vec![Reading {
                latency_ms: Percentiles { p99, ..Percentiles::default() },
                bulk_megabits: 4.0,
                ..Reading::default()
            }],
        };
        let bound = |metric: &str, at_least, at_most, times: Option<&str>| Bound {
            metric: metric.to_owned(),
            profile: "l".to_owned(),
            at_least,
            at_most,
            times: times.map(str::to_owned),
        };
        let bounds = [
            bound("p99", None, Some(2.0), Some("bbr3")),
            bound("p99", None, Some(30.0), None),
            bound("bulk", Some(1.0), None, Some("bbr3")),
        ];
        let checked = |rows: &[Row]| {
            let mut verdict = Verdict::default();
            verdict.check(8.0, bounds.iter(), rows);
            verdict.to_string()
        };
        let gate = |p99| row(Setting::Gate, p99);
        let both = |gate_p99, p99| checked(&[gate(gate_p99), row(Setting::Bbr3, p99)]);
        assert_eq!(both(Some(20.0), Some(10.0)), "0 bounds missed, 3 met, 0 not checked");
        assert_eq!(
            both(Some(21.0), Some(10.0)),
            "1 bounds missed, 2 met, 0 not checked\nl up: p99 2.10 of bbr3, bound 2"
        );
        assert_eq!(
            both(None, None),
            "2 bounds missed, 1 met, 0 not checked\nl up: p99 NaN of bbr3, bound 2\nl up: p99 inf, bound 30"
        );
        assert_eq!(checked(&[gate(Some(20.0))]), "0 bounds missed, 1 met, 2 not checked");
    }

    #[test]
    fn the_gate_helps_or_stands_aside() {
        let tables = [false, true].map(|is_slow| Scenario::read(is_slow).expect("a table").profile);
        let rest = Mutex::new(REDUCED.iter());
        let failed = Mutex::new(Vec::new());
        // Each round takes one thread.
        let threads = thread::available_parallelism().expect("a count").get();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let next = || rest.lock().expect("no panic").next();
                    while let Some(bound) = next() {
                        let violation = violation(&tables, *bound);
                        failed.lock().expect("no panic").extend(violation);
                    }
                });
            }
        });
        let failed = failed.into_inner().expect("no panic");
        assert!(failed.is_empty(), "{failed:#?}");
    }

    /// The line of a link that misses its bounds.
    fn violation([real, slow]: &[Vec<Link>; 2], (label, least, most): (&str, f64, f64)) -> Option<String> {
        let find = |links: &[Link]| links.iter().position(|link| link.name == label);
        let (link, seconds, seeds) = match find(real) {
            Some(at) => (&real[at], 30, 1),
            // The last of their changes is at 40 s. Few messages meet them, so that one seed says little.
            None => (&slow[find(slow).expect("a link")], 60, 3),
        };
        let [gate, without] = [Setting::Gate, Setting::Bbr3].map(|setting| -> Vec<Reading> {
            let measured = |seed| measure(link, LinkDirection::Up, setting, seed, (None, seconds));
            (1..=seeds).map(|seed| on_virtual_time(measured(seed)).expect("a reading")).collect()
        });
        let ratio = |of: fn(&Reading) -> f64| {
            let of = |rounds: &[Reading]| median(rounds, |reading| Some(of(reading)));
            of(&gate).expect("a round") / of(&without).expect("a round")
        };
        let bulk = ratio(|reading| reading.bulk_megabits);
        let p99 = ratio(|reading| reading.latency_ms.p99.unwrap_or(f64::INFINITY));
        let line = format!("{label:12} bulk {bulk:.2} (at least {least}), p99 {p99:.2} (at most {most})");
        println!("{line}");
        (bulk < least || p99 > most).then_some(line)
    }
}
