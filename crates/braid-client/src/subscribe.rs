//! What to subscribe to.

use std::num::NonZeroU32;

use braid_proto::packet::{QoS, SubscribeEntry, UserProperties};
use braid_proto::session::RetainHandling;
use braid_proto::stream::{LogicalStream, Priority};
use braid_proto::topic::{TopicError, TopicFilter};

/// The User Property that asks for a place in the server's order of sending. [BQ-52]
const PRIORITY_PROPERTY: &str = "braid-priority";

/// One or several Topic Filters with their options: what one SUBSCRIBE asks for.
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
    /// The messages that match this filter, with QoS 2 at most.
    ///
    /// # Errors
    /// The filter breaks a rule of MQTT 4.7 or 4.8.2.
    pub fn to(filter: &str) -> Result<Self, TopicError> {
        Ok(Self::new([TopicFilter::parse(filter)?]))
    }

    /// The messages that match any of these filters, with QoS 2 at most.
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

    /// The most that deliveries may have. Like all options, for every filter of this request.
    #[must_use]
    pub fn qos(self, qos: QoS) -> Self {
        self.each(|entry| entry.qos = qos)
    }

    /// Not the messages that this client publishes (MQTT 5).
    #[must_use]
    pub fn no_local(self, no_local: bool) -> Self {
        self.each(|entry| entry.no_local = no_local)
    }

    /// Keeps the RETAIN flag as the publisher set it (MQTT 5).
    #[must_use]
    pub fn retain_as_published(self, keep: bool) -> Self {
        self.each(|entry| entry.retain_as_published = keep)
    }

    /// When retained messages come (MQTT 5).
    #[must_use]
    pub fn retain_handling(self, handling: RetainHandling) -> Self {
        self.each(|entry| entry.retain_handling = handling)
    }

    /// The Subscription Identifier that messages carry, 1..=268,435,455 (MQTT 5).
    #[must_use]
    pub fn id(mut self, id: NonZeroU32) -> Self {
        self.id = Some(id);
        self
    }

    /// Adds a User Property for the server (MQTT 5).
    #[must_use]
    pub fn user_property(mut self, name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        self.user.push((name.into(), value.into()));
        self
    }

    /// Lets the messages come on the data stream that this client calls `number`, so that they do not wait behind
    /// those of other streams; 0, the default, is the control stream. On a link that is not QUIC there is only
    /// that. [BQ-15]
    ///
    /// The stream is opened when it is needed, and again after a reconnect or when it was ended. The same filter on
    /// two streams gives two copies of each message. [BQ-16]
    #[must_use]
    pub fn stream(mut self, number: u32) -> Self {
        self.stream = number;
        self
    }

    /// How soon the server should send these messages, among all for this client: a User Property that brokers
    /// of this project understand (MQTT 5). Without it the server's own rules decide. [BQ-52]
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.user.retain(|(name, _)| &**name != PRIORITY_PROPERTY);
        self.user_property(PRIORITY_PROPERTY, priority.value().to_string())
    }

    pub(crate) fn logical(&self) -> LogicalStream {
        LogicalStream::numbered(self.stream)
    }

    /// The same as one request for each filter, in their order.
    pub(crate) fn into_singles(self) -> impl DoubleEndedIterator<Item = Self> {
        let Self { entries, id, user, stream } = self;
        entries.into_iter().map(move |entry| Self { entries: vec![entry], id, user: user.clone(), stream })
    }

    /// Of one that has one filter: whether it is this.
    pub(crate) fn is_for(&self, filter: &TopicFilter) -> bool {
        self.entries.first().is_some_and(|entry| entry.filter.as_ref() == Ok(filter))
    }

    fn each(mut self, change: impl Fn(&mut SubscribeEntry)) -> Self {
        self.entries.iter_mut().for_each(change);
        self
    }
}
