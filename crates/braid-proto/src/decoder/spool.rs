//! Where packets are received that do not belong into the heap.

use std::fmt;
use std::io;

use bytes::Bytes;
use thiserror::Error;

/// Takes in PUBLISH packets that are large.
pub trait Spool: fmt::Debug + Send + Sync {
    /// Packets of more bytes, fixed header included, come here; smaller ones stay in the heap.
    fn threshold(&self) -> usize;

    /// Begins a packet. It takes room as it grows.
    ///
    /// # Errors
    /// There is none, or it cannot be made use of.
    fn begin(&self) -> Result<Box<dyn SpooledPacket>, SpoolError>;

    /// Begins a payload of `length` bytes that was acknowledged before this process began: what came then cannot be
    /// refused any more, and may have room that new packets may not.
    ///
    /// # Errors
    /// There is no room even so.
    fn keep(&self, length: u64) -> Result<Box<dyn SpooledPacket>, SpoolError> {
        let _ = length;
        self.begin()
    }

    /// Bytes of all packets that are there, whole or not.
    fn used(&self) -> u64;

    /// How many packets there was no room for, since the beginning.
    fn refused(&self) -> u64;
}

/// A packet that is being received. Dropping it gives its room back.
pub trait SpooledPacket: fmt::Debug + Send + Sync {
    /// Adds what came.
    ///
    /// # Errors
    /// The packet is lost: nothing else may be called.
    fn append(&mut self, bytes: &[u8]) -> Result<(), SpoolError>;

    /// The whole packet in one piece. Its room is given back with the last slice of it.
    ///
    /// # Errors
    /// The packet is lost.
    fn finish(self: Box<Self>) -> Result<Bytes, SpoolError>;
}

/// Why a packet could not be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpoolError {
    /// Others have all the room that there is, or that may be used.
    #[error("there is no room left for large messages")]
    Full,
    /// Something else than room is missing.
    #[error("large messages cannot be kept: {0}")]
    Failed(io::ErrorKind),
}
