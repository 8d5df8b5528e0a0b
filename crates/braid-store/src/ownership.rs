use braid_proto::packet::ClientId;

use crate::change::Change;
use crate::error::StoreError;
use crate::identity::{Claim, Lsn, SessionId};

/// Who owns which session, as one store value sees it.
pub(crate) trait Ownership {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId>;

    /// Whether the session is somebody else's, or a newer claim's.
    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool;

    /// Whether all of the batch may be applied: the state before it decides who owns what.
    fn check(&self, changes: &[Change]) -> Result<(), StoreError> {
        // What is looked for was mostly added last: one message takes no list.
        let mut last: Option<Lsn> = None;
        let mut stored: Vec<Lsn> = Vec::new();
        let mut own: Vec<SessionId> = Vec::new();
        for change in changes {
            if let Change::Stored { lsn, .. } = change {
                stored.extend(last.replace(*lsn));
            }
            if let Some(message) = change.message()
                && last != Some(message)
                && !stored.iter().rev().any(|lsn| *lsn == message)
            {
                return Err(StoreError::NotStored { message });
            }
            let Some(session) = change.session() else { continue };
            if own.iter().rev().any(|id| *id == session) {
                continue;
            }
            if self.is_fenced(session, change.claim()) {
                return Err(StoreError::Fenced { session });
            }
            match change {
                Change::Opened { client_id, claim, .. } => {
                    if let Some(former) = self.session_of(client_id)
                        && self.is_fenced(former, Some(*claim))
                    {
                        return Err(StoreError::Fenced { session });
                    }
                    own.push(session);
                }
                Change::Resumed { .. } => own.push(session),
                _ => {}
            }
        }
        Ok(())
    }
}
