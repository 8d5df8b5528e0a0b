//! Large payloads are stored in parts: neither a transaction nor a reader has one as a whole in memory.

use std::ops::ControlFlow;

use braid_proto::decoder::Spool;
use bytes::Bytes;
use redb::WriteTransaction;

use super::error::ReadError;
use super::file::Snapshot;
use super::keys;
use super::options::PART;
use super::writes::Delta;
use crate::identity::Lsn;
use crate::message::StoredMessage;

/// What becomes of the parts of the messages that a transaction writes.
pub(super) struct Parts {
    /// What is longer is in parts of so many bytes.
    part: usize,
}

/// Messages in parts whose row has gone, or has another in its place.
#[derive(Default)]
pub(super) struct Removed(Vec<Lsn>);

impl Removed {
    pub(super) fn note(&mut self, lsn: Lsn, value: &[u8]) {
        if keys::is_in_parts(value) {
            self.0.push(lsn);
        }
    }
}

impl Parts {
    pub(super) fn of(part: usize) -> Self {
        Self { part: part.max(1) }
    }

    fn are_needed(&self, message: &StoredMessage) -> bool {
        message.payload().len() > self.part
    }

    /// Encodes the row of a message, without its payload if that is in parts.
    pub(super) fn encode(&self, value: &mut Vec<u8>, message: &StoredMessage) {
        if self.are_needed(message) {
            keys::encode_message_in_parts(value, message);
        } else {
            keys::encode_message(value, message);
        }
    }

    pub(super) fn write(
        &self,
        transaction: &WriteTransaction,
        messages: &Delta<Lsn, StoredMessage>,
        Removed(removed): Removed,
    ) -> Result<(), ReadError> {
        let stored = messages.iter().filter_map(|(lsn, write)| Some((*lsn, write.value()?)));
        let mut stored = stored.filter(|(_, message)| self.are_needed(message)).peekable();
        if removed.is_empty() && stored.peek().is_none() {
            return Ok(());
        }
        let mut table = transaction.open_table(keys::PART)?;
        for lsn in removed {
            let (first, last) = (keys::part_key(lsn, 0), keys::part_key(lsn, u32::MAX));
            table.retain_in::<&[u8; 12], _>(&first..=&last, |_, _| false)?;
        }
        for (lsn, message) in stored {
            for (number, bytes) in (0..).zip(message.payload().chunks(self.part)) {
                table.insert(&keys::part_key(lsn, number), bytes)?;
            }
        }
        Ok(())
    }
}

impl Snapshot {
    /// Shows the parts of a payload of so many bytes in their order, until `show` has enough.
    pub(super) fn each_part(
        &self,
        message: Lsn,
        length: usize,
        mut show: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let missing =
            |number| ReadError::Row(format!("part {number} of message {message} is not there").into());
        let Some(table) = self.table(keys::PART)? else { return Err(missing(0)) };
        let (first, last) = (keys::part_key(message, 0), keys::part_key(message, u32::MAX));
        let (mut next, mut left) = (0, length);
        for row in table.range::<&[u8; 12]>(&first..=&last)? {
            let (key, value) = row?;
            let bytes = value.value();
            if *key.value() != keys::part_key(message, next) {
                return Err(missing(next));
            }
            left = left.checked_sub(bytes.len()).ok_or_else(|| {
                ReadError::Row(format!("message {message} has longer parts than it should").into())
            })?;
            next += 1;
            if show(bytes).is_break() {
                return Ok(());
            }
        }
        if left == 0 { Ok(()) } else { Err(missing(next)) }
    }

    /// The message with the payload that is in parts; in the spool, if it is large enough for that and there is room.
    pub(super) fn with_parts(
        &self,
        lsn: Lsn,
        head: StoredMessage,
        length: usize,
        spool: Option<&dyn Spool>,
    ) -> Result<StoredMessage, ReadError> {
        if let Some(spool) = spool.filter(|spool| length > spool.threshold())
            && let Some(spooled) = self.spooled(lsn, length, spool)?
        {
            return Ok(head.with_payload(spooled, true));
        }
        // What the row says may be more than there is.
        let mut payload = Vec::with_capacity(length.min(PART));
        self.each_part(lsn, length, |part| {
            payload.extend_from_slice(part);
            ControlFlow::Continue(())
        })?;
        Ok(head.with_payload(Bytes::from(payload), false))
    }

    /// `None` when the spool does not take it.
    fn spooled(&self, lsn: Lsn, length: usize, spool: &dyn Spool) -> Result<Option<Bytes>, ReadError> {
        let Ok(mut kept) = spool.keep(length as u64) else { return Ok(None) };
        let mut is_whole = true;
        self.each_part(lsn, length, |part| match kept.append(part) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => {
                is_whole = false;
                ControlFlow::Break(())
            }
        })?;
        Ok(if is_whole { kept.finish().ok() } else { None })
    }
}
