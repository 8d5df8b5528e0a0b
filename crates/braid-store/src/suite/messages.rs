//! Cases of messages: references, queues and retained messages.

use super::example::{
    closed, completed, delivery, full_delivery, full_message, id, plain_message, queued, queued_at, released,
    retain_cleared, retained, sent, stored, stored_on, topic,
};
use super::subject::Subject;
use crate::change::Change;
use crate::ids::Lsn;
use crate::message::QueueEntry;

cases![
    a_message_keeps_every_field,
    a_delivery_keeps_every_field,
    messages_are_read_at_once_in_the_order_of_the_call,
    a_message_stays_until_nothing_references_it,
    a_message_without_a_reference_is_not_kept,
    a_reference_may_move_within_a_batch,
    storing_a_message_again_changes_nothing,
    an_entry_goes_from_waiting_to_sent_to_released_to_completed,
    release_removes_the_reference_to_the_message,
    a_released_entry_is_not_sent_again,
    entries_in_flight_come_first_in_the_order_of_their_last_step,
    unsent_entries_come_by_their_number,
    one_session_may_have_one_message_twice,
    queueing_again_replaces_the_entry,
    entries_of_a_closed_session_move_to_another,
    changes_of_unknown_entries_have_no_effect,
    a_topic_retains_its_last_message,
    clearing_removes_the_message_and_only_of_its_topic,
    a_retained_message_stays_after_its_delivery,
    a_replayed_message_stays_when_it_is_no_longer_retained,
    retaining_the_same_message_again_changes_nothing,
];

fn a_message_keeps_every_field(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[
        Change::Stored { lsn: Lsn::new(3), message: full_message() },
        queued(1, 3),
        stored(4),
        queued(1, 4),
    ]);
    subject.reopen();
    assert_eq!(subject.message(3), Some(full_message()));
    assert_eq!(subject.message(4), Some(plain_message(4, "t")));
}

fn a_delivery_keeps_every_field(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[
        stored(5),
        Change::Queued { session: id(1), lsn: Lsn::new(6), delivery: full_delivery(5) },
        queued(1, 5),
    ]);
    let queue = subject.state().sessions[&id(1)].queue.clone();
    assert_eq!(queue[0], (Lsn::new(5), QueueEntry::Waiting(delivery(5))));
    assert_eq!(queue[1], (Lsn::new(6), QueueEntry::Waiting(full_delivery(5))));
}

fn messages_are_read_at_once_in_the_order_of_the_call(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(1), queued(1, 1), stored(2), queued(1, 2), stored(3)]);
    subject.reopen();
    subject.recover();
    subject.commit(&[completed(1, 2), stored(4), retained(4)]);
    let (one, four) = (Some(plain_message(1, "t")), Some(plain_message(4, "t")));
    let expected = [four.clone(), None, one.clone(), None, None, four, one];
    assert_eq!(
        subject.messages_of(&[4, 3, 1, 9, 2, 4, 1]),
        expected,
        "twice, and without those that are not there"
    );
    assert_eq!(subject.messages_of(&[]), []);
}

fn a_message_stays_until_nothing_references_it(subject: &mut Subject<'_>) {
    for session in 1..=3 {
        subject.open(session, &session.to_string());
    }
    subject.commit(&[stored(5), queued(1, 5), queued(2, 5), queued(3, 5)]);
    subject.commit(&[completed(1, 5)]);
    subject.commit(&[completed(1, 5)]);
    subject.commit(&[completed(1, 5), completed(2, 5)]);
    subject.reopen();
    subject.recover();
    assert_eq!(subject.message(5), Some(plain_message(5, "t")), "the third session's, only counted once");
    subject.commit(&[completed(3, 5)]);
    assert_eq!(subject.message(5), None);
    subject.reopen();
    assert_eq!(subject.message(5), None);
}

fn a_message_without_a_reference_is_not_kept(subject: &mut Subject<'_>) {
    subject.commit(&[stored(5)]);
    assert_eq!(subject.message(5), None);
}

fn a_reference_may_move_within_a_batch(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[stored(5), queued(1, 5)]);
    subject.commit(&[completed(1, 5), stored(5), queued_at(2, 6, 5)]);
    assert_eq!(subject.message(5), Some(plain_message(5, "t")));
    subject.commit(&[stored(7), queued(1, 7), completed(1, 7), queued(2, 7)]);
    assert_eq!(subject.message(7), Some(plain_message(7, "t")));
    assert_eq!(subject.queue(2), [(6, 0, 'w'), (7, 0, 'w')]);
}

fn storing_a_message_again_changes_nothing(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5)]);
    subject.commit(&[stored(5)]);
    assert_eq!(subject.message(5), Some(plain_message(5, "t")));
    subject.commit(&[completed(1, 5)]);
    assert_eq!(subject.message(5), None);
}

fn an_entry_goes_from_waiting_to_sent_to_released_to_completed(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5)]);
    assert_eq!(subject.queue(1), [(5, 0, 'w')]);
    subject.commit(&[sent(1, 5, 9)]);
    assert_eq!(subject.queue(1), [(5, 9, 's')]);
    subject.commit(&[released(1, 5, 9)]);
    assert_eq!(subject.queue(1), [(5, 9, 'r')]);
    subject.commit_lazily(&[completed(1, 5)]);
    assert_eq!(subject.queue(1), []);
}

fn release_removes_the_reference_to_the_message(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5), sent(1, 5, 9)]);
    assert!(subject.message(5).is_some());
    subject.commit(&[released(1, 5, 9)]);
    assert_eq!(subject.message(5), None);
    subject.commit(&[stored(6), queued(1, 6), retained(6), released(1, 6, 8), released(1, 6, 8)]);
    assert!(subject.message(6).is_some(), "released twice, counted once");
    assert_eq!(subject.queue(1), [(5, 9, 'r'), (6, 8, 'r')], "released without having been sent");
}

// [MQTT-4.3.3-6]
fn a_released_entry_is_not_sent_again(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5), sent(1, 5, 9), released(1, 5, 9), sent(1, 5, 10)]);
    assert_eq!(subject.queue(1), [(5, 9, 'r')]);
}

// [MQTT-4.6.0-1] [MQTT-4.6.0-4]
fn entries_in_flight_come_first_in_the_order_of_their_last_step(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    for lsn in 1..=5 {
        subject.commit(&[stored(lsn), queued(1, lsn)]);
    }
    subject.commit(&[sent(1, 4, 1), sent(1, 2, 2)]);
    subject.commit(&[sent(1, 5, 3)]);
    assert_eq!(subject.queue(1), [(4, 1, 's'), (2, 2, 's'), (5, 3, 's'), (1, 0, 'w'), (3, 0, 'w')]);
    subject.commit(&[sent(1, 1, 4), released(1, 2, 2), released(1, 4, 1)]);
    let expected = [(5, 3, 's'), (1, 4, 's'), (2, 2, 'r'), (4, 1, 'r'), (3, 0, 'w')];
    assert_eq!(subject.queue(1), expected, "before reopening and after");
    subject.commit(&[sent(1, 5, 9), sent(1, 2, 2)]);
    let expected = [(1, 4, 's'), (2, 2, 'r'), (4, 1, 'r'), (5, 9, 's'), (3, 0, 'w')];
    assert_eq!(subject.queue(1), expected, "sending does not change the order of a released entry");
}

fn unsent_entries_come_by_their_number(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[stored(300), queued(1, 300), queued(2, 300)]);
    subject.commit(&[stored(2), queued(1, 2), queued(2, 2)]);
    subject.commit(&[stored(70_000), queued(1, 70_000)]);
    assert_eq!(subject.queue(1), [(2, 0, 'w'), (300, 0, 'w'), (70_000, 0, 'w')]);
    assert_eq!(subject.queue(2), [(2, 0, 'w'), (300, 0, 'w')]);
}

fn one_session_may_have_one_message_twice(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5), queued_at(1, 6, 5)]);
    assert_eq!(subject.queue(1), [(5, 0, 'w'), (6, 0, 'w')]);
    subject.commit(&[completed(1, 5)]);
    assert!(subject.message(5).is_some());
    assert_eq!(subject.message(6), None, "an entry's number is not a message's");
    subject.commit(&[completed(1, 6)]);
    assert_eq!(subject.message(5), None);
}

fn queueing_again_replaces_the_entry(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5), sent(1, 5, 9)]);
    subject.commit(&[stored(6), queued_at(1, 5, 6)]);
    assert_eq!(subject.queue(1), [(5, 0, 'w')]);
    assert_eq!(subject.message(5), None);
    assert!(subject.message(6).is_some());
}

// [MQTT-4.8.2-5] needs it: a message that a member did not acknowledge goes to another.
fn entries_of_a_closed_session_move_to_another(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.open(2, "b");
    subject.commit(&[stored(5), queued(1, 5), sent(1, 5, 9)]);
    subject.commit(&[closed(1, claim), stored(5), queued_at(2, 8, 5)]);
    assert_eq!(subject.queue(2), [(8, 0, 'w')]);
    assert!(subject.message(5).is_some());
}

fn changes_of_unknown_entries_have_no_effect(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(5), queued(1, 5)]);
    let before = subject.recover().0;
    subject.commit(&[sent(1, 4, 1), released(1, 6, 1), completed(1, 7)]);
    assert_eq!(subject.recover().0, before);
    assert!(subject.message(5).is_some());
}

// [MQTT-3.3.1-5]
fn a_topic_retains_its_last_message(subject: &mut Subject<'_>) {
    subject.commit(&[stored_on(1, "a"), retained(1), stored_on(2, "b"), retained(2)]);
    subject.commit(&[stored_on(3, "a"), retained(3)]);
    let state = subject.state();
    let expected = [(topic("a"), Lsn::new(3)), (topic("b"), Lsn::new(2))];
    assert_eq!(state.retained.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(subject.message(1), None);
    assert_eq!(subject.message(2), Some(plain_message(2, "b")));
    assert_eq!(subject.message(3), Some(plain_message(3, "a")));
}

// [MQTT-3.3.1-6]
fn clearing_removes_the_message_and_only_of_its_topic(subject: &mut Subject<'_>) {
    subject.commit(&[stored_on(1, "a"), retained(1), stored_on(2, "a/b"), retained(2)]);
    subject.commit(&[retain_cleared("a"), retain_cleared("unknown")]);
    assert_eq!(subject.state().retained.into_keys().collect::<Vec<_>>(), [topic("a/b")]);
    assert_eq!(subject.message(1), None);
    assert!(subject.message(2).is_some());
}

fn a_retained_message_stays_after_its_delivery(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(1), queued(1, 1), retained(1)]);
    subject.commit(&[completed(1, 1)]);
    assert!(subject.message(1).is_some());
    subject.commit(&[retain_cleared("t")]);
    assert_eq!(subject.message(1), None);
}

fn a_replayed_message_stays_when_it_is_no_longer_retained(subject: &mut Subject<'_>) {
    subject.open(1, "a");
    subject.commit(&[stored(1), retained(1)]);
    subject.commit(&[stored(1), queued_at(1, 7, 1)]);
    subject.commit(&[retain_cleared("t")]);
    assert_eq!(subject.queue(1), [(7, 0, 'w')]);
    assert_eq!(subject.message(1), Some(plain_message(1, "t")));
    subject.commit(&[stored(1), queued_at(1, 8, 1), completed(1, 7), completed(1, 8)]);
    assert_eq!(subject.message(1), None);
}

fn retaining_the_same_message_again_changes_nothing(subject: &mut Subject<'_>) {
    subject.commit(&[stored(1), retained(1)]);
    subject.commit(&[stored(1), retained(1), retained(1)]);
    assert!(subject.message(1).is_some());
    subject.commit(&[retain_cleared("t")]);
    assert_eq!(subject.message(1), None);
}
