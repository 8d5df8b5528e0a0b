//! Durable QoS 1: publishers to a session whose client is away, so that every message is for the disk.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::log_server::LogServer;
use super::publishers::Publishers;
use super::yardstick::{Figures, Yardstick};
use crate::bench::brokers::Broker;
use crate::bench::load::leave_session;
use crate::bench::spread::Spread;
use crate::bench::usage::{Meter, Shares, wait_for_quiet, written};

/// Load before the measurement starts.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long, how often, what.
pub(super) struct Plan<'a> {
    pub(super) rounds: u32,
    pub(super) measured: Duration,
    pub(super) payloads: &'a [usize],
    /// Messages that may be unacknowledged, of all publishers together.
    pub(super) windows: &'a [u32],
    /// Before every round, how long to wait for others to leave the processors alone.
    pub(super) quiet_wait: Duration,
    /// Where the disk under test is.
    pub(super) directory: &'a Path,
}

/// One payload and window: everything measured in turn.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) payload: usize,
    pub(super) window: u32,
    pub(super) rounds: Vec<Round>,
}

/// One turn of everybody.
#[derive(Serialize)]
pub(super) struct Round {
    /// One write of 4 KiB and fdatasync at a time.
    pub(super) raw: Figures,
    /// A log of the same bytes with one fdatasync for each group.
    pub(super) log: Figures,
    /// The same behind TCP, with one PUBACK for each message.
    pub(super) served_log: Reached,
    pub(super) brokers: Vec<(String, Acknowledged)>,
}

/// What publishers reached.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Reached {
    /// PUBACKs per second.
    pub(super) rate: f64,
    /// From the write of a message to the read that brought its PUBACK.
    pub(super) p50_milliseconds: f64,
    pub(super) p99_milliseconds: f64,
}

/// What one broker did in one turn.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Acknowledged {
    pub(super) reached: Reached,
    pub(super) cpu_nanoseconds: f64,
    /// Bytes for the device, per message.
    pub(super) written: f64,
    pub(super) shares: Shares,
}

/// Measures every row; `each` is told of a row when it is done.
///
/// # Errors
/// A broker that does not start or does what it should not; a yardstick that fails.
pub(super) fn run(
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
    let meters = || Meter::read(pid).map_err(|error| format!("the broker is gone: {error}"));
    leave_session(running.address, "bench-away", "bench/+")?;
    let mut publishers = Publishers::connect(running.address, window, payload)?;
    publishers.publish_until(Instant::now() + WARM_UP)?;
    let (before, bytes) = (meters()?, written(pid)?);
    let (messages, reached) = measure(plan, &mut publishers)?;
    let (after, bytes) = (meters()?, written(pid)? - bytes);
    publishers.publish_all(0)?;
    Ok(Acknowledged {
        reached,
        cpu_nanoseconds: after.broker_since(&before).as_secs_f64() * 1e9 / messages,
        written: bytes as f64 / messages,
        shares: after.since(&before),
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

/// Goes on for the measured time; how many messages were acknowledged, and how that went.
fn measure(plan: &Plan<'_>, publishers: &mut Publishers) -> Result<(f64, Reached), String> {
    publishers.latencies.reset();
    let (began, before) = (Instant::now(), publishers.acknowledged);
    publishers.publish_until(began + plan.measured)?;
    let messages = (publishers.acknowledged - before) as f64;
    if messages == 0.0 {
        return Err("nothing was acknowledged in the measured time".to_owned());
    }
    let milliseconds = |quantile| publishers.latencies.value_at_quantile(quantile) as f64 / 1e6;
    let reached = Reached {
        rate: messages / began.elapsed().as_secs_f64(),
        p50_milliseconds: milliseconds(0.5),
        p99_milliseconds: milliseconds(0.99),
    };
    Ok((messages, reached))
}

impl Row {
    /// What `of` says about `label`, over the rounds.
    pub(super) fn spread(&self, label: &str, of: fn(&Acknowledged) -> f64) -> Option<Spread> {
        Spread::of(&self.readings(label, of).into_iter().flatten().collect::<Vec<_>>())
    }

    /// What `of` says about one of the yardsticks, over the rounds.
    pub(super) fn of_rounds(&self, of: fn(&Round) -> f64) -> Option<Spread> {
        Spread::of(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }

    /// What `of` says about `label` divided by what `by` says about the same round.
    pub(super) fn ratio(
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
