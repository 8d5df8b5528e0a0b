//! Counters and measurements of subscribers.

use std::future::poll_fn;
use std::time::Duration;

use braid_bench::emqtt::{Counter, DurationHistogram, MessageTemplate};
use braid_bench::generator::{
    Clock, Dialer, PublishPlan, PublishedTopic, RunStatistics, SubscribePlan, SubscribedFilter, TimerService,
    Work, run,
};
use braid_bench::summary::Role;
use braid_proto::packet::QoS;
use braid_transport::mem;
use tokio::io::ReadBuf;

use super::broker::{Target, clients, one_filter, one_topic, plan, until_subscribed};
use super::memory::accept_and_stop_reading;

const SECOND: Duration = Duration::from_secs(1);

/// Two hops of a millisecond from publisher to broker and from broker to subscriber.
#[tokio::test(start_paused = true)]
async fn latency_is_from_when_a_message_was_due_to_its_receipt() {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: "cnt64,ts".parse().expect("headers"), ..one_filter("a") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.far());
    until_subscribed(&receiving, 1).await;
    let publish = one_topic("a", Duration::from_millis(100), QoS::AtLeastOnce);
    let publish = PublishPlan { headers: "cnt64,ts".parse().expect("headers"), ..publish };
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 10_050 * SECOND / 1000);
    target.go(run, target.far()).ended().await;
    let (_, statistics) = receiving.ended().await;
    let topic = &statistics.topics()[0];
    assert!((100..=101).contains(&topic.received), "{topic:?}");
    assert_eq!(topic.bytes, topic.received * (64 + 16), "the headers are part of the payload");
    let latency = topic.latency_us.expect("they have timestamps");
    assert_eq!(latency.count, topic.received);
    // The stamp is in whole milliseconds, and so may be one too early; so may tokio's timer be late.
    assert!((1_900.0..=5_000.0).contains(&latency.p50), "{latency:?}");
    let text = braid_bench::emqtt::exposition(&statistics.counters(), &statistics.histograms());
    let wanted = format!("{}_count {}", DurationHistogram::EndToEnd.name(), topic.received);
    assert!(text.contains(&wanted), "{text}");
    let wanted = format!("{}_count 1", DurationHistogram::Subscribe.name());
    assert!(text.contains(&wanted), "{text}");
    assert!(statistics.events(0).is_empty(), "no counter is missing");
}

/// Statistics of a subscriber with these headers after these payloads, a second between two.
async fn received(headers: &str, payloads: &[Vec<u8>]) -> RunStatistics {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: headers.parse().expect("headers"), ..one_filter("a/#") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    for (at, payload) in payloads.iter().enumerate() {
        let message = MessageTemplate::literal(payload.clone().into());
        let topic = PublishedTopic::new("a/x", false, 60 * SECOND, message, 0).expect("a topic");
        let publish = PublishPlan::of(vec![topic]).expect("one topic");
        let after = SECOND * u32::try_from(at + 1).expect("few");
        let run = plan(clients(Role::Pub, 1), Work::Publish(publish), after);
        target.go(run, target.near()).ended().await;
    }
    receiving.ended().await.1
}

fn told(statistics: &RunStatistics) -> Vec<String> {
    statistics.events(0).into_iter().map(|event| event.what).collect()
}

#[tokio::test(start_paused = true)]
async fn counters_that_are_missing_are_told() {
    let payloads = [0_u64, 5, 3].map(|counter| counter.to_be_bytes().to_vec());
    let statistics = received("cnt64", &payloads).await;
    assert_eq!(told(&statistics), ["client(1): cnt64 skipped 4 and did not rise 1 times"]);
    let headers = serde_json::to_value(statistics.summary(Role::Sub).headers).expect("JSON");
    let wanted = serde_json::json!({"numbered": 3, "skipped": 4, "not_above": 1, "skewed": 0});
    assert_eq!(headers, wanted);
}

/// Losses on a topic are detected however many topics came before it.
#[tokio::test(start_paused = true)]
async fn counters_are_followed_on_every_topic() {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: "cnt64".parse().expect("headers"), ..one_filter("a/#") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    for (topics, counter, end) in [(0..1500, 0_u64, 1), (1499..1500, 5, 2), (1499..1500, 5, 3)] {
        let topic = |at| {
            let message = MessageTemplate::literal(counter.to_be_bytes().to_vec().into());
            PublishedTopic::new(&format!("a/{at}"), false, 60 * SECOND, message, 0).expect("a topic")
        };
        let publish = PublishPlan::of(topics.map(topic).collect()).expect("topics");
        let run = plan(clients(Role::Pub, 1), Work::Publish(publish), end * SECOND);
        target.go(run, target.near()).ended().await;
    }
    let headers = receiving.ended().await.1.summary(Role::Sub).headers;
    assert_eq!((headers.numbered, headers.skipped, headers.not_above), (1502, 4, 1));
    assert_eq!(headers.unchecked, 0);
}

#[tokio::test(start_paused = true)]
async fn each_topic_of_a_publisher_has_its_own_counter() {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: "cnt64".parse().expect("a header"), ..one_filter("a/#") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    let topics = ["a/x", "a/y"].map(|name| one_topic(name, SECOND, QoS::AtMostOnce).topics).concat();
    let publish = PublishPlan::of(topics).expect("topics");
    let publish = PublishPlan { headers: "cnt64".parse().expect("a header"), ..publish };
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 10_500 * SECOND / 1000);
    target.go(run, target.near()).ended().await;
    let (_, statistics) = receiving.ended().await;
    assert_eq!((statistics.counters()[Counter::Recv], told(&statistics)), (22, Vec::new()));
}

/// A payload of a topics file in JSON has no headers, whatever its publisher was asked for.
#[tokio::test(start_paused = true)]
async fn json_is_not_read_as_headers() {
    let payload = |number| format!("{{\"number\": {number}, \"more\": 12345678}}").into_bytes();
    let statistics = received("cnt64,ts", &[payload(1), payload(77), payload(3)]).await;
    assert_eq!((statistics.counters()[Counter::Recv], told(&statistics)), (3, Vec::new()));
    assert!(statistics.topics()[0].latency_us.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_message_from_the_future_has_no_latency_and_is_told() {
    let ahead = u64::try_from(Clock::now().started_unix().as_millis()).expect("no far future") + 3_600_000;
    let statistics = received("ts", &[ahead.to_be_bytes().to_vec(), ahead.to_be_bytes().to_vec()]).await;
    assert_eq!(told(&statistics), ["client(1): 2 messages came before they were sent: set the clocks alike"]);
    assert_eq!(statistics.counters()[Counter::Recv], 2);
    let headers = statistics.summary(Role::Sub).headers;
    assert_eq!((headers.skewed, headers.numbered), (2, 0));
    assert!(statistics.topics()[0].latency_us.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_payload_without_its_headers_is_received_and_told_once() {
    let target = Target::start();
    let subscribe = SubscribePlan { headers: "cnt64,ts".parse().expect("headers"), ..one_filter("a") };
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(subscribe), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    let topic = PublishedTopic::new("a", false, SECOND, MessageTemplate::of_size(3), 3).expect("a topic");
    let publish = PublishPlan::of(vec![topic]).expect("one topic");
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 5_500 * SECOND / 1000);
    target.go(run, target.near()).ended().await;
    let (_, statistics) = receiving.ended().await;
    assert_eq!(statistics.counters()[Counter::Recv], 6);
    let told = statistics.events(0);
    assert!(told.len() == 1 && told[0].what.contains("--payload-hdrs"), "{told:?}");
    assert!(statistics.topics()[0].latency_us.is_none());
}

#[tokio::test(start_paused = true)]
async fn placeholders_are_filled_for_each_client() {
    let target = Target::start();
    let filters =
        ["x/%i", "y/%c"].map(|text| SubscribedFilter::new(text, false, QoS::AtMostOnce).expect("a filter"));
    let subscribe = SubscribePlan { filters: filters.into(), ..SubscribePlan::default() };
    let mut who = clients(Role::Sub, 3);
    who.start_number = 10;
    let receiving = target.go(plan(who, Work::Subscribe(subscribe), 30 * SECOND), target.near());
    until_subscribed(&receiving, 3).await;
    for topic in ["x/11", "x/13", "x/14", "y/test_bench_sub_12"] {
        let publish = PublishPlan { limit: 1, ..one_topic(topic, SECOND, QoS::AtLeastOnce) };
        let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 20 * SECOND);
        target.go(run, target.near()).ended().await;
    }
    let (_, statistics) = receiving.ended().await;
    let topics: Vec<_> = statistics.topics().into_iter().map(|topic| (topic.topic, topic.received)).collect();
    assert_eq!(
        topics,
        [("x/11".to_owned(), 1), ("x/13".to_owned(), 1), ("y/test_bench_sub_12".to_owned(), 1)]
    );
}

/// Ten thousand topics are counted exactly, but not each by itself.
#[tokio::test(start_paused = true)]
async fn topics_beyond_the_first_256_are_counted_together() {
    let target = Target::start();
    let receiving = plan(clients(Role::Sub, 1), Work::Subscribe(one_filter("#")), 30 * SECOND);
    let receiving = target.go(receiving, target.near());
    until_subscribed(&receiving, 1).await;
    let publish = PublishPlan { limit: 3000, ..one_topic("a/%s", Duration::from_millis(1), QoS::AtMostOnce) };
    let run = plan(clients(Role::Pub, 1), Work::Publish(publish), 20 * SECOND);
    let (_, published) = target.go(run, target.near()).ended().await;
    assert_eq!(published.topics().len(), 1, "a publisher's topic is the one that was asked for");
    let summary = receiving.ended().await.1.summary(Role::Sub);
    assert_eq!(summary.topics.len(), 257);
    assert!(summary.topics[..256].iter().all(|topic| topic.received == 1));
    assert_eq!(
        (summary.topics[256].topic.as_str(), summary.topics[256].received),
        ("(other topics)", 3000 - 256)
    );
}

/// The broker's order of sending is asked for in the words of [BQ-52], and only by who has a wish.
#[tokio::test(start_paused = true)]
async fn a_priority_is_a_user_property_of_the_subscribe() {
    let (mut listener, near) = mem::listener();
    let server = tokio::spawn(async move {
        let incoming = listener.accept().await.expect("the client comes");
        let mut link =
            accept_and_stop_reading(incoming.handshake().await.expect("there is none in memory")).await;
        let mut bytes = [0; 4096];
        let mut buffer = ReadBuf::new(&mut bytes);
        poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await.expect("SUBSCRIBE comes");
        buffer.filled().to_vec()
    });
    let filter = |text| SubscribedFilter::new(text, false, QoS::AtMostOnce).expect("a filter");
    let filters = vec![SubscribedFilter { priority: Some(4321), ..filter("x") }, filter("y")];
    let subscribe = Work::Subscribe(SubscribePlan { filters, ..SubscribePlan::default() });
    let load = plan(clients(Role::Sub, 1), subscribe, SECOND);
    let statistics = RunStatistics::new(Clock::now());
    run(load, Dialer::from(near), TimerService::coarse(), statistics, std::future::pending()).await;
    let asked = server.await.expect("no panic");
    let text = String::from_utf8_lossy(&asked);
    assert_eq!(text.matches("braid-priority\0\u{4}4321").count(), 1, "{text:?}");
    assert_eq!(text.matches("braid-priority").count(), 1, "{text:?}");
}
