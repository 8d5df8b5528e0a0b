//! Who may connect. The seam for password files, certificates and tokens.

use std::net::IpAddr;

use braid_proto::packet::Connect;
use braid_proto::reason::ReasonCode;
use braid_transport::Peer;

/// Decides about a CONNECT.
pub trait Authenticate: Send + Sync + 'static {
    /// Whether this client may connect from there.
    ///
    /// # Errors
    /// The Reason Code for the CONNACK.
    fn authenticate(&self, connect: &Connect, peer: &Peer) -> Result<(), ReasonCode>;
}

/// Everybody may connect from this machine, and from outside only where that was switched on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Anonymous {
    /// Strangers from other machines may connect too.
    pub from_anywhere: bool,
}

impl Authenticate for Anonymous {
    fn authenticate(&self, _connect: &Connect, peer: &Peer) -> Result<(), ReasonCode> {
        let is_local = peer.address.is_none_or(|address| is_loopback(address.ip()));
        if is_local || self.from_anywhere { Ok(()) } else { Err(ReasonCode::NotAuthorized) }
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
