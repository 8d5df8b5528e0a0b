//! Tests that exactly the messages counted as published have left, on a slow link and when the end comes in between.

use std::future::poll_fn;
use std::time::Duration;

use braid_bench::emqtt::{Counter, MessageTemplate};
use braid_bench::generator::{
    Clock, Dialer, PublishPlan, PublishedTopic, RunStatistics, TimerService, Work, run,
};
use braid_bench::summary::Role;
use braid_proto::packet::QoS;
use braid_transport::sim::Shaper;
use braid_transport::{Link, Read, mem};
use tokio::io::ReadBuf;

use super::broker::{Target, clients, one_topic, plan, wait};

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(1);
/// CONNACK of MQTT 5 with success and nothing else.
const CONNACK: [u8; 5] = [0x20, 3, 0, 0, 0];
/// Capacity of a link in memory, and of a stream's queue.
const HELD: u64 = 2 * 64 * 1024;

/// The server's end of a link that takes as much as it is told to.
struct Taker {
    link: Link,
    taken: Vec<u8>,
}

impl Taker {
    /// With one connection, which was told that it is welcome.
    async fn welcome() -> (Dialer, tokio::task::JoinHandle<Self>) {
        let (mut listener, near) = mem::listener();
        let taker = tokio::spawn(async move {
            let link = listener
                .accept()
                .await
                .expect("a client")
                .handshake()
                .await
                .expect("there is none in memory");
            let mut taker = Self { link, taken: Vec::new() };
            assert!(taker.take(1000).await > 0);
            let connect = taker.packets();
            assert_eq!(connect.first().map(|(first, _)| *first), Some(0x10));
            taker.taken.drain(..connect[0].1);
            let control = braid_proto::stream::StreamKey::CONTROL;
            let written =
                poll_fn(|cx| taker.link.poll_write(cx, control, &[std::io::IoSlice::new(&CONNACK)])).await;
            assert_eq!(written.expect("it listens"), CONNACK.len());
            taker
        });
        (Dialer::from(near), taker)
    }

    /// Up to so many bytes; 0: the client has closed.
    async fn take(&mut self, most: usize) -> usize {
        let mut room = vec![0; most];
        let mut buffer = ReadBuf::new(&mut room);
        let read = poll_fn(|cx| self.link.poll_read(cx, &mut buffer, &mut |_| true)).await;
        if !matches!(read, Ok(Read::Bytes(_))) {
            return 0;
        }
        self.taken.extend_from_slice(buffer.filled());
        buffer.filled().len()
    }

    /// The first byte and the length of every whole packet.
    fn packets(&self) -> Vec<(u8, usize)> {
        let (mut packets, mut rest) = (Vec::new(), &self.taken[..]);
        while let Some(last) = rest.iter().skip(1).take(4).position(|byte| byte & 0x80 == 0) {
            let digits = rest[1..2 + last].iter().rev();
            let len = 2 + last + digits.fold(0, |len, digit| len << 7 | usize::from(digit & 0x7f));
            let Some(next) = rest.get(len..) else { break };
            packets.push((rest[0], len));
            rest = next;
        }
        packets
    }

    fn publishes(&self) -> u64 {
        self.packets().iter().filter(|(first, _)| first >> 4 == 3).count() as u64
    }
}

fn as_fast_as_it_goes(sizes: &[usize]) -> PublishPlan {
    let topics = sizes.iter().map(|&size| {
        let message = MessageTemplate::of_size(size);
        PublishedTopic::new(&format!("a/{size}"), false, Duration::ZERO, message, size).expect("a topic")
    });
    PublishPlan::of(topics.collect()).expect("topics")
}

#[tokio::test(start_paused = true)]
async fn on_a_slow_link_messages_are_counted_when_it_takes_them() {
    for sizes in [&[64][..], &[64, 100]] {
        let (dialer, taker) = Taker::welcome().await;
        let statistics = RunStatistics::new(Clock::now());
        let work = Work::Publish(as_fast_as_it_goes(sizes));
        let run = plan(clients(Role::Pub, 1), work, 5 * SECOND);
        let running = tokio::spawn(run_on(run, dialer, statistics.clone()));
        let mut taker = taker.await.expect("a connection");
        while taker.take(1024).await > 0 {
            wait(TICK).await;
        }
        running.await.expect("no panic");
        let summary = statistics.summary(Role::Pub);
        let (sent, failed) =
            (summary.counters[Counter::Pub.name()], summary.counters[Counter::PubFail.name()]);
        assert_eq!(taker.publishes(), sent, "{sizes:?}");
        let handed: u64 = summary.topics.iter().map(|topic| topic.sent).sum();
        assert_eq!(sent + failed, handed, "{sizes:?}");
        assert!(failed < 1500, "{failed} failed though the link was open");
        for topic in &summary.topics {
            assert_eq!(topic.acked + topic.failed, topic.sent);
            let whole_seconds = topic.per_second.get(..5).expect("five seconds");
            assert!(whole_seconds.iter().all(|&messages| messages > 500), "{topic:?}");
        }
    }
}

async fn run_on(plan: braid_bench::generator::Plan, dialer: Dialer, statistics: RunStatistics) {
    run(plan, dialer, TimerService::coarse(), statistics, std::future::pending()).await;
}

/// The subscriber stands still over the end and the DISCONNECT, and then takes the bytes of the link.
#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_over_the_end_finds_as_many_messages_as_were_counted() {
    for sizes in [&[64][..], &[64, 2000], &[3000]] {
        let (dialer, taker) = Taker::welcome().await;
        let statistics = RunStatistics::new(Clock::now());
        let work = Work::Publish(as_fast_as_it_goes(sizes));
        let run = plan(clients(Role::Pub, 1), work, 2 * SECOND);
        let running = tokio::spawn(run_on(run, dialer, statistics.clone()));
        let mut taker = taker.await.expect("a connection");
        let mut before = 0;
        while before < 1_000_000 {
            before += taker.take(4096).await as u64;
        }
        running.await.expect("no panic");
        while taker.take(4096).await > 0 {}
        let counters = statistics.counters();
        assert_eq!(counters[Counter::Pub], taker.publishes(), "{sizes:?}");
        let topics = statistics.topics();
        let handed: u64 = topics.iter().map(|topic| topic.sent).sum();
        assert_eq!(counters[Counter::Pub] + counters[Counter::PubFail], handed);
        assert!(counters[Counter::PubFail] > 0, "the end came in the middle");
        let size =
            |topic: &str| topic.rsplit('/').next().and_then(|size| size.parse::<u64>().ok()).expect("a size");
        let handed: u64 = topics.iter().map(|topic| topic.sent * size(&topic.topic)).sum();
        assert!(handed < before + HELD + 3100, "{handed} bytes for {before} that were taken");
        assert_eq!(statistics.elapsed(), 2 * SECOND);
    }
}

/// A run with a schedule counts every due message once, also when the end finds it in the outbox.
#[tokio::test(start_paused = true)]
async fn everything_that_was_due_is_counted_once() {
    let (dialer, taker) = Taker::welcome().await;
    let statistics = RunStatistics::new(Clock::now());
    let work = Work::Publish(one_topic("a", TICK, QoS::AtMostOnce));
    let run = plan(clients(Role::Pub, 1), work, Duration::from_micros(10_000_500));
    let start = tokio::time::Instant::now();
    let running = tokio::spawn(run_on(run, dialer, statistics.clone()));
    let mut taker = taker.await.expect("a connection");
    while start.elapsed() < SECOND {
        taker.take(1024).await;
    }
    running.await.expect("no panic");
    while taker.take(4096).await > 0 {}
    let counters = statistics.counters();
    assert_eq!(counters[Counter::Pub], taker.publishes());
    assert_eq!(counters[Counter::Pub] + counters[Counter::PubFail], 10_001);
}

/// The server takes everything and acknowledges nothing.
#[tokio::test(start_paused = true)]
async fn unacknowledged_messages_fail_half_a_minute_after_the_last_progress() {
    for stays in [false, true] {
        let (dialer, taker) = Taker::welcome().await;
        let statistics = RunStatistics::new(Clock::now());
        let publish = PublishPlan { limit: 5, ..one_topic("a", SECOND, QoS::AtLeastOnce) };
        let mut load = plan(clients(Role::Pub, 1), Work::Publish(publish), 200 * SECOND);
        load.ending.keep_connected = stays;
        let running = tokio::spawn(run_on(load, dialer, statistics.clone()));
        let mut taker = taker.await.expect("a connection");
        while taker.take(1024).await > 0 {}
        running.await.expect("no panic");
        let counters = statistics.counters();
        assert_eq!(taker.publishes(), 5);
        assert_eq!((counters[Counter::Pub], counters[Counter::PubFail]), (0, 5));
        assert!(statistics.is_complete());
        // The last one left after four seconds.
        let end = if stays { 200 } else { 34 };
        assert!(
            (end * SECOND..=(end + 2) * SECOND).contains(&statistics.elapsed()),
            "{:?}",
            statistics.elapsed()
        );
    }
}

/// Over a path that carries 500 datagrams a second, so that time goes on.
#[tokio::test(start_paused = true)]
async fn the_broker_has_what_was_counted_when_the_end_comes_in_the_middle() {
    let target = Target::start();
    target.device.change(|link| link.shaper = Some(Shaper { rate: 500.0, queue: 1000 }));
    let work = Work::Publish(as_fast_as_it_goes(&[1000]));
    let run = plan(clients(Role::Pub, 1), work, 2 * SECOND);
    let (_, statistics) = target.go(run, target.far()).ended().await;
    target.broker_is_left().await;
    let counters = statistics.counters();
    assert!(counters[Counter::Pub] > 50);
    assert_eq!(
        target.broker.statistics().get(braid_broker::Counter::MessagesReceived),
        counters[Counter::Pub]
    );
}
