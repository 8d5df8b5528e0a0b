//! The client's side of the HTTP upgrade.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::client_async_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::http::header::SEC_WEBSOCKET_PROTOCOL;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self as library};

use super::stream::{WsStream, handshake_config};
use super::{SUBPROTOCOL, WebSocketOptions};
use crate::error::ConnectError;

/// Asks the server behind `io` for MQTT at `path`. `host` and `port` go into the Host header.
pub(crate) async fn connect<S>(
    io: S,
    host: &str,
    port: u16,
    path: &str,
    options: &WebSocketOptions,
) -> Result<WsStream<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let failed = |error: library::Error| ConnectError::WebSocket {
        host: host.to_owned(),
        path: path.to_owned(),
        reason: explain(&error),
    };
    let host_part = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let mut request = format!("ws://{host_part}:{port}{path}").into_client_request().map_err(failed)?;
    // [MQTT-6.0.0-3]
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    let (upgraded, _response) =
        client_async_with_config(request, io, Some(handshake_config())).await.map_err(failed)?;
    // An MQTT server never speaks first, so the library has read nothing beyond the answer.
    Ok(WsStream::new(upgraded.into_inner(), Role::Client, options.max_frame_bytes))
}

fn explain(error: &library::Error) -> String {
    match error {
        library::Error::Http(response) => {
            let body = response.body().as_deref().unwrap_or_default();
            let body = String::from_utf8_lossy(body.get(..body.len().min(200)).unwrap_or_default());
            format!("the server answered {} {}", response.status(), body.trim()).trim_end().to_owned()
        }
        error => error.to_string(),
    }
}
