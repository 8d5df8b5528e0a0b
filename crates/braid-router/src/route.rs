//! Deliveries to one session: Message x Subscription -> Delivery.

use std::sync::Arc;

use braid_proto::message::{Delivery, SharedMessage, SubscriptionIds};
use braid_proto::session::{RetainHandling, Subscription};
use braid_proto::topic::TopicFilter;

use crate::group::Group;
use crate::runs::Match;

/// Treatment of several matching subscriptions of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// One delivery for each stream with all Subscription Identifiers, for sessions of MQTT 5.
    Merge,
    /// One delivery for each subscription, for sessions of MQTT 3, which have no Subscription Identifiers.
    Separate,
}

/// Appends to `out` the deliveries of a message that is published now to one session.
///
/// `matches` are those of this session only, as [`Matches::sessions`](crate::Matches::sessions) yields them:
/// those of one stream are neighbours. `publisher` is the session that published; `None` for the broker itself.
/// Allocates nothing that `out` has capacity for, unless several identifiers are merged.
pub fn route<K: Copy + Eq>(
    message: &SharedMessage,
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
    // [BQ-16] One copy for each stream.
    for on_stream in matches.chunk_by(|a, b| a.subscription.stream == b.subscription.stream) {
        let subscriptions = on_stream.iter().filter(wanted).map(|m| &m.subscription);
        out.extend(merged(message, subscriptions));
    }
}

/// Delivery for all `subscriptions` of one stream; `None` when there are none.
fn merged<'a>(
    message: &SharedMessage,
    subscriptions: impl Iterator<Item = &'a Subscription> + Clone,
) -> Option<Delivery> {
    let mut rest = subscriptions.clone();
    let mut delivery = live(message, rest.next()?);
    let mut is_one = true;
    for subscription in rest {
        let other = live(message, subscription);
        delivery.qos = delivery.qos.max(other.qos); // [MQTT-3.3.4-2]
        delivery.retain |= other.retain; // One subscription keeps the flag.
        delivery.priority = delivery.priority.max(other.priority);
        is_one = false;
    }
    if !is_one {
        let mut ids = subscriptions.filter_map(|subscription| subscription.id);
        // [MQTT-3.3.4-3] [MQTT-3.3.4-4]
        delivery.subscription_ids = match (ids.next(), ids.next()) {
            (None, _) => SubscriptionIds::None,
            (Some(only), None) => SubscriptionIds::One(only),
            (Some(first), Some(second)) => {
                SubscriptionIds::Many([first, second].into_iter().chain(ids).collect())
            }
        };
    }
    Some(delivery)
}

/// Delivery of a message that is published now to the `member` that `group` selected.
///
/// Independent of its other subscriptions. A group has no No Local
/// (`[MQTT-3.8.3-4]`).
pub fn route_shared<K>(message: &SharedMessage, group: &Group<K>, member: &Match<K>) -> Delivery {
    Delivery { shared: Some(Arc::clone(group.filter())), ..live(message, &member.subscription) }
}

/// Delivery of a retained message because of a SUBSCRIBE.
pub fn replay(message: &SharedMessage, subscription: &Subscription) -> Delivery {
    deliver(message, true, subscription) // [MQTT3-3.3.1-8]
}

/// Whether a SUBSCRIBE is answered with the matching retained messages: depends on its Retain Handling, and on
/// whether it `replaced` a subscription. A shared subscription gets none (MQTT 4.8.2).
pub fn replays_at_subscribe(filter: &TopicFilter, subscription: &Subscription, replaced: bool) -> bool {
    !filter.is_shared()
        && match subscription.retain_handling {
            RetainHandling::SendAlways => true,     // [MQTT-3.3.1-9] [MQTT-3.8.4-4]
            RetainHandling::SendIfNew => !replaced, // [MQTT-3.3.1-10]
            RetainHandling::DoNotSend => false,     // [MQTT-3.3.1-11]
        }
}

fn live(message: &SharedMessage, subscription: &Subscription) -> Delivery {
    // [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9]
    deliver(message, message.retain && subscription.retain_as_published, subscription)
}

fn deliver(message: &SharedMessage, retain: bool, subscription: &Subscription) -> Delivery {
    Delivery {
        message: SharedMessage::clone(message),
        qos: message.qos.min(subscription.qos), // [MQTT-3.8.4-8] [MQTT-4.8.2-3]
        retain,
        subscription_ids: subscription.id.map_or(SubscriptionIds::None, SubscriptionIds::One),
        stream: subscription.stream,                         // [BQ-15]
        priority: subscription.priority.unwrap_or_default(), // [BQ-52]
        shared: None,
        queue_lsn: None,
        enqueued_at: None,
        offline_charge: None,
    }
}
