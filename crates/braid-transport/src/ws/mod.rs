//! MQTT over WebSocket (MQTT 6, RFC 6455): HTTP upgrade on either side, then a stream of bytes in
//! binary frames.

mod accept;
mod blocking;
mod connect;
mod stream;

pub(crate) use accept::accept;
pub(crate) use connect::connect;

/// How MQTT over WebSocket is spoken.
#[derive(Clone, Debug)]
pub struct WebSocketOptions {
    /// The path that is served, with its leading slash.
    pub path: String,
    /// The largest frame, or message of several frames, that is received, in bytes. One is held in
    /// memory whole, so it should be little more than the largest MQTT packet: many clients send one
    /// packet as one frame. The first message may have 64 KiB at most.
    pub max_frame_bytes: usize,
    /// Which web pages may connect: `None` for any, else those of this machine (`localhost`, loopback
    /// addresses) and those whose origin is listed, such as `https://app.example`. Who is no browser
    /// sends no origin and is not concerned.
    ///
    /// Where being on this machine is enough to be let in, any page that its user looks at would be.
    pub origins: Option<Vec<String>>,
}

impl Default for WebSocketOptions {
    fn default() -> Self {
        Self { path: "/mqtt".to_owned(), max_frame_bytes: 16 << 20, origins: None }
    }
}

/// The subprotocol of MQTT. [MQTT-6.0.0-3] [MQTT-6.0.0-4]
const SUBPROTOCOL: &str = "mqtt";

/// What clients of MQTT 3.1 call it.
const SUBPROTOCOL_V31: &str = "mqttv3.1";
