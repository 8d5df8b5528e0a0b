//! Requests and responses over our own transports, as a web client and a web server exchange them: the cost of the
//! number of connections and streams, and of a connection for each request, on a path that loses packets.
//!
//! [`run`] sends requests and measures, [`Responder`] answers. On QUIC the application protocol is [`ALPN`].
//!
//! # On the wire
//!
//! Numbers are big-endian. A request has [`REQUEST_LEN`] bytes, the size of the headers of a small HTTP/1.1 request;
//! a response has a head of [`RESPONSE_HEAD_LEN`] bytes and the object.
//!
//! | request | | response | |
//! |---|---|---|---|
//! | magic | `BXQ1` | magic | `BXR1` |
//! | id | 8 bytes | id of the request | 8 bytes |
//! | size of the object | 8 bytes, at most [`LARGEST_OBJECT`] | length of the body | 8 bytes |
//! | padding | 220 bytes | body | as long as was said |
//!
//! The responses on a stream follow the order of its requests. TCP and TLS have one stream, on which several
//! requests may be unanswered (pipelining); on QUIC each unanswered request has a bidirectional stream for
//! itself, opened by the client and reused by later ones. The control stream carries nothing.

mod counters;
mod reply;
mod request;
mod wire;

pub use crate::dial::{DialError, Dialer};
pub use crate::timer::TimerService;
pub use reply::{Responder, Service};
pub use request::{Failure, LoadError, RequestLoad, Reuse, run};
pub use wire::{LARGEST_OBJECT, REQUEST_LEN, RESPONSE_HEAD_LEN, Request, WireError};

/// Application protocol on QUIC.
pub const ALPN: &str = "braid-exchange/1";

/// Most bytes of one read.
const READ_AT_ONCE: usize = 64 * 1024;
/// Turns of a connection before others of its thread are polled.
const TURNS: usize = 32;
