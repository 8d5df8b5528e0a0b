//! The server's side of the HTTP upgrade.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::accept_hdr_async_with_config;
use tokio_tungstenite::tungstenite::handshake::server::{Callback, ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::header::{CONNECTION, CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self as library};

use super::stream::{WsStream, handshake_config};
use super::{SUBPROTOCOL, SUBPROTOCOL_V31, WebSocketOptions};
use crate::error::HandshakeError;

/// Reads the request from `io` and answers it.
pub(crate) async fn accept<S>(io: S, options: &WebSocketOptions) -> Result<WsStream<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut refusal = None;
    let gate = Gate { path: &options.path, refusal: &mut refusal };
    match accept_hdr_async_with_config(io, gate, Some(handshake_config())).await {
        // Nothing is lost here: the library refuses bytes that come before its answer.
        Ok(upgraded) => Ok(WsStream::new(upgraded.into_inner(), Role::Server, options.max_frame_bytes)),
        Err(error) => Err(refusal.unwrap_or_else(|| failed(error))),
    }
}

fn failed(error: library::Error) -> HandshakeError {
    match error {
        library::Error::Io(error) => HandshakeError::Io(error),
        error => HandshakeError::WebSocket(error.to_string()),
    }
}

/// Decides about a request and remembers why it was turned away.
struct Gate<'a> {
    path: &'a str,
    refusal: &'a mut Option<HandshakeError>,
}

impl Callback for Gate<'_> {
    fn on_request(self, request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
        let path = request.uri().path();
        if path != self.path {
            let body = format!("MQTT over WebSocket is at {}\n", self.path);
            *self.refusal =
                Some(HandshakeError::Path { path: path.to_owned(), served: self.path.to_owned() });
            return Err(refuse(StatusCode::NOT_FOUND, body));
        }
        let offered = offered_subprotocols(request);
        // The client lists `mqtt` [MQTT-6.0.0-3], and it is what we answer with. [MQTT-6.0.0-4]
        let chosen =
            [SUBPROTOCOL, SUBPROTOCOL_V31].into_iter().find(|ours| offered.iter().any(|name| name == ours));
        let Some(chosen) = chosen else {
            let offered = if offered.is_empty() { "none".to_owned() } else { offered.join(", ") };
            let body = format!("Sec-WebSocket-Protocol must offer {SUBPROTOCOL} (offered: {offered})\n");
            *self.refusal = Some(HandshakeError::Subprotocol { offered });
            return Err(refuse(StatusCode::BAD_REQUEST, body));
        };
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(chosen));
        Ok(response)
    }
}

/// The names of all `Sec-WebSocket-Protocol` headers; it may be given more than once.
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
