//! Links over byte streams that an HTTP server has upgraded to WebSocket.

use std::io;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use tokio_tungstenite::tungstenite::http::{Request, Response, StatusCode};

use super::{WebSocketOptions, handshake};
use crate::incoming::{Incoming, IncomingKind};
use crate::listener::{AcceptFailure, Listener};
use crate::single::ByteStream;
use crate::transport::{Peer, Transport};

/// Connections that wait for `accept`; more are dropped.
const ACCEPT_QUEUE: usize = 1024;

/// Sender of upgraded connections to the listener that [`WebSocketUpgrades::listener`] made. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WebSocketUpgrades {
    options: Arc<WebSocketOptions>,
    sender: mpsc::Sender<Result<Incoming, AcceptFailure>>,
}

impl WebSocketUpgrades {
    /// A listener without an address, whose connections come from an HTTP server in this process, and their sender.
    /// `transport` is [`Transport::Ws`] or [`Transport::Wss`].
    #[must_use]
    pub fn listener(transport: Transport, options: WebSocketOptions) -> (Listener, Self) {
        let (sender, receiver) = mpsc::channel(ACCEPT_QUEUE);
        (Listener::of_upgrades(transport, receiver), Self { options: Arc::new(options), sender })
    }

    /// Response to the request of an upgrade, 101. `is_same_origin`: the page is of the HTTP server itself.
    ///
    /// # Errors
    /// Status and detail of a refusal: the request is no upgrade to WebSocket with MQTT, or of a foreign page.
    pub fn answer(
        &self,
        request: &Request<()>,
        is_same_origin: bool,
    ) -> Result<Response<()>, (StatusCode, String)> {
        let response =
            create_response(request).map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
        handshake::decide(request, response, &self.options, is_same_origin)
    }

    /// Passes an upgraded connection to the listener. `peer` has the transport of the listener.
    ///
    /// # Errors
    /// The listener is gone, or as many connections wait as it keeps. The connection is closed.
    pub fn send(&self, io: impl ByteStream + 'static, peer: Peer) -> io::Result<()> {
        let (io, peer) = (Box::new(io), Box::new(peer));
        let kind = IncomingKind::Upgraded { io, peer, max_frame_bytes: self.options.max_frame_bytes };
        self.sender.try_send(Ok(Incoming(kind))).map_err(|_| io::ErrorKind::ConnectionRefused.into())
    }
}
