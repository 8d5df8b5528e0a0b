//! Taps of published messages.

use std::sync::Arc;

use braid_broker::Anonymous;
use braid_proto::message::Message;
use braid_proto::packet::{Connect, Publish, QoS};
use braid_store::MemoryStore;
use tokio::time::Instant;

use crate::support::{AclRules, TestBroker, connect_v5, message, pass, quiet, settle, topic, will};

/// Every way to publish is tapped once: by clients of each mountpoint, as a Will, by an operator. What is refused is
/// not.
#[tokio::test(start_paused = true)]
async fn a_tap_has_each_permitted_message_with_its_mountpoint() {
    let rules = AclRules::of("deny all topic secret\nallow all topic #");
    let (broker, [first, second]) = TestBroker::start_mounted(
        quiet(),
        Anonymous::default(),
        rules,
        Arc::new(MemoryStore::new()),
        ["t1/", "t2/"],
    );
    let mut client = broker.v5("client").await;
    client.publish("before", "x", QoS::AtLeastOnce).await;
    assert!(!broker.handle.is_tapped());
    let mut tap = broker.handle.tap_messages();
    assert!(broker.handle.is_tapped());
    pass(1).await;
    let begun = Instant::now().into_std();
    client.publish("a", "none", QoS::AtLeastOnce).await;
    client.publish("secret", "x", QoS::AtLeastOnce).await;
    for (entrance, payload) in [(&first, "one"), (&second, "two")] {
        let mut client = entrance.connect(connect_v5("client")).await;
        let retained = Publish { retain: true, qos: QoS::ExactlyOnce, ..message("a", payload) };
        client.publish_as(retained).await;
    }
    let dying = Connect { will: Some(will("a/will", "gone")), ..connect_v5("dying") };
    first.connect(dying).await.vanish().await;
    settle().await;
    let own = Message::new(topic("own"), "x", QoS::AtMostOnce, false);
    broker.handle.publish_durably(own).await.unwrap();
    let tapped = tap.take();
    let found: Vec<_> = tapped
        .messages
        .iter()
        .map(|message| (message.topic.as_str(), &message.payload[..], message.qos, message.retain))
        .collect();
    assert_eq!(
        found,
        [
            ("a", &b"none"[..], QoS::AtLeastOnce, false),
            ("t1/a", b"one", QoS::ExactlyOnce, true),
            ("t2/a", b"two", QoS::ExactlyOnce, true),
            ("t1/a/will", b"gone", QoS::AtMostOnce, false),
            ("own", b"x", QoS::AtMostOnce, false),
        ]
    );
    assert!(tapped.lost == 0 && tapped.messages[0].at >= begun);
    drop(tap);
    assert!(!broker.handle.is_tapped());
}
