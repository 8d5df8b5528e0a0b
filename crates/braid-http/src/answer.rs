//! HTTP responses to health probes.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::state::HealthState;

const PATHS: &str = "the paths are /health/ready, /health/live, /health, /ready, /status and /live\n";

/// Kind of a health probe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    /// Readiness: whether load balancers may send clients here.
    Ready,
    /// Liveness: whether the process answers.
    Live,
}

fn probe(path: &str) -> Option<Probe> {
    match path {
        // The last path is that of EMQX, which load balancers are configured with.
        "/health" | "/health/ready" | "/ready" | "/status" | "/api/v5/status" => Some(Probe::Ready),
        "/health/live" | "/live" => Some(Probe::Live),
        _ => None,
    }
}

/// Answers a request; its body is ignored.
pub(crate) fn answer<B>(request: &Request<B>, state: &HealthState) -> Response<Full<Bytes>> {
    let Some(probe) = probe(request.uri().path()) else {
        return refuse(StatusCode::NOT_FOUND, PATHS);
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let report = state.report();
    let is_well = report.is_ready || probe == Probe::Live;
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Serialising numbers and strings cannot fail.
    let mut body = serde_json::to_vec(&report).unwrap_or_default();
    body.push(b'\n');
    of(status, "application/json", body.into())
}

fn refuse(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    of(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn of(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // A cached health report would be stale.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
