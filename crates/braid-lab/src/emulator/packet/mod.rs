//! IP packets as bytes: what can be read from them, and what a NAT changes in them.

pub(crate) mod checksum;
pub(crate) mod reset;
pub(crate) mod rewrite;
pub(crate) mod view;
