//! `Router` against a list of all subscriptions and `TopicFilter::matches`.

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{MAX_LEVELS, TopicFilter, TopicName};
use braid_router::{Match, Matches, Router, Statistics};

use crate::generator::{
    filter, for_each_seed, name, parse_filter, parse_name, stream, subscription, subscription_on,
};

/// Model of a router: a list.
#[derive(Default)]
struct Model(Vec<(u8, TopicFilter, Subscription)>);

impl Model {
    fn subscribe(&mut self, key: u8, filter: &TopicFilter, new: Subscription) -> Option<Subscription> {
        let old = self.unsubscribe(key, filter, new.stream);
        self.0.push((key, filter.clone(), new));
        old
    }

    fn unsubscribe(&mut self, key: u8, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        let at = self.0.iter().position(|(k, f, s)| *k == key && f == filter && s.stream == stream)?;
        Some(self.0.remove(at).2)
    }

    fn matching(&self, name: &TopicName, shared: bool) -> Vec<(u8, String, Subscription)> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|(_, filter, _)| filter.is_shared() == shared && filter.matches(name))
            .map(|(key, filter, subscription)| (*key, filter.to_string(), *subscription))
            .collect();
        found.sort_by_key(|(key, filter, subscription)| (*key, subscription.id, filter.clone()));
        found
    }

    fn statistics(&self) -> Statistics {
        let mut patterns: Vec<_> = self.0.iter().map(|(_, filter, _)| filter.pattern()).collect();
        patterns.sort_unstable();
        patterns.dedup();
        Statistics {
            subscriptions: self.0.len(),
            shared_subscriptions: self.0.iter().filter(|(_, filter, _)| filter.is_shared()).count(),
            patterns: patterns.len(),
        }
    }
}

fn assert_same(router: &Router<u8>, model: &Model, name: &TopicName, matches: &mut Matches<u8>) {
    router.matches(name, matches);
    assert!(matches.direct.is_sorted_by_key(|m| (m.key, m.subscription.stream)), "{name}");
    let mut members = matches.shared.iter().map(|group| group.members());
    assert!(members.all(|m| m.is_sorted_by_key(|m| (m.key, m.subscription.stream))), "{name}");
    let mut direct: Vec<_> = matches.direct.iter().map(|m| (m.key, m.subscription)).collect();
    direct.sort_by_key(|(key, subscription)| (*key, subscription.id));
    let want: Vec<_> = model.matching(name, false).into_iter().map(|(key, _, s)| (key, s)).collect();
    assert_eq!(direct, want, "{name}");
    let mut shared: Vec<_> = matches
        .shared
        .iter()
        .flat_map(|g| g.members().map(|m| (m.key, g.filter().to_string(), m.subscription)))
        .collect();
    shared.sort_by_key(|(key, filter, subscription)| (*key, subscription.id, filter.clone()));
    assert_eq!(shared, model.matching(name, true), "{name}");
}

/// [BQ-16] A subscription is identified by session, filter and stream.
#[test]
fn random_operations_agree_with_the_model() {
    for_each_seed(60, |rng| {
        let (mut router, mut model, mut matches) = (Router::new(), Model::default(), Matches::default());
        let known: Vec<_> = (0..1 + rng.usize(..60)).map(|_| filter(rng)).collect();
        let removals = 1 + rng.u8(..3);
        for id in 1..=400 {
            let filter = &known[rng.usize(..known.len())];
            let (key, stream) = (rng.u8(..3), stream(rng));
            let before = router.generation();
            let change = if rng.u8(..4) < removals {
                let removed = router.unsubscribe(key, filter, stream);
                assert_eq!(removed, model.unsubscribe(key, filter, stream), "{filter}");
                removed.is_some()
            } else {
                let subscription = subscription_on(stream, id);
                let old = router.subscribe(key, filter, subscription);
                assert_eq!(old, model.subscribe(key, filter, subscription), "{filter}");
                true
            };
            assert_eq!(router.generation() > before, change);
            assert_eq!(router.statistics(), model.statistics());
            assert_same(&router, &model, &name(rng), &mut matches);
        }
        for (key, filter, subscription) in std::mem::take(&mut model.0) {
            assert_eq!(router.unsubscribe(key, &filter, subscription.stream), Some(subscription));
        }
        assert_eq!(router.statistics(), Statistics::default());
    });
}

/// The order of matches depends on the filters, not on a hash seed or the order of subscribing.
#[test]
fn equal_routers_answer_in_equal_order() {
    for_each_seed(60, |rng| {
        let mut all: Vec<_> =
            (1..200).map(|id| (rng.u8(..4), filter(rng), subscription_on(stream(rng), id))).collect();
        all.sort_by(|a, b| (a.0, &a.1, a.2.stream).cmp(&(b.0, &b.1, b.2.stream)));
        all.dedup_by(|a, b| (a.0, &a.1, a.2.stream) == (b.0, &b.1, b.2.stream));
        let names: Vec<_> = (0..100).map(|_| name(rng)).collect();
        let mut answers = (0..3).map(|_| {
            rng.shuffle(&mut all);
            let mut router = Router::new();
            for (key, filter, subscription) in &all {
                router.subscribe(*key, filter, *subscription);
            }
            let mut matches = Matches::default();
            let answer = names.iter().map(|name| {
                router.matches(name, &mut matches);
                let shared: Vec<_> = matches.shared.iter().map(|group| group.filter().to_string()).collect();
                (matches.direct.clone(), shared)
            });
            answer.collect::<Vec<_>>()
        });
        let first = answers.next().expect("three answers");
        assert!(first.iter().any(|(direct, _)| direct.len() > 1), "the names must meet the filters");
        assert!(answers.all(|other| other == first));
    });
}

/// [MQTT-3.8.4-3] The same filter of the same session is replaced; that of another session is not.
#[test]
fn an_equal_filter_replaces() {
    let mut router = Router::new();
    let mut matches = Matches::default();
    for text in ["a/b", "a/+", "$share/x/a/#"] {
        let filter = parse_filter(text);
        assert_eq!(router.subscribe(1, &filter, subscription(1)), None);
        assert_eq!(router.subscribe(2, &filter, subscription(2)), None);
        assert_eq!(router.subscribe(1, &filter, subscription(3)), Some(subscription(1)));
    }
    assert_eq!(router.statistics(), Statistics { subscriptions: 6, shared_subscriptions: 2, patterns: 3 });
    router.matches(&parse_name("a/b"), &mut matches);
    let ids: Vec<_> =
        matches.direct.iter().map(|m| (m.key, m.subscription.id.map_or(0, u32::from))).collect();
    assert_eq!(ids, [(1, 3), (1, 3), (2, 2), (2, 2)]);
    assert_eq!(matches.sessions().map(<[Match<i32>]>::len).collect::<Vec<_>>(), [2, 2]);
}

/// [BQ-16] The same filter on two streams is two subscriptions, on one stream one; the end of one leaves the
/// other. Their matches stay together, whatever other filters of the session match.
#[test]
fn each_stream_has_its_own_subscription() {
    let [a, b] = [StreamKey::CONTROL, StreamKey::bidi(7)];
    for text in ["a/b", "a/+", "$share/x/a/#"] {
        let mut router = Router::new();
        let mut matches = Matches::default();
        let filter = parse_filter(text);
        let mut found = |router: &Router<i32>| -> Vec<(i32, u32, u32)> {
            router.matches(&parse_name("a/b"), &mut matches);
            let shared = matches.shared.iter().flat_map(|group| group.members());
            let all = matches.direct.iter().chain(shared);
            all.map(|m| (m.key, m.subscription.stream.index(), m.subscription.id.map_or(0, u32::from)))
                .collect()
        };
        assert_eq!(router.subscribe(1, &filter, subscription_on(b, 1)), None);
        assert_eq!(router.subscribe(2, &filter, subscription_on(b, 2)), None);
        assert_eq!(router.subscribe(1, &filter, subscription_on(a, 3)), None);
        assert_eq!(found(&router), [(1, 0, 3), (1, 7, 1), (2, 7, 2)], "{text}");
        assert_eq!(router.subscribe(1, &filter, subscription_on(b, 4)), Some(subscription_on(b, 1)));
        assert_eq!(found(&router), [(1, 0, 3), (1, 7, 4), (2, 7, 2)], "{text}");
        assert_eq!(router.statistics().subscriptions, 3);
        assert_eq!(router.unsubscribe(2, &filter, a), None, "it is on another stream");
        assert_eq!(router.unsubscribe(1, &filter, a), Some(subscription_on(a, 3)));
        assert_eq!(found(&router), [(1, 7, 4), (2, 7, 2)], "{text}");
        assert_eq!(router.unsubscribe(1, &filter, a), None);
        assert_eq!(router.unsubscribe(1, &filter, b), Some(subscription_on(b, 4)));
        assert_eq!(found(&router), [(2, 7, 2)], "{text}");
        assert_eq!(router.unsubscribe(1, &filter, b), None);
        assert_eq!(router.unsubscribe(2, &filter, a), None, "the only one left is on another stream");
        assert_eq!(router.unsubscribe(2, &filter, b), Some(subscription_on(b, 2)));
        assert_eq!(router.statistics(), Statistics::default());
    }
}

/// [MQTT-4.7.2-1]
#[test]
fn first_level_wildcards_do_not_match_dollar_names() {
    let mut router = Router::new();
    for (key, text) in ["#", "+/x", "+/#", "$SYS/#", "$SYS/+", "$SYS/x", "$share/x/#"].into_iter().enumerate()
    {
        router.subscribe(key, &parse_filter(text), subscription(1));
    }
    let mut matches = Matches::default();
    router.matches(&parse_name("$SYS/x"), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), [3, 4, 5]);
    assert!(matches.shared.is_empty());
    router.matches(&parse_name("$SYS"), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), [3]);
    router.matches(&parse_name("SYS/x"), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), [0, 1, 2]);
}

/// [MQTT-4.7.3-4] [MQTT-3.10.4-1] No normalization: case, composed letters and empty levels differ.
#[test]
fn levels_are_compared_byte_by_byte() {
    let mut router = Router::new();
    let filters = ["a/é", "a/e\u{301}", "A/é", "a//é", "/a/é", "a/é/", "+/é", "+/e\u{301}"].map(parse_filter);
    for (key, filter) in filters.iter().enumerate() {
        router.subscribe(key, filter, subscription(1));
    }
    let mut matches = Matches::default();
    router.matches(&parse_name("a/é"), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), [0, 6]);
    assert_eq!(router.unsubscribe(0, &filters[1], StreamKey::CONTROL), None);
    assert_eq!(router.unsubscribe(6, &filters[7], StreamKey::CONTROL), None);
    assert_eq!(router.unsubscribe(6, &filters[6], StreamKey::CONTROL), Some(subscription(1)));
}

/// Every filter of ten levels out of a literal and `+`: the widest a walk can get, and the deepest.
#[test]
fn a_walk_visits_every_branch_at_any_depth() {
    let mut router = Router::new();
    for bits in 0..1024_u32 {
        let levels: Vec<_> = (0..10).map(|at| if bits >> at & 1 == 0 { "a" } else { "+" }).collect();
        router.subscribe(bits, &parse_filter(&levels.join("/")), subscription(1));
    }
    let deepest = vec!["+"; MAX_LEVELS].join("/");
    router.subscribe(2000, &parse_filter(&deepest), subscription(1));
    let mut matches = Matches::default();
    router.matches(&parse_name(&["a"; 10].join("/")), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), (0..1024).collect::<Vec<_>>());
    router.matches(&parse_name(&vec!["a"; MAX_LEVELS].join("/")), &mut matches);
    assert_eq!(matches.direct.iter().map(|m| m.key).collect::<Vec<_>>(), [2000]);
}

#[test]
fn only_a_change_raises_the_generation() {
    let mut router = Router::new();
    let filter = parse_filter("a/+");
    let mut last = router.generation();
    let mut raised = |router: &Router<u8>| {
        let before = std::mem::replace(&mut last, router.generation());
        router.generation() > before
    };
    router.subscribe(1, &filter, subscription(1));
    assert!(raised(&router));
    router.subscribe(1, &filter, subscription(1));
    assert!(!raised(&router), "the same again changes no match");
    router.subscribe(1, &filter, subscription(2));
    assert!(raised(&router));
    router.unsubscribe(2, &filter, StreamKey::CONTROL);
    assert!(!raised(&router));
    router.unsubscribe(1, &filter, StreamKey::bidi(1));
    assert!(!raised(&router));
    router.subscribe(1, &filter, subscription_on(StreamKey::bidi(1), 2));
    assert!(raised(&router));
    router.matches(&parse_name("a/b"), &mut Matches::default());
    assert!(!raised(&router));
    router.unsubscribe(1, &filter, StreamKey::CONTROL);
    assert!(raised(&router));
}
