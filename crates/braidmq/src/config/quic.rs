//! Section `[quic]`: options of the transport, and of data streams in the broker.

use std::path::PathBuf;

use braid_broker::{EarlyPublishConfig, StreamsConfig};
use braid_transport::quic::{Congestion, QuicOptions};
use serde::{Deserialize, Serialize};

use super::Config;

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
    /// The most session tickets; each connection is given two.
    pub(crate) tickets: usize,
    /// Whether a client that resumes may send early data.
    pub(crate) zero_rtt: bool,
    /// Directory for a qlog of each connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) qlog_dir: Option<PathBuf>,
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
            tickets: options.tickets,
            zero_rtt: options.zero_rtt,
            qlog_dir: None,
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
    pub(crate) fn quic_options(&self) -> QuicOptions {
        let quic = self.quic.clone();
        QuicOptions {
            stream_receive_window: quic.stream_window,
            bidi_streams: self.limits.streams,
            congestion: quic.congestion,
            gate: quic.gate,
            gate_reserve: quic.gate_reserve,
            gate_log: quic.gate_log,
            link_rate: quic.link_rate,
            tickets: quic.tickets,
            zero_rtt: quic.zero_rtt,
            qlog_dir: quic.qlog_dir,
            ..QuicOptions::server()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_transport() {
        assert_eq!(Config::default().quic_options(), QuicOptions::server());
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
            tickets = 7
            zero_rtt = false
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
            tickets: 7,
            zero_rtt: false,
            qlog_dir: Some(PathBuf::from("q")),
            ..QuicOptions::server()
        };
        assert_eq!(config.quic_options(), expected);
    }
}
