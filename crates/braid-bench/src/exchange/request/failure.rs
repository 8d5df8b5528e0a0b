use std::io;
use std::time::Duration;

use braid_transport::ConnectError;
use braid_transport::quic::is_early_data_rejected;

use crate::exchange::WireError;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no connection.
    #[error("{0}")]
    Connect(Box<ConnectError>),
    /// The connection is lost.
    #[error("the connection is lost: {0}")]
    Link(io::Error),
    /// The server ended the connection, or the stream.
    #[error("the server ended the connection before it had answered")]
    Ended,
    /// Nothing came.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Silence(Duration),
    /// The received bytes are no response.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The response belongs to another request.
    #[error("the server answered request {id} with {size} bytes, which is not what was asked for next")]
    Stray {
        /// The id in the response.
        id: u64,
        /// The length of its body.
        size: u64,
    },
}

impl Failure {
    /// The server took nothing of what was sent early: it has to be sent again.
    pub(super) fn is_early_rejected(&self) -> bool {
        matches!(self, Self::Link(error) if is_early_data_rejected(error))
    }
}
