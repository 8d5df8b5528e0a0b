//! Authentication and permissions of clients.
//!
//! The crate never opens a file or socket, reads a clock, draws a random number, takes a lock or knows a runtime:
//! callers pass the bytes of a file, and take decisions.
//!
//! - [`acl`]: access control list, its file format and its decisions on topics and Topic Filters
//! - [`claims`]: facts about a client that its authenticator has verified
//! - [`identity`]: identity of a client, its own rules included, as it is stored with a session
//! - [`mosquitto`]: import of mosquitto's acl_file
//! - [`rules_json`]: rules of one client in JSON, of a token or of the answer of a service

pub mod acl;
pub mod claims;
pub mod identity;
pub mod mosquitto;
pub mod rules_json;
