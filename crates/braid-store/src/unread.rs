use std::fmt;

use braid_proto::codec::Spool;
use bytes::Bytes;

use crate::message::StoredMessage;

/// A message where the store has it: its payload is copied only when somebody wants it.
pub struct Unread<'a> {
    head: StoredMessage,
    /// `None`: the head has it, shared.
    payload: Option<&'a [u8]>,
    spool: Option<&'a dyn Spool>,
}

impl<'a> Unread<'a> {
    /// A message that is in memory anyway.
    pub const fn of(message: StoredMessage) -> Self {
        Self { head: message, payload: None, spool: None }
    }

    /// A message without its payload, the payload where it stands, and where a large one is put.
    pub(crate) const fn row(head: StoredMessage, payload: &'a [u8], spool: Option<&'a dyn Spool>) -> Self {
        Self { head, payload: Some(payload), spool }
    }

    /// The message, but for its payload: that may be missing here.
    pub const fn head(&self) -> &StoredMessage {
        &self.head
    }

    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.payload.unwrap_or(self.head.payload()).len()
    }

    /// The message as [`Store::message`](crate::Store::message) reads it.
    pub fn read(self) -> StoredMessage {
        let Some(payload) = self.payload else { return self.head };
        let message = self.head.with_payload(Bytes::copy_from_slice(payload));
        match self.spool {
            Some(spool) => message.into_spool(spool),
            None => message,
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
