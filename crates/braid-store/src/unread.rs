use std::fmt;

use braid_proto::decoder::Spool;

use crate::error::StoreError;
use crate::message::StoredMessage;

/// A message where the store has it: its payload is copied only when somebody wants it.
pub struct Unread<'a> {
    head: StoredMessage,
    payload: Payload<'a>,
}

/// Gives the head its payload.
pub(crate) type ReadParts<'a> = &'a dyn Fn(StoredMessage) -> Result<StoredMessage, StoreError>;

enum Payload<'a> {
    /// The head has it, shared.
    Shared,
    /// In one piece, and where it is put if it is large.
    Row(&'a [u8], Option<&'a dyn Spool>),
    /// In parts; bytes of all of them.
    Parts(usize, ReadParts<'a>),
}

impl<'a> Unread<'a> {
    /// A message that is in memory anyway.
    pub const fn of(message: StoredMessage) -> Self {
        Self { head: message, payload: Payload::Shared }
    }

    /// A message without its payload, the payload where it stands, and where a large one is put.
    pub(crate) const fn row(head: StoredMessage, payload: &'a [u8], spool: Option<&'a dyn Spool>) -> Self {
        Self { head, payload: Payload::Row(payload, spool) }
    }

    /// A message without its payload, how many bytes that has, and who reads it.
    pub(crate) const fn parts(head: StoredMessage, length: usize, read: ReadParts<'a>) -> Self {
        Self { head, payload: Payload::Parts(length, read) }
    }

    /// The message, but for its payload: that may be missing here.
    pub const fn head(&self) -> &StoredMessage {
        &self.head
    }

    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        match self.payload {
            Payload::Shared => self.head.payload().len(),
            Payload::Row(payload, _) => payload.len(),
            Payload::Parts(length, _) => length,
        }
    }

    /// The message as [`Store::message`](crate::Store::message) reads it.
    ///
    /// # Errors
    /// As there.
    pub fn read(self) -> Result<StoredMessage, StoreError> {
        match self.payload {
            Payload::Shared => Ok(self.head),
            Payload::Row(payload, spool) => Ok(self.head.with_copy(payload, spool)),
            Payload::Parts(_, read) => read(self.head),
        }
    }
}

impl fmt::Debug for Unread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread")
            .field("topic", self.head.topic())
            .field("payload_len", &self.payload_len())
            .finish_non_exhaustive()
    }
}
