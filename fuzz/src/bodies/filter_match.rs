//! Router against a filter-by-filter match.

use std::collections::BTreeSet;

use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Matches, Router};

/// Lines of text: a Topic Name, then Topic Filters. The router finds those that match one by one, also after half
/// of them are removed.
pub fn filter_match(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.lines();
    let Some(name) = lines.next().and_then(|line| TopicName::parse(line).ok()) else { return };
    let mut filters: Vec<_> = lines
        .take(32)
        .enumerate()
        .filter_map(|(key, line)| Some((key, TopicFilter::parse(line).ok()?)))
        .collect();
    let mut router = Router::new();
    for (key, filter) in &filters {
        assert!(router.subscribe(*key, filter, Subscription::default()).is_none());
    }
    check(&router, &filters, &name);
    for (key, filter) in filters.split_off(filters.len() / 2) {
        assert!(router.unsubscribe(key, &filter, StreamKey::CONTROL).is_some());
        assert!(router.unsubscribe(key, &filter, StreamKey::CONTROL).is_none());
    }
    check(&router, &filters, &name);
}

fn check(router: &Router<usize>, filters: &[(usize, TopicFilter)], name: &TopicName) {
    let mut found = Matches::default();
    router.matches(name, &mut found);
    let matching = || filters.iter().filter(|(_, filter)| filter.matches(name));
    let direct: Vec<_> = found.direct.iter().map(|found| found.key).collect();
    let expected: Vec<_> =
        matching().filter(|(_, filter)| !filter.is_shared()).map(|(key, _)| *key).collect();
    assert_eq!(direct, expected, "{name}");
    let groups: Vec<_> = found.shared.iter().map(|group| group.filter().as_str().to_owned()).collect();
    let shared = matching().filter(|(_, filter)| filter.is_shared());
    let expected: BTreeSet<_> = shared.map(|(_, filter)| filter.as_str().to_owned()).collect();
    assert_eq!(groups.len(), expected.len(), "a group twice: {groups:?}");
    assert_eq!(groups.into_iter().collect::<BTreeSet<_>>(), expected, "{name}");
}
