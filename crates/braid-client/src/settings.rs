//! Options of a client, validated, and the choice of its link.

use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::ClientOptions;
use braid_proto::packet::Connect;
use braid_transport::Link;

use crate::auto::Auto;
use crate::dialer::{Dialer, within};
use crate::error::Error;
use crate::reconnect::Reconnect;
use crate::scram::ScramCredentials;

/// Options of a client, validated.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) route: Route,
    /// CONNECT of the next connection.
    pub(crate) connect: Connect,
    /// Credentials of the Authentication Method, if there is one.
    pub(crate) scram: Option<ScramCredentials>,
    pub(crate) protocol: Arc<ClientOptions>,
    pub(crate) reconnect: Reconnect,
    pub(crate) timeouts: Timeouts,
    /// Interfaces of a client with several paths.
    pub(crate) paths: Vec<Arc<str>>,
    /// Whether the session ends with the client, although CONNECT has it outlive a connection so that it can move.
    pub(crate) ends_session: bool,
}

/// Time limits outside of the protocol machine; those of the machine are in [`ClientOptions`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Limit until a link is established.
    pub(crate) connect: Duration,
    /// Limit from `disconnect` until DISCONNECT is sent, even with unanswered requests.
    pub(crate) disconnect: Duration,
}

/// Choice of the link.
#[derive(Debug)]
pub(crate) enum Route {
    /// Always the same kind.
    Fixed(Dialer),
    /// QUIC or TLS.
    Auto(Box<Auto>),
}

impl Route {
    /// The automatic choice, if there is one.
    pub(crate) fn auto(&mut self) -> Option<&mut Auto> {
        match self {
            Self::Fixed(_) => None,
            Self::Auto(auto) => Some(auto),
        }
    }
}

impl Settings {
    /// Establishes a link within the connect timeout.
    pub(crate) async fn dial(&mut self, may_be_early: bool) -> Result<Link, Error> {
        match &mut self.route {
            Route::Fixed(dialer) => within(self.timeouts.connect, dialer.dial(may_be_early)).await,
            // Each of its attempts has the limit, so that their errors are not lost.
            Route::Auto(auto) => auto.dial(may_be_early).await,
        }
    }
}
