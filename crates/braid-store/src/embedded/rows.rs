//! The tables row by row, for whoever reads all of them.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use braid_proto::decoder::Spool;
use braid_proto::packet::{PacketId, Will};
use braid_proto::topic::{TopicFilter, TopicName};
use redb::{Key, ReadableTable, TableDefinition, TableHandle, Value};

use super::error::ReadError;
use super::file::Snapshot;
use super::keys::{self, Malformed, Payload, Place};
use super::options::{Options, Stage, Teller};
use super::writes::Inflight;
use crate::identity::{Lsn, SessionId};
use crate::message::{StoredDelivery, StoredMessage};
use crate::session::SessionRecord;
use crate::subscription::StoredSubscription;
use crate::unread::Unread;

/// What a row means, or [`ReadError::Row`] when it means nothing: the rows after it can still be read.
type Row<R> = Result<R, ReadError>;

impl Snapshot {
    pub(super) fn each_session<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<SessionRecord>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8; 8], value: &[u8]| keys::decode_session(keys::decode_session_key(key), value);
        self.each(keys::SESSION, decode, show)
    }

    pub(super) fn each_subscription<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(SessionId, TopicFilter, StoredSubscription)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8], value: &[u8]| {
            let (session, filter) = keys::decode_subscription_key(key)?;
            Ok((session, filter, keys::decode_subscription(value)?))
        };
        self.each(keys::SUBSCRIPTION, decode, show)
    }

    pub(super) fn each_will<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(SessionId, Will)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode =
            |key: &[u8; 8], value: &[u8]| Ok((keys::decode_session_key(key), keys::decode_will(value)?));
        self.each(keys::WILL, decode, show)
    }

    pub(super) fn each_received<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(SessionId, PacketId, NonZeroU16)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8; 10], value: &[u8; 2]| {
            let (session, packet_id) = keys::decode_received_key(key)?;
            Ok((session, packet_id, keys::decode_received(value)?))
        };
        self.each(keys::RECEIVED, decode, show)
    }

    pub(super) fn each_message<E: From<ReadError>>(
        &self,
        mut show: impl FnMut(Row<(Lsn, StoredMessage)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(rows) = self.table(keys::MESSAGE)? else { return Ok(()) };
        for row in rows.iter().map_err(ReadError::from)? {
            let (key, value) = row.map_err(ReadError::from)?;
            let lsn = keys::decode_message_key(key.value());
            let malformed = |error| ReadError::row(keys::MESSAGE.name(), key.value(), error);
            let message = keys::split_message(value.value()).map_err(malformed);
            let whole = message.and_then(|(head, payload)| match payload {
                Payload::Here(payload) => Ok((lsn, head.with_copy(payload, None))),
                Payload::Parts(length) => Ok((lsn, self.with_parts(lsn, head, length, None)?)),
            });
            show(whole)?;
        }
        Ok(())
    }

    /// Which messages there are, how long their payloads are, and whether they are in parts.
    pub(super) fn each_message_length<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(Lsn, usize, bool)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8; 8], value: &[u8]| {
            let (_, payload) = keys::split_message(value)?;
            Ok((keys::decode_message_key(key), payload.len(), keys::is_in_parts(value)))
        };
        self.each(keys::MESSAGE, decode, show)
    }

    /// Of each part, whose it is and which.
    pub(super) fn each_part_key<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(Lsn, u32)>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.each(keys::PART, |key: &[u8; 12], _: &[u8]| keys::decode_part_key(key), show)
    }

    /// Each message, with its payload where it stands.
    pub(super) fn each_unread(
        &self,
        options: &Options,
        spool: Option<&dyn Spool>,
        mut show: impl FnMut(Lsn, Unread<'_>),
    ) -> Result<(), ReadError> {
        let mut teller = Teller::new(options, Stage::Reading, self.rows(keys::MESSAGE)?);
        let Some(rows) = self.table(keys::MESSAGE)? else { return Ok(()) };
        for row in rows.iter()? {
            let (key, value) = row?;
            let split = keys::split_message(value.value());
            let (head, payload) =
                split.map_err(|error| ReadError::row(keys::MESSAGE.name(), key.value(), error))?;
            teller.step_over(payload.len());
            let lsn = keys::decode_message_key(key.value());
            match payload {
                Payload::Here(payload) => show(lsn, Unread::row(head, payload, spool)),
                Payload::Parts(length) => {
                    let read = |head| self.with_parts(lsn, head, length, spool).map_err(ReadError::store);
                    show(lsn, Unread::parts(head, length, &read));
                }
            }
        }
        teller.end();
        Ok(())
    }

    /// How many bytes each message takes, without looking into it.
    pub(super) fn each_message_size(&self, mut show: impl FnMut(usize)) -> Result<(), ReadError> {
        let decode = |_: &[u8; 8], value: &[u8]| Ok(keys::stored_len(value));
        self.each(keys::MESSAGE, decode, |row| row.map(&mut show))
    }

    /// By ascending lsn; also what was sent.
    pub(super) fn each_queued<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(Place, StoredDelivery)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8; 16], value: &[u8]| {
            let place = keys::decode_place(key)?;
            Ok((place, keys::decode_delivery(place, value)?))
        };
        self.each(keys::QUEUE, decode, show)
    }

    pub(super) fn each_inflight<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(Place, Inflight)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode =
            |key: &[u8; 16], value: &[u8; 11]| Ok((keys::decode_place(key)?, keys::decode_inflight(value)?));
        self.each(keys::INFLIGHT, decode, show)
    }

    /// The message that each topic retains.
    pub(super) fn each_retained<E: From<ReadError>>(
        &self,
        show: impl FnMut(Row<(TopicName, Lsn)>) -> Result<(), E>,
    ) -> Result<(), E> {
        let decode = |key: &[u8], value: &[u8; 8]| {
            Ok((keys::decode_retained_key(key)?, keys::decode_message_key(value)))
        };
        self.each(keys::RETAINED, decode, show)
    }

    /// Everything on its way: few, since each takes a packet identifier of its session.
    pub(super) fn inflight(&self) -> Result<BTreeMap<Place, Inflight>, ReadError> {
        let mut all = BTreeMap::new();
        self.each_inflight(|row| -> Result<(), ReadError> {
            let (place, inflight) = row?;
            all.insert(place, inflight);
            Ok(())
        })?;
        Ok(all)
    }

    fn each<K: Key + 'static, V: Value + 'static, R, E: From<ReadError>>(
        &self,
        table: TableDefinition<'_, K, V>,
        decode: impl for<'a> Fn(K::SelfType<'a>, V::SelfType<'a>) -> Result<R, Malformed>,
        mut show: impl FnMut(Row<R>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(rows) = self.table(table)? else { return Ok(()) };
        for row in rows.iter().map_err(ReadError::from)? {
            let (key, value) = row.map_err(ReadError::from)?;
            let row = decode(key.value(), value.value());
            let malformed = |error| ReadError::row(table.name(), K::as_bytes(&key.value()).as_ref(), error);
            show(row.map_err(malformed))?;
        }
        Ok(())
    }
}
