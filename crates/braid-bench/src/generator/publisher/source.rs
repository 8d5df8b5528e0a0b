use std::time::Duration;

use braid_proto::message::{Message, SharedMessage};
use braid_proto::packet::QoS;
use braid_proto::topic::{TopicError, TopicName};
use bytes::Bytes;

use crate::emqtt::{MessageTemplate, PayloadHeaders, PayloadTemplate, TopicTemplate};
use crate::generator::client_identity::ClientIdentity;
use crate::generator::plan::{Payload, PublishedTopic};
use crate::generator::shared::Shared;

/// Up to this many bytes a payload is copied behind its headers, rather than sent as a part of its own.
const COPY_LIMIT: usize = 1024;

/// Messages of one client to one topic.
#[derive(Debug)]
pub(super) struct Source {
    name: Name,
    body: Body,
    headers: PayloadHeaders,
    qos: QoS,
    retain: bool,
    /// The message, if they are all the same: then sending one costs a copy of its encoded form.
    same: Option<SharedMessage>,
}

#[derive(Debug)]
enum Name {
    Fixed(TopicName),
    Changing(TopicTemplate),
}

#[derive(Debug)]
enum Body {
    Template(PayloadTemplate),
    Filled(MessageTemplate, usize),
}

impl Source {
    pub(super) fn new(
        topic: &PublishedTopic,
        headers: &PayloadHeaders,
        identity: &mut ClientIdentity,
        shared: &Shared,
    ) -> Result<Self, TopicError> {
        let name = if topic.template.changes_per_message() {
            Name::Changing(topic.template.clone())
        } else {
            Name::Fixed(TopicName::parse(&identity.fill(&topic.template, 0))?)
        };
        let body = match &topic.payload {
            Payload::Spec(spec) => Body::Template(shared.payload(spec, identity.placeholder_values())),
            Payload::Message(message, size) => match message.constant() {
                Some(constant) => Body::Template(PayloadTemplate::constant(constant.clone())),
                None => Body::Filled(message.clone(), *size),
            },
        };
        let takes_headers = match &body {
            Body::Template(template) => template.takes_headers(),
            Body::Filled(..) => true,
        };
        let headers = if takes_headers { headers.clone() } else { PayloadHeaders::default() };
        let (qos, retain) = (topic.qos, topic.retain);
        let same = match (&name, &body) {
            (Name::Fixed(name), Body::Template(template))
                if headers.is_empty() && !template.has_timestamp() =>
            {
                let parts = template.segments(&[], Duration::ZERO);
                Some(SharedMessage::new(message(name.clone(), parts, qos, retain)))
            }
            _ => None,
        };
        Ok(Self { name, body, headers, qos, retain, same })
    }

    pub(super) fn qos(&self) -> QoS {
        self.qos
    }

    /// The message that was due at `due` (since the Unix epoch) and is number `counter` (from 0) of its client and
    /// topic.
    ///
    /// # Errors
    /// The topic is none.
    pub(super) fn message(
        &self,
        due: Duration,
        counter: u64,
        identity: &mut ClientIdentity,
        shared: &Shared,
    ) -> Result<SharedMessage, TopicError> {
        if let Some(same) = &self.same {
            return Ok(SharedMessage::clone(same));
        }
        let name = match &self.name {
            Name::Fixed(name) => name.clone(),
            Name::Changing(template) => {
                TopicName::parse(&identity.fill(template, shared.next_in_sequence()))?
            }
        };
        let mut headers = Vec::with_capacity(self.headers.len());
        self.headers.put(&mut headers, counter, due);
        let parts = match &self.body {
            Body::Template(template) => template.segments(&headers, due),
            Body::Filled(template, size) => behind(headers, template.fill(due, *size, identity)),
        };
        Ok(SharedMessage::new(message(name, parts, self.qos, self.retain)))
    }
}

fn behind(mut headers: Vec<u8>, body: Bytes) -> Vec<Bytes> {
    if headers.is_empty() {
        return vec![body];
    }
    if body.len() <= COPY_LIMIT {
        headers.extend_from_slice(&body);
        return vec![headers.into()];
    }
    vec![headers.into(), body]
}

/// The parts are sent by reference, however large they are and however many messages have them.
fn message(name: TopicName, parts: Vec<Bytes>, qos: QoS, retain: bool) -> Message {
    let mut parts = parts.into_iter();
    let first = parts.next().unwrap_or_default();
    Message::new(name, first, qos, retain).with_rest(parts.collect::<Vec<_>>())
}
