//! Every byte of the embedded store. Nobody else encodes or decodes one.
//!
//! Format 1. Numbers are big-endian, so that keys sort as numbers do; `varint` is LEB128; `text` and `bytes` are a
//! varint length and that many bytes; `rest` goes to the end of the value; flags begin at the lowest bit.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | a name below | u64 |
//! | `session` | session u64 | expiry u32, flags u8 (parked), \[time if parked\], client identifier as rest |
//! | `will` | session u64 | delay u32, a message |
//! | `subscription` | session u64, filter as rest | flags u8 (QoS 2 bits, no local, retain as published, retain handling 2 bits, id, priority), \[id u32\], \[priority u16\] |
//! | `received` | session u64, packet id u16 | how many exchanges u16, not 0 |
//! | `message` | lsn u64 | a message |
//! | `part` | lsn u64 of the message, number u32 from 0 | bytes of its payload as rest |
//! | `queue` | lsn u64, session u64 | flags u8 (QoS 2 bits, retain, other message, ids, priority, shared, waits since), \[message u64\], \[count varint, ids u32\], \[priority u16\], \[time\], \[filter as rest\] |
//! | `inflight` | lsn u64, session u64 | phase u8 (1 sent, 2 released), packet id u16, step u64 |
//! | `retained` | topic as rest | message u64 |
//!
//! A message: flags u8 (QoS 2 bits, retain, properties, expires, parts), \[time\], topic text, \[properties\], payload as
//! rest; of one in parts its length u64. Properties: flags u8 (payload format: known, value; expiry, content type, response topic, correlation
//! data, user), \[expiry u32\], \[content type text\], \[response topic text\], \[correlation data bytes\],
//! \[count varint, pairs of texts\]. A time: seconds since 1970 i64, nanoseconds u32.
//!
//! What is in `queue` waits, or was sent if it is in `inflight` too; what was released is in `inflight` alone. So
//! sending never rewrites a page of the queue, and what is on its way is one small table. The keys of `message` and
//! `queue` grow with time: what is stored last stands together, and a commit writes few pages. A large payload is in parts, so that
//! nobody needs all of it in memory; a group and a Will never have one.
//!
//! A subscription identifier is at most 268,435,455 and nothing of QoS 0 is queued: no packet could carry them.
//!
//! Names in `meta`: `format`; `opens`, how often the store was opened, from which claims begin; `next_session` and
//! `next_lsn`, at least the next free numbers; `store`, the number of the store, which its journal has too, 0 when no
//! journal there can be its own; `journal`, the last record of the journal that the tables contain; `closed`, 1 when
//! they contain all that was acknowledged, and nothing is read from the journal.
//!
//! The upper four bytes of `store` are drawn once, the lower four with each opening: the journal has the new number before the
//! tables have it. Where they differ in the lower ones alone, the tables are a copy of another time.
//!
//! The journal is a file of its own, in blocks of 4096 bytes: a header, then two halves that take turns. The header: `braidjnl`,
//! format u64, store u64, blocks of each half u64, checksum u32, zeros. A record begins with a block: store u64,
//! sequence u64, length u32, checksum u32, a group of that length, zeros to the end of its last block. A checksum is the CRC-32
//! (IEEE) of everything before it, and in a record of its group as well. What else is in a half is older.
//!
//! A group is rows, each a tag u8 and what follows. The tag: the table in the four lower bits, then 0x10 for a row that is put and
//! 0x20 for one that is new, which the table did not have; neither for one that is removed. A row has the key of its table, with a
//! varint length before it in `subscription` and `retained`, and unless it is removed u32 length and value as in the table.
//!
//! | tag | | tag | | tag | |
//! |---|---|---|---|---|---|
//! | 0 | session u64: all that it has goes first | 1 | `session` | 2 | `will` |
//! | 3 | `subscription` | 4 | `received` | 5 | `message` |
//! | 6 | `queue` | 7 | `inflight` | 8 | `retained` |
//! | 9 | `next_session` u64, `next_lsn` u64 | | | | |

mod group;
pub(super) mod journal;
mod message;
mod record;
mod wire;

use std::num::NonZeroU16;

use braid_proto::packet::PacketId;
use braid_proto::topic::{TopicFilter, TopicName};
use redb::TableDefinition;

use crate::identity::{Lsn, SessionId};
use wire::Reader;
pub(super) use wire::{Malformed, join_time, split_time};

pub(super) use group::{decode_group, encode_group};
pub(super) use message::{
    Payload, decode_message, decode_will, encode_message, encode_message_in_parts, encode_will, is_in_parts,
    split_message, stored_len,
};
pub(super) use record::{
    decode_delivery, decode_inflight, decode_session, decode_subscription, encode_delivery, encode_inflight,
    encode_session, encode_subscription,
};

/// The format that this code writes, and the newest that it reads.
pub(super) const FORMAT: u64 = 1;

type Table<K, V> = TableDefinition<'static, K, V>;

pub(super) const META: Table<&str, u64> = Table::new("meta");
pub(super) const SESSION: Table<&[u8; 8], &[u8]> = Table::new("session");
pub(super) const WILL: Table<&[u8; 8], &[u8]> = Table::new("will");
pub(super) const SUBSCRIPTION: Table<&[u8], &[u8]> = Table::new("subscription");
pub(super) const RECEIVED: Table<&[u8; 10], &[u8; 2]> = Table::new("received");
pub(super) const MESSAGE: Table<&[u8; 8], &[u8]> = Table::new("message");
pub(super) const PART: Table<&[u8; 12], &[u8]> = Table::new("part");
pub(super) const QUEUE: Table<&[u8; 16], &[u8]> = Table::new("queue");
pub(super) const INFLIGHT: Table<&[u8; 16], &[u8; 11]> = Table::new("inflight");
pub(super) const RETAINED: Table<&[u8], &[u8; 8]> = Table::new("retained");

/// The names in `meta`. redb keeps its `u64` little-endian; it is the only table that leaves this to redb.
pub(super) mod meta {
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const OPENS: &str = "opens";
    pub(crate) const NEXT_SESSION: &str = "next_session";
    pub(crate) const NEXT_LSN: &str = "next_lsn";
    pub(crate) const STORE: &str = "store";
    pub(crate) const JOURNAL: &str = "journal";
    pub(crate) const CLOSED: &str = "closed";
}

/// One entry of one queue.
pub(super) type Place = (Lsn, SessionId);

pub(super) const fn session_key(session: SessionId) -> [u8; 8] {
    session.value().to_be_bytes()
}

pub(super) const fn message_key(message: Lsn) -> [u8; 8] {
    message.value().to_be_bytes()
}

pub(super) fn part_key(message: Lsn, number: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&message_key(message));
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

pub(super) fn place_key((lsn, session): Place) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&lsn.value().to_be_bytes());
    key[8..].copy_from_slice(&session.value().to_be_bytes());
    key
}

pub(super) fn subscription_key(session: SessionId, filter: &TopicFilter) -> Vec<u8> {
    [&session_key(session), filter.as_str().as_bytes()].concat()
}

/// The keys of all subscriptions of the session stand from this one on ...
pub(super) const fn subscriptions_from(session: SessionId) -> [u8; 8] {
    session_key(session)
}

/// ... and before this one; `None` when the session is the last one possible.
pub(super) const fn subscriptions_to(session: SessionId) -> Option<[u8; 8]> {
    match session.value().checked_add(1) {
        Some(next) => Some(next.to_be_bytes()),
        None => None,
    }
}

pub(super) fn received_key(session: SessionId, packet_id: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&session_key(session));
    key[8..].copy_from_slice(&packet_id.to_be_bytes());
    key
}

pub(super) fn decode_session_key(key: &[u8; 8]) -> SessionId {
    SessionId::new(u64::from_be_bytes(*key))
}

pub(super) fn decode_message_key(key: &[u8; 8]) -> Lsn {
    Lsn::new(u64::from_be_bytes(*key))
}

pub(super) fn decode_part_key(key: &[u8; 12]) -> Result<(Lsn, u32), Malformed> {
    let mut reader = Reader::new(key);
    Ok((Lsn::new(reader.u64()?), reader.u32()?))
}

pub(super) fn decode_place(key: &[u8; 16]) -> Result<Place, Malformed> {
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

/// How many exchanges have the identifier.
pub(super) fn decode_received(value: &[u8; 2]) -> Result<NonZeroU16, Malformed> {
    NonZeroU16::new(u16::from_be_bytes(*value)).ok_or(Malformed("a number of exchanges"))
}

pub(super) fn decode_retained_key(key: &[u8]) -> Result<TopicName, Malformed> {
    topic(Reader::new(key).rest_text()?)
}

fn topic(text: &str) -> Result<TopicName, Malformed> {
    TopicName::parse(text).map_err(|_| Malformed("a topic name"))
}

fn filter(text: &str) -> Result<TopicFilter, Malformed> {
    TopicFilter::parse(text).map_err(|_| Malformed("a topic filter"))
}
