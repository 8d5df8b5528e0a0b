//! What to subscribe to.

use std::num::NonZeroU32;

use braid_proto::packet::{QoS, SubscribeEntry, UserProperties};
use braid_proto::session::RetainHandling;
use braid_proto::topic::{TopicError, TopicFilter};

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
        Self { entries, id: None, user: UserProperties::new() }
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

    fn each(mut self, change: impl Fn(&mut SubscribeEntry)) -> Self {
        self.entries.iter_mut().for_each(change);
        self
    }
}
