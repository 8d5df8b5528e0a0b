//! Section `[quic]`: options of the transport, and of data streams in the broker.

use std::path::{Path, PathBuf};

use braid_access::read_file;
use braid_broker::{EarlyPublishConfig, StreamsConfig};
use braid_transport::quic::{
    Congestion, Multipath, QuicLb, QuicLbError, QuicLbKey, QuicOptions, ReceiveBudget, ServerId,
};
use serde::{Deserialize, Serialize};

use super::check::refused;
use super::cluster::{one_parsed, one_text};
use super::{Config, ConfigError};

/// Longest file with a key, in bytes.
const MAX_KEY_FILE: usize = 4096;

/// MQTT over QUIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuicConfig {
    /// UNSUBSCRIBE ends the subscription of its own stream only, as with EMQX.
    pub(crate) strict_streams: bool,
    /// Handling of a PUBLISH in early data.
    pub(crate) early_publish: EarlyPublishConfig,
    /// Congestion control.
    #[serde(with = "CongestionConfig")]
    pub(crate) congestion: Congestion,
    /// Whether the gate limits bulk to the rate of the path to a client.
    pub(crate) gate: bool,
    /// Packets that the gate reserves for urgent messages, 1 to 3.
    pub(crate) gate_reserve: u8,
    /// File for the state of the gates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gate_log: Option<PathBuf>,
    /// The most bytes per second that are sent to one client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) link_rate: Option<u64>,
    /// Receive window of one stream, in bytes.
    pub(crate) stream_window: u32,
    /// Bytes that are divided among the clients with unread bytes.
    pub(crate) receive_budget: u64,
    /// The most session tickets; each connection is given two.
    pub(crate) tickets: usize,
    /// Whether a client that resumes may send early data.
    pub(crate) zero_rtt: bool,
    /// Whether messages of QoS 0 may be in datagrams.
    pub(crate) datagrams: bool,
    /// Whether a connection begins near the rate that an earlier one of its client had.
    pub(crate) careful_resume: bool,
    /// Whether a client may have several paths.
    pub(crate) multipath: bool,
    /// Directory for a qlog of each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) qlog_dir: Option<PathBuf>,
    /// Connection IDs that name this node to balancers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lb: Option<QuicLbConfig>,
}

/// Connection IDs by QUIC-LB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuicLbConfig {
    /// Identifier of this node, in hexadecimal digits.
    #[serde(serialize_with = "one_text", deserialize_with = "one_parsed")]
    pub(crate) server_id: ServerId,
    /// Number of this set of values, 0 to 6.
    #[serde(default)]
    pub(crate) config_id: u8,
    /// Length of the nonce in bytes.
    #[serde(default = "nonce_bytes")]
    pub(crate) nonce_bytes: usize,
    /// File whose first line is the key, 32 hexadecimal digits; without it nodes are visible in connection IDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
}

/// Default length of the nonce.
pub(crate) const fn nonce_bytes() -> usize {
    8
}

impl QuicLbConfig {
    /// Reads the key.
    ///
    /// # Errors
    /// The key cannot be read, or the values do not go together.
    pub(crate) fn read(&self) -> Result<QuicLb, ConfigError> {
        let key = self.key_file.as_deref().map(read_key).transpose()?;
        QuicLb::new(self.config_id, self.server_id, self.nonce_bytes, key)
            .map_err(|error| refused("quic.lb", error.to_string()))
    }
}

fn read_key(file: &Path) -> Result<QuicLbKey, ConfigError> {
    let refused = |problem: String| refused("quic.lb.key_file", format!("{}: {problem}", file.display()));
    let text = read_file(file, MAX_KEY_FILE).map_err(|error| refused(error.to_string()))?;
    let text = String::from_utf8(text).map_err(|_| refused("is not UTF-8".to_owned()))?;
    text.lines()
        .next()
        .unwrap_or_default()
        .trim()
        .parse()
        .map_err(|error: QuicLbError| refused(error.to_string()))
}

impl Default for QuicConfig {
    fn default() -> Self {
        let StreamsConfig { strict_streams, early_publish } = StreamsConfig::default();
        let options = QuicOptions::server();
        Self {
            strict_streams,
            early_publish,
            congestion: Congestion::default(),
            gate: options.gate,
            gate_reserve: options.gate_reserve,
            gate_log: None,
            link_rate: None,
            stream_window: options.stream_receive_window,
            receive_budget: options.receive_budget.bytes(),
            tickets: options.tickets,
            zero_rtt: options.zero_rtt,
            datagrams: options.datagrams,
            careful_resume: options.careful_resume,
            multipath: true,
            qlog_dir: None,
            lb: None,
        }
    }
}

/// [`Congestion`] in the words of the configuration.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Congestion", rename_all = "lowercase")]
enum CongestionConfig {
    Bbr3,
    Cubic,
    NewReno,
}

impl Config {
    /// Options of QUIC listeners.
    ///
    /// # Errors
    /// Those of [`QuicLbConfig::read`].
    pub(crate) fn quic_options(&self) -> Result<QuicOptions, ConfigError> {
        let quic = self.quic.clone();
        let mut multipath = QuicOptions::server().multipath;
        if !quic.multipath {
            multipath = Multipath::default();
        }
        let quic_lb = quic.lb.as_ref().map(QuicLbConfig::read).transpose()?;
        Ok(QuicOptions {
            quic_lb,
            stream_receive_window: quic.stream_window,
            receive_budget: ReceiveBudget::new(quic.receive_budget),
            bidi_streams: self.limits.streams,
            congestion: quic.congestion,
            gate: quic.gate,
            gate_reserve: quic.gate_reserve,
            gate_log: quic.gate_log,
            link_rate: quic.link_rate,
            tickets: quic.tickets,
            zero_rtt: quic.zero_rtt,
            datagrams: quic.datagrams,
            careful_resume: quic.careful_resume,
            multipath,
            qlog_dir: quic.qlog_dir,
            ..QuicOptions::server()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_transport() {
        assert_eq!(Config::default().quic_options().unwrap(), QuicOptions::server());
    }

    #[test]
    fn every_key_reaches_the_transport_or_the_broker() {
        let text = r#"
            strict_streams = true
            early_publish = "reject"
            congestion = "newreno"
            gate = false
            gate_reserve = 3
            gate_log = "g"
            link_rate = 33000
            stream_window = 65536
            receive_budget = 5000000
            tickets = 7
            zero_rtt = false
            datagrams = true
            careful_resume = false
            multipath = false
            qlog_dir = "q"
        "#;
        let config = Config { quic: toml::from_str(text).unwrap(), ..Config::default() };
        let streams = StreamsConfig { strict_streams: true, early_publish: EarlyPublishConfig::Reject };
        assert_eq!(config.broker().streams, streams);
        let expected = QuicOptions {
            congestion: Congestion::NewReno,
            gate: false,
            gate_reserve: 3,
            gate_log: Some(PathBuf::from("g")),
            link_rate: Some(33_000),
            stream_receive_window: 65_536,
            receive_budget: ReceiveBudget::new(5_000_000),
            tickets: 7,
            zero_rtt: false,
            datagrams: true,
            careful_resume: false,
            multipath: Multipath::default(),
            qlog_dir: Some(PathBuf::from("q")),
            ..QuicOptions::server()
        };
        assert_eq!(config.quic_options().unwrap(), expected);
    }

    #[test]
    fn connection_ids_name_this_node() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |lb: &str, key: &str| {
            std::fs::write(file.path(), key).unwrap();
            let quic = toml::from_str(&lb.replace("FILE", &file.path().display().to_string())).unwrap();
            let options = Config { quic, ..Config::default() }.quic_options();
            options.map(|options| options.quic_lb).map_err(|error| error.to_string())
        };
        let id: ServerId = "0a1b".parse().unwrap();
        let keyed = "lb = { server_id = '0a1b', config_id = 2, nonce_bytes = 6, key_file = 'FILE' }";
        let key = "00112233445566778899aabbccddeeff\n";
        assert_eq!(read(keyed, key), Ok(QuicLb::new(2, id, 6, key.trim().parse().ok()).ok()));
        assert_eq!(read("lb = { server_id = '0a1b' }", ""), Ok(QuicLb::new(0, id, 8, None).ok()));
        for (lb, key, expected) in [
            ("lb = { server_id = '01', config_id = 7 }", "", "7 is no QUIC-LB config ID: give 0 to 6"),
            ("lb = { server_id = '01', nonce_bytes = 3 }", "", "a QUIC-LB nonce of 3 bytes"),
            (keyed, "0011", "a QUIC-LB key is written as 32 hexadecimal digits"),
            ("lb = { server_id = '01', key_file = '/nothing' }", "", "quic.lb.key_file: /nothing: "),
        ] {
            let error = read(lb, key).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        for (text, expected) in
            [("lb = { }", "missing field `server_id`"), ("lb = { server_id = 'x' }", "hexadecimal")]
        {
            let error = toml::from_str::<QuicConfig>(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
