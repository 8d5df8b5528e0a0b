//! Listeners of the broker under attack.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use braid_transport::{ClientTls, ClientTlsOptions, Transport};
use serde::{Deserialize, Serialize};

/// Host of all listeners.
pub(crate) const HOST: &str = "127.0.0.1";

/// Names of ports that are no transport's.
const HTTP: &str = "http";
const UPSTREAM: &str = "upstream";

/// Ports of the broker's listeners, and the certificate that clients trust. JSON passes it to the attacker's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    ports: BTreeMap<String, u16>,
    certificate: PathBuf,
}

impl Target {
    /// Transports with a listener.
    pub(crate) const TRANSPORTS: [Transport; 5] =
        [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss, Transport::Quic];

    /// Free ports for a broker over `data_dir`.
    ///
    /// # Errors
    /// Loopback has no free port.
    pub(crate) fn free(data_dir: &Path) -> Result<Self, String> {
        let port = |transport: Transport| {
            braid_torture::free_port(transport.is_quic()).map(|port| (transport.to_string(), port))
        };
        let mut ports = Self::TRANSPORTS.into_iter().map(port).collect::<Result<BTreeMap<_, _>, _>>()?;
        for name in [HTTP, UPSTREAM] {
            ports.insert(name.to_owned(), braid_torture::free_port(false)?);
        }
        Ok(Self { ports, certificate: data_dir.join("cert.pem") })
    }

    /// Options of `braidmq serve` with their ports.
    pub(crate) fn listeners(&self) -> Vec<(&'static str, u16)> {
        let options = ["--tcp", "--tls", "--ws", "--wss", "--quic"];
        let listeners = options.into_iter().zip(Self::TRANSPORTS).map(|(option, of)| (option, self.port(of)));
        listeners.chain([("--http", self.http().port())]).collect()
    }

    /// Port of a transport; 0 without a listener.
    pub(crate) fn port(&self, transport: Transport) -> u16 {
        self.named(&transport.to_string())
    }

    fn named(&self, name: &str) -> u16 {
        self.ports.get(name).copied().unwrap_or(0)
    }

    /// Address of the HTTP front, on TCP and UDP.
    pub(crate) fn http(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.named(HTTP)).into()
    }

    /// Address for the attacker to listen on, to which the HTTP front forwards requests.
    pub(crate) fn upstream(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.named(UPSTREAM)).into()
    }

    pub(crate) fn address(&self, transport: Transport) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port(transport)).into()
    }

    pub(crate) fn url(&self, transport: Transport) -> String {
        format!("{}://{HOST}:{}", transport.scheme(), self.port(transport))
    }

    pub(crate) fn tls_options(&self) -> ClientTlsOptions {
        ClientTlsOptions { ca_files: vec![self.certificate.clone()], ..ClientTlsOptions::default() }
    }

    /// TLS configuration of one client, with no session to resume.
    pub(crate) fn tls(&self) -> ClientTls {
        ClientTls::new(self.tls_options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_the_option_of_its_transport() {
        let target = Target::free(Path::new("data")).expect("free ports");
        for ((option, port), transport) in target.listeners().into_iter().zip(Target::TRANSPORTS) {
            assert_eq!((option, port), (&*format!("--{transport}"), target.port(transport)));
            assert_ne!(port, 0);
        }
        assert_eq!(target.port(Transport::Mem), 0);
    }

    #[test]
    fn json_carries_a_target() {
        let target = Target::free(Path::new("data")).expect("free ports");
        let json = serde_json::to_string(&target).expect("JSON");
        assert_eq!(serde_json::from_str::<Target>(&json).expect("a target"), target);
    }
}
