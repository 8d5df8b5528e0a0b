//! Checks of a request before it is routed.

use axum::http::header::{CONTENT_LENGTH, HOST, HeaderMap, ORIGIN, TE, TRANSFER_ENCODING};
use axum::http::uri::Authority;
use axum::http::{Method, Request, StatusCode, Uri, Version};

use crate::fields::CONNECTION_SPECIFIC;
use crate::limits::Limits;

/// Refusal: status and detail.
pub(super) type Refusal = (StatusCode, &'static str);

const HOST_MISSING: Refusal = (StatusCode::BAD_REQUEST, "Host is missing");

/// Rules about the requests of one server.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    /// Host names beside those of loopback, for connections to a loopback address.
    pub(super) hosts: Vec<String>,
}

impl Guard {
    /// Checks a request on a connection to a loopback address or another one. `is_cross_origin`: whether pages of other
    /// origins may write to a path; asked for writes only. Returns host and port that the client asked for.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        is_loopback: bool,
        is_cross_origin: impl FnOnce(&str) -> bool,
        limits: &Limits,
    ) -> Result<Option<Authority>, Refusal> {
        let uri = request.uri();
        let length = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
        if length > limits.uri_bytes {
            return Err((StatusCode::URI_TOO_LONG, "the URI is longer than this server accepts"));
        }
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            return Err((StatusCode::NOT_IMPLEMENTED, "this server has neither CONNECT nor TRACE"));
        }
        framing(request.version(), request.headers())?;
        let authority = authority(request)?;
        // A page of another host whose name was made to resolve to a loopback address (DNS rebinding).
        if is_loopback && authority.as_ref().is_some_and(|authority| !self.is_known(authority.host())) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this host name is unknown here: use localhost, or name it in http.hosts",
            ));
        }
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if !is_read && !is_cross_origin(uri.path()) {
            same_origin(request.headers(), authority.as_ref())?;
        }
        match content_length(request.headers()) {
            Err(()) => Err((StatusCode::BAD_REQUEST, "Content-Length is no number")),
            Ok(Some(length)) if length > limits.body_bytes => {
                Err((StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than this server accepts"))
            }
            Ok(_) => Ok(authority),
        }
    }

    fn is_known(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.');
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        host.eq_ignore_ascii_case("localhost")
            || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }
}

/// The length that the head declares; an error if it is no number.
pub(super) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, ()> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    let text = first.to_str().map_err(drop)?;
    // `parse` would take a sign.
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || lengths.any(|other| other != first) {
        return Err(());
    }
    text.parse().map(Some).map_err(drop)
}

/// Refuses codings of the body other than `chunked` (RFC 9112, 6.1), and fields of one connection where frames take
/// their place (RFC 9114, 4.2; hyper does so on HTTP/2).
fn framing(version: Version, headers: &HeaderMap) -> Result<(), Refusal> {
    if version > Version::HTTP_2 {
        let te = headers.get(TE).is_some_and(|te| te != "trailers");
        if te || CONNECTION_SPECIFIC.iter().any(|name| headers.contains_key(name)) {
            return Err((StatusCode::BAD_REQUEST, "a field of the request concerns connections of HTTP/1.1"));
        }
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err((StatusCode::NOT_IMPLEMENTED, "the body has another transfer coding than chunked")),
    }
}

/// Host and port that the client asks for. RFC 9112, 3.2 and RFC 9113, 8.3.1.
fn authority<B>(request: &Request<B>) -> Result<Option<Authority>, Refusal> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err((StatusCode::BAD_REQUEST, "there is more than one Host"));
    }
    let from_host = match host {
        None => None,
        Some(host) => {
            let parsed = Authority::try_from(host.as_bytes()).ok();
            let parsed = parsed.filter(|authority| !authority.as_str().contains('@'));
            Some(parsed.ok_or((StatusCode::BAD_REQUEST, "Host is no name or address with a port"))?)
        }
    };
    match (request.uri().authority(), from_host) {
        (Some(target), Some(host)) if *target != host => {
            Err((StatusCode::BAD_REQUEST, "Host and the target of the request differ"))
        }
        (Some(target), _) if target.as_str().contains('@') => {
            Err((StatusCode::BAD_REQUEST, "the target of the request has user information"))
        }
        // [RFC 9112, 3.2] Also for a target in absolute form.
        (Some(_), None) if request.version() == Version::HTTP_11 => Err(HOST_MISSING),
        (Some(target), _) => Ok(Some(target.clone())),
        (None, Some(host)) => Ok(Some(host)),
        (None, None) if request.version() <= Version::HTTP_10 => Ok(None),
        (None, None) => Err(HOST_MISSING),
    }
}

/// Refuses writes that a browser sends for a page of another origin.
fn same_origin(headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Refusal> {
    const REFUSED: Refusal = (StatusCode::FORBIDDEN, "pages of other origins may not write here");
    if let Some(site) = headers.get("sec-fetch-site") {
        return if site == "same-origin" || site == "none" { Ok(()) } else { Err(REFUSED) };
    }
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = Uri::try_from(origin.as_bytes()).ok();
    let origin = origin.as_ref().and_then(Uri::authority);
    if origin.is_some() && origin == authority { Ok(()) } else { Err(REFUSED) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(guard: &Guard, lines: &str, is_loopback: bool) -> u16 {
        let (target, headers) = lines.split_once('\n').unwrap_or((lines, ""));
        let (method, uri) = target.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        let request = request.body(()).unwrap();
        let checked = guard.check(&request, is_loopback, |path| path == "/app", &Limits::default());
        checked.map_or_else(|(status, _)| status.as_u16(), |_| 200)
    }

    #[test]
    fn requests_are_checked() {
        let guard = Guard { hosts: vec!["proxy.example".into()] };
        let long = format!("GET /{}\nhost: localhost", "a".repeat(8192));
        for (lines, expected) in [
            ("GET /\nhost: localhost:18083", 200),
            ("GET /\nhost: LOCALHOST.", 200),
            ("GET /\nhost: 127.0.0.1:1", 200),
            ("GET /\nhost: [::1]:1", 200),
            ("GET /\nhost: proxy.example", 200),
            ("GET http://localhost/\nhost: localhost", 200),
            ("GET http://localhost/", 400),
            ("GET /\nhost: evil.example", 421),
            ("GET http://evil.example/\nhost: evil.example", 421),
            ("GET /\nhost: 192.0.2.1", 421),
            ("GET /\nhost: localhost.evil.example", 421),
            ("GET /", 400),
            ("GET /\nhost: localhost\nhost: localhost", 400),
            ("GET /\nhost: a@localhost", 400),
            ("GET /\nhost: a b", 400),
            ("GET http://localhost/\nhost: 127.0.0.1", 400),
            (&long, 414),
            ("TRACE /\nhost: localhost", 501),
            ("POST /\nhost: localhost\ncontent-length: 16777217", 413),
            ("POST /\nhost: localhost\ncontent-length: +1", 400),
            ("POST /\nhost: localhost\ncontent-length: 99999999999999999999", 400),
            ("POST /\nhost: localhost\ncontent-length: 1\ncontent-length: 2", 400),
            ("POST /\nhost: localhost:1\norigin: http://localhost:1", 200),
            ("POST /\nhost: localhost:1\norigin: http://localhost:2", 403),
            ("DELETE /\nhost: localhost\norigin: null", 403),
            ("PUT /\nhost: localhost\nsec-fetch-site: cross-site", 403),
            ("PUT /\nhost: localhost\nsec-fetch-site: same-site", 403),
            ("PUT /\nhost: localhost\nsec-fetch-site: same-origin\norigin: http://localhost", 200),
            ("GET /\nhost: localhost\norigin: http://evil.example", 200),
            ("POST /app\nhost: localhost\norigin: http://evil.example", 200),
        ] {
            assert_eq!(status(&guard, lines, true), expected, "{lines:.100}");
        }
        assert_eq!(status(&guard, "GET /\nhost: evil.example", false), 200);
    }

    #[test]
    fn host_is_required_on_http_1_1_alone() {
        for (version, expected) in [
            (Version::HTTP_10, true),
            (Version::HTTP_11, false),
            (Version::HTTP_2, true),
            (Version::HTTP_3, true),
        ] {
            let request = Request::builder().uri("http://localhost/").version(version).body(()).unwrap();
            let authority = authority(&request);
            assert_eq!(authority.is_ok_and(|host| host.is_some()), expected, "{version:?}");
        }
    }
}
