use std::fmt;
use std::path::Path;
use std::time::Duration;

use braid_transport::Transport;

/// Line that is printed when `-L` is reached.
pub const PUBLISH_COMPLETE: &str = "publish complete";

/// A time since the start of the run in whole seconds: `59s`, `1m0s`, `1h2m3s`, `1d0h0m0s`; nothing below a second.
#[must_use]
pub fn elapsed(since_start: Duration) -> String {
    let mut left = since_start.as_secs();
    let mut text = String::new();
    for (unit, size) in [("s", 60), ("m", 60), ("h", 24), ("d", u64::MAX)] {
        if left == 0 {
            break;
        }
        text.insert_str(0, &format!("{}{unit}", left % size));
        left /= size;
    }
    text
}

/// The line before the first one of the counters, which an empty line follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartLine {
    /// Number of workers that connect clients at the same time.
    pub workers: u64,
    /// Number of local addresses of the clients.
    pub addresses: usize,
    /// The pause of one worker between two clients, in milliseconds.
    pub interval_ms: u64,
}

impl StartLine {
    /// The workers for `clients` clients on so many cores: `rate` is that of `-R` (connections a second, 0 for
    /// none), `interval_ms` that of `-i`. Both are of all workers together.
    #[must_use]
    pub fn new(cores: u64, clients: u64, rate: u64, interval_ms: u64, addresses: usize) -> Self {
        let workers = cores.max(rate.div_ceil(1000)).min(clients).max(1);
        let pause = 1000_u64.saturating_mul(workers).checked_div(rate);
        let interval_ms = pause.unwrap_or_else(|| interval_ms.saturating_mul(workers));
        Self { workers, addresses, interval_ms }
    }
}

impl fmt::Display for StartLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, addresses, interval_ms } = self;
        write!(
            f,
            "Start with {workers} workers, addrs pool size: {addresses} and req interval: {interval_ms} ms "
        )
    }
}

/// The secrets of TLS and QUIC go to the file that `SSLKEYLOGFILE` names. Comes before the [`StartLine`].
#[must_use]
pub fn secrets_line(file: &Path) -> String {
    format!("Dump TLS secrets to {}", file.display())
}

/// All clients have connected, or failed to, and publishing begins (`-w`):
/// `Collected 2 'go' signals, start publishing`. There is a signal for each of the [`StartLine::workers`].
#[must_use]
pub fn go_line(workers: u64) -> String {
    format!("Collected {workers} 'go' signals, start publishing")
}

/// The server closed with a DISCONNECT: `client(1): disconnected with reason 141: keepalive_timeout`.
#[must_use]
pub fn disconnected_line(client: u64, reason: u8) -> String {
    format!("client({client}): disconnected with reason {reason}: {}", reason_name(reason))
}

/// The connection ended: `client(1): EXIT for {shutdown,keepalive_timeout}`, of which the last word is `cause`.
#[must_use]
pub fn exit_line(client: u64, cause: &str) -> String {
    format!("client({client}): EXIT for {{shutdown,{cause}}}")
}

/// The connection was closed without a word of MQTT: `client(1): EXIT for {shutdown,tcp_closed}`. What carried it names
/// that.
#[must_use]
pub fn closed_line(client: u64, carried: Transport) -> String {
    match carried {
        Transport::Tcp => exit_line(client, "tcp_closed"),
        Transport::Tls => exit_line(client, "ssl_closed"),
        // The Erlang client gives the word of its WebSocket as it is.
        Transport::Ws | Transport::Wss => format!("client({client}): EXIT for closed"),
        Transport::Quic | Transport::Mem => exit_line(client, "closed"),
    }
}

/// Something failed: `client(7): connect error - timeout`. `what` is `connect`, `subscribe` or `publish`.
#[must_use]
pub fn failure_line(client: u64, what: &str, cause: &str) -> String {
    format!("client({client}): {what} error - {cause}")
}

/// The names that the Erlang client prints for reason codes.
fn reason_name(reason: u8) -> &'static str {
    match reason {
        0x00 => "success",
        0x01 => "granted_qos1",
        0x02 => "granted_qos2",
        0x04 => "disconnect_with_will_message",
        0x10 => "no_matching_subscribers",
        0x11 => "no_subscription_existed",
        0x18 => "continue_authentication",
        0x19 => "re_authenticate",
        0x80 => "unspecified_error",
        0x81 => "malformed_Packet",
        0x82 => "protocol_error",
        0x83 => "implementation_specific_error",
        0x84 => "unsupported_protocol_version",
        0x85 => "client_identifier_not_valid",
        0x86 => "bad_username_or_password",
        0x87 => "not_authorized",
        0x88 => "server_unavailable",
        0x89 => "server_busy",
        0x8A => "banned",
        0x8B => "server_shutting_down",
        0x8C => "bad_authentication_method",
        0x8D => "keepalive_timeout",
        0x8E => "session_taken_over",
        0x8F => "topic_filter_invalid",
        0x90 => "topic_name_invalid",
        0x91 => "packet_identifier_inuse",
        0x92 => "packet_identifier_not_found",
        0x93 => "receive_maximum_exceeded",
        0x94 => "topic_alias_invalid",
        0x95 => "packet_too_large",
        0x96 => "message_rate_too_high",
        0x97 => "quota_exceeded",
        0x98 => "administrative_action",
        0x99 => "payload_format_invalid",
        0x9A => "retain_not_supported",
        0x9B => "qos_not_supported",
        0x9C => "use_another_server",
        0x9D => "server_moved",
        0x9E => "shared_subscriptions_not_supported",
        0x9F => "connection_rate_exceeded",
        0xA0 => "maximum_connect_time",
        0xA1 => "subscription_identifiers_not_supported",
        0xA2 => "wildcard_subscriptions_not_supported",
        _ => "unknown_error",
    }
}
