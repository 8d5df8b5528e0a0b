use braid_proto::packet::ClientId;

use super::Holder;
use super::state::State;
use crate::identity::{Claim, SessionId};
use crate::ownership::Ownership;

/// What one of the values over a state may change.
pub(super) struct Held<'a> {
    pub(super) state: &'a State,
    pub(super) holder: Holder,
}

impl Ownership for Held<'_> {
    fn session_of(&self, client_id: &ClientId) -> Option<SessionId> {
        self.state.session_of(client_id)
    }

    fn is_fenced(&self, session: SessionId, claim: Option<Claim>) -> bool {
        let Some(owner) = self.state.session(session) else { return false };
        let ours = owner.holder == self.holder;
        match claim {
            None => !ours,
            Some(claim) => claim < owner.claim || (claim == owner.claim && !ours),
        }
    }
}
