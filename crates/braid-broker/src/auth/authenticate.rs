//! Seam of authentication: the credentials of a client, the authenticator that is asked, and its answers.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;

use braid_auth::identity::{Attributes, Identity};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_transport::Peer;
use bytes::Bytes;

use super::expiry::Expiry;
use crate::listener_policy::ListenerPolicy;

/// Credentials of a client: of its CONNECT and link, or of an AUTH that begins a re-authentication, which has neither
/// user name nor password.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// Client Identifier; empty if the client leaves it to the broker.
    pub client_id: &'a ClientId,
    /// User Name.
    pub user_name: Option<&'a str>,
    /// Password.
    pub password: Option<&'a Bytes>,
    /// Authentication Method.
    pub method: Option<&'a str>,
    /// Authentication Data.
    pub data: Option<&'a Bytes>,
    /// Link of the client.
    pub peer: &'a Peer,
    /// Policy of the listener that accepted it.
    pub listener: &'a ListenerPolicy,
}

impl Credentials<'_> {
    /// Attributes of the client that do not depend on its authenticator.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            listener: self.listener.tag.as_deref().map(Into::into),
            address: self.peer.address.map(|address| address.ip()),
            ..Attributes::default()
        }
    }

    /// Tests whether the client is on this machine. A proxy whose header names no client has an unknown one.
    pub fn is_local(&self) -> bool {
        let is_unknown = self.peer.proxy.is_some() && self.peer.proxy == self.peer.address;
        !is_unknown && self.peer.address.is_none_or(|address| is_loopback(address.ip()))
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Without the secrets.
impl fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("client_id", &self.client_id.as_str())
            .field("user_name", &self.user_name)
            .field("method", &self.method)
            .field("peer", &self.peer.address)
            .finish_non_exhaustive()
    }
}

/// Answer of an [`Authenticate`], later.
pub type Authentication<'a> = Pin<Box<dyn Future<Output = Result<Outcome, Refusal>> + Send + 'a>>;

/// Answer of an [`Authenticate`].
pub enum Outcome {
    /// The client is who it says it is.
    Accepted(Box<Grant>),
    /// The client has to answer an AUTH first.
    Challenge(Challenge),
}

/// Acceptance of a client.
#[derive(Debug, Default)]
pub struct Grant {
    /// Identity of the client.
    pub identity: Identity,
    /// Client Identifier instead of the one in CONNECT.
    pub client_id: Option<ClientId>,
    /// End of the credentials, at which the connection is closed with 0x87 (Not authorized).
    pub expiry: Option<Expiry>,
    /// Last data of the Authentication Method.
    pub data: Option<Bytes>,
    /// Credential that may be revoked while the client is connected; `None` for those that [`Authorize::is_revoked`]
    /// knows by the identity.
    ///
    /// [`Authorize::is_revoked`]: crate::Authorize::is_revoked
    pub credential: Option<Box<dyn Credential>>,
}

/// Credential of a connected client, which may be revoked by a reload.
pub trait Credential: fmt::Debug + Send + Sync {
    /// Tests whether it would not be accepted by now. Asked when the broker rechecks its clients.
    fn is_revoked(&self) -> bool;
}

impl From<Identity> for Outcome {
    fn from(identity: Identity) -> Self {
        Self::Accepted(Box::new(Grant { identity, ..Grant::default() }))
    }
}

/// Step of an enhanced authentication.
pub struct Challenge {
    /// Data of the AUTH to the client.
    pub data: Bytes,
    /// Next step.
    pub exchange: Box<dyn Exchange>,
}

/// State of an enhanced authentication between two AUTH packets. Dropped if the client does not answer in time.
pub trait Exchange: Send + Sync {
    /// Handles the data of the client's AUTH.
    fn proceed(self: Box<Self>, data: Option<Bytes>) -> Authentication<'static>;
}

/// Refusal of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason Code for the CONNACK, or for the DISCONNECT after a re-authentication.
    pub reason: ReasonCode,
    /// Cause for the log, without secrets.
    pub cause: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with this cause.
    pub fn new(reason: ReasonCode, cause: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, cause: cause.into() }
    }
}

/// Authenticator of clients.
pub trait Authenticate: Send + Sync + 'static {
    /// Determines the identity of a client.
    ///
    /// The broker waits for it as long as for a CONNECT, and reads no more from the client meanwhile.
    ///
    /// # Errors
    /// The client is refused.
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a>;
}

/// Authenticator that takes every client as anonymous: from this machine, and from others only where that was switched
/// on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous {
    /// Clients from other machines may connect too.
    pub from_anywhere: bool,
}

impl Anonymous {
    /// Decides about a client by its address and listener alone.
    ///
    /// # Errors
    /// Clients without credentials may not connect from there.
    pub fn admit(self, credentials: &Credentials<'_>) -> Result<Outcome, Refusal> {
        let by_default = credentials.is_local() || self.from_anywhere;
        if !credentials.listener.anonymous.unwrap_or(by_default) {
            let cause = "clients without credentials may not connect from there";
            return Err(Refusal::new(ReasonCode::NotAuthorized, cause));
        }
        // Without rules there is nothing that an attribute could break.
        Ok(Identity::new(credentials.attributes()).unwrap_or_default().into())
    }
}

impl Authenticate for Anonymous {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        let answer = match credentials.method {
            // [MQTT-4.12.0-1]
            Some(_) => {
                Err(Refusal::new(ReasonCode::BadAuthenticationMethod, "unknown authentication method"))
            }
            None => self.admit(credentials),
        };
        Box::pin(std::future::ready(answer))
    }
}
