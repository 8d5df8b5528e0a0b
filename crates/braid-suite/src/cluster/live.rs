//! Part `live`: QoS 0 from a publisher at one node to a subscriber at another, beside core NATS.

use braid_client::{Client, Publication, QoS, Subscribe};
use braid_measure::Latencies;
use bytes::Bytes;

use super::nats::Nats;
use super::one_way::{OneWay, SIZE};
use super::report::{Bar, Row};
use super::testbed::Testbed;
use super::{Setup, in_turn};
use crate::case::{Flow, Shape};
use crate::load::Target;

/// Name of the part.
pub(super) const PART: &str = "live";
/// Bars of the issue: excess of the median latency in milliseconds, and ratio of the rates.
const EXCESS: f64 = 0.3;
const RATE: f64 = 0.5;
/// Messages on their way at full rate.
const WINDOW: u32 = 1000;
/// Measures latency and rate.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let testbed = setup.start()?;
    latency(setup, &testbed, rows)
        .and_then(|()| rate(setup, &testbed, rows))
        .map_err(|reason| testbed.explain(&reason))
}

fn latency(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let nats = Nats::connect(testbed, 1)?;
    let load = OneWay { messages: if setup.is_quick { 100 } else { 2000 } };
    let (mut p50, mut p99) = (Vec::new(), Vec::new());
    for round in 0..setup.rounds as usize {
        let pair = in_turn(round, || nats.one_way(round, round + 1, &load), || mqtt(testbed, round, &load))?;
        let quantiles =
            |share| pair.each_ref().map(|latencies| latencies.quantile(share).unwrap_or(f64::NAN));
        p50.push(quantiles(0.5));
        p99.push(quantiles(0.99));
        setup.note(PART, round, &format!("p50 {:.3} and {:.3} ms", p50[round][0], p50[round][1]));
    }
    let what = |quantile| (format!("QoS 0 to another node at 200/s: {quantile} one way"), "ms");
    setup.push(rows, Row::beside(PART, "NATS core", what("p50"), p50, Bar::ExcessAtMost(EXCESS)));
    setup.push(rows, Row::beside(PART, "NATS core", what("p99"), p99, Bar::None));
    Ok(())
}

fn rate(setup: &Setup<'_>, testbed: &Testbed<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let nats = Nats::connect(testbed, 2)?;
    let pids = testbed.broker_ids()?;
    let flow = Flow { shape: Shape::Pairs(1), qos: 0, payload: SIZE, window: WINDOW, pace: None, topics: 1 };
    let mut rates = Vec::new();
    for round in 0..setup.rounds as usize {
        let peer = || nats.rate((round, round + 1), u64::from(WINDOW), setup.warm_up(), setup.measured());
        let own = || {
            let (publishers, subscribers) = ([testbed.mqtt(round)], [testbed.mqtt(round + 1)]);
            let target = Target { publishers: &publishers, subscribers: &subscribers, pids: &pids };
            let result = setup.flow(PART, &flow, target)?;
            if result.lost > 0 {
                setup.note(
                    PART,
                    round,
                    &format!("{} of {} messages were lost", result.lost, result.expected),
                );
            }
            Ok(result.throughput)
        };
        let pair = in_turn(round, peer, own)?;
        setup.note(PART, round, &format!("{:.0} and {:.0} messages/s", pair[0], pair[1]));
        rates.push(pair);
    }
    let what =
        (format!("QoS 0 to another node, 1 publisher, 1 subscriber, {WINDOW} on their way"), "messages/s");
    setup.push(rows, Row::beside(PART, "NATS core", what, rates, Bar::RatioAtLeast(RATE)));
    Ok(())
}

/// Latencies of single messages of QoS 0 from a client at one node to a client at the next.
fn mqtt(testbed: &Testbed<'_>, from: usize, load: &OneWay) -> Result<Latencies, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(async {
        let failed = |error: braid_client::Error| format!("QoS 0: {error}");
        let client = |node, name| Client::builder(&format!("mqtt://{}", testbed.mqtt(node))).client_id(name);
        let (subscriber, mut messages) =
            client(from + 1, "bench-live-sub").connect().await.map_err(failed)?;
        let filter = Subscribe::to("live/#").map_err(|error| error.to_string())?.qos(QoS::AtMostOnce);
        subscriber.subscribe(filter).await.map_err(failed)?;
        let (publisher, _messages) = client(from, "bench-live-pub").connect().await.map_err(failed)?;
        let send = async |payload: Bytes| {
            let publication = Publication::to("live/one", payload).map_err(|error| error.to_string())?;
            publisher.enqueue(publication.qos(QoS::AtMostOnce)).await.map(drop).map_err(failed)
        };
        let receive = async || messages.recv().await.map(|message| message.payload.to_bytes());
        load.run(send, receive).await
    })
}
