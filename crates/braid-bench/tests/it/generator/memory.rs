//! Memory of messages and connections.

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Duration;

use braid_bench::generator::{Dialer, RunStatistics, Start, TimerService, Work, run};
use braid_bench::summary::Role;
use braid_proto::stream::StreamKey;
use braid_transport::{Link, Read, mem};
use tokio::io::ReadBuf;

use super::allocator::allocated;
use super::broker::{Target, clients, plan, topics_file, wait};

const SECOND: Duration = Duration::from_secs(1);

/// Says that the client is connected and reads nothing more.
pub(super) async fn accept_and_stop_reading(mut link: Link) -> Link {
    let mut bytes = [0; 4096];
    let mut buffer = ReadBuf::new(&mut bytes);
    let read = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await.expect("CONNECT comes");
    assert_eq!(read, Read::Bytes(StreamKey::CONTROL));
    let connack = [0x20, 3, 0, 0, 0];
    let written = poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(&connack)])).await;
    assert_eq!(written.expect("there is room"), connack.len());
    link
}

/// Thirty messages of 10,240,000 bytes wait for a broker that reads nothing, each with a timestamp of its own.
#[tokio::test(start_paused = true)]
async fn queued_large_messages_share_one_payload() {
    for qos in [0, 1] {
        thirty_large_messages(qos).await;
    }
}

async fn thirty_large_messages(qos: u8) {
    const LARGE: i64 = 2500 * 4096;
    let (mut listener, near) = mem::listener();
    let server = tokio::spawn(async move {
        let incoming = listener.accept().await.expect("the client comes");
        accept_and_stop_reading(incoming.handshake().await.expect("there is none in memory")).await
    });
    let file = format!(
        r#"{{"topics": [{{"name": "large", "interval_ms": "5000", "inject_timestamp": "us", "QoS": {qos},
        "payload_encoding": "eterm", "payload": {{"Data": "%p2500", "timestamp": "0"}}, "render": "Data"}}]}}"#
    );
    let work = Work::Publish(topics_file(&file));
    let before = allocated();
    let target = Target::start();
    let statistics = RunStatistics::new(target.clock);
    let who = clients(Role::Pub, 1);
    let running = tokio::spawn(run(
        plan(who, work, 151 * SECOND),
        Dialer::from(near),
        TimerService::coarse(),
        statistics.clone(),
        std::future::pending(),
    ));
    wait(150_500 * SECOND / 1000).await;
    assert_eq!(statistics.topics()[0].sent, 30);
    let held = allocated() - before;
    assert!((LARGE..LARGE * 3 / 2).contains(&held), "QoS {qos}: {held} bytes for thirty messages of {LARGE}");
    running.await.expect("no panic");
    let topic = &statistics.topics()[0];
    assert_eq!((topic.acked, topic.failed), (0, 30));
    drop(server.await.expect("no panic"));
}

/// Several clients have the pages of a topics file together.
#[tokio::test(start_paused = true)]
async fn clients_share_one_payload() {
    const LARGE: i64 = 2500 * 4096;
    let target = Target::start();
    let file = r#"{"topics": [{"name": "large/%i", "interval_ms": "1000000", "QoS": 1,
        "payload": {"Data": "%p2500"}, "render": "Data"}]}"#;
    let work = Work::Publish(topics_file(file));
    let before = allocated();
    let going = target.go(plan(clients(Role::Pub, 50), work, 10 * SECOND), target.near());
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(going.statistics.connected(), 50);
    let held = allocated() - before;
    assert!((LARGE..LARGE * 2).contains(&held), "{held} bytes for fifty clients with {LARGE}");
    going.ended().await;
}

/// Two links of this process and both ends' state: what an idle client of ours has of it is a part.
#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_cheap() {
    const CLIENTS: i64 = 500;
    let target = Target::start();
    let warm = plan(clients(Role::Conn, 1), Work::Connect, SECOND);
    target.go(warm, target.near()).ended().await;
    target.broker_is_left().await;
    let before = allocated();
    let mut who = clients(Role::Conn, 500);
    who.start = Start::PerSecond(1000);
    let going = target.go(plan(who, Work::Connect, 60 * SECOND), target.near());
    tokio::time::sleep(50 * SECOND).await;
    assert_eq!(going.statistics.connected(), 500);
    let each = (allocated() - before) / CLIENTS;
    assert!(each < 16_000, "{each} bytes for an idle connection, the broker's end included");
    going.ended().await;
}
