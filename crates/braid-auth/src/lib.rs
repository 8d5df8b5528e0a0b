//! Authentication and permissions of clients.
//!
//! The crate never opens a file or socket, reads a clock, draws a random number, takes a lock or knows a runtime:
//! callers pass the bytes of a file, and take decisions.
//!
//! - [`acl`]: access control list, its file format and its decisions on topics and Topic Filters
//! - [`bans`]: ban file: clients, users and networks that are refused
//! - [`claims`]: facts about a client that its authenticator has verified
//! - [`identity`]: identity of a client, its own rules included, as it is stored with a session
//! - [`jwt`]: JSON Web Tokens, their keys and the check of their claims
//! - [`mosquitto`]: import of mosquitto's acl_file
//! - [`password`]: password file, its format, verification and editing
//! - [`publisher`]: publisher of a retained message, as it is stored with the message
//! - [`rules_json`]: rules of one client in JSON, of a token or of the answer of a service
//! - [`scram`]: SCRAM-SHA-256, both sides, and the credentials of the server

pub mod acl;
pub mod bans;
pub mod claims;
pub mod identity;
pub mod jwt;
pub mod mosquitto;
pub mod password;
pub mod publisher;
pub mod rules_json;
pub mod scram;
mod text_line;
