//! Cases of sessions: opening, parking and closing, Wills, subscriptions, received identifiers, and claims.

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
use crate::error::StoreError;
use crate::recovery::RecoveredState;
use crate::session::StoredSubscription;
use crate::store::Store;

cases![
    an_empty_store_holds_nothing,
    an_opened_session_is_recovered_as_connected,
    parking_keeps_time_and_interval_and_resuming_stops_the_clock,
    opening_closes_the_clients_former_session,
    opening_again_under_the_same_id_empties_it,
    closing_removes_everything_of_the_session_and_nothing_else,
    a_will_stays_until_it_is_replaced_or_cleared,
    a_subscription_keeps_every_option,
    a_subscription_keeps_the_requested_priority,
    a_filter_names_one_subscription,
    received_ids_stay_until_they_are_released,
    received_ids_are_counted,
    changes_of_unknown_sessions_have_no_effect,
    a_later_claim_is_greater,
    a_stale_claim_changes_no_session,
    a_stale_claim_opens_no_session,
    claiming_changes_nothing_that_is_stored,
    changes_without_a_claim_are_accepted_during_a_takeover,
    recovery_claims_every_session,
    a_claim_fences_another_value,
    a_recovery_fences_another_value,
];

fn an_empty_store_holds_nothing(subject: &mut Subject<'_>) {
    let state = subject.state();
    assert!(state.sessions.is_empty() && state.retained.is_empty());
    assert_eq!(subject.message(1), None);
}

fn an_opened_session_is_recovered_as_connected(subject: &mut Subject<'_>) {
    let claim = subject.claim("é");
    let expiry = SessionExpiry::from_secs(42);
    let identity = Some("é\0".into());
    let (client_id, owner) = ("é".into(), Option::clone(&identity));
    subject.commit(&[Change::Opened { session: id(8), client_id, identity: owner, expiry, claim }]);
    let state = subject.state();
    let session = &state.sessions[&id(8)];
    assert_eq!(session.record.identity, identity);
    assert_eq!(session.record.client_id.as_str(), "é");
    assert_eq!((session.record.id, session.record.expiry), (id(8), expiry));
    assert_eq!(session.record.parked_at, None);
    assert!(session.subscriptions.is_empty() && session.queue.is_empty() && session.received.is_empty());
    assert_eq!(session.will, None);
}

fn parking_keeps_time_and_interval_and_resuming_stops_the_clock(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.commit(&[subscribed(1, "t", QoS::AtLeastOnce), parked(1, 5, claim)]);
    let session = subject.state().sessions[&id(1)].clone();
    assert_eq!(session.record.parked_at, Some(at(5)), "to the nanosecond");
    assert_eq!(session.record.expiry, SessionExpiry::from_secs(300));
    let claim = subject.claim("a");
    subject.commit(&[resumed(1, claim)]);
    let session = subject.state().sessions[&id(1)].clone();
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

fn opening_closes_the_clients_former_session(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    fill(subject, 1, 10);
    subject.open(2, "a");
    let state = subject.state();
    assert_eq!(state.sessions.keys().copied().collect::<Vec<_>>(), [id(2)]);
    assert!(state.sessions[&id(2)].subscriptions.is_empty());
    assert_eq!(subject.message(10), None);
}

fn opening_again_under_the_same_id_empties_it(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    fill(subject, 1, 10);
    subject.commit(&[opened(1, "a", claim)]);
    let state = subject.state();
    let session = &state.sessions[&id(1)];
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
    let state = subject.state();
    assert_eq!(state.sessions.keys().copied().collect::<Vec<_>>(), [id(2)]);
    assert_eq!(subject.message(10), None);
    for message in [11, 12, 13] {
        assert!(subject.message(message).is_some(), "another session references {message}");
    }
}

fn a_will_stays_until_it_is_replaced_or_cleared(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    let will = full_will();
    let other = Arc::new(Will { delay: 0, properties: None, retain: false, ..(*will).clone() });
    subject.commit(&[Change::WillSet { session: id(1), will: Arc::clone(&other) }]);
    assert_eq!(subject.recover().0.sessions[&id(1)].will, Some(other));
    subject.commit(&[Change::WillSet { session: id(1), will: Arc::clone(&will) }, parked(1, 5, claim)]);
    assert_eq!(subject.state().sessions[&id(1)].will, Some(will), "every field of it");
    subject.commit(&[Change::WillCleared { session: id(1) }]);
    assert_eq!(subject.state().sessions[&id(1)].will, None);
}

fn a_subscription_keeps_every_option(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let subscription = full_subscription();
    let names = ["$share/g/+/#", "t", "+/é"];
    for name in names {
        subject.commit(&[Change::Subscribed {
            session: id(1),
            filter: filter(name),
            subscription,
            since: None,
        }]);
    }
    let state = subject.state();
    let subscriptions = &state.sessions[&id(1)].subscriptions;
    assert_eq!(subscriptions.len(), 3);
    for name in names {
        assert_eq!(subscriptions[&filter(name)], subscription, "{name}");
        assert!(subscriptions.keys().any(|filter| filter.as_str() == name), "{name}");
    }
}

/// `None` differs from the default priority: the rules of the restarted server decide.
fn a_subscription_keeps_the_requested_priority(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let asked = [None, Some(0), Some(0x7FFF), Some(u16::MAX)];
    let name = |priority: Option<u16>| filter(&format!("t/{priority:?}"));
    let subscription = |priority: Option<u16>| StoredSubscription {
        priority: priority.map(Priority::new),
        ..full_subscription()
    };
    for priority in asked {
        let subscription = subscription(priority);
        subject.commit(&[Change::Subscribed {
            session: id(1),
            filter: name(priority),
            subscription,
            since: None,
        }]);
    }
    let state = subject.state();
    for priority in asked {
        let held = &state.sessions[&id(1)].subscriptions[&name(priority)];
        assert_eq!(*held, subscription(priority));
    }
}

fn a_filter_names_one_subscription(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[subscribed(1, "t", QoS::AtLeastOnce), subscribed(1, "$share/g/t", QoS::AtLeastOnce)]);
    subject.commit(&[subscribed(2, "t", QoS::AtLeastOnce)]);
    // As another stream of the session does with the same filter.
    let other = StoredSubscription { qos: QoS::AtMostOnce, priority: None, ..full_subscription() };
    subject.commit(&[Change::Subscribed {
        session: id(1),
        filter: filter("t"),
        subscription: other,
        since: None,
    }]);
    subject.commit(&[Change::Unsubscribed { session: id(1), filter: filter("$share/g/t") }]);
    let state = subject.state();
    let held = |session: u64| -> Vec<_> {
        state.sessions[&id(session)].subscriptions.iter().map(|(f, s)| (f.as_str().to_owned(), *s)).collect()
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
    let state = subject.state();
    let ids = |session: u64| state.sessions[&id(session)].received.keys().copied().collect::<Vec<_>>();
    assert_eq!(ids(1), [packet(1), packet(65535)]);
    assert_eq!(ids(2), [packet(2)]);
}

// [BQ-20], [BQ-21]
fn received_ids_are_counted(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let count = |subject: &mut Subject<'_>| {
        subject.state().sessions[&id(1)].received.get(&packet(7)).map(|exchanges| exchanges.get())
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
    assert_eq!(subject.message(10), None, "nothing references it");
}

fn fenced(session: u64) -> Result<(), StoreError> {
    Err(StoreError::Fenced { session: id(session) })
}

fn a_later_claim_is_greater(subject: &mut Subject<'_>) {
    let mut last = subject.claim("a");
    for client in ["a", "a", "b", "a"] {
        subject.claim("b");
        let claim = subject.claim(client);
        assert!(client == "b" || claim > last);
        last = last.max(claim);
    }
    subject.open(1, "a");
    subject.reopen();
    subject.recover();
    assert!(subject.claim("a") > last);
}

fn a_stale_claim_changes_no_session(subject: &mut Subject<'_>) {
    let stale = subject.open(1, "a");
    let newest = subject.claim("a");
    let before = subject.recover().0;
    for change in [parked(1, 5, stale), closed(1, stale), resumed(1, stale), opened(1, "a", stale)] {
        assert_eq!(subject.try_commit(&[subscribed(1, "t", QoS::AtMostOnce), change.clone()]), fenced(1));
        assert_eq!(subject.recover().0, before, "{change:?} leaves nothing");
    }
    subject.commit(&[resumed(1, newest)]);
    assert_eq!(subject.try_commit(&[closed(1, stale)]), fenced(1), "resumed by the newer one");
    subject.commit(&[closed(1, newest)]);
    assert!(subject.state().sessions.is_empty());
}

fn a_stale_claim_opens_no_session(subject: &mut Subject<'_>) {
    let stale = subject.claim("a");
    let newest = subject.claim("a");
    subject.commit(&[opened(2, "a", newest)]);
    assert_eq!(subject.try_commit(&[opened(1, "a", stale)]), fenced(1));
    assert_eq!(subject.state().sessions.into_keys().collect::<Vec<_>>(), [id(2)]);
}

fn claiming_changes_nothing_that_is_stored(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.commit(&[subscribed(1, "t", QoS::AtMostOnce), parked(1, 5, claim)]);
    let before = subject.state();
    subject.claim("a");
    subject.claim("b");
    let after = subject.state();
    assert_eq!(after.sessions[&id(1)].record, before.sessions[&id(1)].record);
    assert_eq!(after.sessions.len(), 1);
}

fn changes_without_a_claim_are_accepted_during_a_takeover(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let newest = subject.claim("a");
    subject.commit(&[stored(1), queued(1, 1), sent(1, 1, 1)]);
    subject.commit(&[resumed(1, newest), stored(2), queued(1, 2)]);
    assert_eq!(subject.queue(1), [(1, 1, 's'), (2, 0, 'w')]);
}

fn recovery_claims_every_session(subject: &mut Subject<'_>) {
    let before = subject.open(1, "a");
    subject.open(2, "b");
    subject.reopen();
    let state = subject.recover().0;
    assert!(state.sessions[&id(1)].claim >= before);
    assert_eq!(subject.recover().0, state, "once is enough");
    subject.commit(&[stored(1), queued(1, 1), queued(2, 1)]);
    subject.commit(&[parked(1, 5, state.sessions[&id(1)].claim), closed(2, state.sessions[&id(2)].claim)]);
    assert_eq!(subject.state().sessions.into_keys().collect::<Vec<_>>(), [id(1)]);
}

fn commit(store: &dyn Store, changes: &[Change]) -> Result<(), StoreError> {
    store.commit(changes.iter().cloned().collect()).wait()
}

fn a_claim_fences_another_value(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.open(2, "b");
    let Some(other) = subject.beside() else { return };
    assert_eq!(commit(&*other, &[subscribed(1, "t", QoS::AtMostOnce)]), fenced(1), "not its session");
    assert_eq!(commit(&*other, &[closed(1, claim)]), fenced(1), "a claim cannot be borrowed");
    let newest = other.claim(&"a".into()).wait().expect("a claim is granted");
    let mixed = [subscribed(2, "t", QoS::AtMostOnce), subscribed(1, "t", QoS::AtMostOnce)];
    assert_eq!(subject.try_commit(&mixed), fenced(1));
    assert!(subject.try_commit(&mixed[..1]).is_ok(), "the others go on");
    assert_eq!(commit(&*other, &[resumed(1, newest), subscribed(1, "u", QoS::AtMostOnce)]), Ok(()));
    let returned = subject.claim("a");
    assert!(returned > newest);
    assert_eq!(commit(&*other, &[closed(1, newest)]), fenced(1));
    subject.commit(&[resumed(1, returned), subscribed(1, "v", QoS::AtMostOnce)]);
    assert_eq!(subject.state().sessions[&id(1)].subscriptions.len(), 2);
}

fn a_recovery_fences_another_value(subject: &mut Subject<'_>) {
    let stale = subject.open(1, "a");
    let Some(other) = subject.beside() else { return };
    let mut state = RecoveredState::default();
    assert!(other.recover(&mut state).is_ok());
    assert_eq!(subject.try_commit(&[stored(1), queued(1, 1)]), fenced(1));
    assert_eq!(subject.try_commit(&[closed(1, stale)]), fenced(1));
    assert_eq!(commit(&*other, &[closed(1, state.sessions[&id(1)].claim)]), Ok(()));
}
