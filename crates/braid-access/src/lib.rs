//! Authenticators and authorizers of the broker.
//!
//! The crate never decides by itself: formats and decisions are those of [`braid_auth`], which is pure. Here are the
//! reading of files, threads for slow hashes, and questions to services over HTTP.
