use std::task::{Context, Waker};
use std::time::Duration;

use braid_bench::{Connection, ConnectionEvent, SendOutcome};
use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{Connect, ProtocolVersion, QoS};
use braid_proto::session::{Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use braid_transport::{Link, mem};
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::time::timeout;

use crate::rig::Rig;

/// Longer than anything takes, on virtual time.
const LIMIT: Duration = Duration::from_secs(30);

/// As links that encrypt do, it holds back what it has taken until it is told that no more comes, and then until the
/// network takes it: a thousand bytes at a time.
async fn holding_link(rig: &Rig) -> Link {
    match rig.near.connect_with_capacity(1_000).await.expect("the broker listens") {
        Link::Single(mut single) => {
            single.io = Box::new(BufWriter::with_capacity(1_000_000, single.io));
            Link::Single(single)
        }
        Link::Multi(_) => unreachable!("links in memory have one stream"),
    }
}

#[tokio::test(start_paused = true)]
async fn buffered_bytes_are_flushed_completely() {
    let rig = Rig::start();
    let connect = Connect::new(ProtocolVersion::V5, "publisher");
    let connection = Connection::establish(holding_link(&rig).await, connect);
    let mut connection = timeout(LIMIT, connection).await.expect("in time").expect("the broker accepts");
    let topic = TopicName::parse("t").expect("a topic");
    let message = Message::new(topic, vec![0; 100_000], QoS::AtLeastOnce, false);
    let sent = connection.send(Delivery::of(SharedMessage::new(message))).expect("the broker takes it");
    let SendOutcome::Queued(Some(id)) = sent else { panic!("{sent:?}") };
    let happened = timeout(LIMIT, connection.next()).await.expect("all of it left").expect("an answer");
    assert!(matches!(happened, ConnectionEvent::Published(of, _) if of == id), "{happened:?}");
}

/// A client with a write limit is in the middle of a message for as long as it likes.
#[tokio::test(start_paused = true)]
async fn no_more_is_written_than_was_allowed() {
    let rig = Rig::start();
    let link = rig.near.connect_with_capacity(1_000_000).await.expect("the broker listens");
    let connect = Connect::new(ProtocolVersion::V5, "publisher");
    let mut connection = Connection::establish(link, connect).await.expect("the broker accepts");
    let (_, before) = connection.progress(StreamKey::CONTROL);
    let topic = TopicName::parse("t").expect("a topic");
    let message = Message::new(topic, vec![0; 100_000], QoS::AtLeastOnce, false);
    connection.write_at_most(0);
    connection.send(Delivery::of(SharedMessage::new(message))).expect("the broker takes it");
    let (all, _) = connection.progress(StreamKey::CONTROL);
    for (allowed, expected) in [(0, 0), (3, 3), (40_000, 40_003), (100_000, all - before)] {
        connection.write_at_most(allowed);
        let mut context = Context::from_waker(Waker::noop());
        assert!(connection.poll_next(&mut context).is_pending(), "nothing is acknowledged yet");
        let (_, written) = connection.progress(StreamKey::CONTROL);
        assert_eq!(written - before, expected);
    }
    let happened = timeout(LIMIT, connection.next()).await.expect("all of it left").expect("an answer");
    assert!(matches!(happened, ConnectionEvent::Published(..)), "{happened:?}");
}

/// A session records a message of QoS 2 when it arrives, and no server sends it a second time.
#[tokio::test]
async fn packets_before_the_end_of_the_link_are_returned() {
    let connack = [0x20, 0x03, 0x01, 0x00, 0x00];
    let publish = [0x34, 0x06, 0x00, 0x01, b't', 0x00, 0x07, 0x00];
    for with_connack in [true, false] {
        let (link, mut server) = mem::pair(1_000);
        let Link::Single(end) = &mut server else { unreachable!("links in memory have one stream") };
        end.io.write_all(&connack).await.expect("there is room");
        let mut connect = Connect::new(ProtocolVersion::V5, "subscriber");
        connect.clean_start = false;
        let mut session = Some(Session::new("subscriber".into(), SessionExpiry::NEVER));
        if with_connack {
            end.io.write_all(&publish).await.expect("there is room");
            end.io.shutdown().await.expect("nothing is in the way");
        }
        let resumed = Connection::resume(link, connect, &mut session).await;
        let mut connection = resumed.expect("the server has accepted");
        assert!(connection.session_present());
        if !with_connack {
            end.io.write_all(&publish).await.expect("there is room");
            end.io.shutdown().await.expect("nothing is in the way");
        }
        let happened = connection.next().await.expect("a message");
        assert!(matches!(happened, ConnectionEvent::Message(_)), "{happened:?}");
        assert!(connection.next().await.is_err());
    }
}
