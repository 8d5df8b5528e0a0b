//! Memory of the subscriptions of one session, and its limit.

use braid_broker::{BrokerConfig, LimitsConfig};
use braid_proto::packet::{QoS, SubscribeEntry};
use braid_proto::reason::ReasonCode;

use crate::support::{Client, TestBroker, allocated, filter, quiet, unsubscribe_packet};

/// `limits.subscription_bytes`.
const LIMIT: usize = 2 << 20;

/// Filters in one SUBSCRIBE.
const AT_ONCE: usize = 50;

async fn client(most_bytes: usize) -> (TestBroker, Client) {
    let limits =
        LimitsConfig { subscriptions: usize::MAX, subscription_bytes: most_bytes, ..LimitsConfig::default() };
    let broker = TestBroker::start_with(BrokerConfig { limits, ..quiet() });
    let client = broker.v5("client").await;
    (broker, client)
}

/// The codes for these filters.
async fn subscribe(client: &mut Client, filters: impl IntoIterator<Item = String>) -> Vec<ReasonCode> {
    let entry = |text: String| SubscribeEntry::new(filter(&text), QoS::AtMostOnce);
    client.subscribe_all(None, filters.into_iter().map(entry).collect()).await.codes
}

/// The filter with number `n`.
type Shape = fn(usize) -> String;

/// Bytes that are allocated when a client has subscribed to as many filters of this shape as it may.
async fn fill(shape: Shape) -> usize {
    let (_broker, mut client) = client(LIMIT).await;
    subscribe(&mut client, ["first".to_owned()]).await;
    let before = allocated();
    let mut first = 0;
    while !subscribe(&mut client, (first..first + AT_ONCE).map(shape))
        .await
        .contains(&ReasonCode::QuotaExceeded)
    {
        first += AT_ONCE;
    }
    usize::try_from(allocated() - before).expect("it takes something")
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_a_session_is_what_its_subscriptions_take() {
    let shapes: [(&str, Shape); 9] = [
        ("short names", |n| n.to_string()),
        ("long names", |n| format!("{n}/{}", "x".repeat(1000))),
        ("wildcards", |n| format!("{n}/+")),
        ("wildcards below each other", |n| format!("+/{n}/#")),
        ("many levels", |n| format!("{n}{}/+", "/a".repeat(126))),
        ("long levels", |n| format!("{n}/{}/+", "x".repeat(1000))),
        ("a common path", |n| format!("plant/area/line/{n}/+")),
        ("groups", |n| format!("$share/g/{n}")),
        ("groups with wildcards", |n| format!("$share/g/{n}/+")),
    ];
    for (name, shape) in shapes {
        let held = fill(shape).await;
        assert!((LIMIT / 5..=LIMIT).contains(&held), "{name}: {held} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_level_costs_where_there_is_a_wildcard() {
    // Constants of the broker: for one filter of one byte, and for a level.
    let (name, level) = (384 + 2, 152);
    for (text, cost) in [("a/b", name + 4), ("a/+", name + 4 + 2 * level), ("$share/g/+", name + 18 + level)]
    {
        let (_broker, mut short) = client(cost - 1).await;
        assert_eq!(subscribe(&mut short, [text.to_owned()]).await, [ReasonCode::QuotaExceeded], "{text}");
        let (_broker, mut enough) = client(cost).await;
        assert_eq!(subscribe(&mut enough, [text.to_owned()]).await, [ReasonCode::Success], "{text}");
        // Freed memory can be used again.
        assert_eq!(subscribe(&mut enough, ["b".to_owned()]).await, [ReasonCode::QuotaExceeded]);
        enough.send(unsubscribe_packet(9, &[text])).await;
        assert_eq!(enough.find_unsuback().await.codes, [ReasonCode::Success]);
        assert_eq!(subscribe(&mut enough, [text.to_owned()]).await, [ReasonCode::Success], "{text}");
    }
}
