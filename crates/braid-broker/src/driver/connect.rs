//! Beginning of a connection: handshake of the transport, and the decision about CONNECT.

use std::sync::Arc;
use std::time::Duration;

use braid_auth::identity::Identity;
use braid_proto::connection::{Acceptance, Server};
use braid_proto::message::Message;
use braid_proto::packet::{ClientId, Connect, Will};
use braid_proto::reason::ReasonCode;
use braid_store::StoreError;
use braid_transport::{Incoming, Link, Peer};

use super::bans::{check_bans, note_connect};
use super::subscribe::{FilterProgress, Recheck};
use crate::auth::{
    Authentication, ClientAccess, Credential, Exchange, ExpiryTimer, Grant, Outcome, Refusal, shortened,
};
use crate::clock;
use crate::connection_guard::note_limit;
use crate::core::Core;
use crate::limit::Limit;
use crate::listener_policy::ListenerPolicy;
use crate::mountpoint::{self, Unmountable};
use crate::persist::DurableProgress;
use crate::registry::{ConnectionId, SessionEntry};
use crate::sessions::Claim;
use crate::statistics::Statistics;

/// Link of a connection whose handshake succeeds within the time for CONNECT.
pub(super) async fn shake_hands(core: &Core, incoming: Box<Incoming>) -> Option<Link> {
    let limit = Duration::from_secs(core.config.limits.connect_timeout_secs);
    let from = incoming.peer_address().map(tracing::field::display);
    let handshake = tokio::time::timeout(limit, incoming.handshake());
    let result = tokio::select! {
        result = handshake => result,
        () = core.lifecycle.stopped() => return None,
    };
    match result {
        Ok(Ok(link)) => return Some(link),
        // Anyone can cause these lines as often as connections are accepted.
        Ok(Err(error)) => tracing::debug!(from, %error, "handshake failed"),
        Err(_) => {
            core.statistics.reach(Limit::ConnectTimeout);
            tracing::debug!(from, "handshake took too long");
        }
    }
    None
}

/// Session of a connection, once a CONNECT was accepted.
pub(super) struct SessionBinding {
    pub(super) connection: ConnectionId,
    /// Policy of the listener that accepted the connection.
    pub(super) policy: Arc<ListenerPolicy>,
    pub(super) entry: Option<Arc<SessionEntry>>,
    /// Identity of the client, and what it may do.
    pub(super) access: ClientAccess,
    /// End of its credentials. Boxed: most have none.
    pub(super) expiry: Option<Box<ExpiryTimer>>,
    /// SUBSCRIBE or UNSUBSCRIBE that is handled in part.
    pub(super) progress: Option<Box<FilterProgress>>,
    /// Check of its subscriptions against rules that have changed, until it is over.
    pub(super) recheck: Option<Box<Recheck>>,
    /// Credential that may be revoked meanwhile.
    pub(super) credential: Option<Box<dyn Credential>>,
    /// Delayed Will of a session whose new connection was refused. Boxed: hardly any connection has one.
    pub(super) delayed_will: Option<Box<Will>>,
    /// Enhanced authentication that waits for an AUTH.
    pub(super) authentication: Option<Box<PendingAuthentication>>,
}

/// Enhanced authentication that waits for an AUTH of the client.
pub(super) struct PendingAuthentication {
    /// The CONNECT to be decided about; `None` in a re-authentication.
    pub(super) connect: Option<Box<Connect>>,
    pub(super) exchange: Box<dyn Exchange>,
}

impl SessionBinding {
    pub(super) fn new(connection: ConnectionId, policy: Arc<ListenerPolicy>) -> Self {
        Self {
            connection,
            policy,
            entry: None,
            access: ClientAccess::default(),
            expiry: None,
            progress: None,
            recheck: None,
            credential: None,
            delayed_will: None,
            authentication: None,
        }
    }

    /// Client Identifier, for the log.
    pub(super) fn client(&self) -> Option<&str> {
        self.entry.as_ref().map(|entry| shortened(entry.client_id.as_str()))
    }
}

/// Address of a peer, or its transport if it has none, for the log.
pub(super) fn peer_name(peer: &Peer) -> String {
    peer.address.map_or_else(|| peer.transport.to_string(), |address| address.to_string())
}

/// Session that a CONNECT has claimed.
pub(super) struct ClaimedSession {
    pub(super) claim: Claim,
    pub(super) access: ClientAccess,
    pub(super) acceptance: Acceptance,
    /// Present when the session outlives its connection.
    pub(super) progress: Option<Box<DurableProgress>>,
    /// Reason for which the session goes back at once: its client connects too often, or the store could not read it or
    /// note its connection.
    pub(super) refusal: Option<ReasonCode>,
}

/// Waits for an authenticator, as long as for a CONNECT.
///
/// # Errors
/// The client is refused, or the authenticator took too long.
pub(super) async fn authenticate(
    core: &Core,
    authentication: Authentication<'_>,
) -> Result<Outcome, Refusal> {
    let limit = Duration::from_secs(core.config.limits.connect_timeout_secs);
    let answer = tokio::time::timeout(limit, authentication).await;
    answer.unwrap_or_else(|_| {
        core.statistics.reach(Limit::AuthenticationTimeout);
        Err(Refusal::new(ReasonCode::ServerUnavailable, "the authenticator took too long"))
    })
}

/// Reason for which a CONNECT claimed no session.
pub(super) enum Unclaimed {
    Refused(ReasonCode),
    /// The client has a session, and the CONNECT is early data, which may be a replay: it must not take the session
    /// over, resume or end it before the handshake is confirmed. [BQ-61]
    Early,
}

impl From<ReasonCode> for Unclaimed {
    fn from(reason: ReasonCode) -> Self {
        Self::Refused(reason)
    }
}

/// CONNECT of a client that was authenticated.
pub(super) struct Admitted<'a> {
    connect: &'a Connect,
    grant: &'a Grant,
    /// Client Identifier of its session.
    client_id: ClientId,
    /// Client Identifier that the client does not know yet.
    assigned: Option<ClientId>,
}

/// Names the client of the pending CONNECT, and gives it the name space of its mountpoint.
///
/// # Errors
/// The Reason Code of the refusal, with its cause.
pub(super) fn admit<'a>(
    server: &mut Server,
    statistics: &Statistics,
    policy: &ListenerPolicy,
    connect: &'a Connect,
    grant: &'a Grant,
) -> Result<Admitted<'a>, Refusal> {
    let is_assigned = connect.client_id.is_empty();
    let own = match &grant.client_id {
        Some(given) => Some(given.clone()),
        None if is_assigned => new_client_id(),
        None => Some(connect.client_id.clone()),
    };
    let Some(own) = own else {
        tracing::error!("the system gives no random numbers for a client identifier");
        let cause = "no client identifier could be assigned";
        return Err(Refusal::new(ReasonCode::ServerUnavailable, cause));
    };
    let refused = |problem: Unmountable| Refusal::new(problem.reason(), problem.to_string());
    let mountpoint = mountpoint::of_client(policy, &grant.identity, &own).map_err(refused)?;
    let client_id = mountpoint::session_id(mountpoint.as_ref(), &own);
    if let Some(mountpoint) = mountpoint {
        server.mount(mountpoint).map_err(|error| {
            Limit::of_topic(error).into_iter().for_each(|limit| statistics.reach(limit));
            Refusal::new(ReasonCode::TopicNameInvalid, format!("its Will: {error}"))
        })?;
    }
    Ok(Admitted { connect, grant, client_id, assigned: is_assigned.then_some(own) })
}

/// Decides about the CONNECT of a client that was authenticated: whether it may connect, and which session it
/// continues. `is_early`: the handshake is not confirmed.
///
/// # Errors
/// The Reason Code of the refusal, or that the CONNECT has to wait for the confirmation.
pub(super) async fn claim_session(
    core: &Core,
    server: &Server,
    peer: &Peer,
    connection: ConnectionId,
    admitted: &Admitted<'_>,
    is_early: bool,
) -> Result<ClaimedSession, Unclaimed> {
    if core.lifecycle.is_stopping() {
        return Err(ReasonCode::ServerUnavailable.into());
    }
    let Admitted { connect, grant, client_id, assigned } = admitted;
    let access = core.access.client(grant.identity.clone(), client_id);
    check_bans(core, client_id, access.identity(), peer.address)?;
    if let Some(will) = server.offer().and_then(|(_, will)| will) {
        if !access.may_set_will(&will.topic) {
            return Err(ReasonCode::NotAuthorized.into());
        }
        core.dispatcher.check(&Message::from_will(will.clone(), clock::now()))?;
    }
    if !core.sessions.registry.has_room_for(client_id, core.config.limits.sessions) {
        note_limit(core, Some(client_id), Some(access.identity()), peer.address, Limit::Sessions);
        if let Some(refused) = core.lifecycle.note_session_limit() {
            tracing::warn!(refused, "the limit of sessions is reached");
        }
        return Err(ReasonCode::QuotaExceeded.into());
    }
    // One connect too many does not take the session over. An early CONNECT that waits for the confirmation does not
    // count yet: it may be a replay.
    if !is_early {
        note_connect(core, client_id, access.identity(), peer.address)?;
    }
    let claim = if is_early {
        core.sessions.claim_new(client_id, &access, connection).await
    } else {
        core.sessions.claim(client_id, &access, connect.clean_start, connection).await.map(Some)
    };
    let claim = claim.inspect_err(|reason| {
        tracing::info!(client = shortened(client_id.as_str()), peer = peer_name(peer), %reason, "refused");
    })?;
    let claim = claim.ok_or(Unclaimed::Early)?;
    tracing::debug!(client = shortened(client_id.as_str()), version = %connect.version, transport = %peer.transport,
        present = claim.present, "connected");
    claim.entry.set_merges(connect.version.is_v5());
    let is_flapping =
        if is_early { note_connect(core, client_id, access.identity(), peer.address) } else { Ok(()) };
    let refusal = match is_flapping {
        Ok(()) => open(core, server, &claim.entry, access.identity()).await.err().map(|error| {
            let client = shortened(client_id.as_str());
            tracing::warn!(client, %error, "refused: its session cannot be stored");
            ReasonCode::ServerUnavailable
        }),
        Err(reason) => Some(reason),
    };
    if refusal.is_none() {
        claim.entry.set_identity(access.identity());
    }
    let is_recorded = refusal.is_none() && claim.entry.is_durable();
    let progress = || Box::new(DurableProgress::new(claim.entry.id(), &claim.session.inbound));
    let progress = is_recorded.then(progress);
    let acceptance = Acceptance {
        session_present: claim.present,
        assigned_client_id: assigned.clone(),
        authentication_data: grant.data.clone(),
    };
    Ok(ClaimedSession { claim, access, acceptance, progress, refusal })
}

/// Reads the stored queue of the session, and tells the store of the connection before CONNACK tells the client.
async fn open(
    core: &Core,
    server: &Server,
    entry: &SessionEntry,
    identity: &Identity,
) -> Result<(), StoreError> {
    let Some((expiry, will)) = server.offer() else { return Ok(()) };
    core.sessions.load_stored(entry).await?;
    let is_kept = core.persist.store().keeps_every_session();
    let is_stored = expiry.outlives_connection() || entry.is_durable() || is_kept;
    let will = will.filter(|_| is_stored).cloned().map(Arc::new);
    core.sessions.open(entry, identity, expiry, will).await
}

/// Random Client Identifier. A client that could guess it could take the session over. [MQTT-3.1.3-6], [MQTT-3.1.3-7]
fn new_client_id() -> Option<ClientId> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(ClientId::from(format!("auto-{:032x}", u128::from_ne_bytes(random)).as_str()))
}
