use std::io;

use braid_proto::connection::{Cause, SendError};
use braid_proto::reason::ReasonCode;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_transport::quic::is_early_data_rejected;

/// Reason of a failed measurement.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Error of the client.
    #[error(transparent)]
    Client(#[from] braid_client::Error),
    /// Error of the link.
    #[error("the link failed: {0}")]
    Link(#[from] io::Error),
    /// The connection has ended.
    #[error("the connection ended: {0}")]
    Ended(Cause),
    /// The server refused a subscription.
    #[error("the server refused to subscribe {filter:?}: {reason}")]
    Refused {
        /// Topic filter.
        filter: Box<str>,
        /// Reason Code in SUBACK.
        reason: ReasonCode,
    },
    /// The server lacks a feature of the measurement.
    #[error("the server does not take it: {0:?}")]
    Send(SendError),
    /// A message exceeds the server's limit.
    #[error("the server takes no packet of {0} bytes: raise its maximum_packet_size")]
    TooLarge(usize),
    /// A message arrived that does not belong to this load.
    #[error("an unknown message arrived on {0:?}")]
    Stray(Box<str>),
}

impl Failure {
    /// Whether the server has refused the early data (0-RTT) of the connection, so that nothing has reached it.
    pub(crate) fn is_early_data_rejected(&self) -> bool {
        matches!(self, Self::Link(error) if is_early_data_rejected(error))
    }
}

/// Parses the topic of a load.
pub(crate) fn topic_name(text: &str) -> Result<TopicName, Failure> {
    TopicName::parse(text).map_err(|_| Failure::Stray(text.into()))
}

/// Parses the topic filter of a load.
pub(crate) fn topic_filter(text: &str) -> Result<TopicFilter, Failure> {
    TopicFilter::parse(text).map_err(|_| Failure::Stray(text.into()))
}
