//! Error responses: `application/problem+json` (RFC 9457).

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};

/// Body with status, title and `detail`.
pub(crate) fn text(status: StatusCode, detail: &str) -> String {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    format!("{body}\n")
}

/// Response with status, title and `detail`, which is shown to clients: no errors of libraries, and no paths of the
/// host but to users with a role.
#[must_use]
pub fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(text(status, detail)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
