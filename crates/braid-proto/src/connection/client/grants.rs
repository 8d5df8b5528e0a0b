use std::num::NonZeroU32;

use thiserror::Error;

use crate::message::Delivery;
use crate::packet::{ConnackProperties, QoS, SubscribeEntry};

/// What the server said in CONNACK that it can do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grants {
    maximum_qos: QoS,
    retain: bool,
    wildcards: bool,
    subscription_ids: bool,
    shared: bool,
}

/// Why something is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsendable {
    /// There is no connection.
    #[error("there is no connection")]
    NotConnected,
    /// All 65,535 Packet Identifiers are in use.
    #[error("all packet identifiers are in use: wait for an acknowledgement")]
    NoPacketId,
    /// Larger than the server's Maximum Packet Size.
    #[error("the packet is larger than the server's maximum packet size: send less at once")]
    TooLarge,
    /// The server's Maximum QoS is lower. [MQTT-3.2.2-11]
    #[error("the server takes messages of QoS {0} at most: publish with that")]
    QosNotSupported(QoS),
    /// The server keeps no retained messages. [MQTT-3.2.2-14]
    #[error("the server keeps no retained messages: publish without retain")]
    RetainNotSupported,
    /// The server has no wildcard subscriptions.
    #[error("the server has no wildcard subscriptions: subscribe to the topics by name")]
    WildcardsNotSupported,
    /// The server has no Subscription Identifiers.
    #[error("the server has no subscription identifiers: subscribe without one")]
    SubscriptionIdsNotSupported,
    /// The server has no shared subscriptions.
    #[error("the server has no shared subscriptions: subscribe without $share")]
    SharedNotSupported,
    /// No Local on a shared subscription. [MQTT-3.8.3-4]
    #[error("no local is not allowed on a shared subscription: leave it out")]
    NoLocalOnShared,
}

impl Grants {
    /// What a CONNACK with these properties grants: what it does not mention is there.
    pub(super) fn of(properties: &ConnackProperties) -> Self {
        Self {
            maximum_qos: properties.maximum_qos.unwrap_or(QoS::ExactlyOnce),
            retain: properties.retain_available.unwrap_or(true),
            wildcards: properties.wildcard_subscription_available.unwrap_or(true),
            subscription_ids: properties.subscription_identifiers_available.unwrap_or(true),
            shared: properties.shared_subscription_available.unwrap_or(true),
        }
    }

    pub(super) fn check_publish(&self, delivery: &Delivery) -> Result<(), Unsendable> {
        if delivery.qos > self.maximum_qos {
            return Err(Unsendable::QosNotSupported(self.maximum_qos)); // [MQTT-3.2.2-11]
        }
        if delivery.retain && !self.retain {
            return Err(Unsendable::RetainNotSupported); // [MQTT-3.2.2-14]
        }
        Ok(())
    }

    pub(super) fn check_subscribe(
        &self,
        entries: &[SubscribeEntry],
        id: Option<NonZeroU32>,
    ) -> Result<(), Unsendable> {
        if id.is_some() && !self.subscription_ids {
            return Err(Unsendable::SubscriptionIdsNotSupported);
        }
        for entry in entries {
            let Ok(filter) = &entry.filter else { continue };
            if filter.is_shared() && !self.shared {
                return Err(Unsendable::SharedNotSupported);
            }
            if filter.is_shared() && entry.no_local {
                return Err(Unsendable::NoLocalOnShared); // [MQTT-3.8.3-4]
            }
            if filter.has_wildcard() && !self.wildcards {
                return Err(Unsendable::WildcardsNotSupported);
            }
        }
        Ok(())
    }
}
