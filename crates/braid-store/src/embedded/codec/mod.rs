//! File format of the embedded store: all encoding and decoding of tables and journal.
//!
//! Format 2; format 1, which had no identities of sessions and no publishers of retained messages, is read as well.
//!
//! Numbers are big-endian, so that keys sort as numbers do; `varint` is LEB128; `text` and `bytes` are a varint length
//! and that many bytes; `rest` goes to the end of the value; flags begin at the lowest bit.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | a name below | u64 |
//! | `session` | session u64 | expiry u32, flags u8 (parked, identity), \[time if parked\], \[identity text\], client identifier as rest |
//! | `will` | session u64 | delay u32, a message |
//! | `subscription` | session u64, filter as rest | flags u8 (QoS 2 bits, no local, retain as published, retain handling 2 bits, id, priority), \[id u32\], \[priority u16\] |
//! | `received` | session u64, packet id u16 | number of exchanges u16, not 0 |
//! | `message` | lsn u64 | a message |
//! | `part` | lsn u64 of the message, number u32 from 0 | a chunk of its payload as rest |
//! | `queue` | lsn u64, session u64 | flags u8 (QoS 2 bits, retain, other message, ids, priority, shared, waits since), \[message u64\], \[count varint, ids u32\], \[priority u16\], \[time\], \[filter as rest\] |
//! | `inflight` | lsn u64, session u64 | phase u8 (1 sent, 2 released), packet id u16, step u64 |
//! | `retained` | topic as rest | message u64 |
//!
//! A message: flags u8 (QoS 2 bits, retain, properties, expires, chunked, publisher), \[time\], topic text,
//! \[publisher text\], \[properties\], payload as rest; of a chunked one its length u64. Properties: flags u8 (payload
//! format: known, value; expiry, content type, response topic, correlation data, user), \[expiry u32\],
//! \[content type text\], \[response topic text\], \[correlation data bytes\], \[count varint, pairs of texts\]. A
//! time: seconds since 1970 i64, nanoseconds u32.
//!
//! An entry that is unsent or sent is in `queue`; a sent or released one is in `inflight`. So sending never rewrites a
//! page of the queue, and the entries in flight are one small table. The keys of `message` and `queue` grow with time:
//! recent rows are adjacent, and a commit writes few pages. A large payload is stored in chunks, so that neither a
//! transaction nor a reader has all of it in memory; a group and a Will never have a chunked one.
//!
//! A subscription identifier is at most 268,435,455 and nothing of QoS 0 is queued: no packet could carry them.
//!
//! Names in `meta`: `format`; `opens`, the number of openings, from which claims begin; `next_session` and `next_lsn`,
//! at least the next free numbers; `store`, the number of the store, which its journal has too, or 0 while no existing
//! journal can belong to the tables; `journal`, the sequence number of the last journal record that the tables contain;
//! `closed`, 1 when they contain everything that was acknowledged, and the journal is not read.
//!
//! The upper four bytes of `store` are drawn once, the lower four at each opening: the journal has the new number
//! before the tables have it. Where only the lower ones differ, the tables are a copy from another time.
//!
//! The journal is a file of its own, in blocks of 4096 bytes: a header, then two segments that alternate. The header:
//! `braidjnl`, format u64, store u64, blocks of each segment u64, checksum u32, zeros. A record begins with a block:
//! store u64, sequence u64, length u32, checksum u32, a group of that length, zeros to the end of its last block. A
//! checksum is the CRC-32 (IEEE) of everything before it, and in a record of its group as well. Any other block of a
//! segment is outdated.
//!
//! A group is rows, each with a tag u8. The tag: the table in the four lower bits, then 0x10 for an insert or update
//! and 0x20 for an insert of a row that the table did not have; neither for a removal. A row has the key of its table,
//! with a varint length before it in `subscription` and `retained`, and unless it is removed u32 length and value as in
//! the table.
//!
//! | tag | | tag | | tag | |
//! |---|---|---|---|---|---|
//! | 0 | session u64: its rows are removed first | 1 | `session` | 2 | `will` |
//! | 3 | `subscription` | 4 | `received` | 5 | `message` |
//! | 6 | `queue` | 7 | `inflight` | 8 | `retained` |
//! | 9 | `next_session` u64, `next_lsn` u64 | | | | |

mod bytes;
mod group;
pub(super) mod journal;
mod message;
mod rows;

use redb::TableDefinition;

pub(super) use bytes::{Malformed, join_time, split_time};
pub(super) use group::{decode_group, encode_group};
pub(super) use message::{
    Payload, decode_message_key, encode_message_up_to, encode_will, is_chunked, message_key, message_len_row,
    split_message, stored_len, will_row,
};
pub(super) use rows::{
    chunk_key, decode_chunk_key, decode_delivery, encode_delivery, encode_inflight, encode_session,
    encode_subscription, inflight_row, queue_key, queue_row, received_key, received_row, retained_row,
    session_key, session_row, subscription_key, subscription_row,
};

/// The format that this code writes, and the newest that it reads.
pub(super) const FORMAT: u64 = 2;

type Table<K, V> = TableDefinition<'static, K, V>;

pub(super) const META: Table<&str, u64> = Table::new("meta");
pub(super) const SESSION: Table<&[u8; 8], &[u8]> = Table::new("session");
pub(super) const WILL: Table<&[u8; 8], &[u8]> = Table::new("will");
pub(super) const SUBSCRIPTION: Table<&[u8], &[u8]> = Table::new("subscription");
pub(super) const RECEIVED: Table<&[u8; 10], &[u8; 2]> = Table::new("received");
pub(super) const MESSAGE: Table<&[u8; 8], &[u8]> = Table::new("message");
pub(super) const CHUNK: Table<&[u8; 12], &[u8]> = Table::new("part");
pub(super) const QUEUE: Table<&[u8; 16], &[u8]> = Table::new("queue");
pub(super) const INFLIGHT: Table<&[u8; 16], &[u8; 11]> = Table::new("inflight");
pub(super) const RETAINED: Table<&[u8], &[u8; 8]> = Table::new("retained");

/// Names in `meta`. redb stores its `u64` little-endian; only this table leaves the encoding to redb.
pub(super) mod meta {
    pub(crate) const FORMAT: &str = "format";
    pub(crate) const OPENS: &str = "opens";
    pub(crate) const NEXT_SESSION: &str = "next_session";
    pub(crate) const NEXT_LSN: &str = "next_lsn";
    pub(crate) const STORE: &str = "store";
    pub(crate) const JOURNAL: &str = "journal";
    pub(crate) const CLOSED: &str = "closed";
}
