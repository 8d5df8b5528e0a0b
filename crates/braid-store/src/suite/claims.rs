use braid_proto::packet::QoS;

use super::example::{closed, id, opened, parked, queued, resumed, sent, stored, subscribed};
use super::subject::Subject;
use crate::change::Change;
use crate::error::StoreError;
use crate::image::Image;
use crate::store::Store;

cases![
    a_later_claim_is_greater,
    a_stale_claim_changes_no_session,
    a_stale_claim_opens_no_session,
    claiming_changes_nothing_that_is_stored,
    what_needs_no_claim_goes_on_during_a_takeover,
    recovery_claims_every_session,
    another_value_is_fenced_from_the_claim_on,
    another_value_is_fenced_from_the_recovery_on,
];

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
    assert!(subject.image().sessions.is_empty());
}

fn a_stale_claim_opens_no_session(subject: &mut Subject<'_>) {
    let stale = subject.claim("a");
    let newest = subject.claim("a");
    subject.commit(&[opened(2, "a", newest)]);
    assert_eq!(subject.try_commit(&[opened(1, "a", stale)]), fenced(1));
    assert_eq!(subject.image().sessions.into_keys().collect::<Vec<_>>(), [id(2)]);
}

fn claiming_changes_nothing_that_is_stored(subject: &mut Subject<'_>) {
    let claim = subject.open(1, "a");
    subject.commit(&[subscribed(1, "t", QoS::AtMostOnce), parked(1, 5, claim)]);
    let before = subject.image();
    subject.claim("a");
    subject.claim("b");
    let after = subject.image();
    assert_eq!(after.sessions[&id(1)].record, before.sessions[&id(1)].record);
    assert_eq!(after.sessions.len(), 1);
}

fn what_needs_no_claim_goes_on_during_a_takeover(subject: &mut Subject<'_>) {
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
    let image = subject.recover().0;
    assert!(image.sessions[&id(1)].claim >= before);
    assert_eq!(subject.recover().0, image, "once is enough");
    subject.commit(&[stored(1), queued(1, 1), queued(2, 1)]);
    subject.commit(&[parked(1, 5, image.sessions[&id(1)].claim), closed(2, image.sessions[&id(2)].claim)]);
    assert_eq!(subject.image().sessions.into_keys().collect::<Vec<_>>(), [id(1)]);
}

fn commit(store: &dyn Store, changes: &[Change]) -> Result<(), StoreError> {
    store.commit(changes.iter().cloned().collect()).wait()
}

fn another_value_is_fenced_from_the_claim_on(subject: &mut Subject<'_>) {
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
    assert_eq!(subject.image().sessions[&id(1)].subscriptions.len(), 2);
}

fn another_value_is_fenced_from_the_recovery_on(subject: &mut Subject<'_>) {
    let stale = subject.open(1, "a");
    let Some(other) = subject.beside() else { return };
    let mut image = Image::default();
    assert!(other.recover(&mut image).is_ok());
    assert_eq!(subject.try_commit(&[stored(1), queued(1, 1)]), fenced(1));
    assert_eq!(subject.try_commit(&[closed(1, stale)]), fenced(1));
    assert_eq!(commit(&*other, &[closed(1, image.sessions[&id(1)].claim)]), Ok(()));
}
