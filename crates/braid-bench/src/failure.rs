use std::io;

use braid_proto::connection::{Cause, Unsendable};
use braid_proto::reason::ReasonCode;

/// Why a measurement came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The client failed.
    #[error(transparent)]
    Client(#[from] braid_client::Error),
    /// The link failed.
    #[error("the link failed: {0}")]
    Link(#[from] io::Error),
    /// The connection has ended.
    #[error("the connection ended: {0}")]
    Ended(Cause),
    /// The server refused a subscription.
    #[error("the server refused to subscribe {filter:?}: {reason}")]
    Refused {
        /// The filter.
        filter: Box<str>,
        /// The code in SUBACK.
        reason: ReasonCode,
    },
    /// The server does not take what is to be measured.
    #[error("the server does not take it: {0:?}")]
    Unsendable(Unsendable),
    /// A message is larger than the server takes.
    #[error("the server takes no packet of {0} bytes: raise its maximum_packet_size")]
    TooLarge(usize),
    /// A message arrived that this load did not send.
    #[error("an unknown message arrived on {0:?}")]
    Stray(Box<str>),
}
