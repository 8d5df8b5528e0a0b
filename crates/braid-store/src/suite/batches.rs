//! Cases of batches: atomicity, order, repetition.

use braid_proto::packet::QoS;

use super::example::{
    closed, completed, filter, full_will, id, opened, parked, queued, queued_at, received, received_released,
    released, resumed, retain_cleared, retained, sent, stored, subscribed,
};
use super::subject::{Subject, without_claims};
use crate::change::Change;
use crate::error::StoreError;
use crate::ids::Lsn;

cases![
    an_empty_batch_is_done,
    a_refused_batch_leaves_nothing,
    changes_of_a_batch_take_effect_in_their_order,
    batches_take_effect_in_the_order_of_commits,
    threads_may_commit_at_once,
    a_batch_may_be_repeated,
    next_ids_exceed_every_number_ever_used,
    a_message_must_be_stored_in_the_batch_that_refers_to_it,
];

fn an_empty_batch_is_done(subject: &mut Subject<'_>) {
    subject.commit(&[]);
    subject.commit_lazily(&[]);
}

fn a_refused_batch_leaves_nothing(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(1), queued(1, 1)]);
    let (before, next) = subject.recover();
    let refused = [
        stored(2),
        queued(1, 2),
        retained(2),
        completed(1, 1),
        subscribed(1, "t", QoS::AtMostOnce),
        queued_at(1, 9, 8),
    ];
    let error = StoreError::NotStored { message: Lsn::new(8) };
    assert_eq!(subject.try_commit(&refused), Err(error));
    assert_eq!(subject.recover(), (before, next));
    assert!(subject.message(1).is_some());
    assert_eq!(subject.message(2), None);
    subject.commit(&refused[..5]);
    assert_eq!(subject.queue(1), [(2, 0, 'w')]);
}

fn a_message_must_be_stored_in_the_batch_that_refers_to_it(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(1), queued(1, 1)]);
    let error = Err(StoreError::NotStored { message: Lsn::new(1) });
    assert_eq!(subject.try_commit(&[queued_at(1, 2, 1)]), error, "an earlier batch may be gone by then");
    assert_eq!(subject.try_commit(&[retained(1)]), error);
    assert_eq!(subject.try_commit(&[retained(1), stored(1)]), error, "before, not behind");
    assert_eq!(subject.try_commit(&[queued(7, 1)]), error, "even for an unknown session");
    assert_eq!(subject.queue(1), [(1, 0, 'w')]);
}

fn changes_of_a_batch_take_effect_in_their_order(subject: &mut Subject<'_>) {
    let claim = subject.claim("a");
    subject.commit(&[
        subscribed(1, "before", QoS::AtMostOnce),
        opened(1, "a", claim),
        subscribed(1, "t", QoS::AtMostOnce),
        subscribed(1, "t", QoS::ExactlyOnce),
        subscribed(1, "gone", QoS::AtMostOnce),
        Change::Unsubscribed { session: id(1), filter: filter("gone") },
        received(1, 1),
        received_released(1, 1),
        received(1, 1),
        sent(1, 1, 1),
        stored(1),
        queued(1, 1),
        stored(2),
        queued(1, 2),
        retained(2),
        retained(1),
        completed(1, 2),
    ]);
    assert_eq!(subject.queue(1), [(1, 0, 'w')]);
    let state = subject.state();
    let session = &state.sessions[&id(1)];
    let subscriptions: Vec<_> = session.subscriptions.iter().map(|(f, s)| (f.as_str(), s.qos)).collect();
    assert_eq!(subscriptions, [("t", QoS::ExactlyOnce)]);
    assert_eq!(session.received.len(), 1);
    assert_eq!(state.retained.into_values().collect::<Vec<_>>(), [Lsn::new(1)]);
    assert_eq!(subject.message(2), None);
}

fn batches_take_effect_in_the_order_of_commits(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    let mut commits = Vec::new();
    let levels = [QoS::AtLeastOnce, QoS::ExactlyOnce, QoS::AtMostOnce];
    // Without waiting for any before the next one; every other one is lazy.
    for (round, qos) in (1..=50).zip(levels.into_iter().cycle()) {
        let mut batch = if round % 2 == 0 { crate::Batch::lazy() } else { crate::Batch::new() };
        batch.extend([subscribed(1, "t", qos), stored(round), queued(1, round)]);
        if round > 1 {
            batch.push(completed(1, round - 1));
        }
        commits.push(subject.store().commit(batch));
    }
    for commit in commits {
        assert_eq!(commit.wait(), Ok(()));
    }
    assert_eq!(subject.queue(1), [(50, 0, 'w')]);
    let state = subject.state();
    assert_eq!(state.sessions[&id(1)].subscriptions[&filter("t")].qos, QoS::ExactlyOnce);
    assert_eq!(subject.message(49), None);
}

fn threads_may_commit_at_once(subject: &mut Subject<'_>) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50;
    for session in 1..=THREADS {
        subject.open(session, &session.to_string());
    }
    let store = subject.store();
    std::thread::scope(|threads| {
        for thread in 1..=THREADS {
            threads.spawn(move || {
                for round in 1..=ROUNDS {
                    let lsn = round * THREADS + thread;
                    let neighbour = thread % THREADS + 1;
                    let changes =
                        [stored(lsn), queued(thread, lsn), queued(neighbour, lsn), completed(thread, lsn)];
                    assert_eq!(store.commit(changes.into_iter().collect()).wait(), Ok(()));
                }
            });
        }
    });
    for thread in 1..=THREADS {
        let expected: Vec<_> = (1..=ROUNDS).map(|round| (round * THREADS + thread, 0, 'w')).collect();
        assert_eq!(subject.queue(thread % THREADS + 1), expected);
    }
}

fn a_batch_may_be_repeated(subject: &mut Subject<'_>) {
    let (a, b) = (subject.claim("a"), subject.claim("b"));
    let batches: &[&[Change]] = &[
        &[opened(1, "a", a), subscribed(1, "t", QoS::AtMostOnce), received(1, 1)],
        &[opened(2, "b", b), Change::WillSet { session: id(2), will: full_will() }, parked(2, 5, b)],
        &[stored(1), queued(1, 1), queued(2, 1), retained(1)],
        &[sent(1, 1, 1)],
        &[stored(2), queued(1, 2), sent(1, 2, 2), released(1, 2, 2)],
        &[released(1, 1, 1), received_released(1, 1), Change::WillCleared { session: id(2) }],
        &[completed(1, 1), completed(2, 1), stored(3), queued(2, 3), completed(2, 3), queued(2, 3)],
        &[sent(2, 4, 1), stored(4), queued(2, 4)],
        &[stored(8), queued(1, 8)],
        &[stored(9), queued(1, 9), sent(1, 9, 5), released(1, 8, 6)],
        &[subscribed(1, "u", QoS::AtMostOnce), opened(3, "c", b), Change::WillCleared { session: id(3) }],
        &[resumed(2, b), retain_cleared("t"), Change::Unsubscribed { session: id(1), filter: filter("t") }],
        &[subscribed(2, "x", QoS::AtMostOnce), closed(2, b), stored(5), queued_at(1, 6, 5)],
    ];
    for batch in batches {
        subject.commit(batch);
        let once = (without_claims(&subject.recover().0), messages(subject));
        subject.commit(batch);
        let twice = (without_claims(&subject.recover().0), messages(subject));
        assert_eq!(twice, once, "{batch:?}");
    }
    assert_eq!(subject.queue(1), [(2, 2, 'r'), (9, 5, 's'), (8, 6, 'r'), (6, 0, 'w')]);
    assert_eq!(subject.state().sessions.len(), 2);
}

fn messages(subject: &Subject<'_>) -> Vec<bool> {
    (1..=9).map(|lsn| subject.message(lsn).is_some()).collect()
}

fn next_ids_exceed_every_number_ever_used(subject: &mut Subject<'_>) {
    let (_, first) = subject.recover();
    assert!(first.lsn.value() > 0 && first.session.value() > 0);
    let claim = subject.open(41, "a");
    subject.commit(&[stored(77), queued_at(41, 1000, 77)]);
    subject.commit(&[completed(41, 1000), closed(41, claim)]);
    assert!(subject.state().sessions.is_empty());
    let (_, next) = subject.recover();
    assert!(next.session > id(41), "{next:?}");
    assert!(next.lsn > Lsn::new(1000), "{next:?}");
    subject.commit(&[stored(2000)]);
    subject.commit(&[stored(500)]);
    subject.reopen();
    let (_, next) = subject.recover();
    assert!(next.lsn > Lsn::new(2000), "not kept, but used: {next:?}");
}
