//! Publication: a message to publish.

use std::time::{Duration, Instant};

use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::{MessageProperties, QoS, Will};
use braid_proto::stream::{Choice, Placement, Priority, StreamPolicy, Subject};
use braid_proto::topic::{TopicError, TopicName};
use bytes::Bytes;

/// Message to publish: topic and payload; QoS 0 without RETAIN by default.
///
/// ```
/// use braid_client::{Publication, QoS};
///
/// let publication = Publication::to("sensors/7/temperature", "21.5")?
///     .qos(QoS::AtLeastOnce)
///     .retain(true)
///     .content_type("text/plain");
/// # Ok::<(), braid_client::TopicError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publication {
    pub(crate) topic: TopicName,
    pub(crate) payload: Bytes,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    properties: MessageProperties,
    choice: Choice,
    pub(crate) is_unreliable: bool,
}

impl Publication {
    /// Message to the topic with this name.
    ///
    /// # Errors
    /// The name breaks a rule of MQTT 4.7.
    pub fn to(topic: &str, payload: impl Into<Bytes>) -> Result<Self, TopicError> {
        Ok(Self::new(TopicName::parse(topic)?, payload))
    }

    /// Message to a parsed topic.
    pub fn new(topic: TopicName, payload: impl Into<Bytes>) -> Self {
        let payload = payload.into();
        let (properties, choice) = (MessageProperties::default(), Choice::default());
        let (qos, retain, is_unreliable) = (QoS::AtMostOnce, false, false);
        Self { topic, payload, qos, retain, properties, choice, is_unreliable }
    }

    /// Replaces the payload.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// The Quality of Service.
    #[must_use]
    pub fn qos(mut self, qos: QoS) -> Self {
        self.qos = qos;
        self
    }

    /// RETAIN: whether the server keeps the message for later subscribers.
    #[must_use]
    pub fn retain(mut self, retain: bool) -> Self {
        self.retain = retain;
        self
    }

    /// All properties at once (MQTT 5, 3.3.2.3); MQTT 3 leaves them out.
    #[must_use]
    pub fn properties(mut self, properties: MessageProperties) -> Self {
        self.properties = properties;
        self
    }

    /// Message Expiry Interval from now on, rounded up to whole seconds (MQTT 5). Without it the message never expires.
    /// If a message on a stream of its own expires while it is sent, the stream is reset and the message fails with
    /// [`Error::Expired`](crate::Error::Expired).
    #[must_use]
    pub fn expires_after(mut self, interval: Duration) -> Self {
        self.properties.message_expiry = Some(whole_seconds(interval));
        self
    }

    /// Content Type of the payload, such as a MIME type (MQTT 5).
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<Box<str>>) -> Self {
        self.properties.content_type = Some(content_type.into());
        self
    }

    /// Response Topic (MQTT 5).
    #[must_use]
    pub fn response_topic(mut self, topic: TopicName) -> Self {
        self.properties.response_topic = Some(topic);
        self
    }

    /// Correlation Data, which the response carries too (MQTT 5).
    #[must_use]
    pub fn correlation_data(mut self, correlation_data: impl Into<Bytes>) -> Self {
        self.properties.correlation_data = Some(correlation_data.into());
        self
    }

    /// Adds a User Property; names may repeat (MQTT 5).
    #[must_use]
    pub fn user_property(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.properties.user.push(name.as_ref(), value.as_ref());
        self
    }

    /// Priority within this client: higher is sooner. The policy of the client decides by default. The priority is not
    /// sent; on a link of one stream it is the order in which messages leave the queue.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.choice.priority = Some(priority);
        self
    }

    /// Sends the message on the client's data stream `number` instead of that of the policy; 0 is the control stream.
    /// Messages of one stream and one priority keep their order. Links other than QUIC have only the control stream.
    #[must_use]
    pub fn stream(mut self, number: u32) -> Self {
        self.choice.stream = Some(number);
        self
    }

    /// Whether the message, with QoS 0 and without RETAIN, may travel in a datagram of QUIC, which is sent once: for
    /// values that the next one replaces. What is lost delays nothing, and the order is not kept. While the path is
    /// slower than the application, the oldest messages of the lowest priority are dropped. Needs
    /// [`Builder::datagrams`](crate::Builder::datagrams); otherwise, and if it does not fit into a packet, the message
    /// travels as any other.
    #[must_use]
    pub fn unreliable(mut self) -> Self {
        self.is_unreliable = true;
        self
    }

    /// Delivery to send, and its placement by `policy`.
    pub(crate) fn into_delivery(self, policy: &StreamPolicy, now: Instant) -> (Delivery, Placement) {
        let properties = self.properties.boxed();
        let subject = Subject::Message { topic: &self.topic, qos: self.qos, payload_len: self.payload.len() };
        let placement = policy.place(subject, self.choice);
        let message = Message::new(self.topic, self.payload, self.qos, self.retain);
        let message = SharedMessage::new(message.with_properties(properties, now));
        (Delivery { priority: placement.priority, ..Delivery::of(message) }, placement)
    }

    pub(crate) fn into_will(self, delay: Duration) -> Will {
        Will {
            topic: self.topic,
            payload: self.payload,
            qos: self.qos,
            retain: self.retain,
            delay: whole_seconds(delay),
            properties: self.properties.boxed(),
        }
    }
}

/// Whole seconds of a duration, rounded up: an interval of 0 has another meaning than a short one.
pub(crate) fn whole_seconds(duration: Duration) -> u32 {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_rounded_up_to_whole_seconds() {
        let seconds = [0, 1, 999, 1000, 1001].map(|millis| whole_seconds(Duration::from_millis(millis)));
        assert_eq!(seconds, [0, 1, 1, 1, 2]);
        assert_eq!(whole_seconds(Duration::MAX), u32::MAX);
    }
}
