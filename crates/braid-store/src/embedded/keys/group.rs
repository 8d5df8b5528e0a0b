use super::wire::{Malformed, Reader, put_bytes};
use super::{
    decode_delivery, decode_inflight, decode_message, decode_message_key, decode_place, decode_received,
    decode_received_key, decode_retained_key, decode_session, decode_subscription, decode_subscription_key,
    decode_will, encode_delivery, encode_inflight, encode_message, encode_session, encode_subscription,
    encode_will, message_key, place_key, received_key, session_key, subscription_key,
};
use crate::embedded::writes::{Belongings, Write, Writes};
use crate::identity::{Lsn, SessionId};
use crate::recover::NextIds;

const CLOSED: u8 = 0;
const SESSION: u8 = 1;
const WILL: u8 = 2;
const SUBSCRIPTION: u8 = 3;
const RECEIVED: u8 = 4;
const MESSAGE: u8 = 5;
const QUEUE: u8 = 6;
const INFLIGHT: u8 = 7;
const RETAINED: u8 = 8;
const NEXT: u8 = 9;

const TABLE: u8 = 0x0F;
const PUT: u8 = 1 << 4;
const NEW: u8 = 1 << 5;

/// False when it would take more than `limit` bytes; then what was appended is a part of it.
#[must_use]
pub(in crate::embedded) fn encode_group(out: &mut Vec<u8>, writes: &Writes, limit: usize) -> bool {
    let begin = out.len();
    let is_within = |out: &Vec<u8>, more: usize| (out.len() - begin).saturating_add(more) <= limit;
    for session in &writes.closed {
        out.push(CLOSED);
        out.extend_from_slice(&session_key(*session));
    }
    for (session, write) in writes.sessions.iter() {
        put(out, SESSION, write, |out| out.extend_from_slice(&session_key(*session)), encode_session);
    }
    for (session, belongings) in &writes.belongings {
        encode_belongings(out, *session, belongings);
    }
    for (lsn, write) in writes.messages.iter() {
        // A large payload is not copied to learn that it is one.
        if !is_within(out, write.value().map_or(0, |message| message.payload().len())) {
            return false;
        }
        put(out, MESSAGE, write, |out| out.extend_from_slice(&message_key(*lsn)), encode_message);
    }
    for (place, write) in writes.queue.iter() {
        put(
            out,
            QUEUE,
            write,
            |out| out.extend_from_slice(&place_key(*place)),
            |out, delivery| encode_delivery(out, *place, delivery),
        );
        // Nor is a queue of a million, which is closed, listed for that.
        if !is_within(out, 0) {
            return false;
        }
    }
    for (place, write) in writes.inflight.iter() {
        put(
            out,
            INFLIGHT,
            write,
            |out| out.extend_from_slice(&place_key(*place)),
            |out, inflight| out.extend_from_slice(&encode_inflight(*inflight)),
        );
    }
    for (topic, write) in writes.retained.iter() {
        put(
            out,
            RETAINED,
            write,
            |out| put_bytes(out, topic.as_str().as_bytes()),
            |out, message| out.extend_from_slice(&message_key(*message)),
        );
    }
    if let Some(next) = writes.next {
        out.push(NEXT);
        out.extend_from_slice(&next.session.value().to_be_bytes());
        out.extend_from_slice(&next.lsn.value().to_be_bytes());
    }
    is_within(out, 0)
}

fn encode_belongings(out: &mut Vec<u8>, session: SessionId, belongings: &Belongings) {
    let Belongings { will, subscriptions, received } = belongings;
    if let Some(will) = will {
        let key = |out: &mut Vec<u8>| out.extend_from_slice(&session_key(session));
        put(out, WILL, will, key, |out, will| encode_will(out, will));
    }
    for (filter, write) in subscriptions.iter() {
        let key = |out: &mut Vec<u8>| put_bytes(out, &subscription_key(session, filter));
        put(out, SUBSCRIPTION, write, key, encode_subscription);
    }
    for (packet_id, write) in received.iter() {
        let key = |out: &mut Vec<u8>| out.extend_from_slice(&received_key(session, packet_id.value()));
        put(out, RECEIVED, write, key, |out, exchanges| {
            out.extend_from_slice(&exchanges.get().to_be_bytes())
        });
    }
}

fn put<V>(
    out: &mut Vec<u8>,
    table: u8,
    write: &Write<V>,
    key: impl FnOnce(&mut Vec<u8>),
    value: impl FnOnce(&mut Vec<u8>, &V),
) {
    let how = match write {
        Write::New(_) => NEW,
        Write::Put(_) => PUT,
        Write::Remove => 0,
    };
    out.push(table | how);
    key(out);
    if let Some(stored) = write.value() {
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        value(out, stored);
        // No packet is so long that it does not fit.
        let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

pub(in crate::embedded) fn decode_group(bytes: &[u8]) -> Result<Writes, Malformed> {
    let mut writes = Writes::default();
    let mut reader = Reader::new(bytes);
    while !reader.is_at_end() {
        decode_row(&mut reader, &mut writes)?;
    }
    Ok(writes)
}

fn decode_row(reader: &mut Reader<'_>, writes: &mut Writes) -> Result<(), Malformed> {
    let tag = reader.u8()?;
    match tag & TABLE {
        CLOSED => {
            writes.closed.insert(SessionId::new(reader.u64()?));
        }
        SESSION => {
            let session = SessionId::new(reader.u64()?);
            writes.sessions.apply(session, write(tag, reader, |value| decode_session(session, value))?);
        }
        WILL => {
            let session = SessionId::new(reader.u64()?);
            let will = write(tag, reader, |value| decode_will(value).map(Into::into))?;
            writes.belongings(session).will = Some(will);
        }
        SUBSCRIPTION => {
            let (session, filter) = decode_subscription_key(reader.bytes()?)?;
            let subscription = write(tag, reader, decode_subscription)?;
            writes.belongings(session).subscriptions.apply(filter, subscription);
        }
        RECEIVED => {
            let (session, packet_id) = decode_received_key(&reader.array()?)?;
            let count = |value: &[u8]| {
                decode_received(value.try_into().map_err(|_| Malformed("a number of exchanges"))?)
            };
            let received = write(tag, reader, count)?;
            writes.belongings(session).received.apply(packet_id, received);
        }
        MESSAGE => {
            let lsn = decode_message_key(&reader.array()?);
            writes.messages.apply(lsn, write(tag, reader, decode_message)?);
        }
        QUEUE => {
            let place = decode_place(&reader.array()?)?;
            writes.queue.apply(place, write(tag, reader, |value| decode_delivery(place, value))?);
        }
        INFLIGHT => {
            let place = decode_place(&reader.array()?)?;
            let inflight = |value: &[u8]| decode_inflight(value.try_into().map_err(|_| Malformed("a step"))?);
            writes.inflight.apply(place, write(tag, reader, inflight)?);
        }
        RETAINED => {
            let topic = decode_retained_key(reader.bytes()?)?;
            let message = |value: &[u8]| {
                value.try_into().map(decode_message_key).map_err(|_| Malformed("the number of a message"))
            };
            writes.retained.apply(topic, write(tag, reader, message)?);
        }
        NEXT => {
            let (session, lsn) = (SessionId::new(reader.u64()?), Lsn::new(reader.u64()?));
            writes.next = Some(NextIds { session, lsn });
        }
        _ => return Err(Malformed("a table")),
    }
    Ok(())
}

fn write<V>(
    tag: u8,
    reader: &mut Reader<'_>,
    decode: impl FnOnce(&[u8]) -> Result<V, Malformed>,
) -> Result<Write<V>, Malformed> {
    match tag & !TABLE {
        0 => Ok(Write::Remove),
        PUT => decode(reader.value()?).map(Write::Put),
        NEW => decode(reader.value()?).map(Write::New),
        _ => Err(Malformed("what becomes of a row")),
    }
}
