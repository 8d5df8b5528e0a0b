//! SUBSCRIBE and UNSUBSCRIBE.

use braid_proto::connection::Token;
use braid_proto::packet::{Subscribe, SubscribeEntry, Unsubscribe};
use braid_proto::reason::ReasonCode;
use braid_proto::session::Subscription;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use braid_router::replays_at_subscribe;
use braid_store::Change;

use super::Driver;
use crate::hub::FILTERS_AT_ONCE;

impl Driver {
    /// Subscribes to every filter that may be, and answers each. [MQTT-3.8.4-6]
    pub(super) fn subscribe(&mut self, subscribe: Subscribe) -> Option<Token> {
        let slot = self.slot.clone()?;
        let limit = self.hub.config.limits.subscriptions;
        let session = self.server.session_mut()?;
        let mut codes = Vec::with_capacity(subscribe.entries.len());
        let mut granted = Vec::with_capacity(subscribe.entries.len());
        for entry in subscribe.entries {
            let subscription = Subscription {
                qos: entry.qos,
                no_local: entry.no_local,
                retain_as_published: entry.retain_as_published,
                retain_handling: entry.retain_handling,
                id: subscribe.id,
                stream: StreamKey::CONTROL,
                priority: Priority::DEFAULT,
            };
            let SubscribeEntry { filter: Ok(filter), qos, .. } = entry else {
                codes.push(ReasonCode::TopicFilterInvalid);
                continue;
            };
            let count = session.subscriptions.len();
            if count >= limit && !session.subscriptions.contains_key(&filter) {
                codes.push(ReasonCode::QuotaExceeded);
                continue;
            }
            session.subscriptions.insert(filter.clone(), subscription); // [MQTT-3.8.4-3]
            codes.push(qos.into()); // [MQTT-3.8.4-7], [MQTT-3.9.3-1]
            granted.push((filter, subscription));
        }
        let mut replaced = Vec::with_capacity(granted.len());
        for some in granted.chunks(FILTERS_AT_ONCE) {
            self.hub.with_router(|router| {
                let one = |(filter, subscription): &(TopicFilter, Subscription)| {
                    router.subscribe(slot.key, filter, *subscription).is_some()
                };
                replaced.extend(some.iter().map(one));
            });
        }
        let token = self.server.suback(subscribe.packet_id, codes);
        for ((filter, subscription), replaced) in granted.iter().zip(replaced) {
            if replays_at_subscribe(filter, subscription, replaced) {
                self.begin_replay(filter.clone(), *subscription);
            }
        }
        if slot.is_durable() && !granted.is_empty() {
            let session = slot.id();
            let subscribed = |(filter, subscription)| Change::Subscribed { session, filter, subscription };
            let commit = self.hub.persist.commit(granted.into_iter().map(subscribed).collect());
            self.watch(Some(commit));
        }
        token
    }

    /// Removes the subscriptions and answers each filter. [MQTT-3.10.4-1], [MQTT-3.10.4-6]
    ///
    /// From here on nothing is added for them [MQTT-3.10.4-2]; what the session was given before goes its way
    /// [MQTT-3.10.4-3].
    pub(super) fn unsubscribe(&mut self, unsubscribe: &Unsubscribe) -> Option<Token> {
        let slot = self.slot.clone()?;
        let session = self.server.session_mut()?;
        let mut codes = Vec::with_capacity(unsubscribe.filters.len());
        for some in unsubscribe.filters.chunks(FILTERS_AT_ONCE) {
            self.hub.with_router(|router| {
                codes.extend(some.iter().map(|filter| {
                    let Ok(filter) = filter else { return ReasonCode::TopicFilterInvalid };
                    session.subscriptions.remove(filter);
                    match router.unsubscribe(slot.key, filter) {
                        Some(_) => ReasonCode::Success,
                        None => ReasonCode::NoSubscriptionExisted,
                    }
                }));
            });
        }
        if slot.is_durable() {
            let session = slot.id();
            let filters = unsubscribe.filters.iter().filter_map(|filter| filter.as_ref().ok());
            let changes: Vec<_> =
                filters.map(|filter| Change::Unsubscribed { session, filter: filter.clone() }).collect();
            let commit = (!changes.is_empty()).then(|| self.hub.persist.commit(changes));
            self.watch(commit);
        }
        self.server.unsuback(unsubscribe.packet_id, codes)
    }
}
