//! Facts about a request that routes need, and answers for those that no route has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::body::Body;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode, Version};

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

/// Beginnings of names of fields that proxies and content delivery networks add to a request.
const PROXY_PREFIXES: [&str; 17] = [
    "x-forwarded-",
    "x-original-",
    "x-envoy-",
    "x-amzn-",
    "x-azure-",
    "x-appengine-",
    "x-auth-request-",
    "x-arr-",
    "x-ssl-",
    "ssl-client-",
    "x-haproxy-",
    "x-traefik-",
    "akamai-",
    "cf-",
    "fastly-",
    "fly-",
    "tailscale-",
];

/// Names of fields that proxies add to a request.
const PROXY_FIELDS: [&str; 22] = [
    "forwarded",
    "via",
    "x-forwarded",
    "x-real-ip",
    "x-client-ip",
    "client-ip",
    "true-client-ip",
    "x-cluster-client-ip",
    "x-remote-ip",
    "x-remote-addr",
    "x-host",
    "x-scheme",
    "x-url-scheme",
    "front-end-https",
    "x-request-id",
    "x-request-start",
    "x-varnish",
    "cdn-loop",
    "surrogate-capability",
    "early-data",
    "max-forwards",
    "proxy-connection",
];

/// Sign that a client speaks for others, so that its address says nothing about them: the name of a field, or a version
/// that only proxies use by now. A proxy that sends HTTP/1.1 and adds nothing leaves none.
pub(crate) fn proxy_sign(version: Version, headers: &HeaderMap) -> Option<&str> {
    if version < Version::HTTP_11 {
        return Some("HTTP/1.0");
    }
    let is_sign = |name: &&str| {
        PROXY_FIELDS.contains(name) || PROXY_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    headers.keys().map(HeaderName::as_str).find(is_sign)
}

/// Fallback for paths without a route.
pub(crate) async fn not_found() -> Response<Body> {
    problem(StatusCode::NOT_FOUND, "there is nothing at this path")
}

/// Fallback for methods that a route has not.
pub(crate) async fn method_not_allowed() -> Response<Body> {
    problem(StatusCode::METHOD_NOT_ALLOWED, "the resource has no such method")
}
