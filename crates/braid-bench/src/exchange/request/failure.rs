use std::io;
use std::time::Duration;

use braid_transport::ConnectError;
use braid_transport::quic::is_early_data_rejected;

use crate::exchange::WireError;

/// Reason of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("{0}")]
    Connect(Box<ConnectError>),
    /// Lost connection.
    #[error("the connection is lost: {0}")]
    Link(io::Error),
    /// End of the connection or the stream by the server.
    #[error("the server ended the connection before it had answered")]
    Ended,
    /// No bytes within the time limit.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Silence(Duration),
    /// The received bytes are no response.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The response belongs to another request.
    #[error("the server answered request {id} with {size} bytes, which is not what was asked for next")]
    Stray {
        /// Identifier in the response.
        id: u64,
        /// Length of its body.
        size: u64,
    },
}

impl Failure {
    /// The server has rejected early data: the request has to be sent again.
    pub(super) fn is_early_rejected(&self) -> bool {
        matches!(self, Self::Link(error) if is_early_data_rejected(error))
    }
}
