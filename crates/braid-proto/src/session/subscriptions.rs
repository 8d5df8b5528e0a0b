//! Subscriptions of a session.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::ops::Bound;

use crate::types::{Priority, QoS, RetainHandling, StreamKey, TopicFilter};
use crate::work;

/// Subscription to one Topic Filter, as granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Subscription {
    /// Maximum QoS of a delivery.
    pub qos: QoS,
    /// No Local: no delivery to the session that published.
    pub no_local: bool,
    /// Retain As Published: keep the publisher's RETAIN flag.
    pub retain_as_published: bool,
    /// Replay of retained messages at SUBSCRIBE.
    pub retain_handling: RetainHandling,
    /// Subscription Identifier, 1..=268,435,455.
    pub id: Option<NonZeroU32>,
    /// Stream of the SUBSCRIBE, which carries the deliveries.
    pub stream: StreamKey,
    /// Priority of the deliveries that SUBSCRIBE asked for; `None` leaves it to the server.
    pub priority: Option<Priority>,
    /// Whether a stream of this connection subscribed it. An unbound subscription, whose stream has ended, is on the
    /// control stream until a stream subscribes the filter again.
    pub bound: bool,
}

/// Subscriptions of a session: one for each Topic Filter and stream.
///
/// A filter on two streams is two subscriptions [BQ-16]. An unbound one is on the control stream until a stream
/// subscribes the filter again [BQ-42].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriptions {
    all: BTreeMap<(TopicFilter, StreamKey), Subscription>,
    /// Filters of each data stream: the end of a stream must cost its own only.
    on_data: BTreeMap<StreamKey, BTreeSet<TopicFilter>>,
    /// Bytes of all filters.
    bytes: usize,
    /// Levels of all filters with wildcards.
    wildcard_levels: usize,
}

/// Subscription whose stream has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedSubscription {
    /// Topic Filter.
    pub filter: TopicFilter,
    /// Subscription before the end of its stream.
    pub from: Subscription,
    /// Subscription on the control stream.
    pub to: Subscription,
    /// Whether the control stream had the filter already.
    pub is_merged: bool,
}

impl Subscription {
    /// One subscription that gets every message of two, with the higher QoS; else it is this one.
    fn merged(self, other: &Self) -> Self {
        Self { qos: self.qos.max(other.qos), no_local: self.no_local && other.no_local, ..self }
    }
}

impl Subscriptions {
    /// Adds a subscription on its stream. Returns the one that it replaces: that of the filter on the same
    /// stream [MQTT-3.8.4-3], else the unbound one.
    pub fn insert(&mut self, filter: TopicFilter, subscription: Subscription) -> Option<Subscription> {
        let unbound = self.take_unbound(&filter, subscription.stream);
        self.put(filter, subscription).or(unbound)
    }

    /// Changes the options of a subscription that is there, on its stream.
    pub fn update(&mut self, filter: &TopicFilter, subscription: Subscription) {
        if let Some(present) = self.all.get_mut(&(filter.clone(), subscription.stream)) {
            *present = subscription;
        }
    }

    fn put(&mut self, filter: TopicFilter, subscription: Subscription) -> Option<Subscription> {
        let stream = subscription.stream;
        if !stream.is_control() {
            self.on_data.entry(stream).or_default().insert(filter.clone());
        }
        let (bytes, levels) = (filter.as_str().len(), filter.wildcard_levels());
        let replaced = self.all.insert((filter, stream), subscription);
        if replaced.is_none() {
            self.bytes += bytes;
            self.wildcard_levels += levels;
        }
        replaced
    }

    fn take(&mut self, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        let taken = self.all.remove(&(filter.clone(), stream));
        if taken.is_some() {
            self.bytes -= filter.as_str().len();
            self.wildcard_levels -= filter.wildcard_levels();
        }
        taken
    }

    /// Takes the unbound subscription of a filter that a data stream subscribes.
    fn take_unbound(&mut self, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        if stream.is_control() {
            return None;
        }
        let on_control = (filter.clone(), StreamKey::CONTROL);
        if self.all.get(&on_control).is_none_or(|subscription| subscription.bound) {
            return None;
        }
        self.take(filter, StreamKey::CONTROL) // [BQ-43]
    }

    /// Whether a subscription of this filter on this stream would replace one.
    pub fn replaces(&self, filter: &TopicFilter, stream: StreamKey) -> bool {
        let on = |stream| self.all.get(&(filter.clone(), stream));
        on(stream).is_some() || on(StreamKey::CONTROL).is_some_and(|subscription| !subscription.bound)
    }

    /// Subscriptions of the filter, on all streams.
    pub fn of(&self, filter: &TopicFilter) -> impl Iterator<Item = &Subscription> {
        let (first, last) = ((filter.clone(), StreamKey::CONTROL), (filter.clone(), StreamKey::LAST));
        self.all.range(first..=last).map(|(_, subscription)| subscription)
    }

    /// Removes the filter from every stream.
    pub fn remove(&mut self, filter: &TopicFilter) -> Vec<Subscription> {
        let streams: Vec<_> = self.of(filter).map(|subscription| subscription.stream).collect();
        streams.into_iter().filter_map(|stream| self.remove_on(filter, stream)).collect()
    }

    /// Removes the filter from one stream.
    pub fn remove_on(&mut self, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        work::step();
        if let Some(filters) = self.on_data.get_mut(&stream) {
            filters.remove(filter);
            if filters.is_empty() {
                self.on_data.remove(&stream);
            }
        }
        self.take(filter, stream)
    }

    /// Moves the subscriptions of a data stream that has ended to the control stream. [BQ-42]
    pub fn unbind(&mut self, stream: StreamKey) -> Vec<MovedSubscription> {
        let filters = self.on_data.remove(&stream).unwrap_or_default();
        filters.into_iter().filter_map(|filter| self.unbind_filter(filter, stream)).collect()
    }

    /// Moves all subscriptions to the control stream, where the next connection finds them. [BQ-42]
    pub fn unbind_all(&mut self) -> Vec<MovedSubscription> {
        for subscription in self.all.values_mut().filter(|subscription| subscription.stream.is_control()) {
            subscription.bound = false;
        }
        let elsewhere: Vec<_> = self.all.keys().filter(|(_, stream)| !stream.is_control()).cloned().collect();
        elsewhere.into_iter().filter_map(|(filter, stream)| self.unbind_filter(filter, stream)).collect()
    }

    fn unbind_filter(&mut self, filter: TopicFilter, stream: StreamKey) -> Option<MovedSubscription> {
        let from = self.remove_on(&filter, stream)?;
        let moved = Subscription { stream: StreamKey::CONTROL, bound: false, ..from };
        let present = self.all.get(&(filter.clone(), StreamKey::CONTROL));
        let (to, is_merged) = (present.map_or(moved, |present| present.merged(&from)), present.is_some());
        self.put(filter.clone(), to);
        Some(MovedSubscription { filter, from, to, is_merged })
    }

    /// Subscriptions with their filters, ordered by filter.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicFilter, &Subscription)> {
        self.all.iter().map(|((filter, _), subscription)| (filter, subscription))
    }

    /// Subscriptions behind one filter and stream, in the order of [`Subscriptions::iter`]; all without `after`.
    pub fn behind(
        &self,
        after: Option<(TopicFilter, StreamKey)>,
    ) -> impl Iterator<Item = (&TopicFilter, &Subscription)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.all.range((from, Bound::Unbounded)).map(|((filter, _), subscription)| (filter, subscription))
    }

    /// Number of subscriptions.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Bytes of all filters, one count for each subscription.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Levels of the filters with wildcards, one count for each subscription: their size in the router's trie.
    pub fn wildcard_levels(&self) -> usize {
        self.wildcard_levels
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

impl FromIterator<(TopicFilter, Subscription)> for Subscriptions {
    fn from_iter<T: IntoIterator<Item = (TopicFilter, Subscription)>>(all: T) -> Self {
        let mut subscriptions = Self::default();
        for (filter, subscription) in all {
            subscriptions.put(filter, subscription);
        }
        subscriptions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).expect("a filter")
    }

    fn on(stream: u32) -> Subscription {
        Subscription { stream: StreamKey::bidi(stream), bound: true, ..Subscription::default() }
    }

    /// [BQ-16]
    #[test]
    fn equal_filters_on_two_streams_are_two_subscriptions() {
        let mut all = Subscriptions::default();
        assert_eq!(all.insert(filter("a"), on(0)), None);
        assert_eq!(all.insert(filter("a"), on(1)), None);
        let again = Subscription { qos: QoS::AtLeastOnce, ..on(1) };
        assert_eq!(all.bytes(), 2);
        assert_eq!(all.insert(filter("a"), again), Some(on(1)));
        assert_eq!(all.bytes(), 2);
        let behind = |after| all.behind(after).map(|(_, one)| *one).collect::<Vec<_>>();
        assert_eq!(behind(None), [on(0), again]);
        assert_eq!(behind(Some((filter("a"), StreamKey::CONTROL))), [again]);
        assert_eq!(behind(Some((filter("a"), StreamKey::bidi(1)))), []);
        assert_eq!(all.remove_on(&filter("a"), StreamKey::bidi(2)), None);
        assert_eq!(all.remove(&filter("a")), [on(0), again]);
        assert!(all.is_empty() && all.bytes() == 0);
    }

    /// [BQ-42], [BQ-43]
    #[test]
    fn unbound_subscriptions_are_on_the_control_stream_until_bound_again() {
        let mut all = Subscriptions::default();
        all.insert(filter("a"), on(1));
        all.insert(filter("a"), on(2));
        all.insert(filter("b"), Subscription { no_local: true, ..on(0) });
        all.insert(filter("b"), Subscription { qos: QoS::AtLeastOnce, retain_as_published: true, ..on(1) });
        let moved = all.unbind(StreamKey::bidi(1));
        let waiting = Subscription { bound: false, ..on(0) };
        let from = Subscription { qos: QoS::AtLeastOnce, retain_as_published: true, ..on(1) };
        let merged = Subscription { qos: QoS::AtLeastOnce, ..on(0) };
        let expected = [
            MovedSubscription { filter: filter("a"), from: on(1), to: waiting, is_merged: false },
            MovedSubscription { filter: filter("b"), from, to: merged, is_merged: true },
        ];
        assert_eq!(moved, expected);
        assert_eq!((all.len(), all.bytes()), (3, 3));
        assert!(
            all.replaces(&filter("a"), StreamKey::bidi(7)) && !all.replaces(&filter("b"), StreamKey::bidi(7))
        );
        assert_eq!(all.insert(filter("a"), on(7)), Some(waiting));
        assert_eq!(all.insert(filter("b"), on(7)), None);
        assert_eq!(all.bytes(), 3 + 1);
        assert_eq!(all.unbind_all().len(), 3);
        assert_eq!(all.bytes(), 2);
        assert_eq!(
            all.iter().map(|(_, s)| (s.stream, s.bound)).collect::<Vec<_>>(),
            [(StreamKey::CONTROL, false); 2]
        );
    }

    #[test]
    fn levels_are_counted_of_patterns_with_wildcards() {
        let mut all = Subscriptions::default();
        for (text, sum) in [("a/b/c", 0), ("a/+/c", 3), ("#", 4), ("$share/g/+/b", 6), ("#", 6)] {
            all.insert(filter(text), on(0));
            assert_eq!(all.wildcard_levels(), sum, "{text}");
        }
        all.insert(filter("#"), on(1));
        assert_eq!(all.wildcard_levels(), 7);
        all.unbind_all();
        assert_eq!(all.wildcard_levels(), 6);
        all.remove(&filter("a/+/c"));
        all.remove(&filter("a/b/c"));
        assert_eq!(all.wildcard_levels(), 3);
    }

    #[test]
    fn the_end_of_a_stream_costs_its_own_subscriptions_only() {
        let unbind = |streams: u32| {
            let mut all = Subscriptions::default();
            for stream in 1..=streams {
                for n in 0..100 {
                    all.insert(filter(&format!("{stream}/{n}")), on(stream));
                }
            }
            work::steps(|| assert_eq!(all.unbind(StreamKey::bidi(1)).len(), 100))
        };
        assert_eq!((unbind(2), unbind(100)), (100, 100));
    }
}
