//! Guards of connections, which count them and the connections of their addresses.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use braid_auth::identity::Identity;
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;

use crate::admission::{AddressKey, AddressRefusal};
use crate::auth::{SecurityAction, SecurityEvent};
use crate::clock::now;
use crate::core::Core;
use crate::limit::Limit;

/// Guard of a connection: counts it, and the connections of its address, for as long as its task lives, however that
/// ends.
pub(crate) struct ConnectionGuard {
    core: Arc<Core>,
    /// Address to be released.
    key: Option<AddressKey>,
    /// The limits of the address have been asked.
    is_admitted: bool,
    /// The connection is counted, with those of this listener.
    listener: Option<u16>,
}

impl ConnectionGuard {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, key: None, is_admitted: false, listener: None }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Counts the connection, and those of its listener, which is given by its index.
    pub(crate) fn accepted(mut self, listener: u16) -> Self {
        self.listener = Some(listener);
        self.core.statistics.connection_opened();
        if let Some(listener) = self.core.lifecycle.listener(listener) {
            listener.connection_opened();
        }
        self
    }

    /// Asks the limits of the address of the client, unless that was done before. Returns the reason to refuse the
    /// connection with a CONNACK, if there is one.
    ///
    /// # Errors
    /// The connection is refused without an answer. That is recorded.
    pub(crate) fn admit(
        &mut self,
        address: Option<SocketAddr>,
    ) -> Result<Option<ReasonCode>, AddressRefusal> {
        if std::mem::replace(&mut self.is_admitted, true) {
            return Ok(None);
        }
        let admitted = self.core.access.admission.admit(address, now());
        let admitted = admitted.inspect_err(|refusal| note_refusal(&self.core, None, address, refusal))?;
        self.key = admitted.key;
        if !admitted.is_answered {
            return Ok(None);
        }
        note_refusal(&self.core, None, address, &AddressRefusal::Exceeds(Limit::AddressRate));
        Ok(Some(ReasonCode::ConnectionRateExceeded))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.access.admission.release(key);
        }
        if let Some(listener) = self.listener {
            if let Some(listener) = self.core.lifecycle.listener(listener) {
                listener.connection_closed();
            }
            self.core.statistics.connection_closed();
            self.core.lifecycle.note_connection_ended();
        }
    }
}

/// Counts and records a connection that is refused because of a limit of all clients or of its listener.
pub(crate) fn note_limit(
    core: &Core,
    client: Option<&ClientId>,
    identity: Option<&Identity>,
    address: Option<SocketAddr>,
    limit: Limit,
) {
    let cause = match limit {
        Limit::Sessions => "the limit of sessions is reached",
        Limit::MemoryHigh => "memory is above its limit",
        Limit::ListenerConnections => "the limit of connections of the listener is reached",
        _ => "the limit of connections is reached",
    };
    core.statistics.refuse_connection(limit);
    let event = SecurityEvent::refused(client, identity, SecurityAction::Limited, cause);
    core.access.audit.record(event.with_address(address));
}

/// Counts and records a connection that is refused because of its address, or of a ban of its client.
pub(crate) fn note_refusal(
    core: &Core,
    client: Option<(&ClientId, &Identity)>,
    address: Option<SocketAddr>,
    refusal: &AddressRefusal,
) {
    let (action, cause) = match refusal {
        AddressRefusal::Banned(reason) => (SecurityAction::Banned, Cow::Owned(String::from(&**reason))),
        AddressRefusal::Exceeds(Limit::AddressConnections) => {
            (SecurityAction::Limited, "the limit of connections of the address is reached".into())
        }
        AddressRefusal::Exceeds(_) => {
            (SecurityAction::Limited, "connections come too fast from the address".into())
        }
    };
    core.statistics.refuse_connection(refusal.limit());
    let (client_id, identity) = client.unzip();
    let event = SecurityEvent::refused(client_id, identity, action, cause);
    core.access.audit.record(event.with_address(address));
}
