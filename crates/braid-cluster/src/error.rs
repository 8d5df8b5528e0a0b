//! Errors of a cluster: one line each, with what to change.

use std::time::Duration;

use braid_access::http::{EndpointError, HttpError, HttpOptionsError};
use thiserror::Error;

use crate::name::Name;

/// Reason for which a node cannot join its cluster.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No server takes connections.
    #[error(
        "no NATS server answers at {servers}: {reason}. Start nats-server there, or correct cluster.nats"
    )]
    Unreachable {
        /// The servers that were tried.
        servers: String,
        /// Error of the last one.
        reason: String,
    },
    /// The servers refuse the credentials.
    #[error(
        "NATS at {servers} refuses this node: {reason}. Check cluster.credentials, cluster.user, and the permissions there"
    )]
    Refused {
        /// The servers.
        servers: String,
        /// Reason that they give.
        reason: String,
    },
    /// TLS with the servers fails.
    #[error(
        "TLS with NATS at {servers} fails: {reason}. Check cluster.ca, cluster.certificate, cluster.key, and the names in the \
         certificates of the servers"
    )]
    Tls {
        /// The servers.
        servers: String,
        /// Reason.
        reason: String,
    },
    /// A file with credentials or certificates cannot be read.
    #[error("{key}: {path} cannot be used: {reason}")]
    File {
        /// Key of the configuration.
        key: &'static str,
        /// The file.
        path: String,
        /// Reason.
        reason: String,
    },
    /// JetStream does not answer.
    #[error(
        "JetStream does not answer within {} s: {reason}. A majority of the NATS servers must run, with `jetstream {{}}` in \
         their configuration and for this account", within.as_secs()
    )]
    NoJetStream {
        /// Time that it had.
        within: Duration,
        /// Last error.
        reason: String,
    },
    /// A setting of a server may lose what was acknowledged.
    #[error("{server} {problem}. Start with --accept-cluster-risk {risk} to go on, if {loss}")]
    Unsafe {
        /// The server.
        server: String,
        /// The setting, and what to change.
        problem: String,
        /// Name of the risk.
        risk: Risk,
        /// Consequence.
        loss: &'static str,
    },
    /// The monitoring port does not answer.
    #[error("cluster.monitor: {0}")]
    Monitor(#[from] HttpError),
    /// The address of a monitoring port is none.
    #[error("cluster.monitor: {0}")]
    MonitorAddress(#[from] EndpointError),
    /// The options of a monitoring port cannot be used.
    #[error("cluster.monitor: {0}")]
    MonitorOptions(#[from] HttpOptionsError),
    /// A monitoring port answers something else.
    #[error(
        "cluster.monitor: {url} is no monitoring port of NATS: {reason}. It is `http: 8222` in its configuration"
    )]
    NoMonitor {
        /// The address.
        url: String,
        /// Reason.
        reason: String,
    },
    /// The clock of a server differs.
    #[error("the clock of {server} is {} s {}: set both by NTP", apart.as_secs(), if *is_ahead { "ahead" } else { "behind" })]
    Clock {
        /// The server.
        server: String,
        /// Difference.
        apart: Duration,
        /// True: that of the server is later.
        is_ahead: bool,
    },
    /// The disk of a server does not hold the log.
    #[error(
        "the streams of {server} may have {storage} bytes, and {shards} shards of {log_bytes} may need {needed}: set max_file: \
         {needed} or more in the jetstream part of its configuration, or lower cluster.log_bytes to {most}"
    )]
    Storage {
        /// The server.
        server: String,
        /// Bytes that all its streams together may have.
        storage: u64,
        /// Shards, the urgent one included.
        shards: usize,
        /// Largest size of a shard.
        log_bytes: u64,
        /// Bytes that the shards may have on this server.
        needed: u64,
        /// Largest size of a shard that fits.
        most: u64,
    },
    /// Messages that the broker accepts are larger than those that NATS carries.
    #[error(
        "NATS takes payloads of {max_payload} bytes, too few for mqtt.maximum_packet_size = {packet}: lower that key to {most}, \
         or set max_payload: {needed} or more in the configuration of NATS"
    )]
    Payload {
        /// Limit of the servers.
        max_payload: usize,
        /// Largest packet of the broker.
        packet: usize,
        /// Payload that it may need.
        needed: usize,
        /// Largest packet that fits.
        most: usize,
    },
    /// A stream of this name belongs to other software.
    #[error(
        "the stream {stream} exists and is not of BraidMQ: choose another cluster.name, or remove the stream"
    )]
    ForeignStream {
        /// Name of the stream.
        stream: String,
    },
    /// A stream has another format.
    #[error(
        "the stream {stream} has format {format}, and this version reads {own}: run the version of braidmq that made it, or a \
         later one"
    )]
    Format {
        /// Name of the stream.
        stream: String,
        /// Its format.
        format: String,
        /// Format of this version.
        own: u32,
    },
    /// A stream has other settings.
    #[error("the stream {stream} has {found}, and this node wants {wanted}: {remedy}")]
    Settings {
        /// Name of the stream.
        stream: String,
        /// Setting of the stream.
        found: String,
        /// Setting of this node.
        wanted: String,
        /// Change that helps.
        remedy: &'static str,
    },
    /// A stream cannot be made.
    #[error(
        "the stream {stream} cannot be made: {reason}. Give at least cluster.replicas servers room for it, and choose another \
         cluster.name if other streams have its subjects"
    )]
    Stream {
        /// Name of the stream.
        stream: String,
        /// Reason of the servers.
        reason: String,
    },
    /// Another node has this name.
    #[error(
        "another node of the cluster is called {node} (instance {instance}, since {}): give each node a name of its own in \
         cluster.node", age_text(*age)
    )]
    NameTaken {
        /// The name.
        node: Name,
        /// Instance that has it.
        instance: String,
        /// Time since it has it.
        age: Duration,
    },
}

fn age_text(age: Duration) -> String {
    match age.as_secs() {
        secs @ 0..120 => format!("{secs} s"),
        secs @ 120..7200 => format!("{} min", secs / 60),
        secs => format!("{} h", secs / 3600),
    }
}

/// Setting of the servers that may lose what was acknowledged, which a user may accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Risk {
    /// Writes are not synced before they are acknowledged.
    Unsynced,
    /// Fewer than three replicas.
    Replicas,
    /// A version with known defects.
    Version,
    /// No monitoring port is known, so that nothing was checked.
    Unchecked,
}

impl Risk {
    /// All risks.
    pub const ALL: [Self; 4] = [Self::Unsynced, Self::Replicas, Self::Version, Self::Unchecked];

    /// Name of the risk on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unsynced => "unsynced",
            Self::Replicas => "replicas",
            Self::Version => "version",
            Self::Unchecked => "unchecked",
        }
    }

    /// Loss that it may cause.
    #[must_use]
    pub const fn loss(self) -> &'static str {
        match self {
            Self::Unsynced => {
                "messages that were acknowledged in the last two minutes may be lost when several servers lose power"
            }
            Self::Replicas => "all messages may be lost with one server",
            Self::Version => "defects of that version may lose messages",
            Self::Unchecked => "nothing is known about the safety of the servers",
        }
    }
}

/// Name that is none of a [`Risk`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no risk {0:?}: write unsynced, replicas, version or unchecked")]
pub struct UnknownRisk(Box<str>);

impl std::str::FromStr for Risk {
    type Err = UnknownRisk;

    fn from_str(text: &str) -> Result<Self, UnknownRisk> {
        Self::ALL.into_iter().find(|risk| risk.as_str() == text).ok_or_else(|| UnknownRisk(text.into()))
    }
}

impl std::fmt::Display for Risk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risks_have_names() {
        for risk in Risk::ALL {
            assert_eq!(risk.as_str().parse(), Ok(risk));
        }
        let error = "all".parse::<Risk>().unwrap_err().to_string();
        assert_eq!(
            Risk::ALL.iter().filter(|risk| error.contains(risk.as_str())).count(),
            Risk::ALL.len(),
            "{error}"
        );
    }
}
