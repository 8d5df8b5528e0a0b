//! SUBSCRIBE, UNSUBSCRIBE, and the subscriptions of a stream that ends.

use std::sync::Arc;

use braid_proto::connection::{Server, Token};
use braid_proto::packet::{Subscribe, SubscribeEntry, Unsubscribe, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Subscription, Subscriptions};
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::{TopicError, TopicFilter};
use braid_router::replays_at_subscribe;
use braid_store::{Change, StoredSubscription};

use super::ack_pipeline::AckPipeline;
use super::retained_sender::RetainedSender;
use crate::auth::ClientAccess;
use crate::config::LimitsConfig;
use crate::core::Core;
use crate::limit::Limit;
use crate::persist;
use crate::registry::SessionEntry;
use crate::routing::FILTERS_AT_ONCE;
use crate::view::BrokerEvent;

/// User Property of a SUBSCRIBE: the priority of its deliveries. [BQ-52]
const PRIORITY: &str = "braid-priority";

/// Memory of a subscription without its filter, in its session and in the router, bytes, about: 210 to 370 were
/// measured.
const SUBSCRIPTION: usize = 384;

/// Memory of a level of a filter with wildcards in the router when its tables have just doubled, bytes: twice the 56 of
/// a node, and sixteen sevenths of the 17 of the edge to it. 75 to 140 were measured.
const LEVEL: usize = 152;

/// The priority that a client gets for the deliveries of a filter: one above the default needs permission.
fn granted_priority(
    access: &ClientAccess,
    filter: &TopicFilter,
    asked: Option<Priority>,
) -> Option<Priority> {
    asked.map(|asked| {
        let is_granted = asked <= Priority::DEFAULT || access.may_prioritize(filter);
        if is_granted { asked } else { Priority::DEFAULT }
    })
}

/// Filters of SUBSCRIBE and UNSUBSCRIBE packets in one turn, some 50 us: a packet may have tens of thousands, and one
/// read may have as many packets.
pub(super) const FILTERS_IN_TURN: usize = 32;

/// Filters that one turn checks against rules that have changed: a session may have ten thousand.
const RECHECKED_IN_TURN: usize = 256;

/// Filters of a SUBSCRIBE or UNSUBSCRIBE that are handled.
#[derive(Default)]
pub(super) struct FilterProgress {
    /// Codes, in the order of the filters.
    codes: Vec<ReasonCode>,
    /// Priority that the SUBSCRIBE asks for.
    priority: Option<Priority>,
    /// Subscriptions that are to get retained messages: those of one packet get each message once.
    replayed: Vec<Granted>,
}

/// Check of the subscriptions of a session against rules that have changed, in several turns.
pub(super) struct Recheck {
    /// Filters that are not checked yet.
    unchecked: Vec<TopicFilter>,
}

impl Recheck {
    pub(super) const fn is_over(&self) -> bool {
        self.unchecked.is_empty()
    }
}

/// Result of a turn of a SUBSCRIBE or UNSUBSCRIBE.
pub(super) enum Handled {
    /// Later turns handle the rest of its filters.
    Partly,
    /// Its answer waits for the token; `None` if there is none to be sent.
    Wholly(Option<Token>),
}

/// Subscription that a SUBSCRIBE was granted.
#[derive(Clone)]
struct Granted {
    filter: TopicFilter,
    subscription: Subscription,
    /// The filter has no subscription on the control stream, or no longer. [BQ-43]
    has_left_control: bool,
}

/// Parts of a connection that requests for subscriptions change.
pub(super) struct SubscriptionHandler<'a> {
    pub(super) core: &'a Core,
    pub(super) entry: &'a Arc<SessionEntry>,
    pub(super) access: &'a ClientAccess,
    /// Whether priorities that clients ask for have no effect.
    pub(super) ignores_priorities: bool,
    pub(super) server: &'a mut Server,
    pub(super) retained: &'a mut RetainedSender,
    pub(super) acks: &'a mut AckPipeline,
    pub(super) progress: &'a mut Option<Box<FilterProgress>>,
}

impl SubscriptionHandler<'_> {
    /// Subscribes a stream to the next filters that are allowed, and answers each. [MQTT-3.8.4-6], [BQ-15]
    ///
    /// Handles at most `filters_left` filters, and subtracts them.
    ///
    /// If the stream has ended since, [`SubscriptionHandler::redirect`] or the end of the connection follows.
    pub(super) fn subscribe(
        mut self,
        on: StreamKey,
        subscribe: &Subscribe,
        filters_left: &mut usize,
    ) -> Handled {
        let entry = self.entry;
        let packet_id = subscribe.packet_id;
        if self.progress.is_none() {
            match priority_asked(&subscribe.user) {
                Ok(asked) => {
                    let priority = asked.filter(|_| !self.ignores_priorities);
                    *self.progress = Some(Box::new(FilterProgress { priority, ..FilterProgress::default() }));
                }
                Err(value) => {
                    let client = entry.client_id.as_str();
                    tracing::debug!(client, %on, value, "SUBSCRIBE refused: {PRIORITY} is no number from 0 to 65535");
                    *filters_left = filters_left.saturating_sub(1);
                    let codes = vec![ReasonCode::ImplementationSpecificError; subscribe.entries.len()];
                    return Handled::Wholly(self.server.suback(on, packet_id, codes)); // [BQ-52]
                }
            }
        }
        let Some(granted) = self.grant(on, subscribe, filters_left) else { return Handled::Wholly(None) };
        self.record_subscribed(&granted);
        let progress = self.progress.get_or_insert_default();
        // Before they are there: a message behind this position is matched by them.
        let since = self.core.persist.store().positions();
        self.core.routing.change(|router| {
            for some in &granted {
                let Granted { filter, subscription, has_left_control } = some;
                let same = router.subscribe(entry.key, filter, *subscription);
                let unbound = has_left_control
                    .then(|| router.unsubscribe(entry.key, filter, StreamKey::CONTROL)) // [BQ-43]
                    .flatten();
                if replays_at_subscribe(filter, subscription, same.or(unbound).is_some()) {
                    progress.replayed.push(some.clone());
                }
            }
        });
        let handled = if progress.codes.len() < subscribe.entries.len() {
            Handled::Partly
        } else {
            let FilterProgress { codes, replayed, .. } = *self.progress.take().unwrap_or_default();
            let replayed = self.still_subscribed(replayed);
            let token = self.server.suback(on, packet_id, codes);
            // The messages that the control stream has not sent yet are among those of the new cursors.
            let left = replayed.iter().filter(|granted| granted.has_left_control);
            self.retained.cancel(left.map(|granted| (&granted.filter, StreamKey::CONTROL)).collect());
            let begun = replayed.into_iter().map(|granted| (granted.filter, granted.subscription));
            self.retained.begin(begun.collect());
            Handled::Wholly(token)
        };
        if entry.is_durable() && !granted.is_empty() {
            let session = entry.id();
            let subscribed = |granted: Granted| Change::Subscribed {
                session,
                filter: granted.filter,
                subscription: StoredSubscription::of(&granted.subscription),
                since: Some(since.clone()),
            };
            let commit = self.core.persist.commit(granted.into_iter().map(subscribed).collect());
            self.acks.wait_for(Some(commit));
        }
        handled
    }

    fn record_subscribed(&self, granted: &[Granted]) {
        if granted.is_empty() {
            return;
        }
        self.core.lifecycle.events.record(|| BrokerEvent::Subscribed {
            client: (&self.entry.client_id).into(),
            filters: granted.iter().map(|one| (one.filter.clone(), one.subscription.qos)).collect(),
        });
    }

    /// Subscriptions that the session still has, as they are by now: the rules may have changed between two turns of
    /// their SUBSCRIBE.
    fn still_subscribed(&mut self, mut all: Vec<Granted>) -> Vec<Granted> {
        let Some(session) = self.server.session_mut() else { return Vec::new() };
        all.retain_mut(|Granted { filter, subscription, .. }| {
            let on = subscription.stream;
            let current = session.subscriptions.of(filter).find(|current| current.stream == on);
            current.map(|current| *subscription = *current).is_some()
        });
        all
    }

    /// Adds the next subscriptions that are allowed to the session. The codes are in the order of the entries.
    fn grant(
        &mut self,
        on: StreamKey,
        subscribe: &Subscribe,
        filters_left: &mut usize,
    ) -> Option<Vec<Granted>> {
        let LimitsConfig { subscriptions: most, subscription_bytes: most_bytes, .. } =
            self.core.config.limits;
        let session = self.server.session_mut()?;
        let (subscriptions, outlives) = (&mut session.subscriptions, session.expiry.outlives_connection());
        let FilterProgress { codes, priority, .. } = &mut **self.progress.get_or_insert_default();
        let (before, priority) = (codes.len(), *priority);
        let mut granted = Vec::new();
        for entry in subscribe.entries.iter().skip(before).take(*filters_left) {
            let subscription = Subscription {
                qos: entry.qos,
                no_local: entry.no_local,
                retain_as_published: entry.retain_as_published,
                retain_handling: entry.retain_handling,
                id: subscribe.id,
                stream: on,
                priority,
                bound: true,
            };
            let SubscribeEntry { filter, qos, .. } = entry;
            let filter = match filter {
                Ok(filter) => filter,
                Err(error) => {
                    codes.push(refuse_filter(self.core, *error));
                    continue;
                }
            };
            if !self.access.may_subscribe(filter) {
                codes.push(ReasonCode::NotAuthorized);
                continue;
            }
            if !self.core.routing.cluster().takes_filter(filter) {
                codes.push(ReasonCode::TopicFilterInvalid);
                continue;
            }
            let subscription =
                Subscription { priority: granted_priority(self.access, filter, priority), ..subscription };
            let (count, bytes) = (subscriptions.len() + 1, subscriptions.bytes() + filter.as_str().len());
            let is_taken = || !outlives || self.core.routing.cluster().takes_subscriptions(count, bytes);
            let limit = if subscriptions.len() >= most {
                Some(Limit::Subscriptions)
            } else {
                let is_within = bytes_with(subscriptions, filter) <= most_bytes && is_taken();
                (!is_within).then_some(Limit::SubscriptionBytes)
            };
            if let Some(limit) = limit.filter(|_| !subscriptions.replaces(filter, on)) {
                self.core.statistics.reach(limit);
                codes.push(ReasonCode::QuotaExceeded);
                continue;
            }
            subscriptions.insert(filter.clone(), subscription); // [MQTT-3.8.4-3], [BQ-16], [BQ-43]
            codes.push((*qos).into()); // [MQTT-3.8.4-7], [MQTT-3.9.3-1]
            let has_left_control = !on.is_control() && !subscriptions.replaces(filter, StreamKey::CONTROL);
            granted.push(Granted { filter: filter.clone(), subscription, has_left_control });
        }
        *filters_left -= codes.len() - before;
        Some(granted)
    }

    /// Removes the next subscriptions and answers each filter. [MQTT-3.10.4-1], [MQTT-3.10.4-6], [BQ-17]
    ///
    /// From here on no message is added for them [MQTT-3.10.4-2]; deliveries in the queue are still
    /// sent [MQTT-3.10.4-3]. Handles at most `filters_left` filters, and subtracts them.
    pub(super) fn unsubscribe(
        self,
        on: StreamKey,
        unsubscribe: &Unsubscribe,
        filters_left: &mut usize,
    ) -> Handled {
        let entry = self.entry;
        let is_strict = self.core.config.streams.strict_streams;
        let Some(session) = self.server.session_mut() else { return Handled::Wholly(None) };
        let subscriptions = &mut session.subscriptions;
        let codes = &mut self.progress.get_or_insert_default().codes;
        let before = codes.len();
        let mut ended = Vec::new();
        self.core.routing.change(|router| {
            for filter in unsubscribe.filters.iter().skip(before).take(*filters_left) {
                let filter = match filter {
                    Ok(filter) => filter,
                    Err(error) => {
                        codes.push(refuse_filter(self.core, *error));
                        continue;
                    }
                };
                let removed = if is_strict {
                    subscriptions.remove_on(filter, on).into_iter().collect()
                } else {
                    subscriptions.remove(filter)
                };
                codes.push(match removed.is_empty() {
                    false => ReasonCode::Success,
                    true => ReasonCode::NoSubscriptionExisted,
                });
                for subscription in removed {
                    router.unsubscribe(entry.key, filter, subscription.stream);
                    ended.push((filter.clone(), subscription.stream));
                }
            }
        });
        *filters_left -= codes.len() - before;
        if entry.is_durable() && !ended.is_empty() {
            let filters = ended.iter().map(|(filter, _)| filter.clone()).collect();
            // Only a strict UNSUBSCRIBE leaves subscriptions of the filter.
            let left = is_strict.then_some(&*subscriptions);
            let commit = self.core.persist.commit(persist::ended_subscriptions(entry.id(), left, filters));
            self.acks.wait_for(Some(commit));
        }
        if !ended.is_empty() {
            self.core.lifecycle.events.record(|| BrokerEvent::Unsubscribed {
                client: (&entry.client_id).into(),
                filters: ended.iter().map(|(filter, _)| filter.clone()).collect(),
            });
        }
        self.retained.cancel(ended.iter().map(|(filter, stream)| (filter, *stream)).collect());
        if codes.len() < unsubscribe.filters.len() {
            return Handled::Partly;
        }
        let codes = std::mem::take(codes);
        *self.progress = None;
        Handled::Wholly(self.server.unsuback(on, unsubscribe.packet_id, codes))
    }

    /// Begins to check all subscriptions against the rules; `None` if there is nothing to check.
    pub(super) fn begin_recheck(self) -> Option<Box<Recheck>> {
        let session = self.server.session_mut().filter(|_| self.access.has_rules())?;
        let mut unchecked: Vec<_> = session.subscriptions.iter().map(|(filter, _)| filter.clone()).collect();
        unchecked.dedup();
        (!unchecked.is_empty()).then(|| Box::new(Recheck { unchecked }))
    }

    /// Ends the subscriptions that are not permitted any more, and the priorities, for as many filters as one turn may
    /// check.
    pub(super) fn recheck(self, recheck: &mut Recheck) {
        let entry = self.entry;
        let Some(session) = self.server.session_mut() else { return };
        let subscriptions = &mut session.subscriptions;
        let (mut denied, mut lowered) = (Vec::new(), Vec::new());
        // A stream that ended since the beginning has left its subscriptions to another: all of a filter are checked.
        let next = recheck.unchecked.split_off(recheck.unchecked.len().saturating_sub(RECHECKED_IN_TURN));
        let subscribed =
            next.iter().flat_map(|filter| subscriptions.of(filter).map(move |some| (filter, some)));
        for (filter, subscription) in subscribed {
            let priority = granted_priority(self.access, filter, subscription.priority);
            if !self.access.may_subscribe(filter) {
                denied.push((filter.clone(), subscription.stream));
            } else if priority != subscription.priority {
                lowered.push((filter.clone(), Subscription { priority, ..*subscription }));
            }
        }
        for some in denied.chunks(FILTERS_AT_ONCE) {
            self.core.routing.change(|router| {
                for (filter, stream) in some {
                    subscriptions.remove_on(filter, *stream);
                    router.unsubscribe(entry.key, filter, *stream);
                }
            });
        }
        for some in lowered.chunks(FILTERS_AT_ONCE) {
            self.core.routing.change(|router| {
                for (filter, subscription) in some {
                    subscriptions.update(filter, *subscription);
                    router.subscribe(entry.key, filter, *subscription);
                }
            });
        }
        self.retained.cancel(denied.iter().map(|(filter, stream)| (filter, *stream)).collect());
        if entry.is_durable() {
            let session = entry.id();
            let ended = denied.into_iter().map(|(filter, _)| Change::Unsubscribed { session, filter });
            let changed = lowered.into_iter().map(|(filter, subscription)| Change::Subscribed {
                session,
                filter,
                subscription: StoredSubscription::of(&subscription),
                since: None,
            });
            self.core.persist.commit_unwatched(ended.chain(changed).collect());
        }
    }

    /// Moves the subscriptions of a stream that has ended, and their retained messages, to the control stream. [BQ-42]
    pub(super) fn redirect(self, ended: StreamKey) {
        let Some(session) = self.server.session_mut() else { return };
        let moved = session.subscriptions.unbind(ended);
        self.core.sessions.move_subscriptions(self.entry, &session.subscriptions, &moved);
        self.retained.redirect(ended);
    }
}

/// Reason Code for a string that is no Topic Filter. Counts the limit that it exceeds, if it does.
fn refuse_filter(core: &Core, error: TopicError) -> ReasonCode {
    if let Some(limit) = Limit::of_topic(error) {
        core.statistics.reach(limit);
    }
    ReasonCode::TopicFilterInvalid
}

/// Memory of the subscriptions of a session with one more, bytes, about. The text counts twice: the router keeps a copy
/// of long levels.
fn bytes_with(subscriptions: &Subscriptions, filter: &TopicFilter) -> usize {
    let text = subscriptions.bytes() + filter.as_str().len();
    let levels = subscriptions.wildcard_levels() + filter.wildcard_levels();
    (subscriptions.len() + 1) * SUBSCRIPTION + 2 * text + levels * LEVEL
}

/// Priority that a SUBSCRIBE asks for; the last of several.
///
/// # Errors
/// The value, if it is no priority.
fn priority_asked(user: &UserProperties) -> Result<Option<Priority>, &str> {
    let Some((_, value)) = user.iter().filter(|(name, _)| *name == PRIORITY).last() else { return Ok(None) };
    value.parse().map(|number| Some(Priority::new(number))).map_err(|_| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(properties: &[(&str, &str)]) -> Result<Option<u16>, String> {
        let user = properties.iter().copied().collect();
        priority_asked(&user).map(|asked| asked.map(Priority::value)).map_err(str::to_owned)
    }

    /// [BQ-52]
    #[test]
    fn the_last_priority_of_a_subscribe_counts() {
        assert_eq!(asked(&[]), Ok(None));
        assert_eq!(asked(&[("braid-priority", "0")]), Ok(Some(0)));
        assert_eq!(
            asked(&[("x", "1"), ("braid-priority", "7"), ("braid-priority", "65535")]),
            Ok(Some(65_535))
        );
        assert_eq!(asked(&[("braid-priority", "high"), ("braid-priority", "7")]), Ok(Some(7)));
        assert_eq!(asked(&[("Braid-Priority", "high")]), Ok(None));
    }

    #[test]
    fn a_value_that_is_no_priority_is_returned() {
        for value in ["", "high", "-1", "65536", " 7", "7.0", "0x10"] {
            assert_eq!(asked(&[("braid-priority", value)]), Err(value.to_owned()));
        }
    }
}
