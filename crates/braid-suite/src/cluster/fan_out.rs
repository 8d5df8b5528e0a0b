//! Part `fan-out`: one publisher to subscribers on three nodes, beside as many on one node.

use braid_measure::process::cpu_time;

use super::one_way::SIZE;
use super::report::{Bar, Row};
use super::testbed::Testbed;
use super::{Setup, in_turn};
use crate::case::{Flow, Shape};
use crate::load::Target;
use crate::system::of_broker;

/// Name of the part.
pub(super) const PART: &str = "fan-out";
/// Subscribers, and messages per second.
const SUBSCRIBERS: usize = 300;
const RATE: u32 = 50;
/// Bar of the issue: ratio of the processor times.
const COST: f64 = 1.3;
/// Unacknowledged messages of the publisher at most.
const WINDOW: u32 = 100;

/// Processor time of a run, microseconds for each delivery.
#[derive(Clone, Copy)]
struct Cost {
    brokers: f64,
    servers: f64,
}

/// Measures the processor time of a delivery.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let testbed = setup.start()?;
    measure(setup, &testbed, rows).map_err(|reason| testbed.explain(&reason))
}

fn measure(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let subscribers = if setup.is_quick { 30 } else { SUBSCRIBERS };
    let mut costs = Vec::new();
    for round in 0..setup.rounds as usize {
        let all = testbed.all_mqtt(round);
        let cost = |nodes| cost(setup, testbed, (round, nodes), subscribers);
        let pair = in_turn(round, || cost(&all[..1]), || cost(&all))?;
        setup.note(PART, round, &format!("{:.2} and {:.2} us", pair[0].brokers, pair[1].brokers));
        costs.push(pair);
    }
    let what = |of: &str| {
        (format!("QoS 1, 1 to {subscribers} at {RATE}/s: processor time of {of} for each delivery"), "us")
    };
    let of = |which: fn(&Cost) -> f64| {
        costs.iter().map(move |pair| pair.each_ref().map(which)).collect::<Vec<_>>()
    };
    let beside = "all on one node";
    let brokers = of(|cost| cost.brokers);
    setup.push(rows, Row::beside(PART, beside, what("the brokers"), brokers, Bar::RatioAtMost(COST)));
    let servers = of(|cost| cost.servers);
    setup.push(rows, Row::beside(PART, beside, what("the servers of NATS"), servers, Bar::None));
    Ok(())
}

/// Cost with the publisher at node `from` and the subscribers at `nodes` in turn.
fn cost(
    setup: &Setup<'_>,
    testbed: &Testbed<'_>,
    (from, nodes): (usize, &[std::net::SocketAddr]),
    subscribers: usize,
) -> Result<Cost, String> {
    let flow = Flow {
        shape: Shape::FanOut(subscribers),
        qos: 1,
        payload: SIZE,
        window: WINDOW,
        pace: Some(RATE),
        topics: 1,
    };
    let pids = testbed.broker_ids()?;
    let servers = || {
        let times = testbed.server_ids()?.into_iter().map(|pid| of_broker(cpu_time(pid)));
        times.sum::<Result<std::time::Duration, String>>()
    };
    let publishers = [testbed.mqtt(from)];
    let target = Target { publishers: &publishers, subscribers: nodes, pids: &pids };
    let before = servers()?;
    let result = setup.flow(PART, &flow, target)?;
    // The servers are measured over the whole run, warm-up and connections included.
    let of_servers = (servers()? - before).as_secs_f64() * 1e6 / result.expected as f64;
    Ok(Cost { brokers: result.cpu_nanoseconds / 1e3, servers: of_servers })
}
