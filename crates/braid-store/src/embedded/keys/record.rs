use std::num::NonZeroU32;
use std::sync::Arc;

use braid_proto::message::SubscriptionIds;
use braid_proto::packet::{ClientId, QoS};
use braid_proto::session::{RetainHandling, SessionExpiry};
use braid_proto::stream::Priority;

use super::Place;
use super::filter;
use super::wire::{Malformed, Reader, flag, put_time, put_varint, qos};
use crate::embedded::writes::{Inflight, Phase};
use crate::identity::{Lsn, SessionId};
use crate::message::StoredDelivery;
use crate::session::SessionRecord;
use crate::subscription::{HIGHEST_ID, StoredSubscription};

const PARKED: u8 = 1 << 0;

pub(in crate::embedded) fn encode_session(out: &mut Vec<u8>, record: &SessionRecord) {
    out.extend_from_slice(&record.expiry.as_secs().to_be_bytes());
    out.push(flag(PARKED, record.parked_at.is_some()));
    if let Some(at) = record.parked_at {
        put_time(out, at);
    }
    out.extend_from_slice(record.client_id.as_str().as_bytes());
}

pub(in crate::embedded) fn decode_session(id: SessionId, value: &[u8]) -> Result<SessionRecord, Malformed> {
    let mut reader = Reader::new(value);
    let expiry = SessionExpiry::from_secs(reader.u32()?);
    let parked_at = if reader.u8()? & PARKED != 0 { Some(reader.time()?) } else { None };
    Ok(SessionRecord { id, client_id: ClientId::from(reader.rest_text()?), expiry, parked_at })
}

const NO_LOCAL: u8 = 1 << 2;
const RETAIN_AS_PUBLISHED: u8 = 1 << 3;
const RETAIN_HANDLING_AT: u8 = 4;
const ID: u8 = 1 << 6;
const OWN_PRIORITY: u8 = 1 << 7;

pub(in crate::embedded) fn encode_subscription(out: &mut Vec<u8>, subscription: &StoredSubscription) {
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

pub(in crate::embedded) fn decode_subscription(value: &[u8]) -> Result<StoredSubscription, Malformed> {
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
    let id = NonZeroU32::new(reader.u32()?).filter(|id| id.get() <= HIGHEST_ID);
    id.ok_or(Malformed("a subscription identifier"))
}

const RETAIN: u8 = 1 << 2;
const OTHER_MESSAGE: u8 = 1 << 3;
const IDS: u8 = 1 << 4;
const PRIORITY: u8 = 1 << 5;
const SHARED: u8 = 1 << 6;
const WAITS_SINCE: u8 = 1 << 7;

/// What is mostly so takes no byte: the message of the place's own number, the default priority, no identifiers, nobody
/// who asks since when it waits.
pub(in crate::embedded) fn encode_delivery(out: &mut Vec<u8>, (lsn, _): Place, delivery: &StoredDelivery) {
    let ids = delivery.subscription_ids.as_slice();
    let flags = delivery.qos.bits()
        | flag(RETAIN, delivery.retain)
        | flag(OTHER_MESSAGE, delivery.message != lsn)
        | flag(IDS, !ids.is_empty())
        | flag(PRIORITY, delivery.priority != Priority::DEFAULT)
        | flag(SHARED, delivery.shared.is_some())
        | flag(WAITS_SINCE, delivery.waits_since.is_some());
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
    if let Some(since) = delivery.waits_since {
        put_time(out, since);
    }
    if let Some(filter) = &delivery.shared {
        out.extend_from_slice(filter.as_str().as_bytes());
    }
}

pub(in crate::embedded) fn decode_delivery(
    (lsn, _): Place,
    value: &[u8],
) -> Result<StoredDelivery, Malformed> {
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
    let waits_since = if has(WAITS_SINCE) { Some(reader.time()?) } else { None };
    let shared = if has(SHARED) { Some(Arc::new(filter(reader.rest_text()?)?)) } else { None };
    reader.end()?;
    let (qos, retain) = (qos(flags)?, has(RETAIN));
    if qos == QoS::AtMostOnce {
        return Err(Malformed("a QoS above 0"));
    }
    Ok(StoredDelivery { message, qos, retain, subscription_ids, priority, shared, waits_since })
}

pub(in crate::embedded) fn encode_inflight(inflight: Inflight) -> [u8; 11] {
    let mut value = [0; 11];
    value[0] = match inflight.phase {
        Phase::Sent => 1,
        Phase::Released => 2,
    };
    value[1..3].copy_from_slice(&inflight.packet_id.value().to_be_bytes());
    value[3..].copy_from_slice(&inflight.step.to_be_bytes());
    value
}

pub(in crate::embedded) fn decode_inflight(value: &[u8; 11]) -> Result<Inflight, Malformed> {
    let mut reader = Reader::new(value);
    let phase = match reader.u8()? {
        1 => Phase::Sent,
        2 => Phase::Released,
        _ => return Err(Malformed("a phase")),
    };
    Ok(Inflight { phase, packet_id: reader.packet_id()?, step: reader.u64()? })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// A broker that asks for nothing of it writes a million rows of one byte.
    #[test]
    fn what_a_delivery_has_takes_bytes_and_nothing_else_does() {
        let (place, plain) =
            ((Lsn::new(7), SessionId::new(1)), StoredDelivery::new(Lsn::new(7), QoS::AtLeastOnce));
        let priority = Priority::HIGHEST;
        let shared = Some(Arc::new(filter("$share/g/t").unwrap()));
        let waits_since = Some(SystemTime::UNIX_EPOCH);
        let aged = StoredDelivery { waits_since, ..plain.clone() };
        for (delivery, bytes) in [
            (plain.clone(), 1),
            (aged.clone(), 13),
            (StoredDelivery { message: Lsn::new(3), ..aged.clone() }, 21),
            (StoredDelivery { priority, shared: shared.clone(), ..plain }, 13),
            (StoredDelivery { priority, shared, ..aged }, 25),
        ] {
            let mut value = Vec::new();
            encode_delivery(&mut value, place, &delivery);
            assert_eq!(value.len(), bytes, "{delivery:?}");
            assert_eq!(decode_delivery(place, &value), Ok(delivery));
        }
    }
}
