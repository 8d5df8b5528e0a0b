//! Hints of servers: alternatives in CONNACK, and references to other servers.

use std::fmt;

use braid_proto::packet::{ConnackProperties, QuicHint};

/// The hint in CONNACK; `None` without one. [BQ-90]
///
/// # Errors
/// The hint cannot be followed, or there are several that differ; the text says why.
pub(super) fn quic_hint(properties: &ConnackProperties) -> Result<Option<QuicHint>, String> {
    let hints = properties.user.iter().filter(|(name, _)| *name == QuicHint::PROPERTY);
    let mut values = hints.map(|(_, value)| value);
    let Some(text) = values.next() else { return Ok(None) };
    let hint = QuicHint::parse(text).map_err(|reason| format!("{text:?}: {reason}"))?;
    match values.find(|other| QuicHint::parse(other) != Ok(hint)) {
        Some(other) => Err(format!("{text:?} and {other:?} contradict each other")),
        None => Ok(Some(hint)),
    }
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

    /// [BQ-90]
    #[test]
    fn hints_that_contradict_each_other_are_not_followed() {
        let hint = |values: &[&str]| {
            let mut properties = ConnackProperties::default();
            values.iter().for_each(|value| properties.user.push("alt-svc", value));
            quic_hint(&properties)
        };
        assert_eq!(hint(&[]), Ok(None));
        assert!(matches!(
            hint(&["mqtt-quic=\":7\"", "mqtt-quic=\":7\""]),
            Ok(Some(QuicHint::Port { port: 7, .. }))
        ));
        for values in [["mqtt-quic=\":7\"", "clear"], ["mqtt-quic=\":7\"", "mqtt-quic=\":8\""]] {
            assert!(hint(&values).expect_err("two hints").contains("contradict"));
        }
        assert!(hint(&["h3=\":443\""]).expect_err("no hint").contains("h3"));
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
