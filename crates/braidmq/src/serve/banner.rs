//! Banner of a started broker: its addresses, certificate and durability, and commands to try it.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_broker::BrokerListener;
use braid_transport::Transport;

use super::bind::Certificate;
use crate::client::default_path;
use crate::config::{Config, DurabilityConfig};

/// Addresses on which the broker listens.
pub(super) struct Addresses {
    mqtt: Vec<(Transport, SocketAddr)>,
    health: Vec<SocketAddr>,
    http: Vec<SocketAddr>,
    /// Addresses of the API, if it has its own.
    api: Vec<SocketAddr>,
}

impl Addresses {
    pub(super) fn of(
        listeners: &[BrokerListener],
        health: &[SocketAddr],
        [http, api]: [&[SocketAddr]; 2],
    ) -> Self {
        let address = |one: &BrokerListener| Some((one.listener.transport(), one.listener.local_addr()?));
        let mqtt = listeners.iter().filter_map(address).collect();
        Self { mqtt, health: health.to_owned(), http: http.to_owned(), api: api.to_owned() }
    }
}

/// Prints the addresses of the broker and commands to try it. Goes to standard output, apart from the log.
pub(super) fn print(config: &Config, addresses: &Addresses, certificate: Option<&Certificate>) {
    // A broker whose standard output is closed goes on.
    let _ = write(&text(config, addresses, certificate));
}

/// Writes to standard output.
pub(super) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn text(config: &Config, addresses: &Addresses, certificate: Option<&Certificate>) -> String {
    let mut out = format!("BraidMQ {} is listening:\n", env!("CARGO_PKG_VERSION"));
    let mut first = None;
    for &(transport, address) in &addresses.mqtt {
        let url = |address| format!("{}://{address}{}", transport.scheme(), default_path(transport));
        let _ = writeln!(out, "  {:<5} {}", transport.to_string(), url(address));
        first.get_or_insert((url(reachable(address)), transport));
    }
    for address in &addresses.health {
        let _ = writeln!(out, "  http  http://{address}/health");
    }
    let http = addresses.http.iter().map(|address| (address, ""));
    for (address, content) in http.chain(addresses.api.iter().map(|address| (address, "API, "))) {
        let _ = match (config.http.tls, config.http.http3) {
            (true, true) => writeln!(out, "  https https://{address}/ ({content}HTTP/1.1, 2 and 3)"),
            (true, false) => writeln!(out, "  https https://{address}/ ({content}HTTP/1.1 and 2)"),
            (false, _) => writeln!(out, "  http  http://{address}/ ({content}HTTP/1.1 and 2)"),
        };
    }
    if let Some(certificate) = certificate {
        let kind = if certificate.is_self_signed { "self-signed certificate" } else { "certificate" };
        let file = certificate.tls.files().certificate.display();
        let _ = writeln!(out, "  {kind} {file}\n  SHA-256 {}", certificate.fingerprint);
    }
    let _ = writeln!(out, "{}", durability(config));
    let anonymous = match (config.allow_anonymous, config.authenticator.is_empty()) {
        (true, _) => "may connect from anywhere",
        (false, true) => "may connect from this machine only",
        (false, false) => "may not connect",
    };
    let _ = writeln!(out, "Clients without credentials {anonymous}.");
    if let Some((url, transport)) = first {
        // As it was called: an alias or a path.
        let program = std::env::args_os().next().unwrap_or_else(|| "braidmq".into());
        let program = program.display();
        let trust = match certificate {
            Some(certificate) if certificate.is_self_signed && transport.is_encrypted() => {
                format!(" --cafile {}", certificate.tls.files().certificate.display())
            }
            _ => String::new(),
        };
        let _ = write!(
            out,
            "Try it, in two other terminals:\n  \
             {program} sub --url {url}{trust} -t 'demo/#' -v\n  \
             {program} pub --url {url}{trust} -t demo/hello -m 'Hello, world'\n\
             Stop with Ctrl-C.\n"
        );
    }
    out
}

/// Address of this machine where a listener of all its addresses is reached, and which the certificate names.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// Durability of sessions and messages, as a sentence.
fn durability(config: &Config) -> String {
    let (directory, window) = (config.data_dir.display(), config.store.async_window_ms);
    match config.store.durability {
        DurabilityConfig::Sync => {
            format!("Sessions and messages are in {directory} before they are acknowledged.")
        }
        DurabilityConfig::Async => format!(
            "Sessions and messages are written to {directory} after they are acknowledged: a crash may lose the last \
             {window} ms."
        ),
        DurabilityConfig::Memory => {
            "Sessions and messages are kept in memory only: they end with this process.".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_to_try_name_an_address_that_can_be_reached_and_is_in_the_certificate() {
        for (bound, named) in [
            ("0.0.0.0:1883", "127.0.0.1:1883"),
            ("[::]:1883", "[::1]:1883"),
            ("192.0.2.1:1883", "192.0.2.1:1883"),
        ] {
            assert_eq!(reachable(bound.parse().unwrap()).to_string(), named);
        }
    }
}
