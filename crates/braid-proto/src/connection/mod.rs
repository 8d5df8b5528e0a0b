//! The protocol machines of both ends of a Network Connection.
//!
//! **Mutate once, then drain.** A shell does, for each thing that happens:
//!
//! 1. call one `handle_*` method or command,
//! 2. take every [`Event`] with `poll_event` and answer it,
//! 3. write the bytes of `outbox` as far as the link takes them,
//! 4. arm one timer for `poll_timeout`.
//!
//! Time is given by the caller and never goes back. Methods come in four kinds: getters, `handle_*` (something
//! happened), commands (the application wants something) and `poll_*` (what the caller must do now).

mod acks;
mod alias;
mod client;
mod exchange;
mod outbox;
mod server;
mod streams;
mod timer;

pub use acks::Token;
pub use client::{Client, ClientEvent, ClientOptions, Connected, Incoming, Unsendable};
pub use exchange::{Progress, Resent, Sent};
pub use outbox::Outbox;
pub use server::{Acceptance, EarlyPublish, End, Event, Server, ServerOptions};
pub use streams::StreamAction;

use crate::error::Violation;
use crate::reason::ReasonCode;

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The peer sent DISCONNECT.
    Disconnected(ReasonCode),
    /// The peer broke the specification.
    Violation(Violation),
    /// This side closed it.
    Closed(ReasonCode),
    /// The server refused the CONNECT.
    Refused(ReasonCode),
    /// The link under it ended without a DISCONNECT.
    Lost,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disconnected(reason) => write!(f, "the peer disconnected: {reason}"),
            Self::Violation(violation) => write!(f, "{violation}"),
            Self::Closed(reason) => write!(f, "closed: {reason}"),
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Lost => f.write_str("the link ended without DISCONNECT"),
        }
    }
}
