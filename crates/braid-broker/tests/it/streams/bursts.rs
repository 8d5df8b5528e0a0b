//! Fair shares of the streams in a burst that arrives before the connection takes any of it.

use braid_broker::{BrokerConfig, Counter, LimitsConfig};
use braid_proto::packet::QoS;

use crate::support::{CONTROL, QuicBroker, publish_packet, quiet};

/// [BQ-55]: a burst for one stream between two messages for others leaves room for these.
#[tokio::test(start_paused = true)]
async fn a_burst_for_one_stream_leaves_room_for_the_others_in_it() {
    for lively in [false, true] {
        let limits = LimitsConfig { queued_messages: 100, ..LimitsConfig::default() };
        let broker = QuicBroker::start_with(BrokerConfig { limits, ..quiet() });
        let mut client = broker.v5("client").await;
        let bulk = client.open().await;
        let alarms = if lively { client.open().await } else { CONTROL };
        client.subscribe(bulk, "bulk", QoS::AtLeastOnce).await;
        client.subscribe(alarms, "alarm", QoS::AtLeastOnce).await;
        let mut publisher = broker.memory.v5("publisher").await;
        let topics = ["alarm"; 2].into_iter().chain(["bulk"; 200]).chain(["alarm"; 5]);
        let packets = (1..).zip(topics);
        let packets = packets.map(|(id, topic)| publish_packet(topic, format!("{id}"), QoS::AtLeastOnce, id));
        publisher.send_all(packets).await;
        for id in [1, 2, 203, 204, 205, 206, 207] {
            assert_eq!(client.take(alarms).await, format!("{id}"), "on {alarms}");
        }
        assert!(broker.memory.statistics().get(Counter::MessagesDropped) > 100, "it was one burst");
    }
}
