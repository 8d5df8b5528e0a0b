//! Options: servers, transport, local addresses.

use std::net::IpAddr;

use braid_client::{Address, is_auto};
use braid_transport::Transport;
use clap::{ArgAction, Args};

use super::words::{Addresses, addresses, quic_switch, switch};
use super::{CONNECTION, OptionsError};
use crate::secret::Secret;

/// Servers, transport and local addresses of the clients.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct ConnectionOptions {
    /// The server's name or address; of several, separated by commas, the clients take turns.
    #[arg(short = 'h', long, value_name = "HOST", default_value = "localhost", help_heading = CONNECTION)]
    host: String,
    /// The server's port. Without it 1883, or 8883 (-S), 14567 (--quic), 8083 (--ws), 8084 (--ws -S).
    #[arg(short, long, value_name = "PORT", help_heading = CONNECTION)]
    port: Option<u16>,
    /// The server and the transport at once, in place of -h, -p, -S, --quic and --ws:
    /// {mqtt,mqtts,ws,wss,quic,auto}://HOST[:PORT].
    ///
    /// With auto each client takes QUIC, or TLS if that is there and QUIC has not answered within 250 ms, whenever it
    /// connects; it does not move while it is connected, as those of bench device, pub and sub do. Ports are 14567 and
    /// 8883, or PORT for both, or auto://HOST?quic=PORT&tls=PORT. The table and --json tell how many connections were
    /// over which.
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port", "ssl", "quic", "ws"],
        verbatim_doc_comment, help_heading = CONNECTION)]
    url: Option<Secret>,
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
    /// Server of `--url`.
    pub(in crate::bench) fn address(&self) -> Result<Option<Address>, OptionsError> {
        let Some(url) = &self.url else { return Ok(None) };
        let address = Address::parse(url).map_err(|error| OptionsError::new(format!("--url: {error}")))?;
        if address.user_name.is_some() || address.password.is_some() {
            return Err(OptionsError::new("--url names only the server here: give the user with -u and -P"));
        }
        Ok(Some(address))
    }

    /// Whether the clients choose their transport.
    pub(in crate::bench) fn is_auto(&self) -> bool {
        self.url.as_deref().and_then(|url| url.split_once("://")).is_some_and(|(scheme, _)| is_auto(scheme))
    }

    /// Transport of the clients; that of which `auto://` can have the options. `tls`: another option wants TLS.
    pub(super) fn transport(&self, tls: bool) -> Result<Transport, OptionsError> {
        if let Some(address) = self.address()? {
            return Ok(address.target.transport);
        }
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
        if !transport.is_over_tcp() && !self.is_auto() && self.tcp_cc.is_some() {
            return Err(OptionsError::new("--tcp-cc is for TCP: with --quic use --quic-cc"));
        }
        if self.host.contains("://") {
            return Err(OptionsError::new("-h takes a name or an address: give a URL with --url"));
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
