//! The configuration of `braidmq serve`: file, environment, `--set` and flags, merged and validated once.

mod check;
mod health;
mod merge;
mod parse;
mod quic;
mod spool;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;

use braid_broker::{BrokerConfig, PriorityRule, StreamsConfig};
use serde::{Deserialize, Serialize};

pub(crate) use health::HealthConfig;
pub(crate) use merge::{Layers, merge};
pub(crate) use parse::ConfigError;
pub(crate) use quic::QuicConfig;
pub(crate) use spool::SpoolConfig;
pub(crate) use store::{DurabilityConfig, StoreConfig};

/// Everything `braidmq serve` can be told. All keys are optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Where the broker keeps its files.
    pub(crate) data_dir: PathBuf,
    /// Clients without credentials may connect from other machines too.
    pub(crate) allow_anonymous: bool,
    /// Seconds that connections get for their last bytes when the broker stops.
    pub(crate) drain_secs: u64,
    /// Which transports listen where.
    pub(crate) listeners: ListenersConfig,
    /// Where it is told how the broker is.
    pub(crate) health: HealthConfig,
    /// What web pages may do.
    pub(crate) websocket: WebSocketConfig,
    /// Certificates for TLS, secure WebSocket and QUIC.
    pub(crate) tls: TlsConfig,
    /// How MQTT over QUIC is spoken.
    pub(crate) quic: QuicConfig,
    /// What outlives the process.
    pub(crate) store: StoreConfig,
    /// Where large messages are received.
    pub(crate) spool: SpoolConfig,
    /// What is logged, and how.
    pub(crate) log: LogConfig,
    /// The broker's own sections: `mqtt`, `limits`, `sys`.
    pub(crate) mqtt: braid_broker::MqttConfig,
    pub(crate) limits: braid_broker::LimitsConfig,
    pub(crate) sys: braid_broker::SysConfig,
    /// `[[priority]]`: what is sent sooner.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) priority: Vec<PriorityRule>,
}

impl Default for Config {
    fn default() -> Self {
        let BrokerConfig { mqtt, limits, sys, priority, streams: _ } = BrokerConfig::default();
        Self {
            data_dir: PathBuf::from("braidmq-data"),
            allow_anonymous: false,
            drain_secs: 5,
            listeners: ListenersConfig::default(),
            health: HealthConfig::default(),
            websocket: WebSocketConfig::default(),
            tls: TlsConfig::default(),
            quic: QuicConfig::default(),
            store: StoreConfig::default(),
            spool: SpoolConfig::default(),
            log: LogConfig::default(),
            mqtt,
            limits,
            sys,
            priority,
        }
    }
}

impl Config {
    /// The part that the broker itself sees.
    pub(crate) fn broker(&self) -> BrokerConfig {
        let QuicConfig { strict_streams, early_publish, .. } = self.quic;
        BrokerConfig {
            mqtt: self.mqtt.clone(),
            limits: self.limits.clone(),
            sys: self.sys.clone(),
            streams: StreamsConfig { strict_streams, early_publish },
            priority: self.priority.clone(),
        }
    }
}

/// Addresses per transport, `HOST:PORT` with an IP address as host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListenersConfig {
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) tls: Vec<SocketAddr>,
    pub(crate) ws: Vec<SocketAddr>,
    pub(crate) wss: Vec<SocketAddr>,
    pub(crate) quic: Vec<SocketAddr>,
}

impl ListenersConfig {
    pub(crate) const fn none() -> Self {
        Self { tcp: Vec::new(), tls: Vec::new(), ws: Vec::new(), wss: Vec::new(), quic: Vec::new() }
    }
}

impl Default for ListenersConfig {
    /// Every transport, on this machine only.
    fn default() -> Self {
        let at = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
        Self { tcp: at(1883), tls: at(8883), ws: at(8083), wss: at(8084), quic: at(14567) }
    }
}

/// Web pages, which connect from wherever their reader is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebSocketConfig {
    /// Origins of pages that may connect, such as `https://app.example`, beside those of this machine. With
    /// `allow_anonymous` any page may: whoever can reach the broker is let in anyway.
    pub(crate) origins: Vec<String>,
}

/// Certificates. Without them a self-signed pair is made in the data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsConfig {
    /// PEM file with the chain, leaf first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file with the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Whether clients prove who they are with a certificate.
    pub(crate) client_auth: ClientAuthConfig,
    /// PEM file with the authorities that sign clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_ca: Option<PathBuf>,
}

/// Whether clients are asked for a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientAuthConfig {
    #[default]
    None,
    Optional,
    Required,
}

/// Logging, to standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogConfig {
    /// `error`, `warn`, `info`, `debug` or `trace`, also per module: `info,braid_broker=debug`.
    pub(crate) level: String,
    /// For people or for machines.
    pub(crate) format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_documentation_shows_every_key_with_its_default() {
        let page = include_str!("../../../../docs/configuration.md");
        let (_, rest) = page.split_once("```toml\n").unwrap();
        let (block, _) = rest.split_once("```").unwrap();
        let documented: toml::Table = toml::from_str(block).unwrap();
        assert_eq!(documented, toml::Table::try_from(Config::default()).unwrap());
    }

    /// Each limit stands in a row of the table, and no row names one that there is not.
    #[test]
    fn the_table_of_queues_has_every_limit() {
        let page = include_str!("../../../../docs/limits.md");
        let rows = page.lines().filter(|line| line.starts_with('|'));
        let words = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
        let named: BTreeSet<_> = words.filter_map(|word| word.strip_prefix("limits.")).collect();
        let limits = toml::Table::try_from(Config::default().limits).unwrap();
        assert_eq!(named, limits.keys().map(String::as_str).collect());
    }
}
