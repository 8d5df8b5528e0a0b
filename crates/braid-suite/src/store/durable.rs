//! Case `durable`: publishers of QoS 1 to an offline session, so that every message goes to the disk.

use std::time::{Duration, Instant};

use braid_measure::Spread;
use braid_measure::process::{CpuReading, CpuShares, written};
use serde::Serialize;

use super::Setup;
use super::log_server::LogServer;
use super::publishers::Publishers;
use super::yardstick::{Figures, Reached, Yardstick};
use crate::brokers::Broker;
use crate::load::session::leave_session;
use crate::system::of_broker;

/// Time of load before the measured period.
const WARM_UP: Duration = Duration::from_millis(500);

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
    /// Same log behind TCP, with one PUBACK for each message.
    pub(crate) served_log: Reached,
    pub(crate) brokers: Vec<(String, Acknowledged)>,
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
    setup: &Setup<'_>,
    yardstick: &Yardstick,
    mut each: impl FnMut(&Row),
) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for &payload in &setup.args.payloads {
        for &window in &setup.args.windows {
            let round = |_| round(setup, yardstick, payload, window);
            let row =
                Row { payload, window, rounds: (0..setup.args.rounds).map(round).collect::<Result<_, _>>()? };
            each(&row);
            rows.push(row);
        }
    }
    Ok(rows)
}

fn round(setup: &Setup<'_>, yardstick: &Yardstick, payload: usize, window: u32) -> Result<Round, String> {
    setup.wait_for_quiet()?;
    let raw = yardstick.raw(&setup.directory)?;
    let log = yardstick.log(&setup.directory, window, payload)?;
    let served_log = served_log(setup, payload, window)?;
    let mut round = Round { raw, log, served_log, brokers: Vec::new() };
    for broker in &setup.brokers {
        let acknowledged = once(setup, broker, payload, window)
            .map_err(|reason| format!("{}, window {window}: {reason}", broker.label))?;
        eprintln!(
            "# durable {payload} B, window {window}, {}: {:.0}/s, p99 {:.2} ms",
            broker.label, acknowledged.reached.rate, acknowledged.reached.p99_milliseconds
        );
        round.brokers.push((broker.label.clone(), acknowledged));
    }
    Ok(round)
}

fn once(setup: &Setup<'_>, broker: &Broker, payload: usize, window: u32) -> Result<Acknowledged, String> {
    let running = broker.start_in(&setup.directory)?;
    let pid = running.pid();
    let read = || Ok::<_, String>((of_broker(CpuReading::of(pid))?, of_broker(written(pid))?));
    leave_session(running.address, "bench-away", "bench/+")?;
    let mut publishers = Publishers::connect(running.address, window, payload)?;
    publishers.publish_until(Instant::now() + WARM_UP)?;
    let (before, bytes_before) = read()?;
    let (messages, reached) = measure(setup, &mut publishers)?;
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

fn served_log(setup: &Setup<'_>, payload: usize, window: u32) -> Result<Reached, String> {
    let server = LogServer::start(&setup.directory)?;
    let mut publishers = Publishers::connect(server.address, window, payload)?;
    publishers.publish_until(Instant::now() + WARM_UP)?;
    let (_, reached) = measure(setup, &mut publishers)?;
    publishers.publish_all(0)?;
    Ok(reached)
}

/// Publishes for the measured period; returns the number of acknowledged messages, and rate and latency.
fn measure(setup: &Setup<'_>, publishers: &mut Publishers) -> Result<(f64, Reached), String> {
    publishers.latencies.clear();
    let (began, before) = (Instant::now(), publishers.acknowledged);
    publishers.publish_until(began + Duration::from_secs_f64(setup.args.seconds))?;
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
