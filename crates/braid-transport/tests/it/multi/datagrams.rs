//! Datagrams beside streams.

use std::collections::HashSet;

use braid_proto::stream::Priority;
use braid_transport::sim::{Direction, Policer, Shaper};
use noq::SendDatagramError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::*;

const ALARM: [u8; 80] = [1; 80];
const URGENT: Priority = Priority::new(200);
const BULK: Priority = Priority::new(8);

fn permitted() -> QuicOptions {
    QuicOptions { datagrams: true, ..QuicOptions::server() }
}

/// A datagram of so many bytes that begins with its number.
fn numbered(number: u32, bytes: usize) -> Vec<u8> {
    let mut datagram = vec![b'd'; bytes];
    datagram[..4].copy_from_slice(&number.to_be_bytes());
    datagram
}

/// Numbers of the datagrams of this length that a client gets, as [`numbered`] made them, and when.
fn arrivals(client: &Connection, bytes: usize) -> mpsc::UnboundedReceiver<(u32, Instant)> {
    let (arrived, arrivals) = mpsc::unbounded_channel();
    let client = client.clone();
    tokio::spawn(async move {
        while let Ok(datagram) = client.read_datagram().await {
            let number = u32::from_be_bytes(datagram[..4].try_into().expect("four bytes"));
            assert_eq!(datagram[..], numbered(number, datagram.len()), "as it was sent");
            if datagram.len() == bytes && arrived.send((number, Instant::now())).is_err() {
                return;
            }
        }
    });
    arrivals
}

fn drain(arrivals: &mut mpsc::UnboundedReceiver<(u32, Instant)>) -> Vec<(u32, Instant)> {
    std::iter::from_fn(|| arrivals.try_recv().ok()).collect()
}

/// Takes all that comes on a stream.
fn swallow(mut recv: RecvStream) {
    tokio::spawn(async move { while recv.read(&mut [0; 4096]).await.is_ok_and(|read| read.is_some()) {} });
}

/// [BQ-80]
#[tokio::test(start_paused = true)]
async fn datagrams_pass_both_ways_where_both_ends_permit_them() {
    let mut scene = Scene::with(permitted()).await;
    assert!(scene.server.datagram_size().is_some_and(|size| size > 1100));
    scene.client.send_datagram(b"up".to_vec().into()).expect("permitted");
    assert_eq!(next(&mut scene.server).await, (Read::Datagram, b"up".to_vec()));
    scene.server.send_datagram(URGENT, &b"down"[..]);
    let down = drive(&mut scene.server, scene.client.read_datagram()).await;
    assert_eq!(down.expect("it lives"), &b"down"[..]);
    let counts = scene.server.datagram_counts();
    assert_eq!((counts.sent, counts.received, counts.dropped_unsent, counts.dropped_unread), (1, 1, 0, 0));
}

/// [BQ-80]
#[tokio::test(start_paused = true)]
async fn none_are_sent_where_one_end_permits_none() {
    let mut scene = Scene::new().await;
    assert_eq!(scene.client.max_datagram_size(), None, "off by default");
    let refused = scene.client.send_datagram(b"x".to_vec().into());
    assert_eq!(refused, Err(SendDatagramError::UnsupportedByPeer));
    assert_eq!(scene.server.datagram_size(), None);
    let mut plain = TransportConfig::default();
    plain.datagram_receive_buffer_size(None);
    let mut scene = Scene::between(permitted(), plain).await;
    assert_eq!(scene.server.datagram_size(), None);
    scene.server.send_datagram(URGENT, &b"x"[..]);
    drive(&mut scene.server, wait(A_WHILE)).await;
    assert_eq!((scene.server.datagram_counts().sent, scene.server.unsent_datagrams()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn one_above_the_size_of_the_path_is_not_queued() {
    let mut scene = Scene::with(permitted()).await;
    let size = scene.server.datagram_size().expect("permitted");
    scene.server.send_datagram(URGENT, vec![7; size + 1]);
    assert_eq!(scene.server.unsent_datagrams(), 0);
    scene.server.send_datagram(URGENT, vec![7; size]);
    let largest = drive(&mut scene.server, scene.client.read_datagram()).await;
    assert_eq!(largest.expect("it lives").len(), size);
}

/// [BQ-84]. With 30 % loss without the gate, which takes so much for a policer and holds packets back then, those of
/// streams as well.
#[tokio::test(start_paused = true)]
async fn those_behind_a_lost_one_are_not_late_and_none_comes_twice() {
    for (gate, loss, expected) in [(false, 0.3, 320..390), (true, 0.05, 460..490)] {
        let mut scene = Scene::with(QuicOptions { gate, ..permitted() }).await;
        let mut arrivals = arrivals(&scene.client, 100);
        scene.device.change(|link| {
            link.latency = Duration::from_millis(20);
            link.loss = loss;
        });
        let mut sent = Vec::new();
        for number in 0..500 {
            sent.push(Instant::now());
            scene.server.send_datagram(URGENT, numbered(number, 100));
            drive(&mut scene.server, wait(Duration::from_millis(20))).await;
        }
        drive(&mut scene.server, wait(Duration::from_secs(1))).await;
        let arrived = drain(&mut arrivals);
        let numbers: HashSet<_> = arrived.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), arrived.len(), "none twice");
        assert!(expected.contains(&arrived.len()), "{}", arrived.len());
        let took = |(number, at): &(u32, Instant)| (*at - sent[*number as usize]).as_millis();
        let late: Vec<_> = arrived.iter().map(took).filter(|took| *took > 22).collect();
        assert!(late.is_empty(), "{late:?} ms");
    }
}

/// Latencies (ms) of alarms on a stream, after 5 s, beside a flood of datagrams of so many bytes, or of a less urgent
/// stream, behind such a link. And the numbers of datagrams that were sent and dropped.
async fn alarms_beside_a_flood(
    quic: QuicOptions,
    datagrams: Option<usize>,
    link: impl Fn(&mut braid_transport::sim::Conditions),
) -> (Vec<u128>, u64, u64) {
    let mut scene = Scene::with(quic).await;
    let (alarms, _alarm_send, mut alarm_recv) = scene.open().await;
    scene.server.set_priority(alarms, URGENT);
    let (bulk, _bulk_send, bulk_recv) = scene.open().await;
    scene.server.set_priority(bulk, BULK);
    swallow(bulk_recv);
    scene.device.change_one(Direction::Down, link);
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while alarm_recv.read_exact(&mut [0; ALARM.len()]).await.is_ok() {
            arrived.send(Instant::now()).expect("the receiver is there");
        }
    });
    let mut sent = Vec::new();
    for turn in 0..2000_u32 {
        match datagrams {
            Some(bytes) => {
                (0..8).for_each(|number| scene.server.send_datagram(BULK, numbered(number, bytes)))
            }
            None => drop(fill(&mut scene.server, bulk)),
        }
        assert!(scene.server.unsent_datagrams() <= 256, "bounded");
        if turn % 10 == 0 {
            sent.push(Instant::now());
            write(&mut scene.server, alarms, &ALARM).await;
        }
        drive(&mut scene.server, wait(Duration::from_millis(10))).await;
    }
    drive(&mut scene.server, wait(Duration::from_secs(3))).await;
    let counts = scene.server.datagram_counts();
    let mut took = Vec::new();
    for sent in sent {
        took.push((arrivals.try_recv().expect("all of them") - sent).as_millis());
    }
    let mut took = took.split_off(50);
    took.sort_unstable();
    (took, counts.sent, counts.dropped_unsent)
}

/// [BQ-86]
#[tokio::test(start_paused = true)]
async fn a_flood_of_datagrams_does_not_delay_alarms_behind_a_policer() {
    let link = |link: &mut braid_transport::sim::Conditions| {
        link.policer = Some(Policer { rate: 29.0, burst: 5 });
    };
    for bytes in [100, 1100] {
        let (took, sent, dropped) = alarms_beside_a_flood(permitted(), Some(bytes), link).await;
        let (middle, most) = (took[took.len() / 2], took[took.len() * 95 / 100]);
        assert!(middle <= 3 && most <= 5, "{bytes}: {middle} and {most} ms: {took:?}");
        assert!(sent > 200 && dropped > 8_000, "{bytes}: {sent} sent, {dropped} dropped");
    }
}

/// [BQ-86]
#[tokio::test(start_paused = true)]
async fn a_flood_of_datagrams_does_not_delay_alarms_behind_a_queue() {
    let link = |link: &mut braid_transport::sim::Conditions| {
        link.shaper = Some(Shaper { rate: 100.0, queue: 50 });
        link.latency = Duration::from_millis(20);
    };
    let (took, sent, dropped) = alarms_beside_a_flood(permitted(), Some(1100), link).await;
    // A packet in service, and its own.
    let (middle, most) = (took[took.len() / 2], took[took.len() * 95 / 100]);
    assert!(middle <= 45 && most <= 55, "{middle} and {most} ms: {took:?}");
    assert!(sent > 1000 && dropped > 8_000, "{sent} sent, {dropped} dropped");
}

/// [BQ-86]: without a gate, at most the packet that the congestion controller holds back is before an alarm.
#[tokio::test(start_paused = true)]
async fn an_alarm_waits_for_one_packet_of_datagrams_at_most_without_a_gate() {
    let link = |link: &mut braid_transport::sim::Conditions| {
        link.shaper = Some(Shaper { rate: 1000.0, queue: 2000 });
        link.latency = Duration::from_millis(20);
    };
    let quic = QuicOptions { gate: false, link_rate: Some(100_000), ..permitted() };
    let (took, sent, _) = alarms_beside_a_flood(quic, Some(1100), link).await;
    let most = took[took.len() * 95 / 100];
    assert!(most <= 22 + 2 * 13, "{most} ms: {took:?}");
    assert!(sent > 1000, "{sent} sent");
}

/// [BQ-86]: strict order between priorities, turns among equals.
#[tokio::test(start_paused = true)]
async fn datagrams_share_with_streams_of_their_priority_and_pass_lower_ones() {
    for (priority, expected) in [(100, 300..900), (200, 900..1300), (50, 0..100)] {
        let mut scene = Scene::with(permitted()).await;
        let (bulk, _bulk_send, bulk_recv) = scene.open().await;
        scene.server.set_priority(bulk, Priority::new(100));
        swallow(bulk_recv);
        let mut arrivals = arrivals(&scene.client, 1100);
        scene.device.change_one(Direction::Down, |link| {
            link.shaper = Some(Shaper { rate: 100.0, queue: 50 });
        });
        for turn in 0..1000 {
            fill(&mut scene.server, bulk);
            scene.server.send_datagram(Priority::new(priority), numbered(turn * 2, 1100));
            scene.server.send_datagram(Priority::new(priority), numbered(turn * 2 + 1, 1100));
            drive(&mut scene.server, wait(Duration::from_millis(10))).await;
        }
        let arrived = drain(&mut arrivals).len();
        assert!(expected.contains(&arrived), "{arrived} of 1000 packets at {priority}");
    }
}

/// [BQ-86]
#[tokio::test(start_paused = true)]
async fn the_oldest_of_the_lowest_priority_makes_room() {
    let mut scene = Scene::with(permitted()).await;
    scene.device.change(|link| link.cut = true);
    // A few leave before the window is closed.
    for number in 0..400 {
        scene.server.send_datagram(BULK, numbered(number, 1100));
    }
    drive(&mut scene.server, wait(A_WHILE)).await;
    for number in 400..1000 {
        scene.server.send_datagram(BULK, numbered(number, 100));
    }
    for number in 1000..1010 {
        scene.server.send_datagram(URGENT, numbered(number, 100));
    }
    for number in 1010..1020 {
        scene.server.send_datagram(BULK, numbered(number, 100));
    }
    assert_eq!(scene.server.unsent_datagrams(), 256);
    scene.device.change(|link| link.cut = false);
    let mut arrivals = arrivals(&scene.client, 100);
    drive(&mut scene.server, wait(Duration::from_secs(30))).await;
    let arrived: Vec<_> = drain(&mut arrivals).into_iter().map(|(number, _)| number).collect();
    let expected: Vec<_> = (1000..1010).chain(764..1000).chain(1010..1020).collect();
    assert_eq!(arrived, expected);
}

/// [BQ-85]
#[tokio::test(start_paused = true)]
async fn unread_datagrams_are_bounded() {
    let mut scene = Scene::with(permitted()).await;
    for number in 0..1000 {
        scene.client.send_datagram(numbered(number, 100).into()).expect("permitted");
        let nothing = next_of(&mut scene.server, |_| false);
        assert!(timeout(Duration::from_millis(5), nothing).await.is_err());
    }
    let counts = scene.server.datagram_counts();
    assert_eq!((counts.received, counts.dropped_unread), (1000, 1000 - 256));
    for number in 744..1000 {
        assert_eq!(next(&mut scene.server).await, (Read::Datagram, numbered(number, 100)));
    }
}
