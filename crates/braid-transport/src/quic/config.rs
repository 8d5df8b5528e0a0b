//! Configuration of QUIC.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use noq_proto::congestion::{Bbr3Config, ControllerFactory, CubicConfig, NewRenoConfig};
use noq_proto::{EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};

use super::cid_generator::{self, RoutableCidGenerator};
use super::congestion::BbrExtensions;
use super::congestion::controller::{Gated, SharedGate};
use super::congestion::path_activity::PathActivities;
use super::connection::ReceiveBudget;
use super::io::{Connection, now};
use super::known_paths::{KnownPath, KnownPaths};
use super::multipath::{Multipath, SERVER_PATHS};
use super::qlog::QlogFiles;
use super::quic_lb::QuicLb;
use crate::sim::Host;
use crate::tls::{ALPN_H3, ALPN_MQTT};

/// Receive window of a stream, bytes: as large as that of a connection may become, since the library has none that
/// grows.
const STREAM_RECEIVE_WINDOW: u32 = 16 << 20;

/// Default of [`QuicOptions::receive_budget`], bytes.
const RECEIVE_BUDGET: u64 = 1 << 30;

/// Resolution of path MTU discovery, bytes: half the span between the smallest packet and that of an Ethernet. The
/// latter is tried first then, and where it fits it costs one packet instead of seven.
const MTU_STEP: u16 = 127;

/// Interval between tries of the full size where it does not get through.
const MTU_INTERVAL: Duration = Duration::from_secs(60);

/// Interval where the full size once did get through: behind the handshake the bucket of a policer is empty, and to the
/// library the losses look like a path for smaller packets only.
const MTU_COOLDOWN: Duration = Duration::from_secs(4);

/// Round-trip time that is assumed of a path until one is measured, as RFC 9002 (6.2.2) has it: the first timeout of a
/// handshake is three times as long.
const INITIAL_RTT: Duration = Duration::from_millis(333);

/// Packets behind a missing one that show its loss: as many as jitter of some milliseconds turns round. With many more,
/// losses of a full queue would be found by the time alone, which is that of a round trip through this queue.
const PACKET_THRESHOLD: u32 = 32;

/// Buffers of the library for DATAGRAM frames in each direction, bytes. It announces this as the largest frame, which
/// RFC 9221 (3) recommends to be 65,535, and is asked to hold those of one packet only.
const DATAGRAM_BUFFER: usize = 128 << 10;

/// Time limit of a client's handshake with one address. UDP gives no other sign that no server is there.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait of a client for its handshake: it leaves three of the five seconds of [`HANDSHAKE_LIMIT`] to the rest.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(2);

/// Congestion control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// BBR version 3: models the path and keeps its queues short, for urgent messages. Follows the rate of a policer on
    /// the path once it is detected.
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

    /// `has_loss_floor`: [`QuicOptions::loss_floor`]; `path`: path that may be resumed.
    fn factory(
        self,
        has_loss_floor: bool,
        path: Option<KnownPath>,
    ) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Self::Bbr3 => {
                let bbr = BbrExtensions::new(Arc::new(Bbr3Config::default()), path);
                Arc::new(bbr.with_loss_floor(has_loss_floor))
            }
            Self::Cubic => Arc::new(CubicConfig::default()),
            Self::NewReno => Arc::new(NewRenoConfig::default()),
        }
    }
}

/// Options of one end of QUIC connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicOptions {
    /// Unread bytes that a peer may send on one stream: the limit of one message's bytes in a round trip.
    pub stream_receive_window: u32,
    /// Budget for unread bytes over all connections with clones of these options.
    pub receive_budget: ReceiveBudget,
    /// Unacknowledged bytes of a connection. Large: bulk that fills it makes urgent writes wait.
    pub send_window: u64,
    /// Bidirectional streams that the peer may have open. Known clients open five at once, others
    /// one per topic.
    pub bidi_streams: u32,
    /// Unidirectional streams that the peer may have open.
    pub uni_streams: u32,
    /// Time without a packet after which a connection is lost; `None` for never. The smaller value of both ends counts,
    /// so it must exceed the Keep Alive of clients.
    pub idle_timeout: Option<Duration>,
    /// Idle time after which a PING is sent; `None` for never.
    pub keep_alive: Option<Duration>,
    /// Congestion control.
    pub congestion: Congestion,
    /// With BBR: the initial window is sent in each round trip, whatever was lost, while round trips show no queue and
    /// no policer was detected. For many short connections through random loss.
    pub loss_floor: bool,
    /// Packets that have to be acknowledged behind a missing one to show its loss, 3 at least (RFC 9002, 6.1.1). More
    /// are for paths whose jitter reorders packets.
    pub packet_threshold: u32,
    /// Round-trip time that is assumed until one is measured or remembered.
    pub initial_rtt: Duration,
    /// Measurements of earlier connections with clones of these options.
    pub known_paths: KnownPaths,
    /// With BBR: a connection sends at half of the rate of an earlier one on the same path as soon as it has shown that
    /// it is the same (RFC 9959).
    pub careful_resume: bool,
    /// Time limit of a client's handshake with one address.
    pub handshake_limit: Duration,
    /// Holds bulk back where the path limits, so that urgent messages meet no queue.
    pub gate: bool,
    /// Packets of a policer's bucket that a gate reserves for urgent messages, 1 to 3. With one, an alarm may wait for
    /// the acknowledgement or the ping before it.
    pub gate_reserve: u8,
    /// File for the states of the gates: a line of JSON for each connection, five times a second.
    pub gate_log: Option<PathBuf>,
    /// Bytes per second that are sent at most, for a device that knows its uplink; `None` leaves it
    /// to the congestion controller.
    pub link_rate: Option<u64>,
    /// A client sends early data (0-RTT) with a ticket of an earlier connection. A server accepts such data.
    pub zero_rtt: bool,
    /// Application protocol of a server (ALPN). Clients name theirs in
    /// [`ClientTlsOptions::alpn`](crate::ClientTlsOptions::alpn).
    pub alpn: &'static str,
    /// Tickets that a server stores for clients that may resume, each valid for one connection and two hours. A
    /// connection gets two, of some 400 bytes each. With 0 no client resumes.
    pub tickets: usize,
    /// Incomplete handshakes from which on a server has clients validate their address first, by one more round trip
    /// (Retry). The bound of a flood from forged addresses: memory and an answer of three times its bytes for so many,
    /// one small packet each for the rest.
    pub retry_above: usize,
    /// Longest time for which a client is to wait until a server begins its handshake. One that would have to wait for
    /// longer is refused at once (CONNECTION_REFUSED), as is one that has waited for twice as long. To be less than
    /// half of the time after which clients give up.
    pub handshake_wait: Duration,
    /// Takes DATAGRAM frames (RFC 9221), and sends them to a peer that takes them. Otherwise one of the peer ends the
    /// connection. [BQ-80]
    pub datagrams: bool,
    /// Several paths of one connection.
    pub multipath: Multipath,
    /// Directory for a file with all events of each connection (qlog).
    pub qlog_dir: Option<PathBuf>,
    /// Connection IDs of a server name it, for balancers that keep clients at their server.
    pub quic_lb: Option<QuicLb>,
}

impl QuicOptions {
    /// Options of a server. MQTT's Keep Alive detects dead clients sooner than the idle timeout, which is for clients
    /// without one.
    #[must_use]
    pub fn server() -> Self {
        Self {
            stream_receive_window: STREAM_RECEIVE_WINDOW,
            receive_budget: ReceiveBudget::new(RECEIVE_BUDGET),
            send_window: 64 << 20,
            bidi_streams: 256,
            uni_streams: 16,
            idle_timeout: Some(Duration::from_secs(30 * 60)),
            // Only a client with a longer Keep Alive, or none, is ever this silent; it must not be lost for it.
            keep_alive: Some(Duration::from_secs(10 * 60)),
            congestion: Congestion::default(),
            loss_floor: false,
            packet_threshold: PACKET_THRESHOLD,
            initial_rtt: INITIAL_RTT,
            known_paths: KnownPaths::default(),
            careful_resume: true,
            handshake_limit: HANDSHAKE_LIMIT,
            gate: true,
            gate_reserve: 2,
            gate_log: None,
            link_rate: None,
            zero_rtt: true,
            alpn: ALPN_MQTT,
            tickets: 100_000,
            retry_above: 256,
            handshake_wait: HANDSHAKE_WAIT,
            datagrams: false,
            multipath: Multipath { permitted: SERVER_PATHS, ..Multipath::default() },
            qlog_dir: None,
            quic_lb: None,
        }
    }

    /// Options of a client. It grants no streams, since a server opens none.
    #[must_use]
    pub fn client() -> Self {
        let multipath = Multipath::default();
        Self {
            bidi_streams: 0,
            uni_streams: 0,
            keep_alive: None,
            zero_rtt: false,
            multipath,
            ..Self::server()
        }
    }

    /// Paths that the library permits: none beyond the first with HTTP/3, whose connections are no links.
    fn library_paths(&self) -> u32 {
        if self.alpn == ALPN_H3 { 0 } else { self.multipath.library_paths() }
    }

    /// Round-trip time of an earlier connection to the network of a server.
    pub(super) fn known_round_trip(&self, peer: IpAddr) -> Option<Duration> {
        self.known_paths.round_trip(peer, now())
    }

    /// Path of a connection, among those that were measured. `local`: address of a client.
    pub(super) fn known_path(&self, peer: IpAddr, local: Option<IpAddr>) -> KnownPath {
        KnownPath::new(self.known_paths.clone(), peer, local)
    }

    /// Notes the round-trip time of a connection to a server whose handshake is over.
    pub(super) fn note_round_trip(&self, connection: &Connection, peer: SocketAddr) {
        if let Some(rtt) = connection.rtt() {
            self.known_paths.note_round_trip(peer.ip(), rtt, now());
        }
    }

    /// `receive_window`: unread bytes that the peer may send over all streams.
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
            .initial_rtt(self.initial_rtt)
            .packet_threshold(self.packet_threshold)
            .datagram_receive_buffer_size(self.datagrams.then_some(DATAGRAM_BUFFER)) // [BQ-80]
            .datagram_send_buffer_size(DATAGRAM_BUFFER)
            .max_outgoing_bytes_per_second(self.link_rate);
        config.max_concurrent_multipath_paths(self.library_paths());
        if let Some(directory) = &self.qlog_dir {
            config.qlog_factory(Arc::new(QlogFiles::new(directory)));
        }
        Transport { shared: Arc::new(config), options: Arc::new(self.clone()) }
    }
}

/// Configuration of the connections of one end.
#[derive(Clone)]
pub(super) struct Transport {
    pub(super) shared: Arc<TransportConfig>,
    pub(super) options: Arc<QuicOptions>,
}

impl Transport {
    /// Configuration of one more connection. `known`: round trip of an earlier one. The library takes it for paths to
    /// which the connection moves as well.
    pub(super) fn connection(&self, known: Option<Duration>, path: KnownPath) -> ConnectionConfig {
        let QuicOptions {
            congestion,
            loss_floor,
            initial_rtt,
            careful_resume,
            gate,
            gate_reserve,
            gate_log,
            ..
        } = &*self.options;
        let path = (*careful_resume && *congestion == Congestion::Bbr3).then_some(path);
        let mut shared = Arc::clone(&self.shared);
        if let Some(rtt) = known {
            // A longer one was perhaps a queue, and would delay the first repetition.
            Arc::make_mut(&mut shared).initial_rtt(rtt.min(*initial_rtt));
        }
        let gate = gate.then(|| SharedGate::new(*gate_reserve, gate_log.as_deref().map(Arc::from)));
        let activities = (self.options.library_paths() > 0).then(PathActivities::default);
        let own = Arc::make_mut(&mut shared);
        let mut factory = congestion.factory(*loss_floor, path.clone());
        if let Some(gate) = &gate {
            let mut mtu_discovery = MtuDiscoveryConfig::default();
            mtu_discovery.minimum_change(MTU_STEP).interval(MTU_INTERVAL).black_hole_cooldown(MTU_COOLDOWN);
            own.mtu_discovery_config(Some(mtu_discovery));
            factory = Arc::new(Gated::new(factory, Arc::clone(gate), path));
        }
        if let Some(activities) = &activities {
            factory = activities.around(factory);
        }
        own.congestion_controller_factory(factory);
        ConnectionConfig { shared, gate, activities }
    }
}

/// Configuration of one connection.
pub(super) struct ConnectionConfig {
    pub(super) shared: Arc<TransportConfig>,
    pub(super) gate: Option<Arc<SharedGate>>,
    /// Activities of its paths, if there may be several.
    pub(super) activities: Option<PathActivities>,
}

impl Default for QuicOptions {
    /// [`QuicOptions::client`].
    fn default() -> Self {
        Self::client()
    }
}

/// Configuration of every endpoint. `quic_lb`: [`QuicOptions::quic_lb`] of a server.
pub(super) fn endpoint(quic_lb: Option<&QuicLb>) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    if let Some(lb) = quic_lb.cloned() {
        if let Some(key) = cid_generator::reset_key(&lb) {
            config.reset_key(Arc::new(key));
        }
        config.cid_generator(Arc::new(move || Box::new(RoutableCidGenerator::new(lb.clone()))));
    }
    config
}

/// Configuration of an endpoint on a simulated host, whose seed decides about its random numbers.
pub(super) fn seeded(mut config: EndpointConfig, host: &Host) -> EndpointConfig {
    let mut seed = [0; 32];
    for chunk in seed.chunks_exact_mut(8) {
        chunk.copy_from_slice(&host.draw().to_le_bytes());
    }
    config.rng_seed(Some(seed));
    config
}

/// More than 49 days is 49 days.
fn idle_timeout(duration: Duration) -> IdleTimeout {
    let millis = u32::try_from(duration.as_millis()).unwrap_or(u32::MAX);
    IdleTimeout::from(VarInt::from_u32(millis))
}
