use std::sync::Arc;

use braid_proto::packet::{QoS, Will};
use braid_proto::session::SessionExpiry;
use braid_proto::stream::Priority;

use super::example::{
    at, closed, filter, full_subscription, full_will, id, opened, packet, parked, queued, received,
    received_more, received_released, resumed, retained, sent, stored, subscribed,
};
use super::subject::Subject;
use crate::change::Change;
use crate::subscription::StoredSubscription;

cases![
    an_empty_store_holds_nothing,
    an_opened_session_is_recovered_as_connected,
    parking_keeps_time_and_interval_and_resuming_stops_the_clock,
    opening_closes_what_the_client_had,
    opening_again_under_the_same_id_empties_it,
    closing_removes_everything_of_the_session_and_nothing_else,
    a_will_stays_until_it_is_replaced_or_cleared,
    a_subscription_keeps_every_option,
    a_subscription_keeps_the_priority_that_was_asked_for,
    a_filter_names_one_subscription,
    received_ids_stay_until_they_are_released,
    received_ids_are_counted,
    changes_of_unknown_sessions_have_no_effect,
];

fn an_empty_store_holds_nothing(subject: &mut Subject<'_>) {
    let image = subject.image();
    assert!(image.sessions.is_empty() && image.retained.is_empty());
    assert_eq!(subject.message(1), None);
}

fn an_opened_session_is_recovered_as_connected(subject: &mut Subject<'_>) {
    let claim = subject.claim("é");
    let expiry = SessionExpiry::from_secs(42);
    subject.commit(&[Change::Opened { session: id(8), client_id: "é".into(), expiry, claim }]);
    let image = subject.image();
    let session = &image.sessions[&id(8)];
    assert_eq!(session.record.client_id.as_str(), "é");
    assert_eq!((session.record.id, session.record.expiry), (id(8), expiry));
    assert_eq!(session.record.parked_at, None);
    assert!(session.subscriptions.is_empty() && session.queue.is_empty() && session.received.is_empty());
    assert_eq!(session.will, None);
}

fn parking_keeps_time_and_interval_and_resuming_stops_the_clock(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.commit(&[subscribed(1, "t", QoS::AtLeastOnce), parked(1, 5, claim)]);
    let session = subject.image().sessions[&id(1)].clone();
    assert_eq!(session.record.parked_at, Some(at(5)), "to the nanosecond");
    assert_eq!(session.record.expiry, SessionExpiry::from_secs(300));
    let claim = subject.claim("a");
    subject.commit(&[resumed(1, claim)]);
    let session = subject.image().sessions[&id(1)].clone();
    assert_eq!(session.record.parked_at, None);
    assert_eq!(session.record.expiry, SessionExpiry::from_secs(60));
    assert_eq!(session.subscriptions.len(), 1);
}

fn fill(subject: &Subject<'_>, session: u64, lsn: u64) {
    subject.commit(&[
        subscribed(session, "t", QoS::AtLeastOnce),
        Change::WillSet { session: id(session), will: full_will() },
        received(session, 3),
        stored(lsn),
        queued(session, lsn),
        sent(session, lsn, 4),
    ]);
}

fn opening_closes_what_the_client_had(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    fill(subject, 1, 10);
    subject.open(2, "a");
    let image = subject.image();
    assert_eq!(image.sessions.keys().copied().collect::<Vec<_>>(), [id(2)]);
    assert!(image.sessions[&id(2)].subscriptions.is_empty());
    assert_eq!(subject.message(10), None);
}

fn opening_again_under_the_same_id_empties_it(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    fill(subject, 1, 10);
    subject.commit(&[opened(1, "a", claim)]);
    let image = subject.image();
    let session = &image.sessions[&id(1)];
    assert!(session.subscriptions.is_empty() && session.queue.is_empty() && session.received.is_empty());
    assert_eq!(session.will, None);
    assert_eq!(subject.message(10), None);
}

fn closing_removes_everything_of_the_session_and_nothing_else(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.open(2, "b");
    fill(subject, 1, 10);
    fill(subject, 2, 11);
    subject.commit(&[stored(12), queued(1, 12), queued(2, 12), stored(13), queued(1, 13), retained(13)]);
    let other = subject.recover().0.sessions[&id(2)].clone();
    subject.commit(&[closed(1, claim)]);
    assert_eq!(subject.recover().0.sessions[&id(2)], other);
    let image = subject.image();
    assert_eq!(image.sessions.keys().copied().collect::<Vec<_>>(), [id(2)]);
    assert_eq!(subject.message(10), None);
    for message in [11, 12, 13] {
        assert!(subject.message(message).is_some(), "somebody else refers to {message}");
    }
}

fn a_will_stays_until_it_is_replaced_or_cleared(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    let will = full_will();
    let other = Arc::new(Will { delay: 0, properties: None, retain: false, ..(*will).clone() });
    subject.commit(&[Change::WillSet { session: id(1), will: Arc::clone(&other) }]);
    assert_eq!(subject.recover().0.sessions[&id(1)].will, Some(other));
    subject.commit(&[Change::WillSet { session: id(1), will: Arc::clone(&will) }, parked(1, 5, claim)]);
    assert_eq!(subject.image().sessions[&id(1)].will, Some(will), "every field of it");
    subject.commit(&[Change::WillCleared { session: id(1) }]);
    assert_eq!(subject.image().sessions[&id(1)].will, None);
}

fn a_subscription_keeps_every_option(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let subscription = full_subscription();
    let names = ["$share/g/+/#", "t", "+/é"];
    for name in names {
        subject.commit(&[Change::Subscribed { session: id(1), filter: filter(name), subscription }]);
    }
    let image = subject.image();
    let subscriptions = &image.sessions[&id(1)].subscriptions;
    assert_eq!(subscriptions.len(), 3);
    for name in names {
        assert_eq!(subscriptions[&filter(name)], subscription, "{name}");
        assert!(subscriptions.keys().any(|filter| filter.as_str() == name), "{name}");
    }
}

/// None is not the default: the rules of the server that starts again decide.
fn a_subscription_keeps_the_priority_that_was_asked_for(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let asked = [None, Some(0), Some(0x7FFF), Some(u16::MAX)];
    let name = |priority: Option<u16>| filter(&format!("t/{priority:?}"));
    let subscription = |priority: Option<u16>| StoredSubscription {
        priority: priority.map(Priority::new),
        ..full_subscription()
    };
    for priority in asked {
        let subscription = subscription(priority);
        subject.commit(&[Change::Subscribed { session: id(1), filter: name(priority), subscription }]);
    }
    let image = subject.image();
    for priority in asked {
        let held = &image.sessions[&id(1)].subscriptions[&name(priority)];
        assert_eq!(*held, subscription(priority));
    }
}

fn a_filter_names_one_subscription(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[subscribed(1, "t", QoS::AtLeastOnce), subscribed(1, "$share/g/t", QoS::AtLeastOnce)]);
    subject.commit(&[subscribed(2, "t", QoS::AtLeastOnce)]);
    // As another stream of the session does that has the filter too.
    let other = StoredSubscription { qos: QoS::AtMostOnce, priority: None, ..full_subscription() };
    subject.commit(&[Change::Subscribed { session: id(1), filter: filter("t"), subscription: other }]);
    subject.commit(&[Change::Unsubscribed { session: id(1), filter: filter("$share/g/t") }]);
    let image = subject.image();
    let held = |session: u64| -> Vec<_> {
        image.sessions[&id(session)].subscriptions.iter().map(|(f, s)| (f.as_str().to_owned(), *s)).collect()
    };
    let first = StoredSubscription { qos: QoS::AtLeastOnce, ..full_subscription() };
    assert_eq!(held(1), [("t".to_owned(), other)], "the last, and nothing of the one before");
    assert_eq!(held(2), [("t".to_owned(), first)]);
}

// [MQTT-4.3.3-10]
fn received_ids_stay_until_they_are_released(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[received(1, 1), received(1, 65535), received(1, 2), received(2, 2)]);
    subject.commit(&[received_released(1, 2), received_released(1, 9)]);
    let image = subject.image();
    let ids = |session: u64| image.sessions[&id(session)].received.keys().copied().collect::<Vec<_>>();
    assert_eq!(ids(1), [packet(1), packet(65535)]);
    assert_eq!(ids(2), [packet(2)]);
}

// [BQ-20], [BQ-21]
fn received_ids_are_counted(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let count = |subject: &mut Subject<'_>| {
        subject.image().sessions[&id(1)].received.get(&packet(7)).map(|exchanges| exchanges.get())
    };
    for exchanges in [1, 2, 3, 2] {
        subject.commit(&[received_more(1, 7, exchanges)]);
        assert_eq!(count(subject), Some(exchanges));
    }
    subject.commit(&[received_released(1, 7)]);
    assert_eq!(count(subject), None);
}

fn changes_of_unknown_sessions_have_no_effect(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    let before = subject.recover().0;
    fill(subject, 9, 10);
    subject.commit(&[closed(9, claim), parked(9, 1, claim), resumed(9, claim), received_released(9, 3)]);
    assert_eq!(subject.recover().0, before);
    assert_eq!(subject.message(10), None, "nobody refers to it");
}
