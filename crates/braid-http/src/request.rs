//! Facts about a request that routes need, and answers for those that no route has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Response, StatusCode};

use crate::front::PermitRef;
use crate::problem::problem;

/// Client of a request, as an extension of it.
#[derive(Clone, Debug)]
pub struct Client {
    /// Its address.
    pub address: SocketAddr,
    /// Host and port that it asked for.
    pub authority: Option<Authority>,
    /// True on TLS and QUIC.
    pub is_encrypted: bool,
}

/// Extension of a request on HTTP/1.1 that asks for another protocol.
#[derive(Clone, Debug)]
pub(crate) struct Upgraded {
    /// Set to true, the connection has another protocol and no time limit any more.
    pub(crate) is_upgraded: Arc<AtomicBool>,
    /// Permission of the connection, for routes whose connections others limit.
    pub(crate) permit: PermitRef,
}

/// Tests whether a client speaks for others: its address says nothing about them.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "via"].iter().any(|name| headers.contains_key(*name))
}

/// Fallback for paths without a route.
pub(crate) async fn not_found() -> Response<Body> {
    problem(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// Fallback for methods that a route has not.
pub(crate) async fn method_not_allowed() -> Response<Body> {
    problem(StatusCode::METHOD_NOT_ALLOWED, "the resource has no such method")
}
