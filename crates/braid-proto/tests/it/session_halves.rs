//! Inbound and outbound half of a session: identifiers and their exhaustion, order, end and resumption.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{PacketId, QoS};
use braid_proto::session::{Inbound, Outbound, Phase};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use fastrand::Rng;

use crate::rig::delivery;

fn id(value: u16) -> PacketId {
    PacketId::new(value).unwrap()
}

// [MQTT-2.2.1-3], [MQTT-2.2.1-4]
#[test]
fn identifiers_begin_at_1_and_all_65535_can_be_in_use() {
    let mut outbound = Outbound::default();
    for expected in 1..=u16::MAX {
        assert!(outbound.has_free_id());
        assert_eq!(outbound.send(delivery("t", "", QoS::AtLeastOnce)).unwrap(), id(expected));
    }
    assert!(!outbound.has_free_id());
    let returned = outbound.send(delivery("t", "mine", QoS::ExactlyOnce)).unwrap_err();
    assert_eq!(returned.message.payload, "mine");
    assert_eq!(outbound.send_request(StreamKey::CONTROL), None);
    assert_eq!(outbound.unacknowledged(), 65_535);

    assert!(outbound.handle_puback(id(40_000)).is_some());
    assert_eq!(outbound.send_request(StreamKey::CONTROL), Some(id(40_000)));
    assert!(outbound.handle_answer(id(40_000)));
    assert!(!outbound.handle_answer(id(40_000)));
    assert!(outbound.handle_puback(id(65_535)).is_some());
    assert!(outbound.handle_puback(id(2)).is_some());
    // Identifiers wrap around: 65535 comes before 2.
    assert_eq!(outbound.send_request(StreamKey::CONTROL), Some(id(65_535)));
    assert_eq!(outbound.send_request(StreamKey::CONTROL), Some(id(2)));
}

#[test]
fn spooled_payloads_count_as_inflight_and_not_as_heap() {
    let mut outbound = Outbound::default();
    let mut send = |spooled, qos| {
        let message = Message::new(TopicName::parse("t").unwrap(), vec![0; 100], qos, false);
        outbound.send(Delivery::of(SharedMessage::new(message.with_spooled(spooled)))).unwrap()
    };
    let all = [send(true, QoS::AtLeastOnce), send(true, QoS::ExactlyOnce), send(false, QoS::AtLeastOnce)];
    assert_eq!((outbound.payload_bytes(), outbound.heap_bytes()), (300, 100));
    assert!(outbound.handle_puback(all[0]).is_some());
    assert_eq!((outbound.payload_bytes(), outbound.heap_bytes()), (200, 100));
    assert!(outbound.handle_pubrec(all[1]).is_some());
    assert_eq!((outbound.payload_bytes(), outbound.heap_bytes()), (100, 100));
    assert!(outbound.handle_puback(all[2]).is_some() && outbound.handle_pubcomp(all[1]).is_some());
    assert_eq!((outbound.payload_bytes(), outbound.heap_bytes()), (0, 0));
}

/// Model of the outbound half: a list.
#[derive(Default)]
struct Naive {
    /// Order, identifier, QoS or `None` for a request, whether PUBREC has come, whether it was sent on this connection.
    all: Vec<(u64, PacketId, Option<QoS>, bool, bool)>,
    next: u64,
}

impl Naive {
    fn find(&mut self, id: PacketId) -> Option<usize> {
        self.all.iter().position(|entry| entry.1 == id)
    }
}

#[test]
fn random_operations_agree_with_a_list() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        let (mut outbound, mut naive) = (Outbound::default(), Naive::default());
        for _ in 0..300 {
            let any = id(random.u16(1..12));
            let found = naive.find(any).map(|index| naive.all[index]);
            match random.u8(0..9) {
                0..3 => {
                    let qos = random.choice([None, Some(QoS::AtLeastOnce), Some(QoS::ExactlyOnce)]).unwrap();
                    let new = match qos {
                        Some(qos) => outbound.send(delivery("t", "", qos)).unwrap(),
                        None => outbound.send_request(StreamKey::CONTROL).unwrap(),
                    };
                    assert_eq!(naive.find(new), None, "an identifier in use");
                    naive.all.push((naive.next, new, qos, false, qos.is_some()));
                    naive.next += 1;
                }
                3 => {
                    let fits = found.is_some_and(|entry| entry.2 == Some(QoS::AtLeastOnce));
                    assert_eq!(outbound.handle_puback(any).is_some(), fits);
                    naive.all.retain(|entry| !(fits && entry.1 == any));
                }
                4 => {
                    let fits = found.is_some_and(|entry| entry.2 == Some(QoS::ExactlyOnce));
                    assert_eq!(outbound.handle_pubrec(any).is_some(), fits);
                    if let Some(index) = naive.find(any).filter(|_| fits)
                        && !naive.all[index].3
                    {
                        (naive.all[index].3, naive.all[index].4) = (true, true);
                        naive.all[index].0 = naive.next;
                        naive.next += 1;
                    }
                }
                5 => {
                    let fits = found.is_some_and(|entry| entry.3);
                    assert_eq!(outbound.handle_pubcomp(any).is_some(), fits);
                    naive.all.retain(|entry| !(fits && entry.1 == any));
                }
                6 => {
                    let fits = found.is_some_and(|entry| entry.2 == Some(QoS::ExactlyOnce));
                    assert_eq!(outbound.handle_pubrec_error(any).is_some(), fits);
                    naive.all.retain(|entry| !(fits && entry.1 == any));
                }
                7 => {
                    let fits = found.is_some_and(|entry| entry.2.is_none());
                    assert_eq!(outbound.handle_answer(any), fits);
                    naive.all.retain(|entry| !(fits && entry.1 == any));
                }
                _ => {
                    naive.all.retain(|entry| entry.2.is_some());
                    naive.all.iter_mut().for_each(|entry| entry.4 = false);
                    // [MQTT-4.6.0-1], [MQTT-4.6.0-4]
                    let order: BTreeMap<_, _> =
                        naive.all.iter().map(|entry| ((!entry.3, entry.0), entry.1)).collect();
                    assert_eq!(outbound.resume(), order.into_values().collect::<Vec<_>>());
                }
            }
            assert_eq!(outbound.len(), naive.all.len());
            assert_eq!(outbound.is_empty(), naive.all.is_empty());
            assert_eq!(outbound.unacknowledged(), naive.all.iter().filter(|entry| entry.4).count());
            for entry in &naive.all {
                let phase = outbound.get(entry.1).unwrap();
                assert_eq!(matches!(phase, Phase::Released(_)), entry.3);
                assert_eq!(matches!(phase, Phase::Request), entry.2.is_none());
            }
        }
    }
}

#[test]
fn unacknowledged_deliveries_are_in_the_order_of_sending() {
    let mut outbound = Outbound::default();
    for (number, qos) in
        [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::ExactlyOnce, QoS::AtLeastOnce].iter().enumerate()
    {
        outbound.send(delivery("t", vec![u8::try_from(number).unwrap()], *qos)).unwrap();
    }
    // [MQTT-4.8.2-5]: a received message goes to no other member.
    assert!(outbound.handle_pubrec(id(2)).is_some());
    let left: Vec<_> =
        outbound.into_unacknowledged().iter().map(|delivery| delivery.message.payload[0]).collect();
    assert_eq!(left, [0, 2, 3]);
}

// [MQTT-4.4.0-1], [MQTT-2.2.1-3]
#[test]
fn restored_exchanges_continue() {
    let queue_lsn = NonZeroU64::new(9);
    let sent = |qos| Phase::Sent(Delivery { queue_lsn, ..delivery("t", "", qos) });
    let mut outbound = Outbound::default();
    assert!(outbound.restore(id(40), sent(QoS::AtLeastOnce)));
    assert!(outbound.restore(id(3), Phase::Released(queue_lsn)));
    assert!(outbound.restore(id(7), sent(QoS::ExactlyOnce)));
    assert!(!outbound.restore(id(7), Phase::Released(None)), "in use");
    assert!(matches!(outbound.get(id(7)), Some(Phase::Sent(_))));
    assert_eq!((outbound.len(), outbound.unacknowledged()), (3, 0), "nothing went out here");
    assert_eq!(outbound.send(delivery("t", "", QoS::AtLeastOnce)).unwrap(), id(8));
    assert_eq!(outbound.resume(), [id(3), id(40), id(7), id(8)]);
    assert!(outbound.handle_puback(id(40)).is_some_and(|delivery| delivery.queue_lsn == queue_lsn));
    assert!(outbound.handle_pubrec(id(7)).is_some());
    assert!(matches!(outbound.get(id(7)), Some(Phase::Released(stored)) if *stored == queue_lsn));
    assert!(outbound.handle_pubcomp(id(3)).is_some() && outbound.handle_pubcomp(id(7)).is_some());
}

// [MQTT-4.3.3-10], [MQTT-4.3.3-12]
#[test]
fn the_receiver_counts_only_exchanges_of_this_connection() {
    let mut inbound = Inbound::default();
    assert!(inbound.receive(StreamKey::CONTROL, id(7), false));
    assert!(!inbound.receive(StreamKey::CONTROL, id(7), false));
    assert!(inbound.receive(StreamKey::CONTROL, id(3), false));
    assert_eq!((inbound.len(), inbound.unacknowledged(StreamKey::CONTROL)), (2, 2));
    inbound.resume();
    assert_eq!((inbound.len(), inbound.unacknowledged(StreamKey::CONTROL)), (2, 0));
    // A retransmission counts once.
    assert!(!inbound.receive(StreamKey::CONTROL, id(7), false));
    assert!(!inbound.receive(StreamKey::CONTROL, id(7), false));
    assert_eq!(
        (inbound.unacknowledged(StreamKey::CONTROL), inbound.is_unacknowledged(StreamKey::CONTROL, id(7))),
        (1, true)
    );
    let ids: BTreeSet<_> = inbound.exchanges().map(|(id, _)| id).collect();
    assert_eq!(ids, BTreeSet::from([id(3), id(7)]));
    assert!(inbound.release(StreamKey::CONTROL, id(3)));
    assert_eq!(inbound.unacknowledged(StreamKey::CONTROL), 1);
    assert!(inbound.release(StreamKey::CONTROL, id(7)));
    assert!(!inbound.release(StreamKey::CONTROL, id(7)));
    assert_eq!((inbound.is_empty(), inbound.unacknowledged(StreamKey::CONTROL)), (true, 0));
}
