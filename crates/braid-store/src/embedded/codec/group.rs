//! Groups: write sets as they are in the records of the journal.

use super::bytes::{Malformed, Reader, put_bytes};
use super::message::{
    decode_message, decode_message_key, decode_will, encode_message_up_to, encode_will, message_key,
};
use super::rows::{
    decode_delivery, decode_inflight, decode_queue_key, decode_received, decode_received_key,
    decode_retained_key, decode_session, decode_subscription, decode_subscription_key, encode_delivery,
    encode_inflight, encode_session, encode_subscription, queue_key, received_key, session_key,
    subscription_key,
};
use crate::ids::{Lsn, NextIds, SessionId};
use crate::write_set::{SessionRows, Write, WriteSet};

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

/// Appends a group; false when it needs more than `limit` bytes, and `out` then has a part of it.
#[must_use]
pub(crate) fn encode_group(out: &mut Vec<u8>, writes: &WriteSet, limit: usize) -> bool {
    let begin = out.len();
    let fits = |out: &Vec<u8>, more: usize| (out.len() - begin).saturating_add(more) <= limit;
    for session in &writes.closed {
        out.push(CLOSED);
        out.extend_from_slice(&session_key(*session));
    }
    for (session, write) in writes.sessions.iter() {
        put(out, SESSION, write, &session_key(*session), encode_session);
    }
    for (session, rows) in &writes.session_rows {
        encode_session_rows(out, *session, rows);
    }
    for (lsn, write) in writes.messages.iter() {
        // Before a large payload is copied.
        if !fits(out, write.value().map_or(0, |message| message.payload().len())) {
            return false;
        }
        let encode = |out: &mut Vec<u8>, message: &_| encode_message_up_to(out, message, usize::MAX);
        put(out, MESSAGE, write, &message_key(*lsn), encode);
    }
    for (key, write) in writes.queue.iter() {
        put(out, QUEUE, write, &queue_key(*key), |out, delivery| encode_delivery(out, *key, delivery));
        // Before all entries of a closed queue, which may be a million, are encoded.
        if !fits(out, 0) {
            return false;
        }
    }
    for (key, write) in writes.inflight.iter() {
        let encode = |out: &mut Vec<u8>, inflight: &_| out.extend_from_slice(&encode_inflight(*inflight));
        put(out, INFLIGHT, write, &queue_key(*key), encode);
    }
    for (topic, write) in writes.retained.iter() {
        let encode = |out: &mut Vec<u8>, message: &Lsn| out.extend_from_slice(&message_key(*message));
        put(out, RETAINED, write, &prefixed(topic.as_str().as_bytes()), encode);
    }
    if let Some(next) = writes.next {
        out.push(NEXT);
        out.extend_from_slice(&next.session.value().to_be_bytes());
        out.extend_from_slice(&next.lsn.value().to_be_bytes());
    }
    fits(out, 0)
}

fn encode_session_rows(out: &mut Vec<u8>, session: SessionId, rows: &SessionRows) {
    if let Some(will) = &rows.will {
        put(out, WILL, will, &session_key(session), |out, will| encode_will(out, will));
    }
    for (filter, write) in rows.subscriptions.iter() {
        let key = prefixed(&subscription_key(session, filter));
        put(out, SUBSCRIPTION, write, &key, encode_subscription);
    }
    for (packet_id, write) in rows.received.iter() {
        let key = received_key(session, packet_id.value());
        put(out, RECEIVED, write, &key, |out, exchanges| {
            out.extend_from_slice(&exchanges.get().to_be_bytes())
        });
    }
}

/// A key of variable length with its length before it.
fn prefixed(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + 3);
    put_bytes(&mut out, key);
    out
}

fn put<V>(out: &mut Vec<u8>, table: u8, write: &Write<V>, key: &[u8], encode: impl FnOnce(&mut Vec<u8>, &V)) {
    let kind = match write {
        Write::New(_) => NEW,
        Write::Put(_) => PUT,
        Write::Remove => 0,
    };
    out.push(table | kind);
    out.extend_from_slice(key);
    if let Some(value) = write.value() {
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        encode(out, value);
        // Every packet is shorter than 4 GiB.
        let length = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
        out[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

pub(crate) fn decode_group(bytes: &[u8]) -> Result<WriteSet, Malformed> {
    let mut writes = WriteSet::default();
    let mut reader = Reader::new(bytes);
    while !reader.is_at_end() {
        decode_row(&mut reader, &mut writes)?;
    }
    Ok(writes)
}

fn decode_row(reader: &mut Reader<'_>, writes: &mut WriteSet) -> Result<(), Malformed> {
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
            writes.session_rows(session).will = Some(will);
        }
        SUBSCRIPTION => {
            let (session, filter) = decode_subscription_key(reader.bytes()?)?;
            let subscription = write(tag, reader, decode_subscription)?;
            writes.session_rows(session).subscriptions.apply(filter, subscription);
        }
        RECEIVED => {
            let (session, packet_id) = decode_received_key(&reader.array()?)?;
            let received = write(tag, reader, decode_received)?;
            writes.session_rows(session).received.apply(packet_id, received);
        }
        MESSAGE => {
            let lsn = decode_message_key(&reader.array()?);
            writes.messages.apply(lsn, write(tag, reader, decode_message)?);
        }
        QUEUE => {
            let key = decode_queue_key(&reader.array()?)?;
            writes.queue.apply(key, write(tag, reader, |value| decode_delivery(key, value))?);
        }
        INFLIGHT => {
            let key = decode_queue_key(&reader.array()?)?;
            writes.inflight.apply(key, write(tag, reader, decode_inflight)?);
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
        _ => Err(Malformed("a kind of change")),
    }
}
