//! Subscription request.

use std::num::NonZeroU32;

use braid_proto::packet::{QoS, SubscribeEntry, UserProperties};
use braid_proto::session::RetainHandling;
use braid_proto::stream::{LogicalStream, Priority};
use braid_proto::topic::{TopicError, TopicFilter};

/// User Property with which a subscription requests a priority. [BQ-52]
const PRIORITY_PROPERTY: &str = "braid-priority";

/// Request of one SUBSCRIBE: one or several Topic Filters with their options.
///
/// ```
/// use braid_client::{QoS, Subscribe};
///
/// let subscribe = Subscribe::to("sensors/+/temperature")?.qos(QoS::AtLeastOnce).no_local(true);
/// # Ok::<(), braid_client::TopicError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Subscribe {
    pub(crate) entries: Vec<SubscribeEntry>,
    pub(crate) id: Option<NonZeroU32>,
    pub(crate) user: UserProperties,
    /// 0 is the control stream.
    pub(crate) stream: u32,
}

impl Subscribe {
    /// Subscribes to one filter, with a maximum QoS of 2.
    ///
    /// # Errors
    /// The filter breaks a rule of MQTT 4.7 or 4.8.2.
    pub fn to(filter: &str) -> Result<Self, TopicError> {
        Ok(Self::new([TopicFilter::parse(filter)?]))
    }

    /// Subscribes to several filters, with a maximum QoS of 2.
    pub fn new(filters: impl IntoIterator<Item = TopicFilter>) -> Self {
        let entries =
            filters.into_iter().map(|filter| SubscribeEntry::new(filter, QoS::ExactlyOnce)).collect();
        Self { entries, id: None, user: UserProperties::new(), stream: 0 }
    }

    /// The filters, in their order.
    pub fn filters(&self) -> impl Iterator<Item = &TopicFilter> {
        self.entries.iter().filter_map(|entry| entry.filter.as_ref().ok())
    }

    /// Whether there is no filter at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Maximum QoS of deliveries. All options apply to every filter of this request.
    #[must_use]
    pub fn qos(self, qos: QoS) -> Self {
        self.each(|entry| entry.qos = qos)
    }

    /// No Local: leaves out messages that this client publishes (MQTT 5).
    #[must_use]
    pub fn no_local(self, no_local: bool) -> Self {
        self.each(|entry| entry.no_local = no_local)
    }

    /// Retain As Published: keeps the RETAIN flag of the publisher (MQTT 5).
    #[must_use]
    pub fn retain_as_published(self, keep: bool) -> Self {
        self.each(|entry| entry.retain_as_published = keep)
    }

    /// Retain Handling: when retained messages are sent (MQTT 5).
    #[must_use]
    pub fn retain_handling(self, handling: RetainHandling) -> Self {
        self.each(|entry| entry.retain_handling = handling)
    }

    /// Subscription Identifier of deliveries, 1..=268,435,455 (MQTT 5).
    #[must_use]
    pub fn id(mut self, id: NonZeroU32) -> Self {
        self.id = Some(id);
        self
    }

    /// Adds a User Property for the server (MQTT 5).
    #[must_use]
    pub fn user_property(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.user.push(name.as_ref(), value.as_ref());
        self
    }

    /// Subscribes on the client's data stream `number`, so that deliveries do not wait behind those of other streams;
    /// 0, the default, is the control stream. Links other than QUIC have only that one. [BQ-15]
    ///
    /// The stream is opened when it is needed, and again after a reconnect or after it has ended. The same filter on
    /// two streams gives two copies of each message. [BQ-16]
    #[must_use]
    pub fn stream(mut self, number: u32) -> Self {
        self.stream = number;
        self
    }

    /// Requests a priority for these deliveries among all for this client, with a User Property that BraidMQ brokers
    /// understand (MQTT 5). The server's rules decide by default. [BQ-52]
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.user = self.user.iter().filter(|(name, _)| *name != PRIORITY_PROPERTY).collect();
        self.user_property(PRIORITY_PROPERTY, priority.value().to_string())
    }

    pub(crate) fn logical(&self) -> LogicalStream {
        LogicalStream::numbered(self.stream)
    }

    /// Splits the request into one for each filter, in their order.
    pub(crate) fn into_singles(self) -> impl DoubleEndedIterator<Item = Self> {
        let Self { entries, id, user, stream } = self;
        entries.into_iter().map(move |entry| Self { entries: vec![entry], id, user: user.clone(), stream })
    }

    /// Whether the first filter of the request is `filter`.
    pub(crate) fn is_for(&self, filter: &TopicFilter) -> bool {
        self.entries.first().is_some_and(|entry| entry.filter.as_ref() == Ok(filter))
    }

    fn each(mut self, change: impl Fn(&mut SubscribeEntry)) -> Self {
        self.entries.iter_mut().for_each(change);
        self
    }
}
