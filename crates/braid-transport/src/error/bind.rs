//! Opening a listener.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

use super::CertificateError;

/// Why a listener could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket listens there.
    #[error(
        "{transport} port {} on {} is in use: stop the program that has it or choose another port",
        address.port(), address.ip()
    )]
    InUse {
        /// `TCP` or `UDP`.
        transport: &'static str,
        /// The address asked for.
        address: SocketAddr,
    },
    /// No interface of this machine has the address.
    #[error("{} is not an address of this machine: listen on one of its own, or on 0.0.0.0 or [::]", address.ip())]
    NotOurs {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The operating system does not allow it.
    #[error("not allowed to listen on {address}: ports below 1024 need a privilege, choose a higher one")]
    Denied {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The certificate cannot be used for this listener.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// Anything else the operating system refuses.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address asked for.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
}

impl BindError {
    pub(crate) fn from_io(transport: &'static str, address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse { transport, address },
            io::ErrorKind::AddrNotAvailable => Self::NotOurs { address },
            io::ErrorKind::PermissionDenied => Self::Denied { address },
            _ => Self::Io { address, source },
        }
    }
}
