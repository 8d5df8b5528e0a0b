//! Sender of retained messages to new subscriptions, one batch per turn.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use braid_auth::publisher::Publisher;
use braid_proto::message::Delivery;
use braid_proto::session::Subscription;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Walked, replay};

use crate::auth::Access;
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

    /// Number of subscriptions that have not got all of their retained messages.
    pub(super) fn len(&self) -> usize {
        self.cursors.len()
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
        if self.cursors.is_empty() || ended.is_empty() {
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
        access: &Access,
    ) -> Option<Vec<Delivery>> {
        let at = self.cursors.iter().position(|cursor| is_ready(cursor.subscription.stream))?;
        let RetainedCursor { filter, subscription, after } = self.cursors.get_mut(at)?;
        // A batch fits into the session queue as a whole: none of it is dropped there.
        let (most, most_bytes) =
            (MAX_DELIVERIES.min(capacity.messages / 2).max(1), MAX_BYTES.min(capacity.bytes / 2));
        let mut batch = Vec::new();
        let mut bytes = 0;
        let generation = access.generation();
        let mut unasked = Vec::new();
        let walked = messages.walk(filter, after.as_ref(), MAX_STEPS, |retained| {
            let message = &retained.message;
            let is_permitted = retained.is_permitted(generation);
            if !message.is_expired(now) && !matches!(is_permitted, Ok(false)) {
                if let Err(publisher) = is_permitted {
                    unasked.push((batch.len(), publisher.clone()));
                }
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
        // Not in the walk: the authorizer is asked under no lock.
        if let Some(generation) = generation.filter(|_| !unasked.is_empty()) {
            remove_denied(&mut batch, messages, generation, &unasked, access);
        }
        match walked {
            Walked::Unfinished(name) => *after = Some(name),
            Walked::Finished => {
                self.cursors.remove(at);
            }
        }
        Some(batch)
    }
}

/// Asks about the publishers of deliveries, given by their index in the batch, and removes those that the rules of this
/// generation deny.
fn remove_denied(
    batch: &mut Vec<Delivery>,
    messages: &RetainedMessages,
    generation: u64,
    unasked: &[(usize, Arc<Publisher>)],
    access: &Access,
) {
    let ask = |(index, publisher): &(usize, Arc<Publisher>)| {
        (*index, access.may_still_publish(publisher, &batch[*index].message.topic))
    };
    let answers: Vec<_> = unasked.iter().map(ask).collect();
    messages.note_answers(
        generation,
        answers.iter().map(|(index, is_permitted)| (&batch[*index].message, *is_permitted)),
    );
    let mut denied = answers.into_iter().filter(|(_, is_permitted)| !is_permitted).peekable();
    let mut index = 0;
    batch.retain(|_| {
        index += 1;
        denied.next_if(|(denied, _)| denied + 1 == index).is_none()
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use braid_auth::acl::Decision;
    use braid_auth::identity::Identity;
    use braid_proto::message::{Message, SharedMessage};
    use braid_proto::packet::{ClientId, QoS};

    use super::*;
    use crate::auth::{Action, Anonymous, Authorize, PermitAll, Permitted};
    use crate::config::LimitsConfig;
    use crate::memory::Memory;
    use crate::retained::RetainedMessage;

    const LIMITS: QueueLimits = QueueLimits { messages: 1000, bytes: 1 << 20 };
    const CONTROL: StreamKey = StreamKey::CONTROL;

    fn retained_message(message: Message) -> RetainedMessage {
        RetainedMessage::stored(SharedMessage::new(message), None)
    }

    fn permit_all() -> Access {
        Access::new(Box::new(Anonymous::default()), Arc::new(PermitAll))
    }

    fn retained(topics: usize) -> RetainedMessages {
        let messages = RetainedMessages::new(
            QueueLimits { messages: 10_000, bytes: 1 << 30 },
            Arc::new(Memory::new(&LimitsConfig::default())),
        );
        let message = |number| {
            let topic = TopicName::parse(&format!("t/{number}")).expect("a topic name");
            retained_message(Message::new(topic, "x", QoS::AtMostOnce, true))
        };
        messages.restore((0..topics).map(message));
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
            let batch =
                sender.next_batch(messages, LIMITS, Instant::now(), &is_ready, |_| None, &permit_all())?;
            Some((batch.len(), batch.first().map(|delivery| delivery.stream).unwrap_or_default()))
        };
        std::iter::from_fn(next).take(100).collect()
    }

    /// [MQTT-3.3.2-5]
    #[test]
    fn expired_messages_are_not_sent() {
        let (mut sender, messages, now) = (RetainedSender::default(), retained(2), Instant::now());
        let topic = TopicName::parse("t/0").expect("a topic name");
        let mut expired = Message::new(topic, "x", QoS::AtMostOnce, true);
        expired.expires_at = Some(now);
        messages.restore([retained_message(expired)]);
        sender.begin(vec![(filter("#"), on(CONTROL))]);
        let batch =
            sender.next_batch(&messages, LIMITS, now, |_| true, |_| None, &permit_all()).expect("a cursor");
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

    /// Authorizer that counts the questions and denies topics that end with a 7.
    #[derive(Default)]
    struct Counting {
        generation: AtomicU64,
        asked: AtomicUsize,
    }

    impl Authorize for Counting {
        fn decide(&self, _identity: &Identity, _client_id: &ClientId, action: Action<'_>) -> Decision {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let allowed = !matches!(action, Action::Publish(topic) if topic.as_str().ends_with('7'));
            Decision { allowed, line: None, list: 0 }
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    /// A `#` over a hundred thousand retained messages costs no question until the rules change, and one for each then.
    #[test]
    fn publishers_are_asked_about_once_for_each_generation_of_the_rules() {
        const TOPICS: usize = 600;
        let rules = Arc::new(Counting::default());
        let access = Access::new(Box::new(Anonymous::default()), rules.clone());
        let messages = retained(0);
        let publisher = Arc::new(Publisher::new(&Identity::named("u"), ClientId::from("c"), false));
        messages.restore((0..TOPICS).map(|number| {
            let topic = TopicName::parse(&format!("t/{number}")).expect("a topic name");
            let message = SharedMessage::new(Message::new(topic, "x", QoS::AtMostOnce, true));
            // Every third was permitted in the first generation, the others come from a store.
            match number % 3 {
                0 => RetainedMessage::new(
                    message,
                    Some(Permitted { publisher: publisher.clone(), generation: 0 }),
                ),
                _ => RetainedMessage::stored(message, Some(publisher.clone())),
            }
        }));
        let take = || {
            let mut sender = RetainedSender::default();
            sender.begin(vec![(filter("#"), on(CONTROL))]);
            let mut topics = Vec::new();
            while let Some(batch) =
                sender.next_batch(&messages, LIMITS, Instant::now(), |_| true, |_| None, &access)
            {
                topics.extend(batch.iter().map(|delivery| delivery.message.topic.clone()));
            }
            (topics, rules.asked.swap(0, Ordering::Relaxed))
        };
        let is_denied = |number: &usize| number % 10 == 7;
        let expected = |is_left: &dyn Fn(&usize) -> bool| {
            let mut topics: Vec<_> =
                (0..TOPICS).filter(is_left).map(|number| format!("t/{number}")).collect();
            topics.sort();
            topics
        };
        let sorted = |topics: Vec<TopicName>| {
            let mut texts: Vec<_> = topics.iter().map(|topic| topic.as_str().to_owned()).collect();
            texts.sort();
            texts
        };
        let (first, asked) = take();
        assert_eq!(sorted(first), expected(&|number| number % 3 == 0 || !is_denied(number)));
        assert_eq!(asked, TOPICS * 2 / 3);
        assert_eq!(take().1, 0, "nothing has changed");
        rules.generation.store(1, Ordering::Relaxed);
        let (second, asked) = take();
        assert_eq!((sorted(second), asked), (expected(&|number| !is_denied(number)), TOPICS));
        let (third, asked) = take();
        assert_eq!((sorted(third), asked), (expected(&|number| !is_denied(number)), 0));
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
        let first = sender.next_batch(&messages, LIMITS, Instant::now(), |_| true, |_| None, &permit_all());
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
