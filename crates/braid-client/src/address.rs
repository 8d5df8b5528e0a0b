//! URLs: `mqtt://user:password@host:port`.

use braid_transport::{Target, Transport};
use url::Url;

use crate::error::OptionsError;

/// Where MQTT is served over WebSocket when the URL does not say.
const WEBSOCKET_PATH: &str = "/mqtt";

/// What a URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) target: Target,
    pub(crate) user_name: Option<String>,
    pub(crate) password: Option<Vec<u8>>,
}

impl Address {
    pub(crate) fn parse(text: &str) -> Result<Self, OptionsError> {
        let no_url = |reason: String| OptionsError::Url { url: text.to_owned(), reason };
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| no_url("a scheme is missing".to_owned()))?;
        let transport = Transport::from_scheme(&scheme.to_ascii_lowercase())
            .ok_or_else(|| OptionsError::Scheme { scheme: scheme.to_owned() })?;
        // Under their own scheme URLs of WebSocket lose the ports 80 and 443, which are not our defaults.
        let url = Url::parse(&format!("mqtt://{rest}")).map_err(|error| no_url(error.to_string()))?;
        let no_host = || OptionsError::Host { url: text.to_owned() };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(no_host)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = String::from_utf8(percent_decode(host)).map_err(|_| no_host())?;
        let path = match transport {
            Transport::Ws | Transport::Wss => websocket_path(&url),
            _ if matches!(url.path(), "" | "/") => String::new(),
            _ => return Err(OptionsError::Path { scheme: transport.scheme(), path: url.path().to_owned() }),
        };
        let user_name = Some(url.username())
            .filter(|name| !name.is_empty())
            .map(|name| String::from_utf8_lossy(&percent_decode(name)).into_owned());
        let port = url.port().unwrap_or(transport.default_port());
        let target = Target { transport, host, port, path };
        Ok(Self { target, user_name, password: url.password().map(percent_decode) })
    }
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

fn percent_decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let hex = |at: usize| tail.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        if let (b'%', Some(high), Some(low)) = (byte, hex(0), hex(1)) {
            decoded.push(u8::try_from(high << 4 | low).unwrap_or_default());
            rest = &tail[2..];
        } else {
            decoded.push(byte);
            rest = tail;
        }
    }
    decoded
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
    fn what_is_given_counts() {
        assert_eq!(target("mqtt://[::1]:99"), (Transport::Tcp, "::1".into(), 99, String::new()));
        assert_eq!(target("ws://h:80/a?b=c").3, "/a?b=c");
        // The standard ports of HTTP are given when they are written, although URLs drop them.
        assert_eq!(target("ws://h:80").2, 80);
        assert_eq!(target("wss://h:443").2, 443);
    }

    #[test]
    fn credentials_are_percent_decoded() {
        let address = Address::parse("mqtt://a%40b:p%2Fw%zz@h").unwrap();
        assert_eq!(address.user_name.as_deref(), Some("a@b"));
        assert_eq!(address.password.as_deref(), Some(&b"p/w%zz"[..]));
    }

    #[test]
    fn errors_say_what_to_write() {
        let error = |text| Address::parse(text).unwrap_err().to_string();
        assert!(error("localhost").contains("mqtt://host:1883"), "{}", error("localhost"));
        assert_eq!(error("ftp://h"), "unknown scheme \"ftp\": use mqtt, mqtts, ws, wss or quic");
        assert!(error("mqtt://h/topic").contains("leave it out"));
    }
}
