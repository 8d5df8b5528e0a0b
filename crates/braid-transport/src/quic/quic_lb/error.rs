//! Errors of QUIC-LB configurations.

use thiserror::Error;

use super::{MAX_SERVER_ID, MIN_NONCE};

/// Error of a QUIC-LB configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QuicLbError {
    /// The config ID does not fit into its three bits, or is the reserved one.
    #[error("{0} is no QUIC-LB config ID: give 0 to 6")]
    ConfigId(u8),
    /// A server ID is empty or too long.
    #[error("a QUIC-LB server ID has 1 to {MAX_SERVER_ID} bytes, not {0}")]
    ServerIdLength(usize),
    /// A server ID has other characters than hexadecimal digits, or an odd number of them.
    #[error("a QUIC-LB server ID is written as pairs of hexadecimal digits, such as 01 or 0a1b")]
    ServerIdDigits,
    /// The nonce is too short, or too long beside the server ID.
    #[error(
        "a QUIC-LB nonce of {length} bytes does not go with a server ID of {server_id_length}: give {MIN_NONCE} to {most}"
    )]
    NonceLength {
        /// The one given, bytes.
        length: usize,
        /// Length of the server ID, bytes.
        server_id_length: usize,
        /// Longest nonce with such a server ID, bytes.
        most: usize,
    },
    /// A key is not what it should be. The text does not repeat it.
    #[error("a QUIC-LB key is written as 32 hexadecimal digits (AES-128)")]
    Key,
}
