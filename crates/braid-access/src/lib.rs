//! Authenticators and authorizers of the broker.
//!
//! The formats and decisions are those of [`braid_auth`], which is pure. This crate reads the files, runs slow hashes on
//! threads of their own and asks services over HTTP.
