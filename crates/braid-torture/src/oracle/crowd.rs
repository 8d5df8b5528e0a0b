//! Clients outside of the ledger that come and go during a soak: takeovers, visitors and slow subscribers. Their
//! deliveries are not counted, and they rest when the other clients rest.

use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, ConnectionEvent};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Bytes;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use super::persistent_client::{PersistentClient, Received, delivery};
use super::testbed::{Endpoint, Testbed};
use crate::topic::topic_filter;

/// Visitors of each endpoint.
const VISITORS: usize = 4;
/// Most messages of a visit.
const MESSAGES: usize = 8;
/// Longest time between two takeovers of a session.
const HOLDS: Duration = Duration::from_millis(600);
/// Longest duration of a visit, and longest time between two visits.
const VISIT: Duration = Duration::from_millis(150);
/// Longest pause of a slow subscriber; it then reads for a third of that at most.
const SLEEP: Duration = Duration::from_secs(3);
/// Pauses of a slow subscriber before it leaves.
const SLEEPS: usize = 6;

/// Starts the clients of one endpoint.
pub(crate) fn spawn_crowd(testbed: &Rc<Testbed>, endpoint: &Rc<Endpoint>) {
    spawn_local(take_over(Rc::clone(testbed), Rc::clone(endpoint)));
    spawn_local(read_slowly(Rc::clone(testbed), Rc::clone(endpoint)));
    for number in 0..VISITORS {
        spawn_local(visit(Rc::clone(testbed), Rc::clone(endpoint), number));
    }
}

/// Clients that take a persistent session from their predecessor, which is still connected.
async fn take_over(testbed: Rc<Testbed>, endpoint: Rc<Endpoint>) {
    let mut before = None;
    loop {
        testbed.loading().await;
        let mut client = PersistentClient::new(&testbed, &endpoint, "taken", ProtocolVersion::V5);
        let mut connection = client.open().await;
        drop(before.take());
        let filter = topic_filter("m/0/#");
        if connection.subscribe(StreamKey::CONTROL, filter, QoS::ExactlyOnce).is_ok() {
            read(&mut client, &mut connection, testbed.draw_time(HOLDS)).await;
        }
        before = Some(connection);
    }
}

/// Clients with sessions that end with the connection.
async fn visit(testbed: Rc<Testbed>, endpoint: Rc<Endpoint>, number: usize) {
    let levels = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    loop {
        testbed.loading().await;
        let mut client =
            PersistentClient::new(&testbed, &endpoint, &format!("visitor-{number}"), ProtocolVersion::V5);
        client.expires_with_its_connection();
        let mut connection = client.open().await;
        // A failed request ends the connection, and the next visitor follows.
        let filter = topic_filter(["m/1/#", "v/#"][testbed.draw(2)]);
        let _ = connection.subscribe(StreamKey::CONTROL, filter, levels[testbed.draw(3)]);
        for _ in 0..testbed.draw(MESSAGES) {
            let payload = Bytes::from(vec![b'v'; testbed.draw(2_000)]);
            let topic = format!("v/{}", endpoint.transport.scheme());
            let message = delivery(&topic, payload, levels[testbed.draw(3)], false, StreamKey::CONTROL);
            let _ = connection.send(message);
        }
        read(&mut client, &mut connection, testbed.draw_time(VISIT)).await;
        if testbed.draw(2) == 0 {
            connection.disconnect();
            read(&mut client, &mut connection, VISIT).await;
        }
        drop(connection);
        testbed.pause(VISIT).await;
    }
}

/// A subscriber that receives more than it reads.
async fn read_slowly(testbed: Rc<Testbed>, endpoint: Rc<Endpoint>) {
    loop {
        testbed.loading().await;
        let mut client = PersistentClient::new(&testbed, &endpoint, "slow", ProtocolVersion::V5);
        client.expires_with_its_connection();
        let mut connection = client.open().await;
        for filter in ["m/#", "v/#"] {
            let _ = connection.subscribe(StreamKey::CONTROL, topic_filter(filter), QoS::AtLeastOnce);
        }
        for _ in 0..SLEEPS {
            read(&mut client, &mut connection, testbed.draw_time(SLEEP / 3)).await;
            testbed.pause(SLEEP).await;
        }
    }
}

/// Reads and acknowledges for this long, or until the connection ends.
async fn read(client: &mut PersistentClient, connection: &mut Connection, time: Duration) {
    let end = Instant::now() + time;
    loop {
        let received = tokio::select! {
            received = client.next(connection) => received,
            () = sleep_until(end) => return,
        };
        match received {
            Some(Received::Other(_, ConnectionEvent::Message(incoming))) => {
                if let Some(token) = incoming.token {
                    connection.acknowledge(token);
                }
            }
            Some(_) => {}
            None => return,
        }
    }
}
