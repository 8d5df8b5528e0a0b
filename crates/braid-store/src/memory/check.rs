use super::Holder;
use super::state::State;
use crate::change::Change;
use crate::error::StoreError;
use crate::identity::{Claim, Lsn, SessionId};

impl State {
    /// Whether all of the batch may be applied: the state before it decides who owns what.
    pub(super) fn check(&self, changes: &[Change], holder: Holder) -> Result<(), StoreError> {
        // Both stay small, and what is looked for was mostly added last.
        let mut stored: Vec<Lsn> = Vec::new();
        let mut own: Vec<SessionId> = Vec::new();
        for change in changes {
            if let Change::Stored { lsn, .. } = change {
                stored.push(*lsn);
            }
            if let Some(message) = change.message()
                && !stored.iter().rev().any(|lsn| *lsn == message)
            {
                return Err(StoreError::NotStored { message });
            }
            let Some(session) = change.session() else { continue };
            if own.iter().rev().any(|id| *id == session) {
                continue;
            }
            if self.is_fenced(session, change.claim(), holder) {
                return Err(StoreError::Fenced { session });
            }
            match change {
                Change::Opened { client_id, claim, .. } => {
                    if let Some(former) = self.session_of(client_id)
                        && self.is_fenced(former, Some(*claim), holder)
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

    /// Whether the session is somebody else's.
    fn is_fenced(&self, session: SessionId, claim: Option<Claim>, holder: Holder) -> bool {
        let Some(owner) = self.session(session) else { return false };
        let ours = owner.holder == holder;
        match claim {
            None => !ours,
            Some(claim) => claim < owner.claim || (claim == owner.claim && !ours),
        }
    }
}
