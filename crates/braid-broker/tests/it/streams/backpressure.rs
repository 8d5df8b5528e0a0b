//! Backpressure of receivers on publishers, stream by stream, and none for receivers that have left.

use std::time::Duration;

use braid_broker::{BrokerConfig, Counter, LimitsConfig, MqttConfig};
use braid_proto::packet::{AckKind, Packet, QoS};
use braid_proto::stream::StreamKey;
use tokio::time::Instant;

use crate::support::{
    CONTROL, Client, Lanes, QuicBroker, connect_v5, id, lasting, publish_packet, quiet, settle, wait,
};

/// Messages queued for one session; from a quarter of them on publishers are slowed down.
const QUEUE: usize = 1000;

/// Upper bound of the delay that a dead client causes.
const BOUND: Duration = Duration::from_millis(2100);

/// A round trip of 2 ms, and the allowance for the broker.
const AT_ONCE: Duration = Duration::from_millis(20);

fn config() -> BrokerConfig {
    let limits = LimitsConfig { queued_messages: QUEUE, ..LimitsConfig::default() };
    let mqtt = MqttConfig { receive_maximum: u16::MAX, maximum_inflight: 100, ..MqttConfig::default() };
    BrokerConfig { limits, mqtt, ..quiet() }
}

/// A client behind a satellite: a round trip of 600 ms, and 100 messages in each.
async fn far(broker: &QuicBroker) -> Lanes {
    broker.host("far").change(|link| link.latency = Duration::from_millis(300));
    let mut client = broker.v5("far").await;
    client.subscribe(CONTROL, "bulk", QoS::AtLeastOnce).await;
    client
}

/// Takes `count` messages as they arrive; returns their numbers.
fn take_in_background(client: Lanes, count: usize) -> tokio::task::JoinHandle<Vec<String>> {
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.push(client.take(CONTROL).await);
        }
        taken
    })
}

/// Publishes QoS 1 messages with a window of unacknowledged ones.
async fn flood(publisher: &mut Client, count: u16, window: u16) {
    for number in 1..=count {
        publisher.send(publish_packet("bulk", number.to_string(), QoS::AtLeastOnce, number)).await;
        if number > window {
            publisher.find_ack(AckKind::Puback, id(number - window)).await;
        }
    }
    publisher.find_ack(AckKind::Puback, id(count)).await;
}

fn numbers(count: u16) -> Vec<String> {
    (1..=count).map(|number| number.to_string()).collect()
}

/// A client with a round trip of 600 ms does not count as stuck: every acknowledged message is delivered.
#[tokio::test(start_paused = true)]
async fn a_fast_publisher_waits_for_a_subscriber_that_is_far_away() {
    const COUNT: u16 = 5000;
    let broker = QuicBroker::start_with(config());
    let taken = take_in_background(far(&broker).await, usize::from(COUNT));
    let mut publisher = broker.memory.v5("publisher").await;
    flood(&mut publisher, COUNT, 200).await;
    assert_eq!(taken.await.expect("it takes all"), numbers(COUNT));
    assert_eq!(broker.memory.statistics().get(Counter::MessagesDropped), 0);
}

/// A client that was alive a moment ago, and does not answer any more.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_dies_is_not_waited_for_longer_than_the_bound() {
    let broker = QuicBroker::start_with(config());
    let client = far(&broker).await;
    let mut publisher = broker.memory.v5("publisher").await;
    publisher.publish("bulk", "0", QoS::AtLeastOnce).await;
    client.take(CONTROL).await;
    wait(Duration::from_secs(1)).await;
    broker.host("far").change(|link| link.cut = true);
    let start = Instant::now();
    flood(&mut publisher, 5000, 100).await;
    let elapsed = start.elapsed();
    assert!(elapsed <= BOUND, "{elapsed:?}");
    assert!(broker.memory.statistics().get(Counter::MessagesDropped) > 0, "it was never waited for");
}

/// A receiver that has left delays neither acknowledgements nor streams that were not read because of it.
#[tokio::test(start_paused = true)]
async fn acknowledgements_withheld_for_a_subscriber_leave_when_it_disconnects() {
    for (is_lasting, is_taken_over) in [(true, true), (true, false), (false, true), (false, false)] {
        let broker = QuicBroker::start_with(config());
        let connect = if is_lasting { lasting("slow") } else { connect_v5("slow") };
        let mut slow = broker.memory.connect(connect.clone()).await;
        slow.subscribe("bulk", QoS::AtLeastOnce).await; // No PUBACK follows.
        let (mut publisher, [bulk, other]) = two_lanes(&broker).await;
        let held = publish_until_held(&mut publisher, bulk).await;
        let start = Instant::now();
        let mut _next = None;
        if is_taken_over {
            _next = Some(broker.memory.connect(connect).await);
        } else {
            slow.disconnect().await;
        }
        publisher.expect_ack(bulk, AckKind::Puback, held).await;
        assert!(start.elapsed() <= AT_ONCE, "{is_lasting} {is_taken_over}: {:?}", start.elapsed());
        alarm(&mut publisher, other).await;
    }
}

/// [BQ-14]: likewise for a stream that is not read because of acknowledgements of another.
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_paused_for_a_subscriber_is_read_when_it_leaves() {
    let broker = QuicBroker::start_with(config());
    let mut slow = broker.memory.resume("slow").await;
    slow.subscribe("bulk", QoS::AtLeastOnce).await;
    let (mut publisher, [bulk, other]) = two_lanes(&broker).await;
    let held = publish_until_held(&mut publisher, bulk).await;
    alarm(&mut publisher, other).await;
    publisher.expect_ack(bulk, AckKind::Puback, held).await;
    let unread = publisher.next_id();
    publisher.send(bulk, &publish_packet("bulk", "x", QoS::AtLeastOnce, unread));
    wait(AT_ONCE).await;
    assert!(publisher.received(bulk).is_empty(), "the stream is not read");
    let start = Instant::now();
    slow.disconnect().await;
    publisher.expect_ack(bulk, AckKind::Puback, unread).await;
    assert!(start.elapsed() <= AT_ONCE, "{:?}", start.elapsed());
}

/// Two lanes of one publisher: bulk for a slow subscriber, and alarms that it receives itself.
async fn two_lanes(broker: &QuicBroker) -> (Lanes, [StreamKey; 2]) {
    let mut publisher = broker.v5("publisher").await;
    let lanes = [publisher.open().await, publisher.open().await];
    publisher.set_priority(lanes[1], 200);
    publisher.subscribe(lanes[1], "alarm", QoS::AtMostOnce).await;
    (publisher, lanes)
}

/// Sends bulk until its acknowledgements are withheld; returns the last identifier.
async fn publish_until_held(publisher: &mut Lanes, bulk: StreamKey) -> u16 {
    for _ in 0..2 * QUEUE {
        let packet_id = publisher.next_id();
        publisher.send(bulk, &publish_packet("bulk", "x", QoS::AtLeastOnce, packet_id));
        wait(Duration::from_millis(3)).await;
        if publisher.received(bulk).is_empty() {
            return packet_id;
        }
    }
    panic!("no publisher was slowed down");
}

async fn alarm(publisher: &mut Lanes, stream: StreamKey) {
    let packet_id = publisher.next_id();
    let start = Instant::now();
    publisher.send(stream, &publish_packet("alarm", "!", QoS::AtLeastOnce, packet_id));
    publisher.find_ack(stream, AckKind::Puback, packet_id).await;
    publisher.find_publish(stream).await;
    assert!(start.elapsed() <= AT_ONCE, "the alarm took {:?}", start.elapsed());
}

/// [BQ-14], [BQ-55]: acknowledgements withheld on one stream delay nothing on another.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_that_is_held_on_one_stream_delays_no_other() {
    for is_on_control in [false, true] {
        let broker = QuicBroker::start_with(config());
        let _far = far(&broker).await;
        let (mut publisher, [bulk, alarms]) = two_lanes(&broker).await;
        let bulk = if is_on_control { CONTROL } else { bulk };
        publish_until_held(&mut publisher, bulk).await;
        for _ in 0..3 {
            alarm(&mut publisher, alarms).await;
        }
    }
}

/// The stream with withheld acknowledgements stays slowed: nothing is dropped, whatever other streams carry. The bulk
/// does not delay the alarms either: their low rate is no measure of the path's capacity.
#[tokio::test(start_paused = true)]
async fn a_stream_of_bulk_is_slowed_down_beside_a_stream_of_alarms() {
    const COUNT: u16 = 5000;
    let broker = QuicBroker::start_with(config());
    let taken = take_in_background(far(&broker).await, usize::from(COUNT));
    let (mut publisher, [bulk, alarms]) = two_lanes(&broker).await;
    let (mut sent, mut acknowledged) = (0, 0);
    while !taken.is_finished() {
        while sent < COUNT && usize::from(sent) < acknowledged + 200 {
            sent += 1;
            let text = format!("{sent:01000}");
            publisher.send(bulk, &publish_packet("bulk", text, QoS::AtLeastOnce, beside(sent)));
        }
        alarm(&mut publisher, alarms).await;
        wait(Duration::from_millis(20)).await;
        acknowledged += publisher.received(bulk).len();
    }
    let expected: Vec<String> = (1..=COUNT).map(|number| format!("{number:01000}")).collect();
    assert!(taken.await.expect("it takes all") == expected);
    assert_eq!(broker.memory.statistics().get(Counter::MessagesDropped), 0);
}

/// Identifier outside of the range of [`Lanes::next_id`].
fn beside(number: u16) -> u16 {
    u16::MAX - number
}

/// [MQTT-4.6.0-2]: the order on one stream is kept, and everything is acknowledged in the end.
#[tokio::test(start_paused = true)]
async fn acknowledgements_of_one_stream_keep_their_order_while_they_are_held() {
    for is_on_control in [true, false] {
        let broker = QuicBroker::start_with(config());
        let _far = far(&broker).await;
        let mut publisher = broker.v5("publisher").await;
        let stream = if is_on_control { CONTROL } else { publisher.open().await };
        let held = publish_until_held(&mut publisher, stream).await;
        let other = publisher.next_id();
        publisher.send(stream, &publish_packet("other", "x", QoS::AtLeastOnce, other));
        settle().await;
        assert!(publisher.received(stream).is_empty(), "it has overtaken what is held");
        publisher.expect_ack(stream, AckKind::Puback, held).await;
        publisher.expect_ack(stream, AckKind::Puback, other).await;
        assert!(publisher.received(stream).iter().all(|packet| !matches!(packet, Packet::Ack(_))));
    }
}
