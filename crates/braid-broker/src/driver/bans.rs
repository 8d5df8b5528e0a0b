//! Bans of clients and users at CONNECT.
//!
//! They are asked once the client is authenticated: its mountpoint, which is part of its session's Client Identifier,
//! may come with its identity, and a ban must not mean clients of the same name in other name spaces.

use std::net::SocketAddr;

use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;

use crate::admission::{FLAPPING, Subject};
use crate::auth::{SecurityAction, SecurityEvent};
use crate::clock;
use crate::core::Core;
use crate::statistics::Counter;

/// Checks a client that was authenticated against the bans, and counts its connect.
///
/// # Errors
/// The client is banned, or is from now on because it connected too often. The refusal is recorded.
pub(super) fn admit_client(
    core: &Core,
    client_id: &ClientId,
    identity: &Identity,
    address: Option<SocketAddr>,
) -> Result<(), ReasonCode> {
    let (admission, now) = (&core.access.admission, clock::now());
    let subject = Subject { client_id: Some(client_id), user: identity.user(), address };
    let cause = if let Some(cause) = admission.find_ban(subject, now) {
        cause
    } else if admission.note_connect(client_id, address, now) {
        core.statistics.add(Counter::FlappingBans, 1);
        FLAPPING.into()
    } else {
        return Ok(());
    };
    core.statistics.add(Counter::ConnectionsRefused, 1);
    core.statistics.add(Counter::BannedRefused, 1);
    let cause = String::from(&*cause);
    let event = SecurityEvent::refused(Some(client_id), Some(identity), SecurityAction::Banned, cause);
    core.access.audit.record(event.with_address(address));
    Err(ReasonCode::Banned)
}
