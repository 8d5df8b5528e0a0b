//! How a connection ended.

use std::io;

use noq::{ConnectionError, ReadError, VarInt};

use crate::quic::codes::{self, code};

/// Why a link is over.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum CloseReason {
    #[error("the QUIC connection is lost: {0}")]
    Connection(ConnectionError),
    #[error("the server did not take the early data")]
    EarlyRefused,
    #[error("the peer reset the control stream with code {0:#x}")]
    ControlReset(u64),
    #[error("the peer stopped the control stream with code {0:#x}")]
    ControlStopped(u64),
    #[error("{0}")]
    Other(Box<str>),
}

impl CloseReason {
    /// Many clients close the connection without finishing the control stream first: that is its
    /// end as well.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(self, Self::Connection(ConnectionError::ApplicationClosed(close))
            if close.error_code == code(codes::CLOSE_NORMAL))
    }

    pub(super) fn control_stopped(code: VarInt) -> Self {
        Self::ControlStopped(code.into_inner())
    }
}

impl From<ReadError> for CloseReason {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(error) => Self::Connection(error),
            ReadError::ZeroRttRejected => Self::EarlyRefused,
            error => Self::Other(error.to_string().into()),
        }
    }
}

impl From<CloseReason> for io::Error {
    fn from(close_reason: CloseReason) -> Self {
        let kind = match &close_reason {
            CloseReason::Connection(ConnectionError::TimedOut) => io::ErrorKind::TimedOut,
            CloseReason::Connection(ConnectionError::LocallyClosed) => io::ErrorKind::ConnectionAborted,
            // Callers tell it from the rest by this cause.
            CloseReason::EarlyRefused => return ReadError::ZeroRttRejected.into(),
            _ => io::ErrorKind::ConnectionReset,
        };
        Self::new(kind, close_reason)
    }
}
