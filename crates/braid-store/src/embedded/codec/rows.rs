//! Keys and values of the rows without a message.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{ClientId, PacketId, QoS};
use braid_proto::session::{RetainHandling, SessionExpiry};
use braid_proto::stream::Priority;
use braid_proto::topic::{TopicFilter, TopicName};

use super::bytes::{Malformed, Reader, concat, filter, flag, put_bytes, put_time, put_varint, qos, topic};
use super::message::{decode_message_key, message_key};
use crate::ids::{Lsn, SessionId};
use crate::message::StoredDelivery;
use crate::session::{SUBSCRIPTION_ID_MAX, SessionRecord, StoredSubscription};
use crate::write_set::{Inflight, Phase, QueueKey};

pub(crate) const fn session_key(session: SessionId) -> [u8; 8] {
    session.value().to_be_bytes()
}

pub(crate) fn chunk_key(message: Lsn, number: u32) -> [u8; 12] {
    concat(&message_key(message), &number.to_be_bytes())
}

pub(crate) fn queue_key((lsn, session): QueueKey) -> [u8; 16] {
    concat(&message_key(lsn), &session_key(session))
}

pub(crate) fn subscription_key(session: SessionId, filter: &TopicFilter) -> Vec<u8> {
    [&session_key(session), filter.as_str().as_bytes()].concat()
}

pub(crate) fn received_key(session: SessionId, packet_id: u16) -> [u8; 10] {
    concat(&session_key(session), &packet_id.to_be_bytes())
}

pub(crate) fn decode_chunk_key(key: &[u8; 12]) -> Result<(Lsn, u32), Malformed> {
    let mut reader = Reader::new(key);
    Ok((Lsn::new(reader.u64()?), reader.u32()?))
}

pub(super) fn decode_queue_key(key: &[u8; 16]) -> Result<QueueKey, Malformed> {
    let mut reader = Reader::new(key);
    Ok((Lsn::new(reader.u64()?), SessionId::new(reader.u64()?)))
}

pub(super) fn decode_subscription_key(key: &[u8]) -> Result<(SessionId, TopicFilter), Malformed> {
    let mut reader = Reader::new(key);
    let session = SessionId::new(reader.u64()?);
    Ok((session, filter(reader.rest_text()?)?))
}

pub(super) fn decode_received_key(key: &[u8; 10]) -> Result<(SessionId, PacketId), Malformed> {
    let mut reader = Reader::new(key);
    Ok((SessionId::new(reader.u64()?), reader.packet_id()?))
}

/// Number of exchanges with the identifier.
pub(super) fn decode_received(value: &[u8]) -> Result<NonZeroU16, Malformed> {
    let exchanges = value.try_into().map_or(0, u16::from_be_bytes);
    NonZeroU16::new(exchanges).ok_or(Malformed("a number of exchanges"))
}

pub(super) fn decode_retained_key(key: &[u8]) -> Result<TopicName, Malformed> {
    topic(Reader::new(key).rest_text()?)
}

pub(crate) fn session_row(key: &[u8; 8], value: &[u8]) -> Result<SessionRecord, Malformed> {
    decode_session(SessionId::new(u64::from_be_bytes(*key)), value)
}

pub(crate) fn subscription_row(
    key: &[u8],
    value: &[u8],
) -> Result<(SessionId, TopicFilter, StoredSubscription), Malformed> {
    let (session, filter) = decode_subscription_key(key)?;
    Ok((session, filter, decode_subscription(value)?))
}

pub(crate) fn received_row(
    key: &[u8; 10],
    value: &[u8; 2],
) -> Result<(SessionId, PacketId, NonZeroU16), Malformed> {
    let (session, packet_id) = decode_received_key(key)?;
    Ok((session, packet_id, decode_received(value)?))
}

pub(crate) fn queue_row(key: &[u8; 16], value: &[u8]) -> Result<(QueueKey, StoredDelivery), Malformed> {
    let key = decode_queue_key(key)?;
    Ok((key, decode_delivery(key, value)?))
}

pub(crate) fn inflight_row(key: &[u8; 16], value: &[u8; 11]) -> Result<(QueueKey, Inflight), Malformed> {
    Ok((decode_queue_key(key)?, decode_inflight(value)?))
}

pub(crate) fn retained_row(key: &[u8], value: &[u8; 8]) -> Result<(TopicName, Lsn), Malformed> {
    Ok((decode_retained_key(key)?, decode_message_key(value)))
}

const PARKED: u8 = 1 << 0;
const IDENTITY: u8 = 1 << 1;

pub(crate) fn encode_session(out: &mut Vec<u8>, record: &SessionRecord) {
    out.extend_from_slice(&record.expiry.as_secs().to_be_bytes());
    out.push(flag(PARKED, record.parked_at.is_some()) | flag(IDENTITY, record.identity.is_some()));
    if let Some(at) = record.parked_at {
        put_time(out, at);
    }
    if let Some(identity) = &record.identity {
        put_bytes(out, identity.as_bytes());
    }
    out.extend_from_slice(record.client_id.as_str().as_bytes());
}

pub(super) fn decode_session(id: SessionId, value: &[u8]) -> Result<SessionRecord, Malformed> {
    let mut reader = Reader::new(value);
    let expiry = SessionExpiry::from_secs(reader.u32()?);
    let flags = reader.u8()?;
    let parked_at = if flags & PARKED != 0 { Some(reader.time()?) } else { None };
    let identity = if flags & IDENTITY != 0 { Some(reader.text()?.into()) } else { None };
    Ok(SessionRecord { id, client_id: ClientId::from(reader.rest_text()?), identity, expiry, parked_at })
}

const NO_LOCAL: u8 = 1 << 2;
const RETAIN_AS_PUBLISHED: u8 = 1 << 3;
const RETAIN_HANDLING_AT: u8 = 4;
const ID: u8 = 1 << 6;
const OWN_PRIORITY: u8 = 1 << 7;

pub(crate) fn encode_subscription(out: &mut Vec<u8>, subscription: &StoredSubscription) {
    out.push(
        subscription.qos.bits()
            | flag(NO_LOCAL, subscription.no_local)
            | flag(RETAIN_AS_PUBLISHED, subscription.retain_as_published)
            | (subscription.retain_handling as u8) << RETAIN_HANDLING_AT
            | flag(ID, subscription.id.is_some())
            | flag(OWN_PRIORITY, subscription.priority.is_some()),
    );
    if let Some(id) = subscription.id {
        out.extend_from_slice(&id.get().to_be_bytes());
    }
    if let Some(priority) = subscription.priority {
        out.extend_from_slice(&priority.value().to_be_bytes());
    }
}

pub(super) fn decode_subscription(value: &[u8]) -> Result<StoredSubscription, Malformed> {
    let mut reader = Reader::new(value);
    let flags = reader.u8()?;
    let subscription = StoredSubscription {
        qos: qos(flags)?,
        no_local: flags & NO_LOCAL != 0,
        retain_as_published: flags & RETAIN_AS_PUBLISHED != 0,
        retain_handling: match flags >> RETAIN_HANDLING_AT & 0b11 {
            0 => RetainHandling::SendAlways,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(Malformed("a retain handling")),
        },
        id: if flags & ID != 0 { Some(subscription_id(&mut reader)?) } else { None },
        priority: if flags & OWN_PRIORITY != 0 { Some(Priority::new(reader.u16()?)) } else { None },
    };
    reader.end()?;
    Ok(subscription)
}

fn subscription_id(reader: &mut Reader<'_>) -> Result<NonZeroU32, Malformed> {
    let id = NonZeroU32::new(reader.u32()?).filter(|id| id.get() <= SUBSCRIPTION_ID_MAX);
    id.ok_or(Malformed("a subscription identifier"))
}

const RETAIN: u8 = 1 << 2;
const OTHER_MESSAGE: u8 = 1 << 3;
const IDS: u8 = 1 << 4;
const PRIORITY: u8 = 1 << 5;
const SHARED: u8 = 1 << 6;
const ENQUEUED_AT: u8 = 1 << 7;

/// Common values take no byte: the message with the entry's own number, the default priority, no identifiers, no
/// queueing time.
pub(crate) fn encode_delivery(out: &mut Vec<u8>, (lsn, _): QueueKey, delivery: &StoredDelivery) {
    let ids = delivery.subscription_ids.as_slice();
    let flags = delivery.qos.bits()
        | flag(RETAIN, delivery.retain)
        | flag(OTHER_MESSAGE, delivery.message != lsn)
        | flag(IDS, !ids.is_empty())
        | flag(PRIORITY, delivery.priority != Priority::DEFAULT)
        | flag(SHARED, delivery.shared.is_some())
        | flag(ENQUEUED_AT, delivery.enqueued_at.is_some());
    out.push(flags);
    if flags & OTHER_MESSAGE != 0 {
        out.extend_from_slice(&delivery.message.value().to_be_bytes());
    }
    if flags & IDS != 0 {
        put_varint(out, ids.len());
        for id in ids {
            out.extend_from_slice(&id.get().to_be_bytes());
        }
    }
    if flags & PRIORITY != 0 {
        out.extend_from_slice(&delivery.priority.value().to_be_bytes());
    }
    if let Some(since) = delivery.enqueued_at {
        put_time(out, since);
    }
    if let Some(filter) = &delivery.shared {
        out.extend_from_slice(filter.as_str().as_bytes());
    }
}

pub(crate) fn decode_delivery((lsn, _): QueueKey, value: &[u8]) -> Result<StoredDelivery, Malformed> {
    let mut reader = Reader::new(value);
    let flags = reader.u8()?;
    let has = |bit| flags & bit != 0;
    let message = if has(OTHER_MESSAGE) { Lsn::new(reader.u64()?) } else { lsn };
    let mut subscription_ids = SubscriptionIds::None;
    if has(IDS) {
        let count = reader.varint()?;
        let ids: Result<Box<[_]>, _> = (0..count).map(|_| subscription_id(&mut reader)).collect();
        let ids = ids?;
        subscription_ids = match *ids {
            [id] => SubscriptionIds::One(id),
            _ => SubscriptionIds::Many(ids),
        };
    }
    let priority = if has(PRIORITY) { Priority::new(reader.u16()?) } else { Priority::DEFAULT };
    let enqueued_at = if has(ENQUEUED_AT) { Some(reader.time()?) } else { None };
    let shared = if has(SHARED) { Some(Arc::new(filter(reader.rest_text()?)?)) } else { None };
    reader.end()?;
    let (qos, retain) = (qos(flags)?, has(RETAIN));
    if qos == QoS::AtMostOnce {
        return Err(Malformed("a QoS above 0"));
    }
    Ok(StoredDelivery { message, qos, retain, subscription_ids, priority, shared, enqueued_at })
}

pub(crate) fn encode_inflight(inflight: Inflight) -> [u8; 11] {
    let mut value = [0; 11];
    value[0] = match inflight.phase {
        Phase::Sent => 1,
        Phase::Released => 2,
    };
    value[1..3].copy_from_slice(&inflight.packet_id.value().to_be_bytes());
    value[3..].copy_from_slice(&inflight.step.to_be_bytes());
    value
}

pub(super) fn decode_inflight(value: &[u8]) -> Result<Inflight, Malformed> {
    let mut reader = Reader::new(value);
    let phase = match reader.u8()? {
        1 => Phase::Sent,
        2 => Phase::Released,
        _ => return Err(Malformed("a phase")),
    };
    let inflight = Inflight { phase, packet_id: reader.packet_id()?, step: reader.u64()? };
    reader.end()?;
    Ok(inflight)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// A broker that uses none of the options writes a million rows of one byte.
    #[test]
    fn only_uncommon_values_of_a_delivery_take_bytes() {
        let key = (Lsn::new(7), SessionId::new(1));
        let plain = StoredDelivery::new(Lsn::new(7), QoS::AtLeastOnce);
        let priority = Priority::HIGHEST;
        let shared = Some(Arc::new(filter("$share/g/t").unwrap()));
        let enqueued_at = Some(SystemTime::UNIX_EPOCH);
        let aged = StoredDelivery { enqueued_at, ..plain.clone() };
        for (delivery, bytes) in [
            (plain.clone(), 1),
            (aged.clone(), 13),
            (StoredDelivery { message: Lsn::new(3), ..aged.clone() }, 21),
            (StoredDelivery { priority, shared: shared.clone(), ..plain }, 13),
            (StoredDelivery { priority, shared, ..aged }, 25),
        ] {
            let mut value = Vec::new();
            encode_delivery(&mut value, key, &delivery);
            assert_eq!(value.len(), bytes, "{delivery:?}");
            assert_eq!(decode_delivery(key, &value), Ok(delivery));
        }
    }
}
