//! Retained messages for new subscriptions, a piece per turn.

use std::ops::ControlFlow;

use braid_proto::session::Subscription;
use braid_proto::topic::TopicFilter;
use braid_router::{Walked, replay};

use super::send::OUTBOX_TARGET;
use super::{Driver, now};
use crate::queue::usage::{QueueLimits, message_cost};
use crate::retained::RetainedCursor;

/// Names that one piece looks at.
const STEPS: usize = 1024;

/// Deliveries of one piece.
const DELIVERIES: usize = 256;

/// Memory that the deliveries of one piece keep, about; the last may exceed it.
const BYTES: usize = 256 * 1024;

impl Driver {
    /// Begins to replay for a subscription; anew, if that was under way on the same stream.
    pub(super) fn begin_replay(&mut self, filter: TopicFilter, subscription: Subscription) {
        let stream = subscription.stream;
        self.replays.retain(|replay| replay.filter != filter || replay.subscription.stream != stream);
        self.replays.push_back(RetainedCursor { filter, subscription, after: None });
    }

    /// Replays a piece once everything before it is on its way; false when there is nothing to do.
    ///
    /// A stream that is not read has its own replays wait, and nobody else's. [BQ-55]
    pub(super) fn replay(&mut self) -> bool {
        let is_ready = |replay: &RetainedCursor| {
            let stream = self.server.resolve(replay.subscription.stream);
            !self.egress.waits_on(stream) && self.server.unwritten_on(stream) < OUTBOX_TARGET
        };
        let Some(at) = self.replays.iter().position(is_ready) else { return false };
        let (Some(entry), Some(front)) = (&self.entry, self.replays.get_mut(at)) else { return false };
        let now = now();
        // All of it fits into the queue, where nothing of it may be dropped.
        let QueueLimits { messages, bytes: room } = self.core.queues.policy.limits;
        let (most, most_bytes) = (DELIVERIES.min(messages / 2).max(1), BYTES.min(room / 2));
        let mut piece = Vec::new();
        let mut bytes = 0;
        let RetainedCursor { filter, subscription, after } = front;
        let walked = self.core.retained.walk(filter, after.as_ref(), STEPS, |message| {
            if !message.is_expired(now) {
                bytes += message_cost(message);
                let asked = subscription.priority;
                let priority = asked.or_else(|| self.core.routing.priority_of(&message.topic));
                piece.push(replay(message, &Subscription { priority, ..*subscription }));
            }
            if piece.len() < most && bytes < most_bytes {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match walked {
            Walked::Unfinished(name) => *after = Some(name),
            Walked::Finished => {
                self.replays.remove(at);
            }
        }
        self.core.dispatcher.take_directly(entry, &mut piece);
        piece.into_iter().for_each(|delivery| self.egress.push(delivery));
        true
    }
}
