//! `bench neighbours`: bulk of several connections that share a link.

use std::time::Duration;

use braid_client::{Client, Congestion, Publication, QoS};
use futures_util::future::{join_all, select_all};
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{Fallible, Rounds, Setting, Testbed, choose, median, name};

/// Each connection publishes as much QoS 1 as the link takes; the first ten seconds do not count.
#[derive(clap::Parser)]
#[command(name = "cargo xtask bench neighbours", bin_name = "cargo xtask bench neighbours")]
pub(crate) struct Args {
    /// Links whose names begin with one of these; all by default.
    #[arg(long, value_delimiter = ',')]
    link: Vec<String>,
    #[command(flatten)]
    rounds: Rounds,
    /// Seconds of a round.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(20..=3600))]
    seconds: u32,
}

/// Name, specification and rate in Mbit/s of a link.
const LINKS: &[(&str, &str, f64)] = &[
    ("bdp-0.25", "delay=20ms / up: rate=10mbit limit=9p order=line", 10.0),
    ("bdp-1", "delay=20ms / up: rate=10mbit limit=33p order=line", 10.0),
    ("bdp-4", "delay=20ms / up: rate=10mbit limit=133p order=line", 10.0),
    ("policer", "delay=20ms / up: policer=58pps/5", 0.7),
];

/// Connections that share a link, by their settings.
const SHARES: &[&[Setting]] = &[
    &[Setting::Cubic, Setting::Cubic],
    &[Setting::Bbr3, Setting::Cubic],
    &[Setting::Gate, Setting::Cubic],
    &[Setting::Gate, Setting::Bbr3],
    &[Setting::Gate, Setting::Gate],
    &[Setting::Gate; 10],
];

/// Time that does not count.
const BEGIN: Duration = Duration::from_secs(10);

/// Messages of a connection that are published at once, and their bytes.
const AT_ONCE: usize = 4;
const SIZE: usize = 20_000;

/// Rounds of a share.
#[derive(Debug, Serialize)]
struct Row {
    link: &'static str,
    specification: &'static str,
    settings: &'static [Setting],
    rounds: Vec<Reading>,
}

/// Measurements of one round.
#[derive(Debug, Serialize)]
struct Reading {
    seed: u64,
    /// Mbit/s of each connection.
    megabits: Vec<f64>,
}

impl Reading {
    /// Jain's index of fairness: 1 if all are alike, 1/n if one has everything.
    fn jain(&self) -> f64 {
        let sum: f64 = self.megabits.iter().sum();
        let squares: f64 = self.megabits.iter().map(|rate| rate * rate).sum();
        sum * sum / (self.megabits.len() as f64 * squares.max(f64::MIN_POSITIVE))
    }

    /// Rate of the slowest, of a fair share.
    fn least(&self, rate: f64) -> f64 {
        let slowest = self.megabits.iter().copied().fold(f64::INFINITY, f64::min);
        slowest * self.megabits.len() as f64 / rate
    }
}

/// Measures and prints.
pub(crate) fn run(args: &Args) -> Fallible<()> {
    let links = choose(&args.link, LINKS, |link| link.0)?;
    println!(
        "link      connections          Mbit/s of each                 of link  slowest of fair share   Jain"
    );
    let mut rows = Vec::new();
    for &(label, specification, rate) in links {
        for settings in SHARES {
            let round = async |seed| measure(specification, settings, seed, args.seconds).await;
            let rounds = args.rounds.measure(round)?;
            let of = |of: &dyn Fn(&Reading) -> f64| {
                median(&rounds, |reading| Some(of(reading))).unwrap_or_default()
            };
            let each: Vec<_> =
                (0..settings.len()).map(|n| format!("{:.2}", of(&|reading| reading.megabits[n]))).collect();
            let who = match settings {
                [first, ..] if settings.len() > 2 => format!("{} {}", settings.len(), name(first)),
                _ => settings.iter().map(name).collect::<Vec<_>>().join(" + "),
            };
            let sum = of(&|reading| reading.megabits.iter().sum());
            println!(
                "{label:9} {who:20} {:30} {:6.0} % {:22.0} % {:6.2}",
                each.join(" "),
                sum / rate * 100.0,
                of(&|reading| reading.least(rate)) * 100.0,
                of(&Reading::jain),
            );
            rows.push(Row { link: label, specification, settings, rounds });
        }
    }
    args.rounds.write(&rows)
}

/// One round.
async fn measure(specification: &str, settings: &[Setting], seed: u64, seconds: u32) -> Fallible<Reading> {
    let testbed = Testbed::build(seed, Congestion::default(), true, |builder| builder)?;
    testbed.device.replace_link(&specification.parse()?);
    let mut clients = Vec::new();
    for (n, setting) in settings.iter().enumerate() {
        clients.push((n, testbed.neighbour(n, *setting).connect().await?.0));
    }
    let (start, end) = (Instant::now() + BEGIN, Instant::now() + Duration::from_secs(seconds.into()));
    let all = clients.iter().map(|(n, client)| publish(client, *n, start, end));
    let messages = join_all(all).await.into_iter().collect::<Fallible<Vec<_>>>()?;
    let megabits = |count: u64| count as f64 * SIZE as f64 * 8.0 / (end - start).as_secs_f64() / 1e6;
    Ok(Reading { seed, megabits: messages.into_iter().map(megabits).collect() })
}

/// Publishes until `end`. Returns the number of messages that were acknowledged from `start` on.
async fn publish(client: &Client, n: usize, start: Instant, end: Instant) -> Fallible<u64> {
    let publication = Publication::to(&format!("files/{n}"), vec![0xB5; SIZE])?.qos(QoS::AtLeastOnce);
    let next = || Box::pin(client.publish(publication.clone()));
    let (mut waiting, mut acknowledged): (Vec<_>, u64) = ((0..AT_ONCE).map(|_| next()).collect(), 0);
    while let Ok((published, _, rest)) = timeout_at(end, select_all(waiting)).await {
        published?;
        acknowledged += u64::from(Instant::now() >= start);
        waiting = rest;
        waiting.push(next());
    }
    Ok(acknowledged)
}

#[cfg(test)]
mod tests {
    use super::super::on_virtual_time;
    use super::*;

    #[test]
    fn a_link_that_does_not_exist_is_refused() {
        let chosen = |begins: &[&str]| {
            let begins: Vec<_> = begins.iter().map(|begin| (*begin).to_owned()).collect();
            choose(&begins, LINKS, |link| link.0).map(|links| links.len()).ok()
        };
        assert_eq!((chosen(&[]), chosen(&["bdp"]), chosen(&["bdp-1", "pol"])), (Some(4), Some(3), Some(2)));
        assert_eq!((chosen(&["x"]), chosen(&["bdp", "x"])), (None, None));
    }

    /// Each sees a tenth of the rate, and waits in the queue of all: some once took that for a slow queue of their own,
    /// and sent two packets a second.
    #[test]
    fn none_of_ten_starves_behind_one_queue() {
        for (label, specification, rate) in LINKS.iter().filter(|link| link.0.starts_with("bdp")) {
            let measured = measure(specification, &[Setting::Gate; 10], 1, 40);
            let reading = on_virtual_time(measured).expect("a reading");
            let (least, jain) = (reading.least(*rate), reading.jain());
            println!("{label:9} slowest {least:.2} of its share, index {jain:.2}");
            assert!(least > 0.06 && jain > 0.6, "{label}: {least:.2}, {jain:.2}");
        }
    }
}
