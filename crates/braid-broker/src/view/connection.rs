//! Facts about one client, its connection, and what its session waits for.

use std::net::SocketAddr;
use std::time::Instant;

use braid_proto::packet::{ClientId, ProtocolVersion, QoS, Will};
use braid_proto::session::Session;
use braid_proto::topic::TopicName;
use braid_transport::Transport;

use crate::mountpoint;

/// Name of a client: its mountpoint, and the Client Identifier that it knows. The names of two sessions differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientName(ClientId);

impl ClientName {
    /// Name of a client below a mountpoint, or without one.
    pub fn new(mountpoint: Option<&str>, client_id: &str) -> Self {
        Self(mountpoint::join(mountpoint, client_id))
    }

    /// Mountpoint of the client.
    pub fn mountpoint(&self) -> Option<&str> {
        mountpoint::split(&self.0).0
    }

    /// Client Identifier, as the client knows it.
    pub fn client_id(&self) -> &str {
        mountpoint::split(&self.0).1
    }

    /// Client Identifier of the session, by which bans and events name the client.
    pub const fn session_id(&self) -> &ClientId {
        &self.0
    }
}

impl From<&ClientId> for ClientName {
    /// Name of the client whose session has this Client Identifier.
    fn from(session_id: &ClientId) -> Self {
        Self(session_id.clone())
    }
}

/// Facts about a connection since its CONNECT was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionSummary {
    /// Address of the client, by now.
    pub address: Option<SocketAddr>,
    /// Number of times that the client moved to another address.
    pub moves: u32,
    /// Transport.
    pub transport: Transport,
    /// Version of MQTT.
    pub version: ProtocolVersion,
    /// Monotonic time at which the CONNECT was accepted.
    pub since: Instant,
    /// Clean Start, or Clean Session of MQTT 3.
    pub clean_start: bool,
    /// The session existed before the connection.
    pub session_present: bool,
    /// Agreed Keep Alive in seconds; 0 turns it off.
    pub keep_alive: u16,
    /// The connection began with 0-RTT data that was accepted.
    pub is_early: bool,
    /// Tag of the listener.
    pub listener: Option<Box<str>>,
}

/// Will of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WillSummary {
    /// Topic, with the mountpoint of the client in front.
    pub topic: TopicName,
    /// Length of the payload in bytes.
    pub payload_len: usize,
    /// QoS.
    pub qos: QoS,
    /// RETAIN flag.
    pub retain: bool,
    /// Will Delay Interval in seconds.
    pub delay: u32,
}

impl From<&Will> for WillSummary {
    fn from(will: &Will) -> Self {
        let Will { topic, payload, qos, retain, delay, .. } = will;
        Self { topic: topic.clone(), payload_len: payload.len(), qos: *qos, retain: *retain, delay: *delay }
    }
}

/// Incomplete exchanges of a session, and what it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingDetail {
    /// Will that is published if the connection is lost, or whose delay runs.
    pub will: Option<WillSummary>,
    /// Messages to the client that are not completely acknowledged.
    pub outbound: usize,
    /// Messages of QoS 2 from the client that are not released.
    pub inbound: usize,
    /// Subscriptions that have not got all of their retained messages.
    pub retained: usize,
    /// Messages are being sent again, since the session was resumed.
    pub is_resending: bool,
}

impl PendingDetail {
    pub(crate) fn new(session: &Session, will: Option<&Will>, retained: usize, is_resending: bool) -> Self {
        Self {
            will: will.map(WillSummary::from),
            outbound: session.outbound.len(),
            inbound: session.inbound.open_exchanges(),
            retained,
            is_resending,
        }
    }
}
