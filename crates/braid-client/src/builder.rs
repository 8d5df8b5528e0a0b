//! Builder of clients.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use braid_proto::connection::{ClientOptions, DATAGRAMS_PROPERTY, DATAGRAMS_VALUE};
use braid_proto::packet::{Connect, ProtocolVersion};
use braid_proto::stream::{Priority, StreamPolicy};
use braid_transport::quic::{Congestion, LocalPath, Multipath, PathMode, QuicOptions};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Transport, mem, sim};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::auto::Auto;
use crate::client::{Client, Handle, Messages};
use crate::datagrams::DatagramCounters;
use crate::dialer::{Address, Dialer, without_credentials};
use crate::driver::Driver;
use crate::error::{Error, OptionsError};
use crate::events::EventLog;
use crate::publication::{Publication, whole_seconds};
use crate::receive_queue::ReceiveQueue;
use crate::reconnect::Reconnect;
use crate::scram::{MECHANISM, ScramCredentials};
use crate::send_queue::SendQueue;
use crate::settings::{Route, Settings, Timeouts};
use crate::state::{Channels, ClientState};

/// Builder for [`Client`]; made by [`Client::builder`].
///
/// The defaults: MQTT 5, a random Client Identifier, Clean Start, a Keep Alive of 60 s, reconnecting.
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect` or `start`"]
pub struct Builder {
    url: String,
    test_links: TestLinks,
    state_file: Option<PathBuf>,
    connect: Connect,
    protocol: ClientOptions,
    tls: ClientTlsOptions,
    key_log: Option<PathBuf>,
    quic: QuicOptions,
    placement: Placement,
    lifetime: Lifetime,
    timeouts: Timeouts,
    queues: Queues,
}

impl fmt::Debug for Builder {
    /// Shows the server and the CONNECT, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, connect, .. } = self;
        let url = without_credentials(url);
        f.debug_struct("Builder").field("url", &url).field("connect", connect).finish_non_exhaustive()
    }
}

/// Links of a test, in place of the host of the URL. With both, `auto://` takes the one in memory for TLS.
#[derive(Clone, Debug, Default)]
struct TestLinks {
    memory: Option<mem::Connector>,
    simulated: Option<(sim::Host, SocketAddr)>,
    /// Further interfaces of the host.
    interfaces: Vec<sim::Host>,
}

/// Session Expiry Interval of a client that may move and asked for none, seconds: time for a move.
const MOVING_SESSION: u32 = 60;
/// Least Will Delay Interval of a client that may move, seconds: a server takes the end of a link that does not answer
/// for the end of the client.
const MOVING_WILL_DELAY: u32 = 5;

/// Streams and priorities of messages.
#[derive(Clone, Default)]
struct Placement {
    policy: StreamPolicy,
    default_priority: Option<Priority>,
}

/// Reconnects, and the end of the session.
#[derive(Clone, Copy, Debug, Default)]
struct Lifetime {
    reconnect: Reconnect,
    /// Whether the session ends with the client, although it outlives a connection.
    ends_session: bool,
}

#[derive(Clone, Copy, Debug)]
struct Queues {
    /// Requests of each class.
    send: usize,
    /// Received messages.
    receive: usize,
    is_acknowledged_manually: bool,
}

impl Client {
    /// Begins to build a client of the server at `url`: a scheme `mqtt://`, `mqtts://` (TLS), `ws://`, `wss://`
    /// (WebSocket) or `quic://`, then `user:password@` if needed, the host, and `:port` unless it is the default of the
    /// scheme (1883, 8883, 8083, 8084, 14567). WebSocket URLs may have a path, `/mqtt` by default.
    ///
    /// `auto://host` is QUIC where it works and TLS where it must be, on the ports 14567 and 8883, on `:port` for both,
    /// or on `?quic=PORT&tls=PORT`. So that the session can move, such a client of MQTT 5 has a Session Expiry Interval
    /// of 60 s if none is asked for, which its DISCONNECT ends, and a Will Delay Interval of at least 5 s. With MQTT 3
    /// and Clean Session a move begins a new session: a QoS 2 message may arrive twice then.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        let mut connect = Connect::new(ProtocolVersion::V5, random_client_id().as_str());
        connect.properties.topic_alias_maximum = Some(64);
        Self {
            url: url.to_owned(),
            test_links: TestLinks::default(),
            state_file: None,
            connect,
            protocol: ClientOptions { resume_large: true, ..ClientOptions::default() },
            tls: ClientTlsOptions::default(),
            key_log: None,
            quic: QuicOptions::client(),
            placement: Placement::default(),
            lifetime: Lifetime::default(),
            timeouts: Timeouts { connect: Duration::from_secs(10), disconnect: Duration::from_secs(5) },
            queues: Queues { send: 1024, receive: 1024, is_acknowledged_manually: false },
        }
    }

    // -- CONNECT -----------------------------------------------------------------------------------

    /// Protocol version: MQTT 5.0 by default.
    pub fn version(mut self, version: ProtocolVersion) -> Self {
        self.connect.version = version;
        self
    }

    /// Client Identifier. By default `braid-` and 16 random characters; empty leaves it to the server.
    pub fn client_id(mut self, client_id: &str) -> Self {
        self.connect.client_id = client_id.into();
        self
    }

    /// Whether the first connection starts a new session (Clean Session of MQTT 3); true by default. With false the
    /// server may resume a session of an earlier run. Reconnects always try to resume.
    pub fn clean_start(mut self, clean_start: bool) -> Self {
        self.connect.clean_start = clean_start;
        self
    }

    /// Session Expiry Interval, rounded up to whole seconds; from 2³² - 1 on the session never expires (MQTT 5). 0 by
    /// default.
    pub fn session_expiry(mut self, interval: Duration) -> Self {
        self.connect.properties.session_expiry = Some(whole_seconds(interval));
        self
    }

    /// Whether [`Client::disconnect`] ends the session (MQTT 5): for a session that is to outlive connections which are
    /// lost, and not the client. False by default.
    pub fn end_session(mut self, wanted: bool) -> Self {
        self.lifetime.ends_session = wanted;
        self
    }

    /// Whether a large message that was under way when a connection ended goes on where the server has its first part,
    /// instead of from its beginning. BraidMQ keeps such parts for sessions that outlive the connection (MQTT 5, QoS 1
    /// and 2); other servers ignore it. True by default.
    pub fn resume_large(mut self, wanted: bool) -> Self {
        self.protocol.resume_large = wanted;
        self
    }

    /// Keep Alive, rounded up to whole seconds, 65,535 at most; 0 turns it off. 60 s by default.
    pub fn keep_alive(mut self, interval: Duration) -> Self {
        self.connect.keep_alive = u16::try_from(whole_seconds(interval)).unwrap_or(u16::MAX);
        self
    }

    /// Will Message, which the server publishes when the connection ends without a DISCONNECT, `delay` later (rounded
    /// up to whole seconds, MQTT 5).
    pub fn will(mut self, publication: Publication, delay: Duration) -> Self {
        self.connect.will = Some(publication.into_will(delay));
        self
    }

    /// User name and password, in place of those in the URL.
    pub fn credentials(self, user_name: &str, password: impl Into<Bytes>) -> Self {
        self.user_name(user_name).password(password)
    }

    /// User Name, in place of that in the URL.
    pub fn user_name(mut self, user_name: &str) -> Self {
        self.connect.user_name = Some(user_name.into());
        self
    }

    /// Password, in place of that in the URL.
    pub fn password(mut self, password: impl Into<Bytes>) -> Self {
        self.connect.password = Some(password.into());
        self
    }

    /// Authenticates by SCRAM-SHA-256 (MQTT 5) with user name and password, which then are not in CONNECT: the server
    /// gets a proof in their place, and has to prove that it knows the credentials. One that does not is not connected
    /// to and gets no message.
    pub fn scram(mut self) -> Self {
        self.connect.properties.authentication_method = Some(MECHANISM.into());
        self
    }

    /// Receive Maximum: maximum number of unacknowledged QoS 1 and 2 messages from the server, 1..=65,535; 0 counts as
    /// 1 (MQTT 5). 65,535 by default.
    pub fn receive_maximum(mut self, messages: u16) -> Self {
        self.connect.properties.receive_maximum = Some(messages.max(1));
        self
    }

    /// Maximum Packet Size that is accepted, in bytes, at least 1; servers of MQTT 5 know it. A larger packet ends the
    /// connection. No limit by default.
    pub fn maximum_packet_size(mut self, bytes: u32) -> Self {
        self.connect.properties.maximum_packet_size = Some(bytes.max(1));
        self
    }

    /// Topic Alias Maximum: maximum number of Topic Aliases that the server may define (MQTT 5). 64 by default.
    pub fn topic_alias_maximum(mut self, aliases: u16) -> Self {
        self.connect.properties.topic_alias_maximum = Some(aliases);
        self
    }

    /// Requests Response Information from the server (MQTT 5); it arrives with
    /// [`ConnectionEvent::Connected`](crate::ConnectionEvent::Connected).
    pub fn request_response_information(mut self, wanted: bool) -> Self {
        self.connect.properties.request_response_information = Some(wanted);
        self
    }

    /// Whether the server may send Reason Strings (MQTT 5); true by default.
    pub fn request_problem_information(mut self, wanted: bool) -> Self {
        self.connect.properties.request_problem_information = Some(wanted);
        self
    }

    /// Adds a User Property for the server (MQTT 5).
    pub fn user_property(mut self, name: impl AsRef<str>, value: impl AsRef<str>) -> Self {
        self.connect.properties.user.push(name.as_ref(), value.as_ref());
        self
    }

    // -- Behaviour of the client -------------------------------------------------------------------

    /// TLS: trusted certificates and the client's own. For `mqtts`, `wss` and `quic`.
    pub fn tls(mut self, tls: ClientTlsOptions) -> Self {
        self.tls = tls;
        self
    }

    /// Reconnection after a lost connection: by default after 1 s, then after pauses that double up to 60 s.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.lifetime.reconnect = reconnect;
        self
    }

    /// Time limit until a link is established, and again until CONNACK arrives. 10 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.timeouts.connect = limit;
        self.protocol.handshake_timeout = limit;
        self
    }

    /// Time limit for which [`Client::disconnect`] waits for earlier requests: for acknowledgements, and for QoS 0 that
    /// QUIC still buffers. 5 s by default.
    pub fn disconnect_timeout(mut self, limit: Duration) -> Self {
        self.timeouts.disconnect = limit;
        self
    }

    /// Time limit from a PINGREQ until any byte of the server arrives. 10 s by default.
    pub fn ping_timeout(mut self, limit: Duration) -> Self {
        self.protocol.ping_timeout = limit;
        self
    }

    /// Maximum number of unacknowledged QoS 1 and 2 messages to the server, at least 1, unless its Receive Maximum is
    /// lower. 100 by default.
    pub fn maximum_inflight(mut self, messages: u16) -> Self {
        self.protocol.maximum_inflight = messages.max(1);
        self
    }

    /// Capacity of the send queue, at least 1: number of messages of each priority, and of other requests. 1024 by
    /// default.
    pub fn send_queue(mut self, requests: usize) -> Self {
        self.queues.send = requests.max(1);
        self
    }

    /// Capacity of the receive queue in messages, which the messages of one read may exceed. 1024 by default.
    pub fn receive_queue(mut self, messages: usize) -> Self {
        self.queues.receive = messages.max(1);
        self
    }

    /// Whether received messages are acknowledged by [`Messages::acknowledge`] instead of when they are taken, for
    /// applications that have to store a message before the server may discard it. A message that is not acknowledged
    /// when the connection ends comes again with the next one, marked as a duplicate, of QoS 2 as well.
    pub fn manual_acknowledgement(mut self, manual: bool) -> Self {
        self.queues.is_acknowledged_manually = manual;
        self.protocol.forgets_unacknowledged = manual;
        self
    }

    // -- Streams and QUIC --------------------------------------------------------------------------

    /// Distribution of messages over QUIC streams: by default one stream for each priority in use, and one for each
    /// message of more than 256 KiB. [`StreamPolicy`] says which order that guarantees.
    pub fn stream_policy(mut self, policy: StreamPolicy) -> Self {
        self.placement.policy = policy;
        self
    }

    /// Priority of messages that set none: [`Priority::DEFAULT`] by default.
    pub fn default_priority(mut self, priority: Priority) -> Self {
        self.placement.default_priority = Some(priority);
        self
    }

    /// Whether a connection that follows an earlier one to the same server sends CONNECT, and SUBSCRIBEs that restore
    /// subscriptions, as early data (0-RTT). Each saves a round trip; a server that rejects early data costs one. No
    /// PUBLISH is early. False by default; QUIC only.
    pub fn zero_rtt(mut self, wanted: bool) -> Self {
        self.quic.zero_rtt = wanted;
        self
    }

    /// Whether messages of QoS 0 may travel in datagrams of QUIC (RFC 9221), which are sent once and may be lost: those
    /// of this client that are [`Publication::unreliable`], and all that the server sends with QoS 0, without RETAIN,
    /// if they fit into a packet. A server has to permit it (`quic.datagrams` of `braidmq`), for clients of MQTT 5;
    /// otherwise, and on other transports, all travel on streams. False by default.
    pub fn datagrams(mut self, wanted: bool) -> Self {
        self.quic.datagrams = wanted;
        self
    }

    /// Congestion control: BBR 3 by default. QUIC only.
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.quic.congestion = congestion;
        self
    }

    /// Whether the gate limits bulk to the rate of the path, so that urgent messages find no queue on it: true by
    /// default. QUIC only.
    pub fn gate(mut self, gate: bool) -> Self {
        self.quic.gate = gate;
        self
    }

    /// Tokens of a policer's bucket, in packets, that the gate reserves for urgent messages, 1 to 3: 2 by default, one
    /// for an alarm and one for the acknowledgement or the ping before it. QUIC only.
    pub fn gate_reserve(mut self, packets: u8) -> Self {
        self.quic.gate_reserve = packets;
        self
    }

    /// Maximum rate at which QUIC sends, in bytes per second, at least 1, for a device that knows the rate of its
    /// uplink: messages then wait in the client, where urgent ones overtake, and not in queues on the path. No limit by
    /// default. QUIC only.
    pub fn link_rate(mut self, bytes_per_second: u64) -> Self {
        self.quic.link_rate = Some(bytes_per_second);
        self
    }

    /// Interfaces (such as `wlan0`), or addresses of this machine, with a path of the connection on each, the preferred
    /// one first; two at least. [`ConnectionEvent::Path`](crate::ConnectionEvent::Path) tells how they are. With a
    /// server that does not know the extension there is one path. By default the system chooses it; `quic://` only.
    pub fn paths(mut self, paths: impl IntoIterator<Item = LocalPath>, mode: PathMode) -> Self {
        self.quic.multipath = Multipath { locals: paths.into_iter().collect(), mode, ..Multipath::default() };
        self
    }

    /// Appends the secrets of all TLS sessions to this file (the format of `SSLKEYLOGFILE`), for Wireshark. The file
    /// decrypts all traffic.
    pub fn key_log(mut self, file: impl Into<PathBuf>) -> Self {
        self.key_log = Some(file.into());
        self
    }

    /// Writes a qlog of each QUIC connection into this directory. None by default; QUIC only.
    pub fn qlog_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.quic.qlog_dir = Some(directory.into());
        self
    }

    /// File in which the client keeps what it knows of networks: where QUIC works, and round trips. A client that
    /// starts again begins with it. None by default; `auto://` only.
    pub fn state_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.state_file = Some(file.into());
        self
    }

    // -- Tests -------------------------------------------------------------------------------------

    /// Connects to an in-memory listener instead of the host of the URL, for tests.
    pub fn in_memory(mut self, connector: mem::Connector) -> Self {
        self.test_links.memory = Some(connector);
        self
    }

    /// Connects over QUIC from this host of a simulated network to a server on it, for tests. The host of the URL is
    /// the name in the server's certificate.
    pub fn in_simulation(mut self, from: sim::Host, server: SocketAddr) -> Self {
        self.test_links.simulated = Some((from, server));
        self
    }

    /// Opens paths from these hosts, too, as if they were interfaces of the one of [`Builder::in_simulation`].
    pub fn simulated_interfaces(mut self, others: &[sim::Host], mode: PathMode) -> Self {
        self.test_links.interfaces = others.to_vec();
        self.quic.multipath.mode = mode;
        self
    }

    // -- Building ----------------------------------------------------------------------------------

    /// Connects and waits for CONNACK. From then on the client reconnects.
    ///
    /// # Errors
    /// The options are invalid, or the first attempt failed.
    pub async fn connect(self) -> Result<(Client, Messages), Error> {
        let (sender, first) = oneshot::channel();
        let parts = self.spawn(Some(sender))?;
        first.await.unwrap_or(Err(Error::Closed))?;
        Ok(parts)
    }

    /// Starts without a connection and connects in the background; requests wait in the queue until then. Must be
    /// called in a tokio runtime.
    ///
    /// # Errors
    /// The options are invalid.
    pub fn start(self) -> Result<(Client, Messages), Error> {
        self.spawn(None)
    }

    fn spawn(self, first: Option<oneshot::Sender<Result<(), Error>>>) -> Result<(Client, Messages), Error> {
        let Queues { send, receive, is_acknowledged_manually } = self.queues;
        let channels = Arc::new(Channels {
            requests: SendQueue::new(send),
            received: ReceiveQueue::new(receive, !is_acknowledged_manually),
            events: EventLog::new(),
            unwritten: AtomicUsize::new(0),
            datagrams: DatagramCounters::default(),
        });
        let (settings, policy) = self.into_settings()?;
        let (ended_sender, ended) = watch::channel(None);
        let state = ClientState::new(settings, Arc::clone(&channels), first);
        let handle = Arc::new(Handle { channels, policy, ended });
        tokio::spawn(Driver::new(state, ended_sender).run());
        Ok((Client { handle: Arc::clone(&handle) }, Messages { handle }))
    }

    fn into_settings(self) -> Result<(Settings, StreamPolicy), OptionsError> {
        let mut connect = self.connect;
        if self.quic.datagrams {
            connect.properties.user.push(DATAGRAMS_PROPERTY, DATAGRAMS_VALUE); // [BQ-81]
        }
        let Placement { mut policy, default_priority } = self.placement;
        if let Some(priority) = default_priority {
            policy = policy.default_priority(priority);
        }
        let address = Address::parse(&self.url)?;
        connect.user_name = connect.user_name.or(address.user_name.map(Into::into));
        connect.password = connect.password.or(address.password.map(Into::into));
        let key_log = self.key_log.or(self.tls.key_log.clone());
        let tls = ClientTls::new(ClientTlsOptions { key_log, ..self.tls });
        let is_auto = address.tls.is_some();
        let quic = self.quic.clone();
        let options = ConnectOptions { quic: quic.clone(), measured: is_auto, ..ConnectOptions::default() };
        let network = |target| Dialer::Network(Box::new((target, tls.clone(), options.clone())));
        let mut paths: Vec<Arc<str>> = check_paths(&quic.multipath, is_auto)?;
        let TestLinks { memory, simulated, interfaces } = self.test_links;
        let memory = memory.map(Dialer::Memory);
        let simulated = simulated.map(|(from, server)| {
            let mut connector = from.connector(server, tls.clone(), quic.clone());
            if !interfaces.is_empty() {
                paths = std::iter::once(&from).chain(&interfaces).map(|host| host.name().into()).collect();
                connector = connector.paths(&interfaces, quic.multipath.mode);
            }
            Dialer::Simulated(Box::new(connector.server_name(&address.target.host)))
        });
        let mut transport = address.target.transport;
        let route = match address.tls {
            Some(target) => {
                let quic = simulated.unwrap_or_else(|| network(address.target));
                let tls = memory.unwrap_or_else(|| network(target));
                let limit = self.timeouts.connect;
                // A client that connects once, or whose session ends with a connection, is not moved without need.
                let has_session = connect.version.is_v5() || !connect.clean_start;
                let may_choose = has_session && self.lifetime.reconnect != Reconnect::Never;
                Route::Auto(Box::new(Auto::new(quic, tls, limit, self.state_file, may_choose)))
            }
            None if self.state_file.is_some() => return Err(OptionsError::StateFile),
            None => Route::Fixed(match (memory, simulated) {
                (Some(memory), _) => {
                    transport = Transport::Mem;
                    memory
                }
                (None, Some(simulated)) => {
                    transport = Transport::Quic;
                    simulated
                }
                (None, None) => network(address.target),
            }),
        };
        let is_for_moves = is_auto && prepare_for_moves(&mut connect);
        let ends_session = is_for_moves || (self.lifetime.ends_session && connect.version.is_v5());
        check(&connect)?;
        let uses_scram = connect.properties.authentication_method.is_some();
        let scram = uses_scram.then(|| take_scram(&mut connect)).transpose()?;
        if self.quic.link_rate == Some(0) {
            return Err(OptionsError::LinkRate);
        }
        if !(1..=3).contains(&self.quic.gate_reserve) {
            return Err(OptionsError::GateReserve(self.quic.gate_reserve));
        }
        if !transport.is_quic() {
            check_quic(&self.quic)?;
            // On one stream a lane of its own would only change the order of messages of a topic.
            policy = policy.without_own_streams();
        }
        let settings = Settings {
            route,
            connect,
            scram,
            protocol: Arc::new(self.protocol),
            reconnect: self.lifetime.reconnect,
            timeouts: self.timeouts,
            paths,
            ends_session,
        };
        Ok((settings, policy))
    }
}

/// Lets the session outlive a connection, and the Will wait for the next one. True: the session is to end with the
/// client all the same.
fn prepare_for_moves(connect: &mut Connect) -> bool {
    if !connect.version.is_v5() {
        return false;
    }
    if let Some(will) = &mut connect.will {
        will.delay = will.delay.max(MOVING_WILL_DELAY);
    }
    let ends_session = connect.properties.session_expiry.unwrap_or(0) == 0;
    if ends_session {
        connect.properties.session_expiry = Some(MOVING_SESSION);
    }
    ends_session
}

/// Refuses paths that cannot be opened; returns their names.
fn check_paths(multipath: &Multipath, is_auto: bool) -> Result<Vec<Arc<str>>, OptionsError> {
    let locals = &multipath.locals;
    match &locals[..] {
        [] => return Ok(Vec::new()),
        [only] => return Err(OptionsError::OnePath(only.to_string())),
        _ if is_auto => return Err(OptionsError::PathsOfAuto),
        _ => {}
    }
    for (index, local) in locals.iter().enumerate() {
        if locals[..index].contains(local) {
            return Err(OptionsError::SamePath(local.to_string()));
        }
        local.check().map_err(|error| OptionsError::NoPath(error.to_string()))?;
    }
    Ok(locals.iter().map(|local| local.to_string().into()).collect())
}

/// Refuses options of QUIC on other transports.
fn check_quic(options: &QuicOptions) -> Result<(), OptionsError> {
    let default = QuicOptions::client();
    let requested = [
        ("0-RTT", options.zero_rtt),
        ("a congestion control", options.congestion != default.congestion),
        ("a gate", options.gate != default.gate || options.gate_reserve != default.gate_reserve),
        ("a link rate", options.link_rate.is_some()),
        ("a list of paths", !options.multipath.locals.is_empty()),
        ("a qlog", options.qlog_dir.is_some()),
    ];
    match requested.iter().find(|(_, is_requested)| *is_requested) {
        Some((option, _)) => Err(OptionsError::NeedsQuic { option }),
        None => Ok(()),
    }
}

/// Takes user name and password out of CONNECT, for SCRAM-SHA-256.
fn take_scram(connect: &mut Connect) -> Result<ScramCredentials, OptionsError> {
    if !connect.version.is_v5() {
        return Err(OptionsError::Scram("MQTT 5: use that version"));
    }
    let user = connect.user_name.take().ok_or(OptionsError::Scram("a user name: give one"))?;
    let password = connect.password.take().ok_or(OptionsError::Scram("a password: give one"))?;
    ScramCredentials::new(user, password)
}

/// Refuses a CONNECT that the standard forbids.
fn check(connect: &Connect) -> Result<(), OptionsError> {
    if !connect.version.is_v5() && connect.password.is_some() && connect.user_name.is_none() {
        return Err(OptionsError::PasswordWithoutUserName); // [MQTT3-3.1.2-22]
    }
    if connect.needs_client_id() && connect.client_id.is_empty() {
        return Err(OptionsError::ClientId { version: connect.version }); // [MQTT3-3.1.3-7]
    }
    Ok(())
}

/// Random Client Identifier of 22 characters, which every server accepts; MQTT 3.1 allows 23. [MQTT-3.1.3-5]
fn random_client_id() -> String {
    let random = std::iter::repeat_with(fastrand::alphanumeric).take(16);
    "braid-".chars().chain(random).collect()
}
