//! What rows must be together for a broker to start with them: an import refuses what is not so, a check tells it.

use std::collections::BTreeSet;

use braid_proto::packet::PacketId;

use super::record::Wrong;
use crate::identity::SessionId;
use crate::message::StoredMessage;

/// The packet identifiers that the messages of each session are on their way with.
#[derive(Debug, Default)]
pub(super) struct Identifiers(BTreeSet<(SessionId, PacketId)>);

impl Identifiers {
    /// False when the session uses it for another message: a PUBACK could not be told from that one's.
    #[must_use]
    pub(super) fn take(&mut self, session: SessionId, packet_id: PacketId) -> bool {
        self.0.insert((session, packet_id))
    }
}

/// Whether a broker would have retained the message with a payload of so many bytes.
pub(super) fn retained(message: &StoredMessage, payload: usize) -> Result<(), Wrong> {
    if payload == 0 {
        return Err("a message without payload is not retained: it removes the one that was");
    }
    if message.topic().as_str().starts_with("$SYS/") {
        return Err("what is below $SYS/ is not kept");
    }
    Ok(())
}
