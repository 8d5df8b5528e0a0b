//! Hint of a server about MQTT over QUIC.

use std::time::Duration;

/// Name of MQTT over QUIC among alternatives.
const PROTOCOL: &str = "mqtt-quic";
/// Lifetime of an alternative that names none (RFC 7838, 3.1).
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Hint of a server about QUIC, in CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicHint {
    /// QUIC is at this port of the same host.
    Port {
        /// UDP port.
        port: u16,
        /// Lifetime of the hint.
        max_age: Duration,
    },
    /// The server has no QUIC.
    None {
        /// Lifetime of the hint.
        max_age: Duration,
    },
}

impl QuicHint {
    /// User Property of CONNACK with the hint, in the syntax of the header field of RFC 7838. [BQ-90]
    pub const PROPERTY: &str = "alt-svc";

    /// Parses the value of a hint: `clear`, or alternatives such as `mqtt-quic=":14567"; ma=3600`.
    ///
    /// # Errors
    /// Reason for which it is none, for a message.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.trim() == "clear" {
            return Ok(Self::None { max_age: MAX_AGE });
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
            let hint = Self::Port { port, max_age };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn quic(port: u16, seconds: u64) -> QuicHint {
        QuicHint::Port { port, max_age: Duration::from_secs(seconds) }
    }

    #[test]
    fn alternatives_have_the_syntax_of_rfc_7838() {
        for (text, expected) in [
            ("mqtt-quic=\":14567\"; ma=3600", quic(14567, 3600)),
            ("mqtt-quic=\":14567\"", quic(14567, 86_400)),
            ("h3=\":443\", mqtt-quic=\":1\";persist=1;ma=2", quic(1, 2)),
            (" clear ", QuicHint::None { max_age: MAX_AGE }),
        ] {
            assert_eq!(QuicHint::parse(text), Ok(expected), "{text}");
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
            let error = QuicHint::parse(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
