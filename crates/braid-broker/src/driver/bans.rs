//! Bans of clients and users at CONNECT.
//!
//! They are asked once the client is authenticated: its mountpoint, which is part of its session's Client Identifier,
//! may come with its identity, and a ban must not mean clients of the same name in other name spaces.

use std::net::SocketAddr;

use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;

use crate::admission::{AddressRefusal, BanFilter, FLAPPING, Subject};
use crate::clock;
use crate::connection_guard::note_refusal;
use crate::core::Core;
use crate::statistics::Counter;

/// Checks a client that was authenticated against the bans.
///
/// # Errors
/// The client is banned. The refusal is recorded.
pub(super) fn check_bans(
    core: &Core,
    client_id: &ClientId,
    identity: &Identity,
    address: Option<SocketAddr>,
) -> Result<(), ReasonCode> {
    let subject = Subject { client_id: Some(client_id), user: identity.user(), address };
    let ban = core.access.admission.find_ban(subject, BanFilter::All, clock::now());
    let Some(ban) = ban else { return Ok(()) };
    note_refusal(core, Some((client_id, identity)), address, &AddressRefusal::Banned(ban.reason));
    Err(ReasonCode::Banned)
}

/// Counts the connect of a client that was authenticated.
///
/// # Errors
/// The client has connected too often and is banned from now on. The refusal is recorded.
pub(super) fn note_connect(
    core: &Core,
    client_id: &ClientId,
    identity: &Identity,
    address: Option<SocketAddr>,
) -> Result<(), ReasonCode> {
    if !core.access.admission.note_connect(client_id, identity.user(), address, clock::now()) {
        return Ok(());
    }
    core.statistics.add(Counter::FlappingBans, 1);
    note_refusal(core, Some((client_id, identity)), address, &AddressRefusal::Banned(FLAPPING.into()));
    Err(ReasonCode::Banned)
}
