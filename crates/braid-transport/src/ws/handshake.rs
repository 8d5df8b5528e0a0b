//! HTTP upgrade, on both sides.

use std::net::IpAddr;

use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::{
    CONNECTION, CONTENT_TYPE, ORIGIN, SEC_WEBSOCKET_PROTOCOL,
};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self as library};
use tokio_tungstenite::{accept_hdr_async_with_config, client_async_with_config};

use super::stream::{WsStream, handshake_config};
use super::{SUBPROTOCOL, SUBPROTOCOL_V31, WebSocketOptions};
use crate::Target;
use crate::error::{ConnectError, HandshakeError};
use crate::single::ByteStream;

/// Client's side: requests the path of the target. Its host and port go into the Host header.
pub(crate) async fn connect<S: ByteStream>(
    io: S,
    Target { host, port, path, .. }: &Target,
    options: &WebSocketOptions,
) -> Result<WsStream<S>, ConnectError> {
    let failed = |error: library::Error| {
        let reason = describe(&error);
        ConnectError::Other(format!("{host} does not speak MQTT over WebSocket at {path}: {reason}"))
    };
    let host_part = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut request = format!("ws://{host_part}:{port}{path}").into_client_request().map_err(failed)?;
    // [MQTT-6.0.0-3]
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    let (upgraded, _response) =
        client_async_with_config(request, io, Some(handshake_config())).await.map_err(failed)?;
    // An MQTT server never sends first, so the library has read nothing beyond the answer.
    Ok(WsStream::new(upgraded.into_inner(), Role::Client, options.max_frame_bytes))
}

fn describe(error: &library::Error) -> String {
    match error {
        library::Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            let body = String::from_utf8_lossy(body.get(..body.len().min(200)).unwrap_or_default());
            format!("the server answered {} {}", response.status(), body.trim()).trim_end().to_owned()
        }
        error => error.to_string(),
    }
}

/// Server's side: reads the request and answers it.
pub(crate) async fn accept<S: ByteStream>(
    io: S,
    options: &WebSocketOptions,
) -> Result<WsStream<S>, HandshakeError> {
    let mut refusal = None;
    let policy = RequestPolicy { options, refusal: &mut refusal };
    match accept_hdr_async_with_config(io, policy, Some(handshake_config())).await {
        // Nothing is lost here: the library refuses bytes that come before its answer.
        Ok(upgraded) => Ok(WsStream::new(upgraded.into_inner(), Role::Server, options.max_frame_bytes)),
        Err(error) => Err(refusal.unwrap_or_else(|| match error {
            library::Error::Io(error) => HandshakeError::Io(error),
            error => HandshakeError::WebSocket(error.to_string()),
        })),
    }
}

/// Byte stream of a connection that an HTTP server has upgraded.
pub(crate) fn upgraded<S: ByteStream>(io: S, max_frame_bytes: usize) -> WsStream<S> {
    WsStream::new(io, Role::Server, max_frame_bytes)
}

/// Decides on a request by its origin and subprotocols, whatever its path: status and detail of a refusal.
/// `is_same_origin`: the page is of the server itself.
pub(super) fn decide(
    request: &Request,
    response: Response,
    options: &WebSocketOptions,
    is_same_origin: bool,
) -> Result<Response, (StatusCode, String)> {
    let mut options = WebSocketOptions { path: request.uri().path().to_owned(), ..options.clone() };
    if is_same_origin {
        options.origins = None;
    }
    let policy = RequestPolicy { options: &options, refusal: &mut None };
    policy.on_request(request, response).map_err(|refused| {
        let detail = refused.body().as_deref().unwrap_or_default().trim_end().to_owned();
        (refused.status(), detail)
    })
}

/// Decides on a request, and keeps the reason of a refusal.
struct RequestPolicy<'a> {
    options: &'a WebSocketOptions,
    refusal: &'a mut Option<HandshakeError>,
}

impl Callback for RequestPolicy<'_> {
    fn on_request(self, request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
        let path = request.uri().path();
        let served = &self.options.path;
        if path != served {
            let body = format!("MQTT over WebSocket is at {served}\n");
            *self.refusal = Some(HandshakeError::Refused(format!("for {path}: MQTT is at {served}")));
            return Err(refuse(StatusCode::NOT_FOUND, body));
        }
        if let Some(origin) = foreign_origin(request, self.options.origins.as_deref()) {
            let body = format!("pages of {origin} may not connect here: add it to websocket.origins\n");
            let refusal = format!("of a page of {origin}, which may not connect");
            *self.refusal = Some(HandshakeError::Refused(refusal));
            return Err(refuse(StatusCode::FORBIDDEN, body));
        }
        let offered = offered_subprotocols(request);
        // The client lists `mqtt` [MQTT-6.0.0-3], and the answer names it. [MQTT-6.0.0-4]
        let chosen =
            [SUBPROTOCOL, SUBPROTOCOL_V31].into_iter().find(|ours| offered.iter().any(|name| name == ours));
        let Some(chosen) = chosen else {
            let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
            let body = format!("Sec-WebSocket-Protocol must offer {SUBPROTOCOL} (offered: {offered})\n");
            *self.refusal = Some(HandshakeError::Subprotocol(offered));
            return Err(refuse(StatusCode::BAD_REQUEST, body));
        };
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(chosen));
        Ok(response)
    }
}

/// The origin of a page that may not connect.
fn foreign_origin(request: &Request, allowed: Option<&[String]>) -> Option<String> {
    let origin = String::from_utf8_lossy(request.headers().get(ORIGIN)?.as_bytes()).into_owned();
    let is_listed = allowed?.iter().any(|listed| listed.trim_end_matches('/').eq_ignore_ascii_case(&origin));
    if is_listed || is_local(&origin) { None } else { Some(origin) }
}

/// Whether a page with this origin (RFC 6454) came from this machine.
fn is_local(origin: &str) -> bool {
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.split(':').next().unwrap_or(authority),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Names of all `Sec-WebSocket-Protocol` headers, of which there may be several.
fn offered_subprotocols(request: &Request) -> Vec<String> {
    request
        .headers()
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect()
}

fn refuse(status: StatusCode, body: String) -> ErrorResponse {
    let length = HeaderValue::from(body.len());
    let mut response = ErrorResponse::new(Some(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert("content-length", length);
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_and_listed_ones_may_connect() {
        let listed = ["https://app.example".to_owned()];
        for (origin, allowed, is_welcome) in [
            (None, Some(&listed[..]), true),
            (Some("http://localhost"), Some(&listed[..]), true),
            (Some("http://LOCALHOST:3000"), Some(&listed[..]), true),
            (Some("http://127.0.0.1:8080"), Some(&listed[..]), true),
            (Some("http://[::1]:8080"), Some(&listed[..]), true),
            (Some("https://app.example"), Some(&listed[..]), true),
            (Some("https://app.example:444"), Some(&listed[..]), false),
            (Some("https://evil.example"), Some(&listed[..]), false),
            (Some("http://localhost.evil.example"), Some(&listed[..]), false),
            (Some("http://127.0.0.1.evil.example"), Some(&listed[..]), false),
            // A sandboxed frame or a file.
            (Some("null"), Some(&listed[..]), false),
            (Some("https://evil.example"), None, true),
        ] {
            let mut request = Request::new(());
            if let Some(origin) = origin {
                request.headers_mut().insert(ORIGIN, HeaderValue::from_static(origin));
            }
            assert_eq!(foreign_origin(&request, allowed).is_none(), is_welcome, "{origin:?}");
        }
    }
}
