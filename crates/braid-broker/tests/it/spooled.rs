//! Large messages in files do not count against the memory watermarks.

use std::sync::Arc;
use std::time::Duration;

use braid_broker::health::HealthStatus;
use braid_broker::{BrokerConfig, Counter, LimitsConfig, SysConfig};
use braid_proto::packet::QoS;
use braid_proto::reason::ReasonCode;
use braid_store::spool::{FileSpool, SpoolOptions};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::support::{TestBroker, publish_packet, quiet, settle};

/// High watermark, bytes.
const HIGH: usize = 1 << 20;

/// Size of a message above both watermarks, bytes.
const SIZE: usize = 2 * HIGH;

/// Upper bound of the memory of a message beside its payload, bytes.
const OVERHEAD: u64 = 1000;

fn start() -> (TestBroker, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SpoolOptions { threshold: HIGH / 2, bytes: 1 << 30, keep_free: 0 };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let limits = LimitsConfig { memory_low: HIGH / 2, memory_high: HIGH, ..LimitsConfig::default() };
    (TestBroker::start_with_spool(BrokerConfig { limits, ..quiet() }, Arc::new(spool)), directory)
}

/// A subscriber does not acknowledge the message, disconnects, and reconnects.
#[tokio::test(start_paused = true)]
async fn spooled_message_refuses_no_client() {
    let (broker, _directory) = start();
    let mut slow = broker.resume("slow").await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    let mut publisher = broker.v5("publisher").await;
    assert_eq!(publisher.publish("t", vec![7; SIZE], QoS::AtLeastOnce).await, ReasonCode::Success);
    assert_eq!(slow.expect_publish().await.payload.len(), SIZE);
    settle().await;
    assert!(broker.handle.memory_used() < OVERHEAD, "{}", broker.handle.memory_used());
    // Connections are accepted, and no client is slowed or disconnected.
    let mut other = broker.v5("other").await;
    assert_eq!(other.publish("x", [1; 100], QoS::AtLeastOnce).await, ReasonCode::NoMatchingSubscribers);
    slow.vanish().await;
    let (used, resting) = (broker.handle.memory_used(), broker.handle.memory_resting());
    assert!(used == 0 && resting > 0 && resting < OVERHEAD, "{used}, {resting}");
    let mut slow = broker.resume("slow").await;
    assert!(slow.take_many(1).await[0].payload == vec![7; SIZE]);
    settle().await;
    assert_eq!((broker.handle.memory_used(), broker.handle.memory_resting()), (0, 0));
    assert_eq!(broker.statistics().get(Counter::Overloads), 0);
}

/// Small messages count, with a spool and without one.
#[tokio::test(start_paused = true)]
async fn message_below_the_threshold_counts_as_memory() {
    let (broker, _directory) = start();
    let mut slow = broker.v5("slow").await;
    slow.subscribe("t", QoS::AtLeastOnce).await;
    broker.v5("publisher").await.publish("t", vec![7; HIGH / 4], QoS::AtLeastOnce).await;
    assert_eq!(slow.expect_publish().await.payload.len(), HIGH / 4);
    let used = broker.handle.memory_used();
    assert!(used >= HIGH as u64 / 4 && used < HIGH as u64 / 4 + OVERHEAD, "{used}");
}

/// Limits of a queue count spooled payloads too.
#[tokio::test(start_paused = true)]
async fn spooled_message_counts_in_its_queue() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SpoolOptions { threshold: HIGH / 2, bytes: 1 << 30, keep_free: 0 };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let limits = LimitsConfig { queued_bytes: 3 * SIZE, ..LimitsConfig::default() };
    let broker = TestBroker::start_with_spool(BrokerConfig { limits, ..quiet() }, Arc::new(spool));
    let mut client = broker.resume("client").await;
    client.subscribe("t", QoS::AtLeastOnce).await;
    client.disconnect().await;
    let mut publisher = broker.v5("publisher").await;
    for _ in 0..4 {
        publisher.publish("t", vec![7; SIZE], QoS::AtLeastOnce).await;
    }
    assert_eq!(broker.resume("client").await.take_all().await.len(), 2, "three quarters are for large ones");
    assert_eq!(broker.statistics().get(Counter::MessagesOverflowed), 2);
}

/// `$SYS` publishes the begin and the end of a shortage of spool space.
#[tokio::test(start_paused = true)]
async fn full_spool_is_published_below_sys() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SpoolOptions { threshold: HIGH / 2, bytes: SIZE as u64, keep_free: 0 };
    let spool = FileSpool::open(directory.path(), options).expect("the system allows it");
    let sys = SysConfig { interval_secs: 1_000_000 };
    let config = BrokerConfig { sys, ..BrokerConfig::default() };
    let broker = TestBroker::start_with_spool(config, Arc::new(spool));
    let mut watch = broker.v5("watch").await;
    watch.subscribe("$SYS/broker/spool/state", QoS::AtMostOnce).await;
    assert_eq!(watch.take().await, "ok");
    let health =
        || (broker.handle.health_monitor().health().status, broker.handle.health_monitor().health().spool);
    for _ in 0..2 {
        let refused_at = Instant::now();
        let mut publisher = broker.v5("publisher").await;
        publisher.send(publish_packet("t", vec![7; SIZE], QoS::AtLeastOnce, 1)).await;
        publisher.expect_disconnect(ReasonCode::QuotaExceeded).await;
        assert_eq!(watch.take().await, "full: large messages are refused");
        // Other clients are served.
        assert_eq!(health(), (HealthStatus::Serving, "full: large messages are refused"));
        assert_eq!(watch.take().await, "ok");
        assert_eq!(health(), (HealthStatus::Serving, "ok"));
        assert!(refused_at.elapsed() >= Duration::from_secs(10), "{:?}", refused_at.elapsed());
    }
}
