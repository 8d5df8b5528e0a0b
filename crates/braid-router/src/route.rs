//! Message x Subscription -> Delivery: what one session receives of one message.

use std::sync::Arc;

use braid_proto::message::{Delivery, Message, SubscriptionIds};
use braid_proto::session::{RetainHandling, Subscription};
use braid_proto::topic::TopicFilter;

use crate::group::Group;
use crate::matches::Match;

/// What a session receives when several of its subscriptions match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// One delivery per stream with all Subscription Identifiers: what MQTT 5 sessions get.
    Merge,
    /// One delivery per subscription: what MQTT 3 sessions get, for whom no identifier could tell what
    /// was merged.
    Separate,
}

/// Appends to `out` what one session receives of a message published just now.
///
/// `matches` are those of this session only, as [`Matches::sessions`](crate::Matches::sessions) gives them.
/// `publisher` is the session that published; `None` for the broker itself. Allocates nothing that `out` has
/// capacity for, unless several identifiers are merged.
pub fn route<K: Copy + Eq>(
    message: &Arc<Message>,
    publisher: Option<K>,
    matches: &[Match<K>],
    overlap: Overlap,
    out: &mut Vec<Delivery>,
) {
    // [MQTT-3.8.3-3]
    let wanted = |m: &&Match<K>| !(m.subscription.no_local && publisher == Some(m.key));
    if overlap == Overlap::Separate || matches.len() == 1 {
        // [MQTT-3.3.4-5]
        out.extend(matches.iter().filter(wanted).map(|m| live(message, &m.subscription)));
        return;
    }
    let session = out.len();
    for Match { subscription, .. } in matches.iter().filter(wanted) {
        let delivery = live(message, subscription);
        match out[session..].iter_mut().find(|other| other.stream == delivery.stream) {
            Some(other) => {
                other.qos = other.qos.max(delivery.qos); // [MQTT-3.3.4-2]
                other.retain |= delivery.retain; // One asked to keep the flag, the other not for its absence.
                other.priority = other.priority.max(delivery.priority);
            }
            None => out.push(delivery),
        }
    }
    for delivery in &mut out[session..] {
        let on_stream = matches.iter().filter(wanted).filter(|m| m.subscription.stream == delivery.stream);
        let mut ids = on_stream.filter_map(|m| m.subscription.id);
        // [MQTT-3.3.4-3] [MQTT-3.3.4-4]
        delivery.subscription_ids = match (ids.next(), ids.next()) {
            (None, _) => SubscriptionIds::None,
            (Some(only), None) => SubscriptionIds::One(only),
            (Some(first), Some(second)) => {
                SubscriptionIds::Many([first, second].into_iter().chain(ids).collect())
            }
        };
    }
}

/// What the `member` that `group` selected receives of a message published just now.
///
/// It is apart from what its other subscriptions bring it. No Local cannot be asked for in a group
/// (`[MQTT-3.8.3-4]`).
pub fn route_shared<K>(message: &Arc<Message>, group: &Group<K>, member: &Match<K>) -> Delivery {
    Delivery { shared: Some(Arc::clone(group.filter())), ..live(message, &member.subscription) }
}

/// What a session receives of a retained message because it subscribed.
pub fn replay(message: &Arc<Message>, subscription: &Subscription) -> Delivery {
    deliver(message, true, subscription) // [MQTT3-3.3.1-8]
}

/// Whether a SUBSCRIBE is answered with the retained messages that match: by its Retain Handling, and by
/// whether it `replaced` a subscription. A shared subscription gets none (MQTT 4.8.2).
pub fn replays_at_subscribe(filter: &TopicFilter, subscription: &Subscription, replaced: bool) -> bool {
    !filter.is_shared()
        && match subscription.retain_handling {
            RetainHandling::SendAlways => true,     // [MQTT-3.3.1-9] [MQTT-3.8.4-4]
            RetainHandling::SendIfNew => !replaced, // [MQTT-3.3.1-10]
            RetainHandling::DoNotSend => false,     // [MQTT-3.3.1-11]
        }
}

fn live(message: &Arc<Message>, subscription: &Subscription) -> Delivery {
    // [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9]
    deliver(message, message.retain && subscription.retain_as_published, subscription)
}

fn deliver(message: &Arc<Message>, retain: bool, subscription: &Subscription) -> Delivery {
    Delivery {
        message: Arc::clone(message),
        qos: message.qos.min(subscription.qos), // [MQTT-3.8.4-8] [MQTT-4.8.2-3]
        retain,
        subscription_ids: subscription.id.map_or(SubscriptionIds::None, SubscriptionIds::One),
        stream: subscription.stream,
        priority: subscription.priority,
        shared: None,
        stored: None,
    }
}
