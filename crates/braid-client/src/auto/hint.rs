//! Hints of servers: alternatives in CONNACK, and references to other servers.

use std::fmt;
use std::time::Duration;

use braid_proto::packet::ConnackProperties;

/// User Property of CONNACK with alternatives, in the syntax of the header field of RFC 7838.
const PROPERTY: &str = "alt-svc";
/// Name of MQTT over QUIC among alternatives.
const PROTOCOL: &str = "mqtt-quic";
/// Lifetime of an alternative that names none (RFC 7838, 3.1).
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Hint of a server about QUIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// QUIC is at this port of the same host.
    Quic { port: u16, max_age: Duration },
    /// There is no QUIC.
    NoQuic { max_age: Duration },
}

impl Hint {
    /// The hint in CONNACK; `None` without one.
    ///
    /// # Errors
    /// It cannot be followed, or there are several that differ; the text says why.
    pub(super) fn of(properties: &ConnackProperties) -> Result<Option<Self>, String> {
        let mut values = properties.user.iter().filter(|(name, _)| *name == PROPERTY).map(|(_, value)| value);
        let Some(text) = values.next() else { return Ok(None) };
        let hint = Self::parse(text).map_err(|reason| format!("{text:?}: {reason}"))?;
        match values.find(|other| Self::parse(other) != Ok(hint)) {
            Some(other) => Err(format!("{text:?} and {other:?} contradict each other")),
            None => Ok(Some(hint)),
        }
    }

    /// Parses the value of a hint: `clear`, or alternatives such as `mqtt-quic=":14567"; ma=3600`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "clear" {
            return Ok(Self::NoQuic { max_age: MAX_AGE });
        }
        let mut found = None;
        for alternative in text.split(',') {
            let mut parts = alternative.split(';').map(str::trim);
            let Some((protocol, authority)) = parts.next().and_then(|part| part.split_once('=')) else {
                return Err(format!(
                    "{:?} is no alternative: mqtt-quic=\":PORT\" is one",
                    alternative.trim()
                ));
            };
            if protocol.trim() != PROTOCOL {
                continue;
            }
            let port = parse_authority(authority.trim())?;
            let max_age = parts.filter_map(|part| part.split_once('=')).find(|(name, _)| name.trim() == "ma");
            let max_age = match max_age {
                Some((_, seconds)) => parse_seconds(seconds.trim())?,
                None => MAX_AGE,
            };
            let hint = Self::Quic { port, max_age };
            if found.is_some_and(|other| other != hint) {
                return Err("it names mqtt-quic twice and differently".to_owned());
            }
            found = Some(hint);
        }
        found.ok_or_else(|| "it names no mqtt-quic".to_owned())
    }
}

/// Port of an authority in quotes, such as `":14567"`. Another host would have to prove that it may speak for this one,
/// and is not accepted.
fn parse_authority(text: &str) -> Result<u16, String> {
    let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    let bare = bare.ok_or_else(|| format!("{text} has no quotes"))?;
    match bare.rsplit_once(':') {
        Some(("", port)) => {
            port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("{port:?} is no port"))
        }
        Some((host, _)) => Err(format!("it names another host, {host:?}")),
        None => Err(format!("{bare:?} has no port")),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).map_err(|_| format!("{text:?} is no number of seconds"))
}

/// Other server that one refers to (MQTT 5, 4.13).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerReference {
    pub(super) host: String,
    pub(super) port: Option<u16>,
}

impl ServerReference {
    /// Parses the first of the references, which are separated by spaces: `host`, `host:port`, `[address]:port`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let first = text.split_whitespace().next().ok_or("it is empty")?;
        let (host, port) = match first.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').unwrap_or(rest))),
            // More than one colon without brackets: an IPv6 address.
            None if first.matches(':').count() > 1 => (first, None),
            None => first.split_once(':').map_or((first, None), |(host, port)| (host, Some(port))),
        };
        let port =
            port.map(|port| port.parse::<u16>().map_err(|_| format!("{port:?} is no port"))).transpose()?;
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if host.is_empty() || host.len() > 253 || !host.bytes().all(is_host) {
            return Err(format!("{host:?} is no host"));
        }
        if port == Some(0) {
            return Err("0 is no port".to_owned());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quic(port: u16, seconds: u64) -> Hint {
        Hint::Quic { port, max_age: Duration::from_secs(seconds) }
    }

    #[test]
    fn alternatives_have_the_syntax_of_rfc_7838() {
        for (text, expected) in [
            ("mqtt-quic=\":14567\"; ma=3600", quic(14567, 3600)),
            ("mqtt-quic=\":14567\"", quic(14567, 86_400)),
            ("h3=\":443\", mqtt-quic=\":1\";persist=1;ma=2", quic(1, 2)),
            (" clear ", Hint::NoQuic { max_age: MAX_AGE }),
        ] {
            assert_eq!(Hint::parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_hint_that_cannot_be_followed_says_why() {
        for (text, expected) in [
            ("", "no alternative"),
            ("mqtt-quic", "no alternative"),
            ("h3=\":443\"", "no mqtt-quic"),
            ("mqtt-quic=:14567", "no quotes"),
            ("mqtt-quic=\"14567\"", "no port"),
            ("mqtt-quic=\":0\"", "no port"),
            ("mqtt-quic=\":70000\"", "no port"),
            ("mqtt-quic=\"evil.example:1\"", "another host"),
            ("mqtt-quic=\":1\"; ma=soon", "no number of seconds"),
            ("mqtt-quic=\":1\", mqtt-quic=\":2\"", "twice"),
        ] {
            let error = Hint::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn references_are_hosts_with_or_without_a_port() {
        for (text, host, port) in [
            ("b.example", "b.example", None),
            ("b.example:8884 c.example", "b.example", Some(8884)),
            ("[2001:db8::1]:8884", "2001:db8::1", Some(8884)),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("2001:db8::1", "2001:db8::1", None),
        ] {
            let expected = ServerReference { host: host.to_owned(), port };
            assert_eq!(ServerReference::parse(text), Ok(expected), "{text}");
        }
        for text in ["", " ", "host:", "host:99999", "host:0", "a/b", "user@host", ":1"] {
            assert!(ServerReference::parse(text).is_err(), "{text:?}");
        }
    }
}
