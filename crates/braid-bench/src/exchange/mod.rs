//! Requests and responses over our own transports, as a web client and a web server would have them: what do the
//! number of connections and streams, and connecting anew for each request, cost on a path that loses packets?
//!
//! [`run`] asks and measures, [`Responder`] answers. On QUIC the application protocol is [`ALPN`].
//!
//! # On the wire
//!
//! Numbers are big-endian. A request has [`REQUEST_LEN`] bytes, which is what the headers of a small HTTP/1.1 request
//! come to; a response has a head of [`RESPONSE_HEAD_LEN`] bytes and the object.
//!
//! | request | | response | |
//! |---|---|---|---|
//! | magic | `BXQ1` | magic | `BXR1` |
//! | id | 8 bytes | id of the request | 8 bytes |
//! | size of the object | 8 bytes, at most [`LARGEST_OBJECT`] | length of the body | 8 bytes |
//! | padding | 220 bytes | body | as long as was said |
//!
//! The responses on a stream come in the order of its requests. TCP and TLS have one stream, on which several
//! requests may be under way (pipelining); on QUIC each request that is under way has a bidirectional stream for
//! itself, opened by the client, which later ones use again. The control stream carries nothing.

mod remarks;
mod reply;
mod request;
mod wire;

pub use crate::alarm::Alarm;
pub use reply::{Responder, Service};
pub use request::{Dial, Failure, Load, LoadError, Reach, Reuse, run};
pub use wire::{LARGEST_OBJECT, REQUEST_LEN, RESPONSE_HEAD_LEN, Request, WireError};

/// The application protocol on QUIC.
pub const ALPN: &str = "braid-exchange/1";

/// The bytes that one read takes at most.
const READ_AT_ONCE: usize = 64 * 1024;
/// Turns of a connection before others of its thread have theirs.
const TURNS: usize = 32;
