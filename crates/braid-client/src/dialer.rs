//! Dialer: parses the URL `mqtt://user:password@host:port` and establishes the link.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::connection::ClientOptions;
use braid_proto::packet::Connect;
use braid_transport::{ClientTls, ConnectOptions, Link, Target, Transport, mem, sim};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;
use url::Url;

use crate::error::{Error, OptionsError};
use crate::reconnect::Reconnect;
use crate::scram::ScramCredentials;

/// Path of MQTT over WebSocket where the URL names none.
const WEBSOCKET_PATH: &str = "/mqtt";

/// Options of a client, validated.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) dialer: Dialer,
    /// CONNECT of the next connection.
    pub(crate) connect: Connect,
    /// Credentials of the Authentication Method, if there is one.
    pub(crate) scram: Option<ScramCredentials>,
    pub(crate) protocol: Arc<ClientOptions>,
    pub(crate) reconnect: Reconnect,
    pub(crate) timeouts: Timeouts,
}

/// Time limits outside of the protocol machine; those of the machine are in [`ClientOptions`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// Limit until a link is established.
    pub(crate) connect: Duration,
    /// Limit from `disconnect` until DISCONNECT is sent, even with unanswered requests.
    pub(crate) disconnect: Duration,
}

/// Kind of link to establish.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    Network(Box<(Target, ClientTls, ConnectOptions)>),
    Memory(mem::Connector),
    Simulated(Box<sim::Connector>),
}

impl Settings {
    /// Establishes a link within the connect timeout.
    pub(crate) async fn dial(&self, may_be_early: bool) -> Result<Link, Error> {
        let limit = self.timeouts.connect;
        let too_late = Error::ConnectTimeout { seconds: limit.as_secs() };
        timeout(limit, self.dialer.dial(may_be_early)).await.unwrap_or(Err(too_late))
    }
}

impl Dialer {
    async fn dial(&self, may_be_early: bool) -> Result<Link, Error> {
        let link = match self {
            Self::Network(network) => {
                let (target, tls, options) = &**network;
                let mut options = options.clone();
                options.quic.zero_rtt &= may_be_early;
                braid_transport::connect(target, tls, &options).await
            }
            Self::Simulated(connector) if may_be_early => connector.connect().await,
            Self::Simulated(connector) => connector.clone().zero_rtt(false).connect().await,
            Self::Memory(connector) => {
                return connector.connect().await.map_err(|_| Error::ConnectionLost);
            }
        };
        link.map_err(|error| Error::Connect(Arc::new(error)))
    }
}

/// Parts of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) target: Target,
    pub(crate) user_name: Option<String>,
    pub(crate) password: Option<Vec<u8>>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, user_name, password: _ } = self;
        f.debug_struct("Address")
            .field("target", target)
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
    pub(crate) fn parse(text: &str) -> Result<Self, OptionsError> {
        let no_url = |reason: String| OptionsError::Url { url: without_credentials(text), reason };
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| no_url("a scheme is missing".to_owned()))?;
        let transport = Transport::from_scheme(scheme)
            .ok_or_else(|| OptionsError::Scheme { scheme: without_credentials(scheme) })?;
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
        let port = url.port().unwrap_or(transport.default_port());
        let target = Target { transport, host, port, path };
        Ok(Self { target, user_name, password: url.password().map(decode) })
    }
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
        assert_eq!(error("ftp://h"), "unknown scheme \"ftp\": use mqtt, mqtts, ws, wss or quic");
        assert!(error("mqtt://h/topic").contains("leave it out"));
    }
}
