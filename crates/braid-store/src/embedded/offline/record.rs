//! Records of an export, one JSON line each.

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::time::SystemTime;

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{MessageProperties, PacketId, QoS};
use braid_proto::session::RetainHandling;
use braid_proto::topic::{TopicFilter, TopicName};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::super::codec::{join_time, split_time};
use crate::message::StoredMessage;
use crate::session::SUBSCRIPTION_ID_MAX;
use crate::write_set::Inflight;

/// Record of an export; the variants are in the order of the file. A session comes before its rows, a message before
/// its references. Unknown fields are refused, since a misspelt one would be lost.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Record {
    /// The first line.
    Store {
        format: u64,
        next_session: u64,
        next_lsn: u64,
    },
    Session {
        session: u64,
        client_id: Box<str>,
        /// Absent in format 1.
        #[serde(default)]
        identity: Option<Box<str>>,
        expiry: u32,
        parked_at: Option<Time>,
    },
    Will {
        session: u64,
        delay: u32,
        content: Content,
    },
    Subscription {
        session: u64,
        filter: Box<str>,
        qos: u8,
        no_local: bool,
        retain_as_published: bool,
        retain_handling: u8,
        id: Option<NonZeroU32>,
        priority: Option<u16>,
    },
    Received {
        session: u64,
        packet_id: u16,
        exchanges: NonZeroU16,
    },
    Message {
        lsn: u64,
        content: Content,
    },
    Queued {
        session: u64,
        lsn: u64,
        message: u64,
        qos: u8,
        retain: bool,
        subscription_ids: Vec<NonZeroU32>,
        priority: u16,
        shared: Option<Box<str>>,
        /// Present where queues have a limit by age.
        #[serde(rename = "waits_since", default, skip_serializing_if = "Option::is_none")]
        enqueued_at: Option<Time>,
        sent: Option<Step>,
    },
    Released {
        session: u64,
        lsn: u64,
        step: Step,
    },
    /// The topic is the message's.
    Retained {
        message: u64,
    },
    /// The last line, without which the file is incomplete.
    End {
        records: u64,
    },
}

impl Record {
    /// The lowest and the highest of the record's numbers that a broker counts up, from 1 on; `None` without any.
    pub(super) fn numbers(&self) -> Option<RangeInclusive<u64>> {
        let both = |one: u64, other: u64| one.min(other)..=one.max(other);
        Some(match self {
            Self::Store { next_session, next_lsn, .. } => both(*next_session, *next_lsn),
            Self::Session { session: number, .. } | Self::Message { lsn: number, .. } => *number..=*number,
            Self::Queued { lsn, sent, .. } => both(*lsn, sent.map_or(*lsn, |step| step.step)),
            Self::Released { lsn, step, .. } => both(*lsn, step.step),
            _ => return None,
        })
    }

    /// Bytes of the payload; 0 without one.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Message { content, .. } | Self::Will { content, .. } => content.size(),
            _ => 0,
        }
    }
}

/// Fields that a message and a Will share.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    topic: Box<str>,
    qos: u8,
    retain: bool,
    /// Present if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Box<str>>,
    /// Present otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_hex: Option<Box<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    properties: Option<Properties>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Time>,
    /// Present in retained messages whose publisher is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    publisher: Option<Box<str>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Properties {
    payload_format: Option<bool>,
    message_expiry: Option<u32>,
    content_type: Option<Box<str>>,
    response_topic: Option<Box<str>>,
    correlation_data_hex: Option<Box<str>>,
    user: Vec<(Box<str>, Box<str>)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    pub(super) packet_id: u16,
    /// Order of sending and releasing, over the whole store.
    pub(super) step: u64,
}

impl Step {
    pub(super) fn of(inflight: &Inflight) -> Self {
        Self { packet_id: inflight.packet_id.value(), step: inflight.step }
    }
}

/// Seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Time(i64, u32);

/// Reason why a record cannot be imported.
pub(super) type Invalid = &'static str;

impl Time {
    pub(super) fn of(time: SystemTime) -> Self {
        let (seconds, nanoseconds) = split_time(time);
        Self(seconds, nanoseconds)
    }

    pub(super) fn time(self) -> Result<SystemTime, Invalid> {
        join_time(self.0, self.1).ok_or("a time is out of range")
    }
}

pub(super) fn retain_handling(value: u8) -> Result<RetainHandling, Invalid> {
    match value {
        0 => Ok(RetainHandling::SendAlways),
        1 => Ok(RetainHandling::SendIfNew),
        2 => Ok(RetainHandling::DoNotSend),
        _ => Err("there is no such retain handling"),
    }
}

pub(super) fn subscription_id(id: NonZeroU32) -> Result<NonZeroU32, Invalid> {
    if id.get() <= SUBSCRIPTION_ID_MAX {
        Ok(id)
    } else {
        Err("a subscription identifier is at most 268435455")
    }
}

pub(super) fn subscription_ids(ids: Vec<NonZeroU32>) -> Result<SubscriptionIds, Invalid> {
    let ids = ids.into_iter().map(subscription_id).collect::<Result<Box<[_]>, _>>()?;
    Ok(match *ids {
        [] => SubscriptionIds::None,
        [id] => SubscriptionIds::One(id),
        _ => SubscriptionIds::Many(ids),
    })
}

impl Content {
    pub(super) fn of_message(message: &StoredMessage) -> Self {
        let payload = message.payload();
        let text = std::str::from_utf8(payload).ok();
        Self {
            topic: message.topic().as_str().into(),
            qos: message.qos().bits(),
            retain: message.retain(),
            payload: text.map(Into::into),
            payload_hex: if text.is_some() { None } else { Some(hex(payload)) },
            properties: message.properties().map(Properties::of),
            expires_at: message.expires_at().map(Time::of),
            publisher: message.publisher().map(|publisher| (&**publisher).into()),
        }
    }

    pub(super) fn message(self) -> Result<StoredMessage, Invalid> {
        let publisher = self.publisher.as_deref().map(Into::into);
        let message = StoredMessage::from_parts(
            topic(&self.topic)?,
            self.bytes()?,
            qos(self.qos)?,
            self.retain,
            self.properties.map(Properties::properties).transpose()?,
            self.expires_at.map(Time::time).transpose()?,
        );
        Ok(message.with_publisher(publisher))
    }

    /// Bytes of the payload's text.
    fn size(&self) -> usize {
        self.payload.as_ref().or(self.payload_hex.as_ref()).map_or(0, |text| text.len())
    }

    fn bytes(&self) -> Result<Bytes, Invalid> {
        match (&self.payload, &self.payload_hex) {
            (Some(text), None) => Ok(Bytes::copy_from_slice(text.as_bytes())),
            (None, Some(hex)) => unhex(hex),
            _ => Err("there must be one of payload and payload_hex"),
        }
    }
}

impl Properties {
    fn of(properties: &MessageProperties) -> Self {
        Self {
            payload_format: properties.payload_format,
            message_expiry: properties.message_expiry,
            content_type: properties.content_type.clone(),
            response_topic: properties.response_topic.as_ref().map(|topic| topic.as_str().into()),
            correlation_data_hex: properties.correlation_data.as_deref().map(hex),
            user: properties.user.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }

    fn properties(self) -> Result<Box<MessageProperties>, Invalid> {
        Ok(Box::new(MessageProperties {
            payload_format: self.payload_format,
            message_expiry: self.message_expiry,
            content_type: self.content_type,
            response_topic: self.response_topic.map(|name| topic(&name)).transpose()?,
            correlation_data: self.correlation_data_hex.map(|hex| unhex(&hex)).transpose()?,
            user: self.user.into_iter().collect(),
        }))
    }
}

pub(super) fn topic(text: &str) -> Result<TopicName, Invalid> {
    TopicName::parse(text).map_err(|_| "a topic name is not valid")
}

pub(super) fn filter(text: &str) -> Result<TopicFilter, Invalid> {
    TopicFilter::parse(text).map_err(|_| "a topic filter is not valid")
}

pub(super) fn qos(bits: u8) -> Result<QoS, Invalid> {
    QoS::from_bits(bits).ok_or("there is no such QoS")
}

/// QoS of a queue entry.
pub(super) fn queued_qos(bits: u8) -> Result<QoS, Invalid> {
    match qos(bits)? {
        QoS::AtMostOnce => Err("QoS 0 is never queued"),
        qos => Ok(qos),
    }
}

pub(super) fn packet_id(value: u16) -> Result<PacketId, Invalid> {
    PacketId::new(value).ok_or("a packet identifier cannot be 0")
}

fn hex(bytes: &[u8]) -> Box<str> {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xF)]).collect::<String>().into()
}

fn unhex(text: &str) -> Result<Bytes, Invalid> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes.filter(|_| rest.is_empty()).map(Bytes::from).ok_or("hexadecimal digits come in pairs")
}
