//! How QUIC is tuned.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use noq::congestion::{Bbr3Config, ControllerFactory, CubicConfig, NewRenoConfig};
use noq::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::congestion::controller::{Gated, SharedGate};
use super::congestion::{BbrExtensions, Found};
use super::qlog::QlogFiles;
use crate::tls::ALPN_MQTT;

/// The library counts what it holds of a stream in pieces, one for each datagram that brought some, and ends the
/// connection over more than 2,048 of which the first is missing. With larger windows a burst of losses comes to
/// that; this is 1,800 of the smallest datagrams.
const STREAM_RECEIVE_WINDOW: u32 = 2 << 20;

/// Sizes that path MTU discovery tells apart. With half of what lies between the smallest packet and that of an
/// Ethernet it tries the latter first, and where that fits it costs one packet in place of seven.
const MTU_STEP: u16 = 127;

/// Where the full size does not get through, it is tried again after so long.
const MTU_INTERVAL: Duration = Duration::from_secs(60);

/// The same where it once did: the first packets of a connection find the bucket of a policer empty behind the handshake,
/// and to the library what is lost then looks like a path that takes smaller packets only.
const MTU_COOLDOWN: Duration = Duration::from_secs(4);

/// Who decides how fast to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// BBR version 3: models the path, keeps its queues short. What urgent messages want. Keeps to what a
    /// policer on the way lets through, once it has noticed one.
    #[default]
    Bbr3,
    /// CUBIC: fills the path until it loses.
    Cubic,
    /// `NewReno`: the classic.
    NewReno,
}

impl Congestion {
    /// The algorithm of this name, as in a configuration file: `bbr3`, `cubic`, `newreno`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bbr3" => Some(Self::Bbr3),
            "cubic" => Some(Self::Cubic),
            "newreno" => Some(Self::NewReno),
            _ => None,
        }
    }

    /// `found`: where it is told what a policer lets through.
    fn factory(self, found: Found) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr3 => Arc::new(BbrExtensions::new(Bbr3Config::default(), found)),
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::NewReno => Arc::new(NewRenoConfig::default()),
        }
    }
}

/// How one end of QUIC connections behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// Bytes that a peer may send on one stream beyond what was read: no message is faster than so
    /// many in a round trip. Above 2 MiB losses may end the connection.
    pub stream_receive_window: u32,
    /// Bytes of a connection that may be sent and not yet acknowledged. Large: bulk that fills it
    /// makes urgent writes wait.
    pub send_window: u64,
    /// Bidirectional streams that the peer may have open. Known clients open five at once, others
    /// one per topic.
    pub bidi_streams: u32,
    /// Unidirectional streams that the peer may have open.
    pub uni_streams: u32,
    /// A connection on which nothing arrives for so long is lost; `None` for never. The smaller
    /// value of both ends counts, so it must exceed the Keep Alive of clients.
    pub idle_timeout: Option<Duration>,
    /// Sends something whenever the connection has been idle for so long; `None` for never.
    pub keep_alive: Option<Duration>,
    /// Who decides how fast to send.
    pub congestion: Congestion,
    /// Whether bulk is kept back where the path limits, so that nothing urgent finds a queue.
    pub gate: bool,
    /// Packets of a policer's bucket that a gate leaves for what is urgent, 1 to 3. With one, an alarm may wait for the
    /// acknowledgement or the ping before it.
    pub gate_reserve: u8,
    /// Writes to this file what the gates know: a line of JSON for each connection, five times a second.
    pub gate_log: Option<PathBuf>,
    /// Bytes per second that are sent at most, for a device that knows its uplink; `None` leaves it
    /// to the congestion controller.
    pub link_rate: Option<u64>,
    /// A client: sends at once with a ticket of an earlier connection (0-RTT), before it is known
    /// whether the server takes it. A server: takes such data.
    pub zero_rtt: bool,
    /// A server: the application protocol that it speaks (ALPN). Clients name theirs in
    /// [`ClientTlsOptions::alpn`](crate::ClientTlsOptions::alpn).
    pub alpn: &'static str,
    /// A server: tickets of clients that may resume, each good for one connection and two hours.
    /// A connection is given two, of some 400 bytes each. With 0 nobody resumes.
    pub tickets: usize,
    /// A server: handshakes that may be under way before clients must first prove their address,
    /// which takes them one more round trip (Retry). It bounds what a flood from forged addresses
    /// can cost: memory and an answer of three times its bytes for so many, one small packet each
    /// for the rest.
    pub retry_above: usize,
    /// Writes all that happens in each connection to a file in this directory (qlog).
    pub qlog_dir: Option<PathBuf>,
}

impl QuicOptions {
    /// What a server uses. MQTT's Keep Alive tells dead clients sooner than the idle timeout, which
    /// is for those that asked for none.
    #[must_use]
    pub fn server() -> Self {
        Self {
            stream_receive_window: STREAM_RECEIVE_WINDOW,
            send_window: 64 << 20,
            bidi_streams: 256,
            uni_streams: 16,
            idle_timeout: Some(Duration::from_secs(30 * 60)),
            // Only a client with a longer Keep Alive, or none, is ever this silent; it must not be lost for it.
            keep_alive: Some(Duration::from_secs(10 * 60)),
            congestion: Congestion::default(),
            gate: true,
            gate_reserve: 2,
            gate_log: None,
            link_rate: None,
            zero_rtt: true,
            alpn: ALPN_MQTT,
            tickets: 100_000,
            retry_above: 256,
            qlog_dir: None,
        }
    }

    /// What a client uses. It grants no streams, since a server opens none.
    #[must_use]
    pub fn client() -> Self {
        Self { bidi_streams: 0, uni_streams: 0, keep_alive: None, zero_rtt: false, ..Self::server() }
    }

    /// `receive_window`: bytes that the peer may send over all streams beyond what was read.
    pub(super) fn transport(&self, receive_window: VarInt) -> Transport {
        let mut config = TransportConfig::default();
        config
            .stream_receive_window(VarInt::from_u32(self.stream_receive_window))
            .receive_window(receive_window)
            .send_window(self.send_window)
            .max_concurrent_bidi_streams(VarInt::from_u32(self.bidi_streams))
            .max_concurrent_uni_streams(VarInt::from_u32(self.uni_streams))
            .max_idle_timeout(self.idle_timeout.map(idle_timeout))
            .keep_alive_interval(self.keep_alive)
            .datagram_receive_buffer_size(None)
            .congestion_controller_factory(self.congestion.factory(Found::default()))
            .max_outgoing_bytes_per_second(self.link_rate);
        if let Some(directory) = &self.qlog_dir {
            config.qlog_factory(Arc::new(QlogFiles::new(directory)));
        }
        let log = self.gate_log.as_deref().map(Arc::from);
        let (congestion, uni_streams, reserve) = (self.congestion, self.uni_streams, self.gate_reserve);
        let gated = self.gate.then_some(Gates { congestion, uni_streams, reserve, log });
        Transport { shared: Arc::new(config), gated }
    }
}

/// What the connections of one end are configured with.
#[derive(Clone)]
pub(super) struct Transport {
    pub(super) shared: Arc<TransportConfig>,
    /// With gates: what they have in common.
    gated: Option<Gates>,
}

/// What the gates of one end have in common.
#[derive(Clone)]
struct Gates {
    /// What stands behind each.
    congestion: Congestion,
    /// Unidirectional streams that are granted.
    uni_streams: u32,
    /// Packets that they leave for what is urgent.
    reserve: u8,
    /// Where it is written down what they know.
    log: Option<Arc<Path>>,
}

impl Transport {
    /// What one more connection differs in from the others, if each has a gate of its own.
    pub(super) fn gated(&self) -> Option<(Arc<TransportConfig>, Arc<SharedGate>)> {
        let Gates { congestion, uni_streams, reserve, log } = self.gated.as_ref()?;
        let gate = SharedGate::new(*uni_streams, *reserve, log.clone());
        let mut mtu_discovery = MtuDiscoveryConfig::default();
        mtu_discovery.minimum_change(MTU_STEP).interval(MTU_INTERVAL).black_hole_cooldown(MTU_COOLDOWN);
        let mut config = TransportConfig::clone(&self.shared);
        let found = Found::default();
        let inner = congestion.factory(Arc::clone(&found));
        config
            .congestion_controller_factory(Arc::new(Gated { inner, found, gate: Arc::clone(&gate) }))
            .mtu_discovery_config(Some(mtu_discovery));
        Some((Arc::new(config), gate))
    }
}

impl Default for QuicOptions {
    /// [`QuicOptions::client`].
    fn default() -> Self {
        Self::client()
    }
}

/// What every endpoint is made with.
pub(super) fn endpoint() -> EndpointConfig {
    EndpointConfig::default()
}

/// More than 49 days is 49 days.
fn idle_timeout(duration: Duration) -> IdleTimeout {
    let millis = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    IdleTimeout::from(VarInt::from_u32(millis))
}
