//! The configuration of `braidmq serve`: file, environment, `--set` and flags, merged and validated once.

mod access;
mod check;
mod cluster;
mod http;
mod listener;
mod merge;
pub(crate) mod parse;
mod quic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use braid_broker::{BrokerConfig, PriorityRule, StreamsConfig};
use braid_store::spool::SpoolOptions;
use braid_store::{Durability, Options};
use braid_transport::Transport;
use serde::{Deserialize, Serialize};

pub(crate) use access::{AclConfig, AuthenticatorConfig, BansConfig, HttpConfig, JwtConfig};
pub(crate) use cluster::ClusterConfig;
pub(crate) use http::FrontConfig;
pub(crate) use listener::ListenerConfig;
pub(crate) use merge::{Layers, environment, merge};
pub(crate) use parse::ConfigError;
pub(crate) use quic::{QuicConfig, QuicLbConfig, nonce_bytes};

/// Configuration of `braidmq serve`. All keys are optional.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Directory of the broker's files.
    pub(crate) data_dir: PathBuf,
    /// Whether clients without credentials may connect from other hosts too.
    pub(crate) allow_anonymous: bool,
    /// Seconds that connections have for their last bytes when the broker stops.
    pub(crate) drain_secs: u64,
    /// Addresses by transport.
    pub(crate) listeners: ListenersConfig,
    /// Listeners with a policy of their own: `[[listener]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) listener: Vec<ListenerConfig>,
    /// Health over HTTP.
    pub(crate) health: HealthConfig,
    /// HTTP front.
    pub(crate) http: FrontConfig,
    /// Origins of web pages that may connect.
    pub(crate) websocket: WebSocketConfig,
    /// Certificates for TLS, secure WebSocket and QUIC.
    pub(crate) tls: TlsConfig,
    /// MQTT over QUIC.
    pub(crate) quic: QuicConfig,
    /// Durable state.
    pub(crate) store: StoreConfig,
    /// Cluster on NATS.
    pub(crate) cluster: ClusterConfig,
    /// Files for large messages.
    pub(crate) spool: SpoolConfig,
    /// Authenticators of clients: `[[authenticator]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) authenticator: Vec<AuthenticatorConfig>,
    /// Access control list.
    pub(crate) acl: AclConfig,
    pub(crate) bans: BansConfig,
    /// Level and format of the log.
    pub(crate) log: LogConfig,
    /// The broker's own sections: `mqtt`, `limits`, `sys`.
    pub(crate) mqtt: braid_broker::MqttConfig,
    pub(crate) limits: braid_broker::LimitsConfig,
    pub(crate) sys: braid_broker::SysConfig,
    /// Priorities of topics: `[[priority]]`.
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
            listener: Vec::new(),
            health: HealthConfig::default(),
            http: FrontConfig::default(),
            websocket: WebSocketConfig::default(),
            tls: TlsConfig::default(),
            quic: QuicConfig::default(),
            store: StoreConfig::default(),
            cluster: ClusterConfig::default(),
            spool: SpoolConfig::default(),
            authenticator: Vec::new(),
            acl: AclConfig::default(),
            bans: BansConfig::default(),
            log: LogConfig::default(),
            mqtt,
            limits,
            sys,
            priority,
        }
    }
}

impl Config {
    /// The sections of the broker itself.
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

    /// Directory and options of the spool; `None` if no packet can be that large.
    pub(crate) fn spool(&self) -> Option<(PathBuf, SpoolOptions)> {
        let SpoolConfig { threshold, bytes, keep_free, .. } = self.spool;
        let directory = self.spool.directory.clone().unwrap_or_else(|| self.data_dir.join("spool"));
        let is_needed = threshold < self.mqtt.maximum_packet_size as usize;
        is_needed.then_some((directory, SpoolOptions { threshold, bytes, keep_free }))
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
    /// Addresses of each transport, in the order of binding.
    pub(crate) fn by_transport(&self) -> [(Transport, &[SocketAddr]); Transport::ALL.len()] {
        Transport::ALL.map(|transport| {
            let addresses: &[SocketAddr] = match transport {
                Transport::Tcp => &self.tcp,
                Transport::Tls => &self.tls,
                Transport::Ws => &self.ws,
                Transport::Wss => &self.wss,
                Transport::Quic => &self.quic,
                Transport::Mem => &[],
            };
            (transport, addresses)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_transport().iter().all(|(_, addresses)| addresses.is_empty())
    }
}

impl Default for ListenersConfig {
    /// Every transport, on loopback only.
    fn default() -> Self {
        let at = |transport: Transport| vec![SocketAddr::from(([127, 0, 0, 1], transport.default_port()))];
        Self {
            tcp: at(Transport::Tcp),
            tls: at(Transport::Tls),
            ws: at(Transport::Ws),
            wss: at(Transport::Wss),
            quic: at(Transport::Quic),
        }
    }
}

/// Protection against WebSocket connections of foreign web pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WebSocketConfig {
    /// Origins of pages that may connect, such as `https://app.example`, beside those of this host. With
    /// `allow_anonymous` every page may.
    pub(crate) origins: Vec<String>,
}

/// Certificates. By default a self-signed pair is made in the data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TlsConfig {
    /// PEM file with the chain, leaf first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file with the private key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Client certificates.
    pub(crate) client_auth: ClientAuthConfig,
    /// PEM file with the authorities that sign clients' certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Files with revocation lists of clients' certificates.
    pub(crate) crl: Vec<PathBuf>,
    /// Lowest version of TLS over TCP: `1.2` or `1.3`.
    pub(crate) min_version: MinTlsVersion,
    /// Application protocols (ALPN) on TLS and QUIC; empty: `mqtt`.
    pub(crate) alpn: Vec<String>,
    /// Certificates for the names that they have, which clients ask for by SNI.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) additional: Vec<AdditionalCertificate>,
}

/// Certificate for the names that it has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdditionalCertificate {
    /// PEM file with the chain, leaf first.
    pub(crate) certificate: PathBuf,
    /// PEM file with the private key.
    pub(crate) key: PathBuf,
}

/// Lowest version of TLS over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MinTlsVersion {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

/// Verification of client certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientAuthConfig {
    #[default]
    None,
    Optional,
    Required,
}

/// Log on standard error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogConfig {
    /// `error`, `warn`, `info`, `debug` or `trace`, also per module: `info,braid_broker=debug`.
    pub(crate) level: String,
    /// Text or JSON.
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

/// Health over HTTP. Requests are not authenticated, so that no address is listened on by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HealthConfig {
    /// Addresses, `HOST:PORT` with an IP address as host.
    pub(crate) bind: Vec<SocketAddr>,
}

/// Store of sessions and messages in the data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreConfig {
    /// Time of acknowledgements.
    pub(crate) durability: DurabilityConfig,
    /// Milliseconds of acknowledged messages that a crash may lose with `async`. While the disk is slower,
    /// acknowledgements wait.
    pub(crate) async_window_ms: u64,
    /// Bytes of the store's file that are cached in memory.
    pub(crate) cache_bytes: usize,
}

impl Default for StoreConfig {
    fn default() -> Self {
        let cache_bytes = Options::default().cache;
        Self { durability: DurabilityConfig::default(), async_window_ms: 100, cache_bytes }
    }
}

/// Time of an acknowledgement relative to its commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityConfig {
    /// After the fsync.
    #[default]
    Sync,
    /// Before the fsync, within `async_window_ms`.
    Async,
    /// Immediately; nothing outlives the process.
    Memory,
}

impl StoreConfig {
    /// Options of the embedded store; `None` for the memory store.
    pub(crate) fn options(&self) -> Option<Options> {
        let durability = match self.durability {
            DurabilityConfig::Sync => Durability::Sync,
            DurabilityConfig::Async => {
                Durability::Async { loss_window: Duration::from_millis(self.async_window_ms) }
            }
            DurabilityConfig::Memory => return None,
        };
        let mut options = Options::default();
        (options.durability, options.cache) = (durability, self.cache_bytes);
        Some(options)
    }
}

/// Spool: large messages are received into files, which are mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SpoolConfig {
    /// Size in bytes above which a PUBLISH is spooled; from `mqtt.maximum_packet_size` on there is no spool.
    pub(crate) threshold: usize,
    /// Directory of the files; `spool` in the data directory by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathBuf>,
    /// The most bytes of all files together.
    pub(crate) bytes: u64,
    /// Bytes that stay free on the file system.
    pub(crate) keep_free: u64,
}

impl Default for SpoolConfig {
    fn default() -> Self {
        Self { threshold: 1 << 20, directory: None, bytes: 128 << 30, keep_free: 256 << 20 }
    }
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "it is public where it lives, in the fuzz crate")]
#[path = "../../../../fuzz/src/configuration.rs"]
mod configuration;

#[cfg(test)]
#[path = "../../../../fuzz/src/seeds.rs"]
mod seeds;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The corpus of the fuzz target, and mutations of it.
    #[test]
    fn configuration() {
        let corpus = seeds::corpus("configuration");
        corpus.iter().for_each(|input| configuration::configuration(input));
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..2000 {
            let mut input = corpus[rng.usize(..corpus.len())].clone();
            for _ in 0..rng.usize(1..4) {
                seeds::change(&mut input, 0, &mut rng);
            }
            configuration::configuration(&input);
        }
    }

    #[test]
    fn the_documentation_shows_every_key_with_its_default() {
        let page = include_str!("../../../../docs/configuration.md");
        let (_, rest) = page.split_once("```toml\n").unwrap();
        let (block, _) = rest.split_once("```").unwrap();
        let documented: toml::Table = toml::from_str(block).unwrap();
        assert_eq!(documented, toml::Table::try_from(Config::default()).unwrap());
    }

    /// Each limit has a row in the table, and each row names an existing limit.
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
