//! Who comes and goes beside those of the books while a broker is watched for long: takeovers, visitors, and readers who
//! are slow. Nobody counts what they get; they are quiet when the others are.

use std::rc::Rc;
use std::time::Duration;

use braid_bench::{Connection, Happening};
use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::stream::StreamKey;
use bytes::Bytes;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::house::{House, Way};
use crate::line::{Line, delivery, topic_filter};

/// Visitors of each way to the broker.
const VISITORS: usize = 4;
/// Messages of a visit, at most.
const MESSAGES: usize = 8;
/// A holder of a session keeps it up to this long.
const HOLDS: Duration = Duration::from_millis(600);
/// How long a visit lasts, at most, and the time between two.
const VISIT: Duration = Duration::from_millis(150);
/// A slow reader does not read for up to this long, and then reads for a third of it at most.
const SLEEP: Duration = Duration::from_secs(3);
/// So often before it leaves.
const SLEEPS: usize = 6;

/// Lets them come over this way.
pub(crate) fn gather(house: &Rc<House>, way: &Rc<Way>) {
    spawn_local(take_over(Rc::clone(house), Rc::clone(way)));
    spawn_local(read_slowly(Rc::clone(house), Rc::clone(way)));
    for number in 0..VISITORS {
        spawn_local(visit(Rc::clone(house), Rc::clone(way), number));
    }
}

/// One client after the other takes a session that lasts from the one before, who is still there.
async fn take_over(house: Rc<House>, way: Rc<Way>) {
    let mut before = None;
    loop {
        house.loading().await;
        let mut line = Line::new(&house, &way, "taken", ProtocolVersion::V5);
        let mut connection = line.open().await;
        drop(before.take());
        let filter = topic_filter("m/0/#");
        if connection.subscribe(StreamKey::CONTROL, filter, QoS::ExactlyOnce).is_ok() {
            read(&line, &mut connection, house.draw_time(HOLDS)).await;
        }
        before = Some(connection);
    }
}

/// Clients of which nothing is left.
async fn visit(house: Rc<House>, way: Rc<Way>, number: usize) {
    let levels = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];
    loop {
        house.loading().await;
        let mut line = Line::new(&house, &way, &format!("visitor-{number}"), ProtocolVersion::V5);
        line.expires_with_its_connection();
        let mut connection = line.open().await;
        // Should any of it fail, it is the connection's end, and the next comes.
        let filter = topic_filter(["m/1/#", "v/#"][house.draw(2)]);
        let _ = connection.subscribe(StreamKey::CONTROL, filter, levels[house.draw(3)]);
        for _ in 0..house.draw(MESSAGES) {
            let payload = Bytes::from(vec![b'v'; house.draw(2_000)]);
            let topic = format!("v/{}", way.scheme);
            let message = delivery(&topic, payload, levels[house.draw(3)], false, StreamKey::CONTROL);
            let _ = connection.send(message);
        }
        read(&line, &mut connection, house.draw_time(VISIT)).await;
        if house.draw(2) == 0 {
            connection.disconnect();
            read(&line, &mut connection, VISIT).await;
        }
        drop(connection);
        house.pause(VISIT).await;
    }
}

/// A client for whom more comes than it reads.
async fn read_slowly(house: Rc<House>, way: Rc<Way>) {
    loop {
        house.loading().await;
        let mut line = Line::new(&house, &way, "slow", ProtocolVersion::V5);
        line.expires_with_its_connection();
        let mut connection = line.open().await;
        for filter in ["m/#", "v/#"] {
            let _ = connection.subscribe(StreamKey::CONTROL, topic_filter(filter), QoS::AtLeastOnce);
        }
        for _ in 0..SLEEPS {
            read(&line, &mut connection, house.draw_time(SLEEP / 3)).await;
            house.pause(SLEEP).await;
        }
    }
}

/// Takes what comes for so long, or until the connection ends.
async fn read(line: &Line, connection: &mut Connection, time: Duration) {
    let end = Instant::now() + time;
    loop {
        let happened = tokio::select! {
            happened = line.next(connection) => happened,
            () = sleep_until(end) => return,
        };
        match happened {
            Some((_, Happening::Message(incoming))) => {
                if let Some(token) = incoming.token {
                    connection.acknowledge(token);
                }
            }
            Some(_) => {}
            None => return,
        }
    }
}
