//! Connection to NATS.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};

use crate::error::ClusterError;
use crate::options::{ClusterOptions, Login};

/// Time for a first connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Time for an answer of JetStream. Without one in this time a leader is missing, and the next try finds the new one.
const ANSWER: Duration = Duration::from_millis(500);

/// Messages whose acknowledgement of the servers is outstanding.
const IN_FLIGHT: usize = 1024;

/// Bytes that a message takes beside its payload: properties as headers, and what the log needs.
pub const OVERHEAD: usize = 64 << 10;

/// Connections to the servers, and their JetStream.
#[derive(Clone, Debug)]
pub struct Connections {
    /// For messages of ordinary shards, records and calls.
    pub ordinary: Context,
    /// For urgent messages: no bulk is before them in its buffers.
    pub urgent: Context,
    /// For shared subscriptions: it gets messages of this node too.
    pub groups: Context,
    /// Largest packet of MQTT that fits into a message of NATS, in bytes.
    pub largest_packet: usize,
}

impl Connections {
    /// Connects to a server.
    ///
    /// # Errors
    /// None answers, they refuse the login, a file cannot be used, or their payloads are too small.
    pub async fn open(options: &ClusterOptions) -> Result<Self, ClusterError> {
        let ordinary = connect(options, "").await?;
        let max_payload = ordinary.max_payload();
        if options.largest_packet.saturating_add(OVERHEAD) > max_payload {
            let packet = options.largest_packet;
            let (needed, most) = (packet.saturating_add(OVERHEAD), max_payload.saturating_sub(OVERHEAD));
            return Err(ClusterError::Payload { max_payload, packet, needed, most });
        }
        let largest_packet = max_payload.saturating_sub(OVERHEAD);
        let urgent = connect(options, " urgent").await?;
        let groups = connect(options, " groups").await?;
        Ok(Self {
            ordinary: context(ordinary),
            urgent: context(urgent),
            groups: context(groups),
            largest_packet,
        })
    }
}

fn context(client: Client) -> Context {
    jetstream::ContextBuilder::new()
        .timeout(ANSWER)
        .max_ack_inflight(IN_FLIGHT)
        .backpressure_on_inflight(true)
        .build(client)
}

/// Connects to a server. `purpose` follows the name of the node in lists of the servers.
pub(crate) async fn connect(options: &ClusterOptions, purpose: &str) -> Result<Client, ClusterError> {
    let ClusterOptions { servers, node, cluster, .. } = options;
    let was_connected = Arc::new(AtomicBool::new(false));
    let mut nats = ConnectOptions::new()
        .name(format!("braidmq {cluster}/{node}{purpose}"))
        .connection_timeout(CONNECT)
        .request_timeout(Some(CONNECT))
        // Messages of this node's own clients have been delivered here already.
        .no_echo()
        // Servers that others tell of have no scheme.
        .require_tls(servers.iter().any(|server| server.starts_with("tls://")))
        .event_callback(move |event| {
            let was_connected = was_connected.clone();
            async move { note(&event, &was_connected) }
        });
    nats = match &options.login {
        Login::None => nats,
        Login::Password { user, password } => nats.user_and_password(user.clone(), password.clone()),
        Login::Credentials(file) => nats
            .credentials_file(file)
            .await
            .map_err(|error| unusable("cluster.credentials", file, &error))?,
    };
    for file in &options.ca_files {
        readable("cluster.ca", file)?;
        nats = nats.add_root_certificates(file.clone());
    }
    if let Some((certificate, key)) = &options.certificate {
        readable("cluster.certificate", certificate)?;
        readable("cluster.key", key)?;
        nats = nats.add_client_certificate(certificate.clone(), key.clone());
    }
    nats.connect(servers.as_slice()).await.map_err(|error| {
        let (servers, reason) = (servers.join(", "), chain(&error));
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                ClusterError::Refused { servers, reason }
            }
            ConnectErrorKind::Tls => ClusterError::Tls { servers, reason },
            ConnectErrorKind::Io if is_of_tls(&error) => ClusterError::Tls { servers, reason },
            _ => ClusterError::Unreachable { servers, reason },
        }
    })
}

/// Tests whether the handshake of TLS failed: its errors are those of malformed data.
fn is_of_tls(error: &dyn std::error::Error) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::InvalidData)
}

/// Error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

fn readable(key: &'static str, file: &Path) -> Result<(), ClusterError> {
    std::fs::File::open(file).map(drop).map_err(|error| unusable(key, file, &error))
}

fn unusable(key: &'static str, file: &Path, error: &io::Error) -> ClusterError {
    ClusterError::File { key, path: file.display().to_string(), reason: error.to_string() }
}

fn note(event: &Event, was_connected: &AtomicBool) {
    match event {
        Event::Connected if was_connected.swap(true, Ordering::Relaxed) => {
            tracing::info!("connected to NATS again");
        }
        Event::Connected => tracing::debug!("connected to NATS"),
        Event::Disconnected => tracing::warn!("the connection to NATS is lost; trying again"),
        Event::LameDuckMode => tracing::info!("the NATS server is about to stop"),
        Event::SlowConsumer(_) => tracing::warn!("this node is too slow for what NATS sends it"),
        Event::ServerError(error) => tracing::warn!(%error, "NATS reports an error"),
        Event::ClientError(error) => tracing::debug!(%error, "NATS"),
        Event::Draining | Event::Closed => tracing::debug!(%event, "NATS"),
    }
}
