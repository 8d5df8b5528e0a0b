//! Part `durable`: publishers of QoS 1 at all nodes, beside a stream of JetStream with the same window.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_measure::Latencies;

use super::nats::{Acknowledged, Nats, StreamLoad};
use super::one_way::SIZE;
use super::report::{Bar, Row};
use super::testbed::{MESSAGES, Testbed};
use super::{Setup, in_turn};
use crate::load::packets::{push_puback, read_packets, write_some};
use crate::load::session::{connect, subscribe};
use crate::store::publishers::Publishers;

/// Name of the part.
pub(super) const PART: &str = "durable";
/// Unacknowledged messages of all publishers.
const WINDOWS: [u32; 4] = [1, 16, 256, 1024];
/// Bars of the issue: ratio of the rates, and of the median latencies up to a window.
const RATE: f64 = 0.7;
const LATENCY: f64 = 1.5;
const LATENCY_WINDOW: u32 = 16;
/// Time limit for a subscriber to get the last messages.
const DRAIN: Duration = Duration::from_secs(30);

/// Measures every window, without a subscriber and with one.
pub(super) fn run(setup: &Setup<'_>, rows: &mut Vec<Row>) -> Result<(), String> {
    let testbed = setup.start()?;
    let nats = Nats::connect(&testbed, 1)?;
    nats.make_stream()?;
    for is_read in [false, true] {
        for window in WINDOWS {
            one_window(setup, &testbed, &nats, (window, is_read), rows)
                .map_err(|reason| testbed.explain(&reason))?;
        }
    }
    Ok(())
}

fn one_window(
    setup: &Setup<'_>,
    testbed: &Testbed<'_>,
    nats: &Nats,
    (window, is_read): (u32, bool),
    rows: &mut Vec<Row>,
) -> Result<(), String> {
    let readers = if is_read { "1 subscriber" } else { "no subscriber" };
    let (mut rates, mut p50, mut p99) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setup.rounds as usize {
        if let Some(leader) = testbed.leader(MESSAGES) {
            nats.place_leader(testbed, leader)?;
        }
        let (warm_up, measured) = (setup.warm_up(), setup.measured());
        let load = StreamLoad { window, first: round, is_read, warm_up, measured };
        let pair = in_turn(round, || nats.publish_to_stream(load), || publish(testbed, load))?;
        let quantiles =
            |share| pair.each_ref().map(|side| side.latencies.quantile(share).unwrap_or(f64::NAN));
        rates.push(pair.each_ref().map(|side| side.rate));
        p50.push(quantiles(0.5));
        p99.push(quantiles(0.99));
        let ([peer, own], [peer_p50, own_p50]) = (rates[round], p50[round]);
        let text = format!(
            "window {window}, {readers}: {peer:.0} and {own:.0} messages/s, p50 {peer_p50:.2} and {own_p50:.2} ms"
        );
        setup.note(PART, round, &text);
    }
    let what = |quantity: &str, unit| (format!("QoS 1, window {window}, {readers}: {quantity}"), unit);
    let latency = if window <= LATENCY_WINDOW { Bar::RatioAtMost(LATENCY) } else { Bar::None };
    for (quantity, unit, readings, bar) in [
        ("rate", "messages/s", rates, Bar::RatioAtLeast(RATE)),
        ("PUBACK p50", "ms", p50, latency),
        ("PUBACK p99", "ms", p99, Bar::None),
    ] {
        setup.push(rows, Row::beside(PART, "JetStream", what(quantity, unit), readings, bar));
    }
    Ok(())
}

/// Publishes to all brokers in turn, beside a subscriber at the second one if the load is read.
fn publish(testbed: &Testbed<'_>, load: StreamLoad) -> Result<Acknowledged, String> {
    let subscriber = Subscriber::default();
    thread::scope(|scope| {
        let reading = match load.is_read {
            true => {
                let address = testbed.mqtt(load.first + 1);
                let mut socket = connect(address, "bench-durable-sub")?;
                subscribe(&mut socket, "bench/+", 1)?;
                Some(scope.spawn(|| subscriber.run(socket)))
            }
            false => None,
        };
        let result = acknowledged(&testbed.all_mqtt(load.first), load, |acknowledged| {
            if load.is_read { subscriber.wait_for(acknowledged) } else { Ok(()) }
        });
        subscriber.stop.store(true, Ordering::Relaxed);
        let read = reading.map_or(Ok(Ok(())), thread::ScopedJoinHandle::join);
        read.map_err(|_| "the thread of the subscriber died".to_owned())??;
        result
    })
}

fn acknowledged(
    nodes: &[SocketAddr],
    load: StreamLoad,
    drained: impl FnOnce(u64) -> Result<(), String>,
) -> Result<Acknowledged, String> {
    let mut publishers = Publishers::connect_to(nodes, load.window, SIZE)?;
    publishers.publish_until(Instant::now() + load.warm_up)?;
    publishers.latencies.clear();
    let (began, before) = (Instant::now(), publishers.acknowledged);
    publishers.publish_until(began + load.measured)?;
    let rate = (publishers.acknowledged - before) as f64 / began.elapsed().as_secs_f64();
    let none = Latencies::with_resolution(Duration::from_nanos(1));
    let latencies = std::mem::replace(&mut publishers.latencies, none);
    publishers.publish_all(0)?;
    drained(publishers.acknowledged)?;
    Ok(Acknowledged { rate, latencies })
}

/// A subscriber that counts and acknowledges.
#[derive(Default)]
struct Subscriber {
    received: AtomicU64,
    stop: AtomicBool,
}

impl Subscriber {
    fn run(&self, mut socket: std::net::TcpStream) -> Result<(), String> {
        let limit = socket.set_read_timeout(Some(Duration::from_millis(20)));
        limit.map_err(|error| format!("cannot set a time limit: {error}"))?;
        let (mut buffer, mut carry, mut acks) = (vec![0; 256 * 1024], Vec::new(), Vec::new());
        while !self.stop.load(Ordering::Relaxed) {
            let mut received = 0;
            read_packets(&mut socket, &mut buffer, &mut carry, |packet| {
                let publish = packet.publish().ok_or_else(|| format!("the subscriber got {packet:02x?}"))?;
                push_puback(&mut acks, publish.packet_id);
                received += 1;
                Ok(())
            })?;
            self.received.fetch_add(received, Ordering::Relaxed);
            write_some(&mut socket, &acks)?;
            acks.clear();
        }
        Ok(())
    }

    /// Waits until as many messages were received.
    fn wait_for(&self, messages: u64) -> Result<(), String> {
        let give_up = Instant::now() + DRAIN;
        loop {
            match self.received.load(Ordering::Relaxed) {
                received if received >= messages => return Ok(()),
                received if Instant::now() > give_up => {
                    return Err(format!("the subscriber got {received} of {messages} acknowledged messages"));
                }
                _ => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}
