//! Options: servers, transport, local addresses.

use std::net::IpAddr;

use braid_transport::Transport;
use clap::{ArgAction, Args};

use super::words::{Addresses, addresses, quic_switch, switch};
use super::{CONNECTION, OptionsError};

/// Servers, transport and local addresses of the clients.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct ConnectionOptions {
    /// The server's name or address; of several, separated by commas, the clients take turns.
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost", help_heading = CONNECTION)]
    host: String,
    /// The server's port. Without it 1883, or 8883 (-S), 14567 (--quic), 8083 (--ws), 8084 (--ws -S).
    #[arg(short, long, value_name = "PORT", help_heading = CONNECTION)]
    port: Option<u16>,
    /// Use TLS.
    #[arg(short = 'S', long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
        default_missing_value = "true", hide_default_value = true, value_parser = switch, action = ArgAction::Set,
        help_heading = CONNECTION)]
    ssl: bool,
    /// Use QUIC, which is always encrypted.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = quic_switch, action = ArgAction::Set, help_heading = CONNECTION)]
    quic: bool,
    /// Use WebSocket, at the path /mqtt.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = CONNECTION)]
    ws: bool,
    /// The congestion control of TCP by the kernel's name, such as cubic or bbr. Without it the kernel's default.
    #[arg(long, value_name = "NAME", help_heading = CONNECTION)]
    pub(in crate::bench) tcp_cc: Option<String>,
    /// The local addresses that the clients use in turn, separated by commas.
    #[arg(long, value_name = "IP", value_parser = addresses, help_heading = CONNECTION)]
    ifaddr: Option<Addresses>,
}

impl ConnectionOptions {
    /// Transport of the clients. `tls`: another option wants TLS.
    pub(super) fn transport(&self, tls: bool) -> Result<Transport, OptionsError> {
        match (self.quic, self.ws, self.ssl || tls) {
            (true, true, _) => {
                Err(OptionsError::new("--ws and --quic are two transports: leave one of them out"))
            }
            (true, false, _) => Ok(Transport::Quic),
            (false, true, true) => Ok(Transport::Wss),
            (false, true, false) => Ok(Transport::Ws),
            (false, false, true) => Ok(Transport::Tls),
            (false, false, false) => Ok(Transport::Tcp),
        }
    }

    pub(super) fn check(&self, transport: Transport) -> Result<(), OptionsError> {
        if !transport.is_over_tcp() && self.tcp_cc.is_some() {
            return Err(OptionsError::new("--tcp-cc is for TCP: with --quic use --quic-cc"));
        }
        if self.hosts().next().is_none() {
            return Err(OptionsError::new("-h names no server: give a name or an address"));
        }
        Ok(())
    }

    /// The server's port: `-p`, or the default of the transport.
    pub(in crate::bench) fn port(&self, transport: Transport) -> u16 {
        self.port.unwrap_or(transport.default_port())
    }

    /// The local addresses that the clients take in turn; none leaves it to the system.
    pub(in crate::bench) fn local(&self) -> &[IpAddr] {
        self.ifaddr.as_ref().map_or(&[][..], |Addresses(addresses)| addresses.as_slice())
    }

    /// The servers, for the clients to take in turn; an IPv6 address has no brackets.
    pub(in crate::bench) fn hosts(&self) -> impl Iterator<Item = &str> {
        let hosts = self.host.split(',').map(str::trim).filter(|host| !host.is_empty());
        hosts.map(|host| host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
    }
}
