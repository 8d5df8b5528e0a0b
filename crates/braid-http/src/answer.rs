use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::state::HealthState;

const PATHS: &str = "the paths are /health, /ready, /status and /live\n";

/// What a path asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Whether clients can be sent here.
    Ready,
    /// Whether the process answers at all.
    Live,
}

fn question(path: &str) -> Option<Question> {
    match path {
        // The last is where load balancers in front of EMQX look.
        "/health" | "/ready" | "/status" | "/api/v5/status" => Some(Question::Ready),
        "/live" => Some(Question::Live),
        _ => None,
    }
}

/// Answers a request; what it has for a body is not looked at.
pub(crate) fn answer<B>(request: &Request<B>, state: &HealthState) -> Response<Full<Bytes>> {
    let Some(question) = question(request.uri().path()) else {
        return refuse(StatusCode::NOT_FOUND, PATHS);
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let report = state.report();
    let is_well = report.is_ready || question == Question::Live;
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Numbers and texts alone are always JSON.
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
    // How it was a moment ago is of no use to anybody.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
