//! Dialer: parses the URL `mqtt://user:password@host:port` and establishes the link.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use braid_transport::quic::KnownPaths;
use braid_transport::{ClientTls, ConnectOptions, Link, Target, Transport, connect_timed, mem, sim};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use url::Url;

use crate::error::{Error, OptionsError};

/// Path of MQTT over WebSocket where the URL names none.
const WEBSOCKET_PATH: &str = "/mqtt";

/// Result of an attempt to connect within a time limit.
pub(crate) async fn within<T>(
    limit: Duration,
    attempt: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let too_late = Error::ConnectTimeout { seconds: limit.as_secs() };
    timeout(limit, attempt).await.unwrap_or(Err(too_late))
}

/// Kind of link to establish.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    Network(Box<(Target, ClientTls, ConnectOptions)>),
    Memory(mem::Connector),
    Simulated(Box<sim::Connector>),
}

impl Dialer {
    pub(crate) async fn dial(&self, may_be_early: bool) -> Result<Link, Error> {
        let addresses = self.resolve().await?;
        self.dial_addresses(&addresses, may_be_early).await
    }

    /// Addresses of the host.
    pub(crate) async fn resolve(&self) -> Result<Vec<IpAddr>, Error> {
        match self {
            Self::Network(network) => {
                let addresses = network.0.resolve().await.map_err(|error| Error::Connect(Arc::new(error)))?;
                Ok(addresses.into_iter().map(|address| address.ip()).collect())
            }
            Self::Memory(_) | Self::Simulated(_) => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        }
    }

    /// Establishes a link to one of these addresses.
    pub(crate) async fn dial_addresses(
        &self,
        addresses: &[IpAddr],
        may_be_early: bool,
    ) -> Result<Link, Error> {
        let link = match self {
            Self::Network(network) => {
                let (target, tls, options) = &**network;
                let mut options = options.clone();
                options.quic.zero_rtt &= may_be_early;
                let addresses: Vec<_> =
                    addresses.iter().map(|address| SocketAddr::new(*address, target.port)).collect();
                connect_timed(target, &addresses, tls, &options).await.map(|(link, _)| link)
            }
            Self::Simulated(connector) if may_be_early => connector.connect().await,
            Self::Simulated(connector) => connector.clone().zero_rtt(false).connect().await,
            Self::Memory(connector) => {
                return connector.connect().await.map_err(|_| Error::ConnectionLost);
            }
        };
        link.map_err(|error| Error::Connect(Arc::new(error)))
    }

    /// Host of the URL; `None` in tests.
    pub(crate) fn host(&self) -> Option<&str> {
        if let Self::Network(network) = self { Some(&network.0.host) } else { None }
    }

    /// Measurements of paths with which QUIC begins; `None` in tests.
    pub(crate) fn known_paths(&self) -> Option<&KnownPaths> {
        if let Self::Network(network) = self { Some(&network.2.quic.known_paths) } else { None }
    }

    /// Sets the host, which the certificate has to name.
    pub(crate) fn set_host(&mut self, host: &str) {
        if let Self::Network(network) = self {
            host.clone_into(&mut network.0.host);
        }
    }

    /// Sets the port.
    pub(crate) fn set_port(&mut self, port: u16) {
        if let Self::Network(network) = self {
            network.0.port = port;
        }
    }
}

/// Server that a URL names, as [`Client::builder`](crate::Client::builder) takes it.
#[derive(Clone, PartialEq, Eq)]
pub struct Address {
    /// Destination.
    pub target: Target,
    /// Destination of TLS beside `target`, which is that of QUIC then; `None`: there is no choice.
    pub tls: Option<Target>,
    /// User name in the URL.
    pub user_name: Option<String>,
    /// Password in the URL.
    pub password: Option<Vec<u8>>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, tls, user_name, password: _ } = self;
        f.debug_struct("Address")
            .field("target", target)
            .field("tls", tls)
            .field("user_name", user_name)
            .finish_non_exhaustive()
    }
}

/// The text of a URL, or of something that was meant to be one, without user name and password: everything from the
/// scheme to the last `@`. A password with a `/` that is not percent-encoded is hidden too.
#[must_use]
pub fn without_credentials(text: &str) -> String {
    let Some((before, rest)) = text.rsplit_once('@') else { return text.to_owned() };
    let scheme = before.find("://").map_or("", |at| &before[..at + 3]);
    format!("{scheme}[hidden]@{rest}")
}

impl Address {
    /// Parses a URL.
    ///
    /// # Errors
    /// No URL, or one without a server.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        let no_url = |reason: String| OptionsError::Url { url: without_credentials(text), reason };
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| no_url("a scheme is missing".to_owned()))?;
        let is_auto = is_auto(scheme);
        let transport = if is_auto { Some(Transport::Quic) } else { Transport::from_scheme(scheme) };
        let transport =
            transport.ok_or_else(|| OptionsError::Scheme { scheme: without_credentials(scheme) })?;
        // Parsed as ws:// or wss://, a URL loses the ports 80 and 443, which are not our defaults.
        let url = Url::parse(&format!("mqtt://{rest}")).map_err(|error| no_url(error.to_string()))?;
        let no_host = || OptionsError::Host { url: without_credentials(text) };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(no_host)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = String::from_utf8(decode(host)).map_err(|_| no_host())?;
        let path = match transport {
            Transport::Ws | Transport::Wss => websocket_path(&url),
            Transport::Tcp | Transport::Tls | Transport::Quic | Transport::Mem => match url.path() {
                "" | "/" => String::new(),
                path => {
                    let (scheme, path) = (transport.scheme(), without_credentials(path));
                    return Err(OptionsError::Path { scheme, path });
                }
            },
        };
        let user_name = Some(url.username())
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(&decode(name)).into_owned());
        let mut target =
            Target { transport, host, port: url.port().unwrap_or(transport.default_port()), path };
        let tls = if is_auto {
            let [quic, tls] = auto_ports(&url)?;
            target.port = quic;
            Some(Target { transport: Transport::Tls, port: tls, ..target.clone() })
        } else {
            None
        };
        Ok(Self { target, tls, user_name, password: url.password().map(decode) })
    }
}

/// Whether a URL's scheme leaves the transport to the client, in upper or lower case.
#[must_use]
pub fn is_auto(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("auto")
}

/// Ports of QUIC and TLS in a URL of the scheme `auto`: the port of the URL for both, or `?quic=PORT&tls=PORT`.
fn auto_ports(url: &Url) -> Result<[u16; 2], OptionsError> {
    let of = |transport: Transport| url.port().unwrap_or(transport.default_port());
    let mut ports = [of(Transport::Quic), of(Transport::Tls)];
    for (name, value) in url.query_pairs() {
        let port = match &*name {
            "quic" => &mut ports[0],
            "tls" => &mut ports[1],
            _ => return Err(OptionsError::AutoPort { parameter: format!("{name}={value}") }),
        };
        *port = value
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| OptionsError::AutoPort { parameter: format!("{name}={value}") })?;
    }
    Ok(ports)
}

fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

fn websocket_path(url: &Url) -> String {
    let path = match url.path() {
        "" | "/" => WEBSOCKET_PATH,
        path => path,
    };
    match url.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> (Transport, String, u16, String) {
        let target = Address::parse(text).unwrap().target;
        (target.transport, target.host, target.port, target.path)
    }

    #[test]
    fn each_scheme_has_its_port() {
        assert_eq!(target("mqtt://h"), (Transport::Tcp, "h".into(), 1883, String::new()));
        assert_eq!(target("mqtts://h"), (Transport::Tls, "h".into(), 8883, String::new()));
        assert_eq!(target("ws://h"), (Transport::Ws, "h".into(), 8083, "/mqtt".into()));
        assert_eq!(target("wss://h"), (Transport::Wss, "h".into(), 8084, "/mqtt".into()));
        assert_eq!(target("quic://h/"), (Transport::Quic, "h".into(), 14567, String::new()));
    }

    #[test]
    fn auto_has_ports_of_both() {
        let ports = |text| {
            let address = Address::parse(text).unwrap();
            let tls = address.tls.unwrap();
            assert_eq!((address.target.transport, tls.transport), (Transport::Quic, Transport::Tls));
            assert_eq!(address.target.host, tls.host);
            (address.target.port, tls.port)
        };
        assert_eq!(ports("auto://h"), (14567, 8883));
        assert_eq!(ports("AUTO://h:443"), (443, 443));
        assert_eq!(ports("auto://[::1]?tls=8884"), (14567, 8884));
        assert_eq!(ports("auto://h:1/?quic=2"), (2, 1));
        for text in ["auto://h?quic=0", "auto://h?tls=x", "auto://h?tcp=1883"] {
            let error = Address::parse(text).unwrap_err().to_string();
            assert!(error.contains("?quic=14567&tls=8883"), "{error}");
        }
    }

    #[test]
    fn port_and_path_of_the_url_take_precedence() {
        assert_eq!(target("mqtt://[::1]:99"), (Transport::Tcp, "::1".into(), 99, String::new()));
        assert_eq!(target("ws://h:80/a?b=c").3, "/a?b=c");
        // The `url` crate drops the standard ports of HTTP.
        assert_eq!(target("ws://h:80").2, 80);
        assert_eq!(target("wss://h:443").2, 443);
    }

    #[test]
    fn credentials_are_percent_decoded() {
        let address = Address::parse("mqtt://a%40b:p%2Fw%zz@h").unwrap();
        assert_eq!(address.user_name.as_deref(), Some("a@b"));
        assert_eq!(address.password.as_deref(), Some(&b"p/w%zz"[..]));
    }

    /// Errors and `Debug` go to logs and terminals.
    #[test]
    fn no_text_shows_the_password() {
        let address = format!("{:?}", Address::parse("mqtt://anna:s3cret@h").unwrap());
        assert!(address.contains("anna") && !address.contains("s3cret"), "{address}");
        for text in [
            "anna:s3cret@h",
            "anna:s3cret@h://x",
            "mqtt://anna:s3cret@",
            "mqtt://anna:s3cret@h:99999",
            "mqtt://anna:s3cret@h/topic",
            "mqtt://anna:s3cret@h h",
            "mqtt://anna:1/s3cret@h",
            "mqtt://anna:x/s3cret@h",
            "mqtt://anna:x@s3cret@h/@",
            "ftp://anna:s3cret@h",
        ] {
            let error = Address::parse(text).unwrap_err();
            assert!(!error.to_string().contains("s3cret"), "{error}");
            assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |text| Address::parse(text).unwrap_err().to_string();
        assert!(error("localhost").contains("mqtt://host:1883"), "{}", error("localhost"));
        assert_eq!(error("ftp://h"), "unknown scheme \"ftp\": use auto, mqtt, mqtts, ws, wss or quic");
        assert!(error("mqtt://h/topic").contains("leave it out"));
    }
}
