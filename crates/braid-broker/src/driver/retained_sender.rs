//! Sender of retained messages to new subscriptions, one batch per turn.

use std::collections::VecDeque;
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

    /// Begins to send to a subscription; anew, if that is under way on the same stream.
    pub(super) fn begin(&mut self, filter: TopicFilter, subscription: Subscription) {
        self.cancel(&filter, subscription.stream);
        self.cursors.push_back(RetainedCursor { filter, subscription, after: None });
    }

    /// Drops the cursor of a filter on a stream.
    pub(super) fn cancel(&mut self, filter: &TopicFilter, stream: StreamKey) {
        self.cursors.retain(|cursor| cursor.filter != *filter || cursor.subscription.stream != stream);
    }

    /// Drops the cursors of subscriptions that have ended. [MQTT-3.10.4-2]
    pub(super) fn cancel_all(&mut self, mut ended: Vec<(TopicFilter, StreamKey)>) {
        if self.cursors.is_empty() {
            return;
        }
        ended.sort_unstable();
        self.cursors.retain(|cursor| {
            let key = (&cursor.filter, cursor.subscription.stream);
            ended.binary_search_by(|(filter, stream)| (filter, *stream).cmp(&key)).is_err()
        });
    }

    /// Moves the cursors of a stream that has ended to the control stream. [BQ-42]
    pub(super) fn redirect(&mut self, ended: StreamKey) {
        for cursor in &mut self.cursors {
            if cursor.subscription.stream == ended {
                cursor.subscription.stream = StreamKey::CONTROL;
            }
        }
    }

    /// The next batch for the first cursor whose stream `is_ready`; `None` when there is none. A batch may be empty: each
    /// looks at a limited number of topics.
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
