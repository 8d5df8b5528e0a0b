//! Case `durable`: publishers of QoS 1 to an offline session, so that every message goes to the disk.

use std::path::Path;
use std::time::{Duration, Instant};

use braid_measure::Spread;
use braid_measure::process::{CpuReading, CpuShares, wait_for_quiet, written};
use serde::Serialize;

use super::log_server::LogServer;
use super::publishers::Publishers;
use super::yardstick::{Figures, Yardstick};
use crate::brokers::Broker;
use crate::load::session::leave_session;

/// Time of load before the measured period.
const WARM_UP: Duration = Duration::from_millis(500);

/// Parameters of the case.
pub(crate) struct Plan<'a> {
    pub(crate) rounds: u32,
    pub(crate) measured: Duration,
    pub(crate) payloads: &'a [usize],
    /// Unacknowledged messages of all publishers together.
    pub(crate) windows: &'a [u32],
    /// Longest wait before every round until other programs are idle.
    pub(crate) quiet_wait: Duration,
    /// Directory on the disk under test.
    pub(crate) directory: &'a Path,
}

/// Measurements of one payload and window.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) payload: usize,
    pub(crate) window: u32,
    pub(crate) rounds: Vec<Round>,
}

/// One round of all brokers and yardsticks.
#[derive(Serialize)]
pub(crate) struct Round {
    /// One write of 4 KiB and fdatasync at a time.
    pub(crate) raw: Figures,
    /// A log of the same bytes with one fdatasync for each group.
    pub(crate) log: Figures,
    /// That log behind TCP, with one PUBACK for each message.
    pub(crate) served_log: Reached,
    pub(crate) brokers: Vec<(String, Acknowledged)>,
}

/// Rate and latency of the publishers.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Reached {
    /// PUBACKs per second.
    pub(crate) rate: f64,
    /// From the write of a message to the read that brought its PUBACK.
    pub(crate) p50_milliseconds: f64,
    pub(crate) p99_milliseconds: f64,
}

/// Measurements of one broker in one round.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Acknowledged {
    pub(crate) reached: Reached,
    pub(crate) cpu_nanoseconds: f64,
    /// Bytes written to the device per message.
    pub(crate) written: f64,
    pub(crate) shares: CpuShares,
}

/// Measures every row, and calls `each` for it.
///
/// # Errors
/// A broker does not start or breaks the protocol, or a yardstick fails.
pub(crate) fn run(
    plan: &Plan<'_>,
    yardstick: &Yardstick,
    brokers: &[Broker],
    mut each: impl FnMut(&Row),
) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &payload in plan.payloads {
        for &window in plan.windows {
            let mut row = Row { payload, window, rounds: Vec::new() };
            for _ in 0..plan.rounds {
                row.rounds.push(round(plan, yardstick, brokers, payload, window)?);
            }
            each(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn round(
    plan: &Plan<'_>,
    yardstick: &Yardstick,
    brokers: &[Broker],
    payload: usize,
    window: u32,
) -> Result<Round, String> {
    wait_for_quiet(Instant::now() + plan.quiet_wait).map_err(|error| error.to_string())?;
    let raw = yardstick.raw(plan.directory)?;
    let log = yardstick.log(plan.directory, window, payload)?;
    let served_log = served_log(plan, payload, window)?;
    let mut round = Round { raw, log, served_log, brokers: Vec::new() };
    for broker in brokers {
        let acknowledged = once(plan, broker, payload, window)
            .map_err(|reason| format!("{}, window {window}: {reason}", broker.label))?;
        eprintln!(
            "# durable {payload} B, window {window}, {}: {:.0}/s, p99 {:.2} ms",
            broker.label, acknowledged.reached.rate, acknowledged.reached.p99_milliseconds
        );
        round.brokers.push((broker.label.clone(), acknowledged));
    }
    Ok(round)
}

fn once(plan: &Plan<'_>, broker: &Broker, payload: usize, window: u32) -> Result<Acknowledged, String> {
    let running = broker.start_in(plan.directory)?;
    let pid = running.pid();
    let gone = |error| format!("the broker has ended: {error}");
    let read = || Ok::<_, String>((CpuReading::of(pid).map_err(gone)?, written(pid).map_err(gone)?));
    leave_session(running.address, "bench-away", "bench/+")?;
    let mut publishers = Publishers::connect(running.address, window, payload)?;
    publishers.publish_until(Instant::now() + WARM_UP)?;
    let (before, bytes_before) = read()?;
    let (messages, reached) = measure(plan, &mut publishers)?;
    let (after, bytes) = read()?;
    publishers.publish_all(0)?;
    let shares = after.since(&before);
    Ok(Acknowledged {
        reached,
        cpu_nanoseconds: shares.broker_nanoseconds() / messages,
        written: (bytes - bytes_before) as f64 / messages,
        shares,
    })
}

fn served_log(plan: &Plan<'_>, payload: usize, window: u32) -> Result<Reached, String> {
    let server = LogServer::start(plan.directory)?;
    let mut publishers = Publishers::connect(server.address, window, payload)?;
    publishers.publish_until(Instant::now() + WARM_UP)?;
    let (_, reached) = measure(plan, &mut publishers)?;
    publishers.publish_all(0)?;
    Ok(reached)
}

/// Publishes for the measured period; returns the number of acknowledged messages, and rate and latency.
fn measure(plan: &Plan<'_>, publishers: &mut Publishers) -> Result<(f64, Reached), String> {
    publishers.latencies.clear();
    let (began, before) = (Instant::now(), publishers.acknowledged);
    publishers.publish_until(began + plan.measured)?;
    let messages = (publishers.acknowledged - before) as f64;
    if messages == 0.0 {
        return Err("no message was acknowledged in the measured period".to_owned());
    }
    let milliseconds = |quantile| publishers.latencies.quantile(quantile).unwrap_or(f64::NAN);
    let reached = Reached {
        rate: messages / began.elapsed().as_secs_f64(),
        p50_milliseconds: milliseconds(0.5),
        p99_milliseconds: milliseconds(0.99),
    };
    Ok((messages, reached))
}

impl Row {
    /// Spread of a quantity of the broker `label` over the rounds.
    pub(crate) fn spread(&self, label: &str, of: fn(&Acknowledged) -> f64) -> Option<Spread> {
        Spread::of(self.readings(label, of).into_iter().flatten())
    }

    /// Spread of the ratio of a broker's quantity to a yardstick's in the same round.
    pub(crate) fn ratio(
        &self,
        label: &str,
        of: fn(&Acknowledged) -> f64,
        by: fn(&Round) -> f64,
    ) -> Option<Spread> {
        let yard: Vec<_> = self.rounds.iter().map(|round| Some(by(round))).collect();
        Spread::of_ratios(&self.readings(label, of), &yard)
    }

    fn readings(&self, label: &str, of: fn(&Acknowledged) -> f64) -> Vec<Option<f64>> {
        let of_round = |round: &Round| {
            let found = round.brokers.iter().find(|(broker, _)| broker == label);
            found.map(|(_, acknowledged)| of(acknowledged))
        };
        self.rounds.iter().map(of_round).collect()
    }
}
