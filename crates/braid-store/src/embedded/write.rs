use std::ops::Bound;

use redb::{CursorError, Key, Table, TableDefinition, Value, WriteTransaction};

use super::error::ReadError;
use super::keys::{self, meta};
use super::parts::{Parts, Removed};
use super::writes::{Delta, Write, Writes};
use crate::identity::SessionId;

/// Brings a group into the tables; each table in the order of its keys, and none that has nothing to change. Payloads
/// that are longer than `part` are in parts.
pub(super) fn write(transaction: &WriteTransaction, writes: &Writes, part: usize) -> Result<(), ReadError> {
    let mut scratch = Vec::new();
    write_sessions(transaction, writes, &mut scratch)?;
    if let Some(next) = writes.next {
        let mut table = transaction.open_table(keys::META)?;
        table.insert(meta::NEXT_SESSION, next.session.value())?;
        table.insert(meta::NEXT_LSN, next.lsn.value())?;
    }
    if let Some(mut table) = open(transaction, keys::MESSAGE, writes.messages.is_empty())? {
        let (parts, mut removed) = (Parts::of(part), Removed::default());
        write_ordered(
            &mut table,
            &writes.messages,
            |lsn| keys::message_key(*lsn),
            |_, message, value| parts.encode(value, message),
            |lsn, value| removed.note(*lsn, value),
        )?;
        drop(table);
        parts.write(transaction, &writes.messages, removed)?;
    }
    if let Some(mut table) = open(transaction, keys::QUEUE, writes.queue.is_empty())? {
        write_ordered(
            &mut table,
            &writes.queue,
            |place| keys::place_key(*place),
            |place, delivery, value| keys::encode_delivery(value, *place, delivery),
            |_, _| {},
        )?;
    }
    if let Some(mut table) = open(transaction, keys::INFLIGHT, writes.inflight.is_empty())? {
        for (place, write) in writes.inflight.iter() {
            let value = write.value().map(|inflight| keys::encode_inflight(*inflight));
            set(&mut table, &keys::place_key(*place), value.as_ref())?;
        }
    }
    if let Some(mut table) = open(transaction, keys::RETAINED, writes.retained.is_empty())? {
        for (topic, write) in writes.retained.iter() {
            let value = write.value().map(|message| keys::message_key(*message));
            set(&mut table, topic.as_str().as_bytes(), value.as_ref())?;
        }
    }
    Ok(())
}

fn write_sessions(
    transaction: &WriteTransaction,
    writes: &Writes,
    scratch: &mut Vec<u8>,
) -> Result<(), ReadError> {
    for session in &writes.closed {
        remove_belongings(transaction, *session)?;
    }
    if let Some(mut table) = open(transaction, keys::SESSION, writes.sessions.is_empty())? {
        for (session, write) in writes.sessions.iter() {
            let value = write.value().map(|record| keys::encode_session(scratch, record));
            set(&mut table, &keys::session_key(*session), value.map(|()| &**scratch))?;
            scratch.clear();
        }
    }
    for (session, belongings) in &writes.belongings {
        if let Some(will) = &belongings.will {
            let value = will.value().map(|will| keys::encode_will(scratch, will));
            let mut table = transaction.open_table(keys::WILL)?;
            set(&mut table, &keys::session_key(*session), value.map(|()| &**scratch))?;
            scratch.clear();
        }
        if let Some(mut table) = open(transaction, keys::SUBSCRIPTION, belongings.subscriptions.is_empty())? {
            for (filter, write) in belongings.subscriptions.iter() {
                let value = write.value().map(|value| keys::encode_subscription(scratch, value));
                let key = keys::subscription_key(*session, filter);
                set(&mut table, &*key, value.map(|()| &**scratch))?;
                scratch.clear();
            }
        }
        if let Some(mut table) = open(transaction, keys::RECEIVED, belongings.received.is_empty())? {
            for (packet_id, write) in belongings.received.iter() {
                let value = write.value().map(|exchanges| exchanges.get().to_be_bytes());
                set(&mut table, &keys::received_key(*session, packet_id.value()), value.as_ref())?;
            }
        }
    }
    Ok(())
}

fn remove_belongings(transaction: &WriteTransaction, session: SessionId) -> Result<(), ReadError> {
    transaction.open_table(keys::WILL)?.remove(&keys::session_key(session))?;
    let (from, to) = (keys::subscriptions_from(session), keys::subscriptions_to(session));
    let mut table = transaction.open_table(keys::SUBSCRIPTION)?;
    match &to {
        Some(to) => table.retain_in(&from[..]..&to[..], |_, _| false)?,
        None => table.retain_in(&from[..].., |_, _| false)?,
    }
    let (first, last) = (keys::received_key(session, 0), keys::received_key(session, u16::MAX));
    transaction.open_table(keys::RECEIVED)?.retain_in::<&[u8; 10], _>(&first..=&last, |_, _| false)?;
    Ok(())
}

/// The table, unless there is nothing for it: what is not opened costs nothing.
fn open<'t, K: Key + 'static, V: Value + 'static>(
    transaction: &'t WriteTransaction,
    table: TableDefinition<'_, K, V>,
    nothing: bool,
) -> Result<Option<Table<'t, K, V>>, ReadError> {
    if nothing { Ok(None) } else { Ok(Some(transaction.open_table(table)?)) }
}

fn set<'v, K: Key + 'static, V: Value + 'static>(
    table: &mut Table<'_, K, V>,
    key: K::SelfType<'_>,
    value: Option<V::SelfType<'v>>,
) -> Result<(), ReadError> {
    match value {
        Some(value) => table.insert(key, value).map(drop)?,
        None => table.remove(key).map(drop)?,
    }
    Ok(())
}

/// Writes a table whose new rows mostly stand behind all others, one beside the other. `replaced` gets the rows that go.
fn write_ordered<K: Ord, V, const N: usize>(
    table: &mut Table<'_, &'static [u8; N], &'static [u8]>,
    delta: &Delta<K, V>,
    key: impl Fn(&K) -> [u8; N],
    encode: impl Fn(&K, &V, &mut Vec<u8>),
    mut replaced: impl FnMut(&K, &[u8]),
) -> Result<(), ReadError> {
    let mut value = Vec::new();
    let mut news = Vec::new();
    for (row, write) in delta.iter() {
        match write {
            Write::New(new) => news.push((row, new)),
            Write::Put(new) => {
                value.clear();
                encode(row, new, &mut value);
                if let Some(old) = table.insert(&key(row), &*value)? {
                    replaced(row, old.value());
                }
            }
            Write::Remove => {
                if let Some(old) = table.remove(&key(row))? {
                    replaced(row, old.value());
                }
            }
        }
    }
    let mut news = news.into_iter().peekable();
    // A cursor finds its page once for a whole run of rows; from time to time a row of an earlier group, whose
    // number was taken later, stands between them.
    while let Some((first, new)) = news.next() {
        value.clear();
        encode(first, new, &mut value);
        table.insert(&key(first), &*value)?;
        let mut cursor = table.lower_bound_mut(Bound::Excluded(&key(first)))?;
        while let Some((row, new)) = news.peek() {
            value.clear();
            encode(row, new, &mut value);
            match cursor.insert_before(&key(row), &*value) {
                Ok(()) => drop(news.next()),
                Err(CursorError::UnorderedKey) => break,
                Err(error) => return Err(ReadError::Redb(error.into())),
            }
        }
        cursor.close()?;
    }
    Ok(())
}
