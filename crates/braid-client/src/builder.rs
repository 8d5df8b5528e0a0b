//! How a client comes to be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use braid_proto::connection::ClientOptions;
use braid_proto::packet::{Connect, ProtocolVersion, UserProperties};
use braid_proto::stream::{Priority, StreamPolicy};
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{ClientTls, ClientTlsOptions, ConnectOptions, Transport, mem, sim};
use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use crate::address::Address;
use crate::driver::Driver;
use crate::error::{Error, OptionsError};
use crate::events::EventLog;
use crate::handle::{Client, Handle};
use crate::inbox::Inbox;
use crate::lanes::Lanes;
use crate::ledger::Ledger;
use crate::messages::Messages;
use crate::publication::{Publication, whole_seconds};
use crate::queue::SendQueue;
use crate::reconnect::{Backoff, Reconnect};
use crate::settings::{Dialer, Settings, Simulated};

/// Describes a client; made by [`Client::builder`].
///
/// MQTT 5, a client identifier of its own, Clean Start, a Keep Alive of 60 s and reconnecting are what it does
/// when nothing else is said.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect` or `start`"]
pub struct Builder {
    url: String,
    memory: Option<mem::Connector>,
    simulated: Option<(sim::Host, SocketAddr)>,
    connect: Connect,
    protocol: ClientOptions,
    tls: ClientTlsOptions,
    key_log: Option<PathBuf>,
    quic: QuicOptions,
    policy: StreamPolicy,
    default_priority: Option<Priority>,
    reconnect: Reconnect,
    connect_timeout: Duration,
    disconnect_timeout: Duration,
    send_queue: usize,
    receive_queue: usize,
    manual_acknowledgement: bool,
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        let mut connect = Connect::new(ProtocolVersion::V5, random_client_id().as_str());
        connect.properties.topic_alias_maximum = Some(64);
        Self {
            url: url.to_owned(),
            memory: None,
            simulated: None,
            connect,
            protocol: ClientOptions::default(),
            tls: ClientTlsOptions::default(),
            key_log: None,
            quic: QuicOptions::client(),
            policy: StreamPolicy::default(),
            default_priority: None,
            reconnect: Reconnect::default(),
            connect_timeout: Duration::from_secs(10),
            disconnect_timeout: Duration::from_secs(5),
            send_queue: 1024,
            receive_queue: 1024,
            manual_acknowledgement: false,
        }
    }

    // -- CONNECT -----------------------------------------------------------------------------------

    /// The version of MQTT: 5.0 by default.
    pub fn version(mut self, version: ProtocolVersion) -> Self {
        self.connect.version = version;
        self
    }

    /// The Client Identifier. By default `braid-` and 16 random characters; empty leaves it to the server.
    pub fn client_id(mut self, client_id: &str) -> Self {
        self.connect.client_id = client_id.into();
        self
    }

    /// Whether the first connection starts a new session (Clean Session of MQTT 3); true by default. With false
    /// the server may go on with a session of an earlier run. Reconnects always try to go on.
    pub fn clean_start(mut self, clean_start: bool) -> Self {
        self.connect.clean_start = clean_start;
        self
    }

    /// How long the session outlives its connection, rounded up to whole seconds; from 2³² - 1 on it never expires (MQTT 5).
    /// 0 by default.
    pub fn session_expiry(mut self, interval: Duration) -> Self {
        self.connect.properties.session_expiry = Some(whole_seconds(interval));
        self
    }

    /// Keep Alive, rounded up to whole seconds, 65,535 at most; 0 turns it off. 60 s by default.
    pub fn keep_alive(mut self, interval: Duration) -> Self {
        self.connect.keep_alive = u16::try_from(whole_seconds(interval)).unwrap_or(u16::MAX);
        self
    }

    /// The Will: what the server publishes when the connection ends without a DISCONNECT, `delay` later (rounded
    /// up to whole seconds, MQTT 5).
    pub fn will(mut self, publication: Publication, delay: Duration) -> Self {
        self.connect.will = Some(publication.into_will(delay));
        self
    }

    /// User name and password, in place of those in the URL.
    pub fn credentials(self, user_name: &str, password: impl Into<Bytes>) -> Self {
        self.user_name(user_name).password(password)
    }

    /// The user name, in place of that in the URL.
    pub fn user_name(mut self, user_name: &str) -> Self {
        self.connect.user_name = Some(user_name.into());
        self
    }

    /// The password, in place of that in the URL.
    pub fn password(mut self, password: impl Into<Bytes>) -> Self {
        self.connect.password = Some(password.into());
        self
    }

    /// How many QoS 1 and 2 messages the server may send before they are acknowledged, 1..=65,535 (MQTT 5).
    pub fn receive_maximum(mut self, messages: u16) -> Self {
        self.connect.properties.receive_maximum = Some(messages.max(1));
        self
    }

    /// The largest packet that is accepted, in bytes. A larger one ends the connection.
    pub fn maximum_packet_size(mut self, bytes: u32) -> Self {
        self.connect.properties.maximum_packet_size = Some(bytes.max(1));
        self
    }

    /// How many Topic Aliases the server may define (MQTT 5); 64 by default.
    pub fn topic_alias_maximum(mut self, aliases: u16) -> Self {
        self.connect.properties.topic_alias_maximum = Some(aliases);
        self
    }

    /// Asks the server where answers to requests should go (MQTT 5): see
    /// [`ConnectionEvent::Connected`](crate::ConnectionEvent::Connected).
    pub fn request_response_information(mut self, wanted: bool) -> Self {
        self.connect.properties.request_response_information = Some(wanted);
        self
    }

    /// Whether the server may explain failures in words (MQTT 5); it may by default.
    pub fn request_problem_information(mut self, wanted: bool) -> Self {
        self.connect.properties.request_problem_information = Some(wanted);
        self
    }

    /// Adds a User Property for the server (MQTT 5).
    pub fn user_property(mut self, name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        let user: &mut UserProperties = &mut self.connect.properties.user;
        user.push((name.into(), value.into()));
        self
    }

    // -- The client's own affairs ------------------------------------------------------------------

    /// TLS: whom to believe and who we are. For `mqtts`, `wss` and `quic`.
    pub fn tls(mut self, tls: ClientTlsOptions) -> Self {
        self.tls = tls;
        self
    }

    /// What happens when the connection is lost: by default it tries again after 1 s, then after pauses that double up
    /// to 60 s.
    pub fn reconnect(mut self, reconnect: Reconnect) -> Self {
        self.reconnect = reconnect;
        self
    }

    /// How long it may take until a link is there, and again until the server has answered CONNECT. 10 s.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self.protocol.handshake_timeout = limit;
        self
    }

    /// How long `disconnect` waits until everything that was requested before it has arrived: acknowledgements, and
    /// QoS 0 that QUIC still holds. 5 s.
    pub fn disconnect_timeout(mut self, limit: Duration) -> Self {
        self.disconnect_timeout = limit;
        self
    }

    /// How long the server may take to answer a PINGREQ. 10 s.
    pub fn ping_timeout(mut self, limit: Duration) -> Self {
        self.protocol.ping_timeout = limit;
        self
    }

    /// The most QoS 1 and 2 messages on their way to a server that sets no lower limit. 100.
    pub fn maximum_inflight(mut self, messages: u16) -> Self {
        self.protocol.maximum_inflight = messages.max(1);
        self
    }

    /// The most messages of each priority, and the most other requests, that wait to be sent. 1024.
    pub fn send_queue(mut self, requests: usize) -> Self {
        self.send_queue = requests.max(1);
        self
    }

    /// The most received messages that wait to be taken, but for those of one read more. 1024.
    pub fn receive_queue(mut self, messages: usize) -> Self {
        self.receive_queue = messages.max(1);
        self
    }

    /// Received messages are acknowledged by [`Messages::acknowledge`] instead of when they are taken: for those
    /// who must have stored a message before the server may forget it.
    pub fn manual_acknowledgement(mut self, manual: bool) -> Self {
        self.manual_acknowledgement = manual;
        self
    }

    // -- Streams and QUIC --------------------------------------------------------------------------

    /// How messages are spread over the streams of QUIC: by default one stream for each priority in use, and one
    /// for each message of more than 256 KiB. What order that promises is written at [`StreamPolicy`].
    pub fn stream_policy(mut self, policy: StreamPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What messages get that are given no priority: [`Priority::DEFAULT`] unless this says otherwise.
    pub fn default_priority(mut self, priority: Priority) -> Self {
        self.default_priority = Some(priority);
        self
    }

    /// Whether a connection that follows an earlier one of this client to the same server sends CONNECT with its
    /// first packets (0-RTT), and the SUBSCRIBE of what has to be subscribed again: each saves a round trip. A server
    /// that does not take it costs one. No PUBLISH is early. False by default; QUIC only.
    pub fn zero_rtt(mut self, wanted: bool) -> Self {
        self.quic.zero_rtt = wanted;
        self
    }

    /// Who decides how fast QUIC sends: BBR 3 by default. QUIC only.
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.quic.congestion = congestion;
        self
    }

    /// Whether bulk is kept back where the path limits, so that nothing urgent finds a queue: yes by default.
    /// QUIC only.
    pub fn gate(mut self, gate: bool) -> Self {
        self.quic.gate = gate;
        self
    }

    /// Packets of a policer's bucket that are left for what is urgent, 1 to 3: 2 by default, one for an alarm and one for
    /// the acknowledgement or the ping before it. QUIC only.
    pub fn gate_reserve(mut self, packets: u8) -> Self {
        self.quic.gate_reserve = packets;
        self
    }

    /// The most bytes per second that QUIC sends, for a device that knows its uplink: nothing then waits in queues
    /// on the way, where what is urgent cannot overtake. At least 1; no cap by default. QUIC only.
    pub fn link_rate(mut self, bytes_per_second: u64) -> Self {
        self.quic.link_rate = Some(bytes_per_second);
        self
    }

    /// Appends the secrets of all TLS sessions to this file, for Wireshark. Whoever has it can read all traffic.
    pub fn key_log(mut self, file: impl Into<PathBuf>) -> Self {
        self.key_log = Some(file.into());
        self
    }

    /// Writes what happens in each QUIC connection to a file in this directory (qlog). None by default; QUIC only.
    pub fn qlog_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.quic.qlog_dir = Some(directory.into());
        self
    }

    // -- Tests -------------------------------------------------------------------------------------

    /// Connects to an in-memory listener in place of the URL's host: for tests.
    pub fn in_memory(mut self, connector: mem::Connector) -> Self {
        self.memory = Some(connector);
        self
    }

    /// Connects with QUIC from this machine of a simulated network to a server on it: for tests. The host of the
    /// URL is the name that the server's certificate must have.
    pub fn in_simulation(mut self, from: sim::Host, server: SocketAddr) -> Self {
        self.simulated = Some((from, server));
        self
    }

    // -- Building ----------------------------------------------------------------------------------

    /// Connects and waits for the server's answer. From then on lost connections are replaced.
    ///
    /// # Errors
    /// The options are no good, or the first attempt failed.
    pub async fn connect(self) -> Result<(Client, Messages), Error> {
        let (sender, first) = oneshot::channel();
        let parts = self.spawn(Some(sender))?;
        first.await.unwrap_or(Err(Error::Closed))?;
        Ok(parts)
    }

    /// Starts without a connection and keeps trying to get one: requests wait in the queue until then. Must be
    /// called in a tokio runtime.
    ///
    /// # Errors
    /// The options are no good.
    pub fn start(self) -> Result<(Client, Messages), Error> {
        self.spawn(None)
    }

    fn spawn(self, first: Option<oneshot::Sender<Result<(), Error>>>) -> Result<(Client, Messages), Error> {
        let (requests, reconnect) = (Arc::new(SendQueue::new(self.send_queue)), self.reconnect);
        let inbox = Arc::new(Inbox::new(self.receive_queue, !self.manual_acknowledgement));
        let (settings, policy) = self.into_settings()?;
        let events = Arc::new(EventLog::new());
        let unwritten = Arc::new(AtomicUsize::new(0));
        let (ended_sender, ended) = watch::channel(None);
        let driver = Driver {
            settings,
            requests: Arc::clone(&requests),
            lanes: Lanes::default(),
            inbox: Arc::clone(&inbox),
            events: Arc::clone(&events),
            ended: ended_sender,
            unwritten: Arc::clone(&unwritten),
            first,
            ledger: Ledger::default(),
            backoff: Backoff::new(reconnect),
            session: None,
            connections: 0,
            restores_early: true,
        };
        let handle = Arc::new(Handle { inbox, events, requests, policy, unwritten, ended });
        tokio::spawn(driver.run());
        Ok((Client { handle: Arc::clone(&handle) }, Messages { handle }))
    }

    fn into_settings(self) -> Result<(Settings, StreamPolicy), OptionsError> {
        let mut connect = self.connect;
        let mut policy = self.policy;
        if let Some(priority) = self.default_priority {
            policy = policy.default_priority(priority);
        }
        let mut transport = Transport::Mem;
        let dialer = if let Some(connector) = self.memory {
            Dialer::Memory(connector)
        } else {
            let address = Address::parse(&self.url)?;
            connect.user_name = connect.user_name.or(address.user_name.map(Into::into));
            connect.password = connect.password.or(address.password.map(Into::into));
            let key_log = self.key_log.or(self.tls.key_log.clone());
            let tls = ClientTls::new(ClientTlsOptions { key_log, ..self.tls });
            let (target, quic) = (address.target, self.quic.clone());
            transport = target.transport;
            match self.simulated {
                Some((from, server)) => {
                    transport = Transport::Quic;
                    let server_name = target.host;
                    Dialer::Simulated(Box::new(Simulated { from, server, server_name, tls, quic }))
                }
                None => {
                    let options = ConnectOptions { quic, ..ConnectOptions::default() };
                    Dialer::Network(Box::new((target, tls, options)))
                }
            }
        };
        check(&connect)?;
        if self.quic.link_rate == Some(0) {
            return Err(OptionsError::LinkRate);
        }
        if !(1..=3).contains(&self.quic.gate_reserve) {
            return Err(OptionsError::GateReserve(self.quic.gate_reserve));
        }
        if transport != Transport::Quic {
            check_quic(&self.quic)?;
            // Where there is one stream, another place in the queue would only change the order of a topic.
            policy = policy.without_own_streams();
        }
        let settings = Settings {
            dialer,
            connect,
            protocol: Arc::new(self.protocol),
            connect_timeout: self.connect_timeout,
            disconnect_timeout: self.disconnect_timeout,
        };
        Ok((settings, policy))
    }
}

/// What only QUIC has must not be asked of anything else.
fn check_quic(options: &QuicOptions) -> Result<(), OptionsError> {
    let default = QuicOptions::client();
    let asked = [
        ("0-RTT", options.zero_rtt),
        ("a congestion control", options.congestion != default.congestion),
        ("a gate", options.gate != default.gate || options.gate_reserve != default.gate_reserve),
        ("a link rate", options.link_rate.is_some()),
        ("a qlog", options.qlog_dir.is_some()),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((option, _)) => Err(OptionsError::NeedsQuic { option }),
        None => Ok(()),
    }
}

fn check(connect: &Connect) -> Result<(), OptionsError> {
    if !connect.version.is_v5() && connect.password.is_some() && connect.user_name.is_none() {
        return Err(OptionsError::PasswordWithoutUserName); // [MQTT3-3.1.2-22]
    }
    let needs_client_id = match connect.version {
        ProtocolVersion::V31 => true,
        ProtocolVersion::V311 => !connect.clean_start, // [MQTT3-3.1.3-7]
        ProtocolVersion::V5 => false,
    };
    if needs_client_id && connect.client_id.is_empty() {
        let version = if connect.version == ProtocolVersion::V31 { "3.1" } else { "3.1.1" };
        return Err(OptionsError::ClientId { version });
    }
    Ok(())
}

/// 22 of the characters that every server allows, so also within the 23 of MQTT 3.1. [MQTT-3.1.3-5]
fn random_client_id() -> String {
    let random = std::iter::repeat_with(fastrand::alphanumeric).take(16);
    "braid-".chars().chain(random).collect()
}
