use std::collections::BTreeMap;
use std::mem;

use super::Subscription;
use crate::stream::StreamKey;
use crate::topic::TopicFilter;

/// What a session subscribed to: one subscription for each Topic Filter and stream.
///
/// The same filter on two streams is two subscriptions [BQ-16]. One whose stream has ended is on the control
/// stream, unbound, until a stream subscribes the filter again [BQ-42].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriptions(BTreeMap<(TopicFilter, StreamKey), Subscription>);

/// What became of a subscription whose stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its filter.
    pub filter: TopicFilter,
    /// As it was.
    pub from: Subscription,
    /// As it is now, on the control stream; `None` where that had the filter already.
    pub to: Option<Subscription>,
}

impl Subscriptions {
    /// Adds a subscription on its stream. Returns the one that it replaces: that of the same filter on the same
    /// stream [MQTT-3.8.4-3], else the one that waits for a stream.
    pub fn insert(&mut self, filter: TopicFilter, subscription: Subscription) -> Option<Subscription> {
        let unbound = self.take_unbound(&filter, subscription.stream);
        self.0.insert((filter, subscription.stream), subscription).or(unbound)
    }

    /// The subscription that waits for a stream, if `stream` is another one than it waits on.
    fn take_unbound(&mut self, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        if stream.is_control() {
            return None;
        }
        let on_control = (filter.clone(), StreamKey::CONTROL);
        if self.0.get(&on_control).is_none_or(|subscription| subscription.bound) {
            return None;
        }
        self.0.remove(&on_control) // [BQ-43]
    }

    /// Whether a subscription of this filter on this stream would replace one.
    pub fn replaces(&self, filter: &TopicFilter, stream: StreamKey) -> bool {
        let on = |stream| self.0.get(&(filter.clone(), stream));
        on(stream).is_some() || on(StreamKey::CONTROL).is_some_and(|subscription| !subscription.bound)
    }

    /// Removes the filter from every stream.
    pub fn remove(&mut self, filter: &TopicFilter) -> Vec<Subscription> {
        let (first, last) = ((filter.clone(), StreamKey::CONTROL), (filter.clone(), StreamKey::LAST));
        let streams: Vec<_> = self.0.range(first..=last).map(|((_, stream), _)| *stream).collect();
        streams.into_iter().filter_map(|stream| self.remove_on(filter, stream)).collect()
    }

    /// Removes the filter from one stream.
    pub fn remove_on(&mut self, filter: &TopicFilter, stream: StreamKey) -> Option<Subscription> {
        self.0.remove(&(filter.clone(), stream))
    }

    /// Moves the subscriptions of a data stream that has ended to the control stream. [BQ-42]
    pub fn unbind(&mut self, stream: StreamKey) -> Vec<Moved> {
        self.unbind_if(|subscription| subscription.stream == stream)
    }

    /// Moves all subscriptions to the control stream, where the next connection finds them. [BQ-42]
    pub fn unbind_all(&mut self) -> Vec<Moved> {
        self.unbind_if(|_| true)
    }

    fn unbind_if(&mut self, ended: impl Fn(&Subscription) -> bool) -> Vec<Moved> {
        let mut moved = Vec::new();
        for subscription in self.0.values_mut() {
            if subscription.stream.is_control() && ended(subscription) {
                subscription.bound = false;
            }
        }
        let elsewhere = |((_, stream), subscription): (&(TopicFilter, StreamKey), &mut Subscription)| {
            !stream.is_control() && ended(subscription)
        };
        if !self.0.iter_mut().any(elsewhere) {
            return moved; // Most connections have one stream.
        }
        for ((filter, stream), from) in mem::take(&mut self.0) {
            if stream.is_control() || !ended(&from) {
                self.0.insert((filter, stream), from);
                continue;
            }
            // The control stream is the first of a filter's.
            let on_control = (filter.clone(), StreamKey::CONTROL);
            let to = Subscription { stream: StreamKey::CONTROL, bound: false, ..from };
            let is_free = !self.0.contains_key(&on_control);
            if is_free {
                self.0.insert(on_control, to);
            }
            moved.push(Moved { filter, from, to: is_free.then_some(to) });
        }
        moved
    }

    /// The subscriptions, those of one filter side by side, each with its stream in it.
    pub fn iter(&self) -> impl Iterator<Item = (&TopicFilter, &Subscription)> {
        self.0.iter().map(|((filter, _), subscription)| (filter, subscription))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<(TopicFilter, Subscription)> for Subscriptions {
    fn from_iter<T: IntoIterator<Item = (TopicFilter, Subscription)>>(all: T) -> Self {
        Self(
            all.into_iter()
                .map(|(filter, subscription)| ((filter, subscription.stream), subscription))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::QoS;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).expect("a filter")
    }

    fn on(stream: u32) -> Subscription {
        Subscription { stream: StreamKey::bidi(stream), bound: true, ..Subscription::default() }
    }

    /// [BQ-16]
    #[test]
    fn the_same_filter_on_two_streams_is_two_subscriptions() {
        let mut all = Subscriptions::default();
        assert_eq!(all.insert(filter("a"), on(0)), None);
        assert_eq!(all.insert(filter("a"), on(1)), None);
        let again = Subscription { qos: QoS::AtLeastOnce, ..on(1) };
        assert_eq!(all.insert(filter("a"), again), Some(on(1)));
        assert_eq!(all.remove_on(&filter("a"), StreamKey::bidi(2)), None);
        assert_eq!(all.remove(&filter("a")), [on(0), again]);
        assert!(all.is_empty());
    }

    /// [BQ-42], [BQ-43]
    #[test]
    fn what_a_stream_subscribed_waits_on_the_control_stream_for_another() {
        let mut all = Subscriptions::default();
        all.insert(filter("a"), on(1));
        all.insert(filter("a"), on(2));
        all.insert(filter("b"), on(0));
        all.insert(filter("b"), on(1));
        let moved = all.unbind(StreamKey::bidi(1));
        let waiting = Subscription { bound: false, ..on(0) };
        let expected = [
            Moved { filter: filter("a"), from: on(1), to: Some(waiting) },
            Moved { filter: filter("b"), from: on(1), to: None },
        ];
        assert_eq!(moved, expected);
        assert_eq!(all.len(), 3);
        assert!(
            all.replaces(&filter("a"), StreamKey::bidi(7)) && !all.replaces(&filter("b"), StreamKey::bidi(7))
        );
        assert_eq!(all.insert(filter("a"), on(7)), Some(waiting));
        assert_eq!(all.insert(filter("b"), on(7)), None);
        assert_eq!(all.unbind_all().len(), 3);
        assert_eq!(
            all.iter().map(|(_, s)| (s.stream, s.bound)).collect::<Vec<_>>(),
            [(StreamKey::CONTROL, false); 2]
        );
    }
}
