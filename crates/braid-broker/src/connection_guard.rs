//! Guards of connections, which count them and the connections of their addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use braid_proto::reason::ReasonCode;

use crate::admission::{AddressKey, AddressLimit, AddressRefusal};
use crate::auth::{SecurityAction, SecurityEvent};
use crate::clock::now;
use crate::core::Core;
use crate::statistics::Counter;

/// Guard of a connection: counts it, and the connections of its address, for as long as its task lives, however that
/// ends.
pub(crate) struct ConnectionGuard {
    core: Arc<Core>,
    /// Address to be released.
    key: Option<AddressKey>,
    /// The limits of the address have been asked.
    is_admitted: bool,
    /// The connection is counted.
    is_accepted: bool,
}

impl ConnectionGuard {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, key: None, is_admitted: false, is_accepted: false }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Counts the connection.
    pub(crate) fn accepted(mut self) -> Self {
        self.is_accepted = true;
        self.core.statistics.connection_opened();
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
        let admitted = admitted.inspect_err(|refusal| note_refusal(&self.core, address, refusal))?;
        self.key = admitted.key;
        if !admitted.is_answered {
            return Ok(None);
        }
        note_refusal(&self.core, address, &AddressRefusal::Exceeds(AddressLimit::Rate));
        Ok(Some(ReasonCode::ConnectionRateExceeded))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.access.admission.release(key);
        }
        if self.is_accepted {
            self.core.statistics.connection_closed();
            self.core.lifecycle.note_connection_ended();
        }
    }
}

/// Counts and records a connection that is refused because of its address.
pub(crate) fn note_refusal(core: &Core, address: Option<SocketAddr>, refusal: &AddressRefusal) {
    let (counter, action, cause) = match refusal {
        AddressRefusal::Banned(reason) => {
            (Counter::BannedRefused, SecurityAction::Banned, String::from(&**reason))
        }
        AddressRefusal::Exceeds(AddressLimit::Connections) => {
            let cause = "the limit of connections of the address is reached";
            (Counter::AddressesCrowded, SecurityAction::Limited, cause.to_owned())
        }
        AddressRefusal::Exceeds(AddressLimit::Rate) => {
            let cause = "connections come too fast from the address";
            (Counter::RateExceeded, SecurityAction::Limited, cause.to_owned())
        }
    };
    core.statistics.add(Counter::ConnectionsRefused, 1);
    core.statistics.add(counter, 1);
    let event = SecurityEvent::refused(None, None, action, cause);
    core.access.audit.record(event.with_address(address));
}
