//! Round-robin selection in shared subscriptions.

use std::collections::BTreeMap;
use std::sync::Arc;

use braid_proto::stream::StreamKey;
use braid_router::{Group, Matches, Readiness, Router};

use crate::generator::{for_each_seed, parse_filter, parse_name, stream, subscription, subscription_on};

const FILTER: &str = "$share/workers/jobs/+";

fn router(members: impl IntoIterator<Item = u32>) -> Router<u32> {
    let mut router = Router::new();
    for key in members {
        router.subscribe(key, &parse_filter(FILTER), subscription(key + 1));
    }
    router
}

fn group(router: &Router<u32>) -> &Group<u32> {
    router.group(&parse_filter(FILTER)).expect("a group")
}

fn next(router: &Router<u32>) -> u32 {
    group(router).select(|_, _| Readiness::Ready).expect("a member").key
}

#[test]
fn members_are_selected_round_robin() {
    let router = router([3, 1, 2]);
    let served: Vec<_> = (0..7).map(|_| next(&router)).collect();
    assert_eq!(served, [3, 1, 2, 3, 1, 2, 3], "first the first member, then in the order of keys");
    assert_eq!(group(&router).select(|_, _| Readiness::Ready).map(|m| m.subscription), Some(subscription(2)));
}

/// The member behind one that is not ready gets no double share.
#[test]
fn only_ready_members_are_served_and_evenly() {
    for_each_seed(30, |rng| {
        let members = 2 + rng.u32(..8);
        let router = router(0..members);
        let absent = rng.u32(..members);
        let mut served = BTreeMap::new();
        for _ in 0..10 * (members - 1) {
            let chosen = group(&router).select(|_, key| (*key != absent).into()).expect("a ready member");
            *served.entry(chosen.key).or_insert(0) += 1;
        }
        let want = (0..members).filter(|key| *key != absent).map(|key| (key, 10)).collect();
        assert_eq!(served, want);
    });
}

#[test]
fn no_ready_member_changes_nothing() {
    let router = router([1, 2, 3]);
    assert_eq!(next(&router), 1);
    let mut asked = Vec::new();
    let chosen = group(&router).select(|_, key| {
        asked.push(*key);
        Readiness::Unfit
    });
    assert_eq!((chosen, asked.as_slice()), (None, &[2, 3, 1][..]));
    assert_eq!(next(&router), 2);
}

/// A member that is ready comes first, whatever its place; else the first fallback in turn, and the order continues
/// behind it.
#[test]
fn a_fallback_is_selected_if_no_member_is_ready() {
    let router = router(0..5);
    let mut asked = Vec::new();
    let mut ask = |fallbacks: &[u32], ready: Option<u32>| {
        asked.clear();
        let chosen = group(&router).select(|_, key| {
            asked.push(*key);
            match (Some(*key) == ready, fallbacks.contains(key)) {
                (true, _) => Readiness::Ready,
                (false, true) => Readiness::Fallback,
                (false, false) => Readiness::Unfit,
            }
        });
        (chosen.map(|member| member.key), asked.clone())
    };
    assert_eq!(ask(&[1, 3], None), (Some(1), vec![0, 1, 2, 3, 4]), "each is asked once");
    assert_eq!(ask(&[1, 3], None), (Some(3), vec![2, 3, 4, 0, 1]));
    assert_eq!(ask(&[1, 3], Some(2)), (Some(2), vec![4, 0, 1, 2]), "no member is asked behind a ready one");
    assert_eq!(ask(&[], None), (None, vec![3, 4, 0, 1, 2]));
    assert_eq!(ask(&[0], None), (Some(0), vec![3, 4, 0, 1, 2]), "the order was unchanged");
}

/// Ready members are selected evenly, and so are the fallbacks of a group without one.
#[test]
fn selections_of_one_readiness_are_even() {
    for_each_seed(100, |rng| {
        let members = 2 + rng.u32(..30);
        let router = router(0..members);
        let best = if rng.bool() { Readiness::Ready } else { Readiness::Fallback };
        let (mut served, mut want) = (BTreeMap::new(), BTreeMap::new());
        let readiness: Vec<_> =
            (0..members).map(|key| if key == 0 || rng.bool() { best } else { Readiness::Unfit }).collect();
        for (key, _) in (0..members).zip(&readiness).filter(|(_, is)| **is == best) {
            want.insert(key, 10);
        }
        for _ in 0..10 * want.len() {
            let chosen = group(&router).select(|_, key| readiness[*key as usize]).expect("a member");
            *served.entry(chosen.key).or_insert(0) += 1;
        }
        assert_eq!(served, want);
    });
}

/// Between two selections of one member every permanent member is selected once, whatever members join and leave.
#[test]
fn joins_and_leaves_keep_the_order_fair() {
    for_each_seed(100, |rng| {
        let residents = [10, 20, 30, 40];
        let mut router = router(residents);
        let mut line = Vec::new();
        for _ in 0..300 {
            let key = rng.u32(..50);
            match rng.u8(..3) {
                0 if !residents.contains(&key) => {
                    router.subscribe(key, &parse_filter(FILTER), subscription(1));
                }
                1 if !residents.contains(&key) => {
                    router.unsubscribe(key, &parse_filter(FILTER), StreamKey::CONTROL);
                }
                _ => line.extend(Some(next(&router)).filter(|key| residents.contains(key))),
            }
        }
        assert!(line.len() > 10);
        for turns in line.windows(2) {
            let at = residents.iter().position(|key| *key == turns[0]).expect("a resident");
            assert_eq!(turns[1], residents[(at + 1) % residents.len()], "{line:?}");
        }
    });
}

/// A new member waits until all others were selected.
#[test]
fn a_new_member_is_selected_last() {
    // The new key is just before the next member, and at both ends of the order.
    for (turns, newcomer) in [(0, 5), (0, 35), (1, 15), (2, 25), (3, 5), (3, 35)] {
        let expected: Vec<u32> = (turns..turns + 3).map(|turn| 10 + 10 * (turn % 3)).collect();
        let mut router = router([10, 20, 30]);
        for _ in 0..turns {
            next(&router);
        }
        router.subscribe(newcomer, &parse_filter(FILTER), subscription(1));
        let served: Vec<u32> = (0..4).map(|_| next(&router)).collect();
        assert_eq!(served[..3], expected);
        assert_eq!(served[3], newcomer);
    }
}

/// Two Share Names over one pattern are two groups; each receives its own copy (MQTT 4.8.2).
#[test]
fn share_names_divide_groups() {
    let mut router = Router::new();
    for (key, text) in
        ["$share/b/t/#", "$share/a/t/#", "$share/a/t/#", "t/#", "$share/a/t/x"].iter().enumerate()
    {
        router.subscribe(key, &parse_filter(text), subscription(1));
    }
    let mut matches = Matches::default();
    router.matches(&parse_name("t/x"), &mut matches);
    let groups: Vec<_> = matches.shared.iter().map(|g| (g.filter().as_str(), g.len())).collect();
    assert_eq!(groups, [("$share/a/t/x", 1), ("$share/a/t/#", 2), ("$share/b/t/#", 1)]);
    assert_eq!(matches.direct.len(), 1);
    assert!(router.unsubscribe(0, &parse_filter("$share/b/t/#"), StreamKey::CONTROL).is_some());
    assert!(router.group(&parse_filter("$share/b/t/#")).is_none());
    assert!(router.group(&parse_filter("$share/a/t/#")).is_some());
}

/// A match that is kept has the members it found; the router changes a copy.
#[test]
fn a_kept_group_never_changes() {
    let mut router = router([1, 2]);
    let mut matches = Matches::default();
    router.matches(&parse_name("jobs/x"), &mut matches);
    let kept = Arc::clone(&matches.shared[0]);
    assert_eq!(next(&router), 1);
    for (key, stream) in [(3, StreamKey::CONTROL), (2, StreamKey::bidi(1))] {
        assert_eq!(router.unsubscribe(key, &parse_filter(FILTER), stream), None);
        assert!(std::ptr::eq(group(&router), &*kept), "a key that is no member costs no copy");
    }
    router.unsubscribe(2, &parse_filter(FILTER), StreamKey::CONTROL);
    assert_eq!(kept.len(), 2);
    assert_eq!(group(&router).len(), 1);
    assert_eq!(kept.select(|_, _| Readiness::Ready).map(|m| m.key), Some(2), "the copy took the turn along");
    router.unsubscribe(1, &parse_filter(FILTER), StreamKey::CONTROL);
    assert_eq!(kept.subscription(1, StreamKey::CONTROL), Some(subscription(2)));
}

/// [BQ-16] A session on two streams is two members: each message goes to one of them, in turns with the others.
#[test]
fn a_session_on_two_streams_is_two_members() {
    let filter = parse_filter(FILTER);
    let mut router = router([1, 2]);
    let data = StreamKey::bidi(3);
    assert_eq!(router.subscribe(1, &filter, subscription_on(data, 9)), None);
    let served = |router: &Router<u32>, count| -> Vec<(u32, u32)> {
        let select = |_| group(router).select(|_, _| Readiness::Ready).expect("a member");
        (0..count).map(select).map(|m| (m.key, m.subscription.stream.index())).collect()
    };
    assert_eq!(served(&router, 4), [(1, 0), (1, 3), (2, 0), (1, 0)], "in the order of keys and streams");
    let of = |router: &Router<u32>, stream| group(router).subscription(1, stream);
    assert_eq!(of(&router, data), Some(subscription_on(data, 9)));
    assert_eq!(of(&router, StreamKey::CONTROL), Some(subscription(2)));
    assert_eq!(of(&router, StreamKey::uni(3)), None);
    assert!(router.unsubscribe(1, &filter, StreamKey::CONTROL).is_some());
    assert_eq!(of(&router, StreamKey::CONTROL), None);
    assert_eq!(served(&router, 3), [(1, 3), (2, 0), (1, 3)], "the next member stays");
}

/// Whatever streams subscribe and unsubscribe, every permanent member is selected once in a round.
#[test]
fn streams_are_selected_like_sessions() {
    for_each_seed(60, |rng| {
        let filter = parse_filter(FILTER);
        let mut router = router([1]);
        for _ in 0..40 {
            let (key, stream) = (1 + rng.u32(..3), stream(rng));
            if rng.bool() {
                router.subscribe(key, &filter, subscription_on(stream, 1));
            } else if (key, stream) != (1, StreamKey::CONTROL) {
                router.unsubscribe(key, &filter, stream);
            }
            let place = |m: &braid_router::Match<u32>| (m.key, m.subscription.stream);
            let group = group(&router);
            let mut served: Vec<_> =
                group.members().filter_map(|_| group.select(|_, _| Readiness::Ready).map(place)).collect();
            served.sort_unstable();
            assert_eq!(served, group.members().map(place).collect::<Vec<_>>());
            group.select(|_, _| rng.bool().into());
        }
    });
}

#[test]
fn threads_share_the_order() {
    let router = router(0..4);
    let served = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..1_000).map(|_| next(&router)).collect::<Vec<_>>())).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
    });
    for key in 0..4 {
        assert_eq!(served.iter().filter(|served| **served == key).count(), 1_000);
    }
}

/// A thread that loses the race selects again, from the member that is next by then.
#[test]
fn a_lost_race_selects_again() {
    let router = router(0..10);
    let mut overtaken = 0;
    let chosen = group(&router).select(|_, _| {
        overtaken += 1;
        if overtaken <= 3 {
            next(&router);
        }
        Readiness::Ready
    });
    assert_eq!((chosen.map(|member| member.key), overtaken), (Some(3), 4), "thrice in vain");
    let mut asked = Vec::new();
    let chosen = group(&router).select(|ahead, key| {
        assert_eq!(ahead, asked.len() % 10, "a new pass counts from 0");
        asked.push(*key);
        if asked.len() == 10 {
            assert_eq!(next(&router), 4);
        }
        if *key == 4 { Readiness::Fallback } else { Readiness::Unfit }
    });
    assert_eq!(chosen.map(|member| member.key), Some(4));
    assert_eq!(asked.len(), 20, "the fallback of the first pass was behind by then");
    assert_eq!(next(&router), 5);
}
