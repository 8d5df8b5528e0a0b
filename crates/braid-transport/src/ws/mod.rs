//! MQTT over WebSocket (MQTT 6, RFC 6455): HTTP upgrade on either side, then a stream of bytes in
//! binary frames.

mod handshake;
mod stream;
mod upgrades;

pub use upgrades::WebSocketUpgrades;

pub(crate) use handshake::{accept, connect, upgraded};
pub(crate) use stream::WsStream;

/// Options of MQTT over WebSocket.
#[derive(Clone, Debug)]
pub struct WebSocketOptions {
    /// The path that is served, with its leading slash.
    pub path: String,
    /// The largest frame, or message of several frames, that is received, in bytes. One is held in
    /// memory whole, so it should be little more than the largest MQTT packet: many clients send one
    /// packet as one frame. A server takes 64 KiB at most until it trusts the client, see
    /// [`Link::set_trusted`](crate::Link::set_trusted).
    pub max_frame_bytes: usize,
    /// Web pages that may connect: `None` for any, else those of this machine (`localhost`, loopback addresses) and
    /// those whose origin is listed, such as `https://app.example`. Clients other than browsers send no origin.
    ///
    /// Where clients of this machine may connect without a password, any page that its user opens could.
    pub origins: Option<Vec<String>>,
}

impl Default for WebSocketOptions {
    fn default() -> Self {
        Self { path: "/mqtt".to_owned(), max_frame_bytes: 16 << 20, origins: None }
    }
}

/// The subprotocol of MQTT. [MQTT-6.0.0-3] [MQTT-6.0.0-4]
const SUBPROTOCOL: &str = "mqtt";

/// Its name in clients of MQTT 3.1.
const SUBPROTOCOL_V31: &str = "mqttv3.1";
