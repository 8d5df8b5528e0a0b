//! The load generator of the suites: raw MQTT 3.1.1 over TCP in few threads, because it shares its cores with the
//! broker.
//!
//! [`run`] drives one flow: it connects all clients, runs the sending and the receiving thread, and reads processor
//! times.

pub(crate) mod packets;
pub(crate) mod payload;
pub(crate) mod publisher;
mod publishers;
mod run_state;
pub(crate) mod session;
mod subscribers;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use braid_measure::Latencies;
use braid_measure::process::{CpuReading, CpuShares};
use serde::Serialize;

use crate::case::Flow;
use crate::system::of_broker;
use publishers::{Publishers, Sent};
use run_state::RunState;
use session::{connect, subscribe};
use subscribers::Subscribers;

/// Time without a delivery after which missing messages count as lost.
const DRAINED_AFTER: Duration = Duration::from_secs(2);

/// Measurements of one run of a flow.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FlowResult {
    /// Length of the measured period.
    pub(crate) seconds: f64,
    /// Deliveries in the measured period, over all subscribers.
    pub(crate) delivered: u64,
    /// Delivered messages per second.
    pub(crate) throughput: f64,
    /// Processor time of the broker per delivery, nanoseconds, user and kernel mode.
    pub(crate) cpu_nanoseconds: f64,
    /// Median latency from due time to the subscriber's read, microseconds.
    pub(crate) p50_microseconds: f64,
    /// 99th percentile of the latency, microseconds.
    pub(crate) p99_microseconds: f64,
    /// Use of the processors.
    pub(crate) shares: CpuShares,
    /// Messages sent in the whole run, warm-up included, times the subscribers of each.
    pub(crate) expected: u64,
    /// Expected deliveries that never arrived. For QoS 1 any is a failure.
    pub(crate) lost: u64,
    /// Paced messages that the generator sent more than 1 ms late.
    pub(crate) late: u64,
}

/// Broker under load: one process, or the nodes of a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// Addresses that the publishers take in turn.
    pub(crate) publishers: &'a [SocketAddr],
    /// Addresses that the subscribers take in turn.
    pub(crate) subscribers: &'a [SocketAddr],
    /// Processes whose processor time is that of the broker.
    pub(crate) pids: &'a [u32],
}

/// Runs `flow` against the broker at `address`, whose process is `pid`.
///
/// # Errors
/// As [`run_on`].
pub(crate) fn run(
    flow: &Flow,
    address: SocketAddr,
    pid: u32,
    warm_up: Duration,
    measured: Duration,
) -> Result<FlowResult, String> {
    let target = Target { publishers: &[address], subscribers: &[address], pids: &[pid] };
    run_on(flow, target, warm_up, measured)
}

/// Runs `flow` against a broker of one or more nodes.
///
/// # Errors
/// The broker refused or closed a connection, delivered a message that differs from the published one, or lost QoS 1
/// messages.
pub(crate) fn run_on(
    flow: &Flow,
    target: Target<'_>,
    warm_up: Duration,
    measured: Duration,
) -> Result<FlowResult, String> {
    let mut listening = Vec::new();
    for (index, &address) in (0..flow.shape.subscribers()).zip(target.subscribers.iter().cycle()) {
        let mut socket = connect(address, &format!("bench-sub-{index}"))?;
        subscribe(&mut socket, &flow.filter(index), flow.qos)?;
        listening.push(socket);
    }
    let mut sending = Vec::new();
    for (index, &address) in (0..flow.shape.publishers()).zip(target.publishers.iter().cycle()) {
        sending.push(connect(address, &format!("bench-pub-{index}"))?);
    }
    let state = RunState::new(flow.shape.publishers(), warm_up, measured);
    let subscribers = Subscribers::new(&state, flow, listening).map_err(|error| error.to_string())?;
    let mut publishers = Publishers::new(&state, flow, sending).map_err(|error| error.to_string())?;
    let (observed, sent, latencies) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publishers.run());
        let receiving = scope.spawn(|| subscribers.run());
        let observed = observe(&state, target.pids);
        state.stop.store(true, Ordering::Relaxed);
        let sent = publishing.join().map_err(|_| "the publishers' thread died");
        if let Ok(sent) = &sent {
            drain(&state, sent.messages * flow.shape.copies());
        }
        state.finish.store(true, Ordering::Relaxed);
        let latencies = receiving.join().map_err(|_| "the subscribers' thread died");
        (observed, sent, latencies)
    });
    evaluate(flow, &state, observed?, sent?, &latencies?)
}

/// Sleeps through the run; returns the use of the processors in the measured period, and the deliveries.
fn observe(state: &RunState, pids: &[u32]) -> Result<(CpuShares, u64), String> {
    let until = |due: u64| {
        thread::sleep(state.instant(due).saturating_duration_since(Instant::now()));
        let delivered = state.delivered.load(Ordering::Relaxed);
        Ok::<_, String>((of_broker(CpuReading::of_all(pids))?, delivered))
    };
    let (before, delivered_before) = until(state.measured.start)?;
    let (after, delivered_after) = until(state.measured.end)?;
    Ok((after.since(&before), delivered_after - delivered_before))
}

/// Waits until `expected` messages were delivered, none arrives any more, or the run is void.
fn drain(state: &RunState, expected: u64) {
    let (mut seen, mut seen_at) = (state.delivered.load(Ordering::Relaxed), Instant::now());
    while seen < expected && seen_at.elapsed() < DRAINED_AFTER && state.faults().0 == 0 {
        thread::sleep(Duration::from_millis(5));
        let now = state.delivered.load(Ordering::Relaxed);
        if now > seen {
            (seen, seen_at) = (now, Instant::now());
        }
    }
}

/// Computes the result, or the reason why there is none.
fn evaluate(
    flow: &Flow,
    state: &RunState,
    (shares, delivered): (CpuShares, u64),
    sent: Sent,
    latencies: &Latencies,
) -> Result<FlowResult, String> {
    let (faults, texts) = state.faults();
    if faults > 0 {
        return Err(format!("{faults} faults: {}", texts.join("; ")));
    }
    let expected = sent.messages * flow.shape.copies();
    let arrived = state.delivered.load(Ordering::Relaxed);
    let lost = expected.saturating_sub(arrived);
    if arrived > expected {
        return Err(format!("{arrived} messages arrived of {expected} sent"));
    }
    if flow.qos > 0 && lost + sent.unacknowledged > 0 {
        let unacknowledged = sent.unacknowledged;
        return Err(format!(
            "of {expected} QoS 1 messages {lost} were lost and {unacknowledged} not acknowledged"
        ));
    }
    if delivered == 0 || latencies.due() == 0 {
        return Err("no message was delivered in the measured period".to_owned());
    }
    let microseconds =
        |quantile| latencies.quantile(quantile).map_or(f64::NAN, |milliseconds| milliseconds * 1e3);
    Ok(FlowResult {
        seconds: shares.seconds,
        delivered,
        throughput: delivered as f64 / shares.seconds,
        cpu_nanoseconds: shares.broker_nanoseconds() / delivered as f64,
        p50_microseconds: microseconds(0.5),
        p99_microseconds: microseconds(0.99),
        shares,
        expected,
        lost,
        late: sent.late,
    })
}

#[cfg(test)]
mod tests;
