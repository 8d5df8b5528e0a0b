//! Bans of clients, users and addresses.

pub use crate::admission::{Ban, BanError, BanTarget};
