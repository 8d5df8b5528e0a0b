use super::example::{
    completed, plain_message, queued, queued_at, retain_cleared, retained, stored, stored_on, topic,
};
use super::subject::Subject;
use crate::identity::Lsn;

cases![
    a_topic_retains_its_last_message,
    clearing_removes_the_message_and_only_of_its_topic,
    a_retained_message_stays_for_those_who_wait_for_it,
    a_replayed_message_stays_when_it_is_no_longer_retained,
    retaining_the_same_message_again_changes_nothing,
];

// [MQTT-3.3.1-5]
fn a_topic_retains_its_last_message(subject: &mut Subject<'_>) {
    subject.commit(&[stored_on(1, "a"), retained(1), stored_on(2, "b"), retained(2)]);
    subject.commit(&[stored_on(3, "a"), retained(3)]);
    let image = subject.image();
    let expected = [(topic("a"), Lsn::new(3)), (topic("b"), Lsn::new(2))];
    assert_eq!(image.retained.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(subject.message(1), None);
    assert_eq!(subject.message(2), Some(plain_message(2, "b")));
    assert_eq!(subject.message(3), Some(plain_message(3, "a")));
}

// [MQTT-3.3.1-6]
fn clearing_removes_the_message_and_only_of_its_topic(subject: &mut Subject<'_>) {
    subject.commit(&[stored_on(1, "a"), retained(1), stored_on(2, "a/b"), retained(2)]);
    subject.commit(&[retain_cleared("a"), retain_cleared("unknown")]);
    assert_eq!(subject.image().retained.into_keys().collect::<Vec<_>>(), [topic("a/b")]);
    assert_eq!(subject.message(1), None);
    assert!(subject.message(2).is_some());
}

fn a_retained_message_stays_for_those_who_wait_for_it(subject: &mut Subject<'_>) {
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
