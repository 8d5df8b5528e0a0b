//! Authenticators and authorizers of the broker.
//!
//! The crate never decides by itself: formats and decisions are those of [`braid_auth`], which is pure. Here are the
//! reading of files, threads for slow hashes, and questions to services over HTTP.
//!
//! [`AccessControl`] is the [`Chain`] of authenticators and the [`Rules`], which are reloaded together.
//!
//! - [`http`]: HTTP client with limits of time, size and number
//! - [`hook`]: authentication by a service over HTTP
//! - [`remote_keys`]: keys of tokens, fetched from a URL and kept fresh

mod certificate;
mod chain;
mod control;
mod file;
pub mod hook;
pub mod http;
mod password;
mod pool;
pub mod remote_keys;
mod rules;
mod service;
mod tokens;

pub use certificate::{CertificateName, Certificates};
pub use chain::{Chain, Link};
pub use control::{AccessControl, KeyChanges, Reloaded};
pub use file::{FileError, read as read_file};
pub use password::{SCRAM_SHA_256, Users};
pub use pool::{Busy, HashPool, MAX_WAITING};
pub use rules::{AclFile, AclFormat, Rules};
pub use tokens::{KeyFileKind, Keys, Tokens};
