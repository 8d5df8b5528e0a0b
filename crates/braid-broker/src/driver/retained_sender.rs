//! Sender of retained messages to new subscriptions, one batch per turn.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Instant;

use braid_proto::message::Delivery;
use braid_proto::session::Subscription;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Walked, replay};

use crate::queue::usage::{QueueLimits, message_cost};
use crate::retained::{RetainedCursor, RetainedMessages};

/// Upper bound of the topics that one batch looks at.
const MAX_STEPS: usize = 1024;

/// Upper bound of the deliveries of one batch.
const MAX_DELIVERIES: usize = 256;

/// Memory of the deliveries of one batch, bytes, about; the last delivery may exceed it.
const MAX_BYTES: usize = 256 * 1024;

/// Cursors of the subscriptions that have not got all their retained messages, the oldest first.
#[derive(Default)]
pub(super) struct RetainedSender {
    cursors: VecDeque<RetainedCursor>,
}

impl RetainedSender {
    /// Continues the cursors of an earlier connection of the session.
    pub(super) fn resume(&mut self, cursors: Vec<RetainedCursor>) {
        self.cursors = cursors.into();
    }

    /// Takes the cursors that are left at the end of the connection.
    pub(super) fn take(&mut self) -> Vec<RetainedCursor> {
        std::mem::take(&mut self.cursors).into()
    }

    /// Begins to send to subscriptions; anew to those for which that is under way on the same stream. Of several
    /// subscriptions of a filter on one stream the last counts.
    pub(super) fn begin(&mut self, mut subscriptions: Vec<(TopicFilter, Subscription)>) {
        let mut last = HashMap::with_capacity(subscriptions.len());
        for (index, (filter, subscription)) in subscriptions.iter().enumerate() {
            last.insert((filter.clone(), subscription.stream), index);
        }
        let mut index = 0;
        subscriptions.retain(|(filter, subscription)| {
            index += 1;
            last.get(&(filter.clone(), subscription.stream)) == Some(&(index - 1))
        });
        self.cancel(
            subscriptions.iter().map(|(filter, subscription)| (filter, subscription.stream)).collect(),
        );
        let cursor = |(filter, subscription)| RetainedCursor { filter, subscription, after: None };
        self.cursors.extend(subscriptions.into_iter().map(cursor));
    }

    /// Drops the cursors of filters on streams. [MQTT-3.10.4-2]
    pub(super) fn cancel(&mut self, mut ended: Vec<(&TopicFilter, StreamKey)>) {
        if self.cursors.is_empty() {
            return;
        }
        ended.sort_unstable();
        self.cursors
            .retain(|cursor| ended.binary_search(&(&cursor.filter, cursor.subscription.stream)).is_err());
    }

    /// Moves the cursors of a stream that has ended to the control stream. [BQ-42]
    pub(super) fn redirect(&mut self, ended: StreamKey) {
        for cursor in &mut self.cursors {
            if cursor.subscription.stream == ended {
                cursor.subscription.stream = StreamKey::CONTROL;
            }
        }
    }

    /// The next batch for the first cursor whose stream `is_ready`; `None` when there is none. A batch may be empty:
    /// each looks at a limited number of topics.
    ///
    /// A stream that is not read delays its own cursors and no others. [BQ-55]
    pub(super) fn next_batch(
        &mut self,
        messages: &RetainedMessages,
        capacity: QueueLimits,
        now: Instant,
        is_ready: impl Fn(StreamKey) -> bool,
        priority_of: impl Fn(&TopicName) -> Option<Priority>,
    ) -> Option<Vec<Delivery>> {
        let at = self.cursors.iter().position(|cursor| is_ready(cursor.subscription.stream))?;
        let RetainedCursor { filter, subscription, after } = self.cursors.get_mut(at)?;
        // A batch fits into the session queue as a whole: none of it is dropped there.
        let (most, most_bytes) =
            (MAX_DELIVERIES.min(capacity.messages / 2).max(1), MAX_BYTES.min(capacity.bytes / 2));
        let mut batch = Vec::new();
        let mut bytes = 0;
        let walked = messages.walk(filter, after.as_ref(), MAX_STEPS, |message| {
            if !message.is_expired(now) {
                bytes += message_cost(message);
                let priority = subscription.priority.or_else(|| priority_of(&message.topic));
                batch.push(replay(message, &Subscription { priority, ..*subscription }));
            }
            if batch.len() < most && bytes < most_bytes {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match walked {
            Walked::Unfinished(name) => *after = Some(name),
            Walked::Finished => {
                self.cursors.remove(at);
            }
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_proto::message::Message;
    use braid_proto::packet::QoS;

    use super::*;
    use crate::config::LimitsConfig;
    use crate::memory::Memory;

    const LIMITS: QueueLimits = QueueLimits { messages: 1000, bytes: 1 << 20 };
    const CONTROL: StreamKey = StreamKey::CONTROL;

    fn retained(topics: usize) -> RetainedMessages {
        let messages = RetainedMessages::new(
            QueueLimits { messages: 10_000, bytes: 1 << 30 },
            Arc::new(Memory::new(&LimitsConfig::default())),
        );
        let message = |number| {
            let topic = TopicName::parse(&format!("t/{number}")).expect("a topic name");
            (topic.clone(), Arc::new(Message::new(topic, "x".into(), QoS::AtMostOnce, true)))
        };
        messages.restore(&(0..topics).map(message).collect::<Vec<_>>());
        messages
    }

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).expect("a filter")
    }

    fn on(stream: StreamKey) -> Subscription {
        Subscription { stream, ..Subscription::default() }
    }

    /// Sizes of the batches, and the stream of the first delivery of each.
    fn batches(
        sender: &mut RetainedSender,
        messages: &RetainedMessages,
        is_ready: impl Fn(StreamKey) -> bool,
    ) -> Vec<(usize, StreamKey)> {
        let next = || {
            let batch = sender.next_batch(messages, LIMITS, Instant::now(), &is_ready, |_| None)?;
            Some((batch.len(), batch.first().map(|delivery| delivery.stream).unwrap_or_default()))
        };
        std::iter::from_fn(next).take(100).collect()
    }

    /// [MQTT-3.3.2-5]
    #[test]
    fn expired_messages_are_not_sent() {
        let (mut sender, messages, now) = (RetainedSender::default(), retained(2), Instant::now());
        let topic = TopicName::parse("t/0").expect("a topic name");
        let mut expired = Message::new(topic.clone(), "x".into(), QoS::AtMostOnce, true);
        expired.expires_at = Some(now);
        messages.restore(&[(topic, Arc::new(expired))]);
        sender.begin(vec![(filter("#"), on(CONTROL))]);
        let batch = sender.next_batch(&messages, LIMITS, now, |_| true, |_| None).expect("a cursor");
        let topics: Vec<_> = batch.iter().map(|delivery| delivery.message.topic.as_str()).collect();
        assert_eq!(topics, ["t/1"]);
    }

    #[test]
    fn each_message_is_sent_once_in_limited_batches() {
        let (mut sender, messages) = (RetainedSender::default(), retained(600));
        assert_eq!(batches(&mut sender, &messages, |_| true), []);
        sender.begin(vec![(filter("#"), on(CONTROL))]);
        let sizes = batches(&mut sender, &messages, |_| true);
        assert!(sizes.iter().all(|(size, _)| *size <= MAX_DELIVERIES), "{sizes:?}");
        assert_eq!(sizes.iter().map(|(size, _)| size).sum::<usize>(), 600);
        assert!(sender.take().is_empty());
    }

    /// [BQ-55]
    #[test]
    fn a_stream_that_is_not_ready_delays_no_other() {
        let (mut sender, messages) = (RetainedSender::default(), retained(3));
        let (one, two) = (StreamKey::bidi(1), StreamKey::bidi(2));
        sender.begin(vec![(filter("#"), on(one))]);
        sender.begin(vec![(filter("#"), on(two))]);
        assert_eq!(batches(&mut sender, &messages, |stream| stream == two), [(3, two)]);
        // [BQ-42]
        sender.redirect(one);
        assert_eq!(batches(&mut sender, &messages, |stream| stream == CONTROL), [(3, CONTROL)]);
    }

    #[test]
    fn a_subscription_begins_anew_and_an_ended_one_is_cancelled() {
        let (mut sender, messages) = (RetainedSender::default(), retained(600));
        sender.begin(vec![(filter("#"), on(CONTROL))]);
        let first = sender.next_batch(&messages, LIMITS, Instant::now(), |_| true, |_| None);
        assert_eq!(first.map(|batch| batch.len()), Some(MAX_DELIVERIES));
        sender.begin(vec![(filter("#"), on(CONTROL))]);
        let left = sender.take();
        assert!(left.len() == 1 && left[0].after.is_none(), "from the first topic");
        sender.resume(left);
        sender.begin(vec![(filter("t/1"), on(CONTROL))]);
        sender.cancel(vec![(&filter("#"), CONTROL), (&filter("t/1"), StreamKey::bidi(1))]);
        assert_eq!(batches(&mut sender, &messages, |_| true), [(1, CONTROL)]);
    }
}
