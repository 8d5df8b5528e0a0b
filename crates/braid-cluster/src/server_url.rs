//! Address of a NATS server.

use std::fmt;
use std::str::FromStr;

use async_nats::ServerAddr;
use thiserror::Error;

/// Address of a NATS server: `nats://HOST[:PORT]`, or `tls://HOST[:PORT]` with encryption. It has no credentials, so that it
/// may be logged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerUrl(Box<str>);

/// Reason why a text is no [`ServerUrl`]. The text is not repeated where it may hold credentials.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServerUrlError {
    /// The scheme is another one, or there is none.
    #[error("{0:?} does not begin with tls:// or nats://: write tls://HOST:PORT")]
    Scheme(Box<str>),
    /// A user, a password or a token is in the address.
    #[error(
        "the address has a user or a password: remove them, and set cluster.user and cluster.password_file, or \
         cluster.credentials"
    )]
    Credentials,
    /// Host or port are malformed, or something follows them.
    #[error("{0:?} is no address of a NATS server: write tls://HOST:PORT")]
    Syntax(Box<str>),
}

impl ServerUrl {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if connections are refused that are not encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.0.starts_with("tls://")
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        if text.contains('@') {
            return Err(ServerUrlError::Credentials);
        }
        let Some(rest) = text.strip_prefix("tls://").or_else(|| text.strip_prefix("nats://")) else {
            return Err(ServerUrlError::Scheme(text.into()));
        };
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        let is_address = rest.bytes().all(is_part)
            && !rest.ends_with(':')
            && text.parse::<ServerAddr>().is_ok_and(|address| !address.host().is_empty());
        if is_address { Ok(Self(text.into())) } else { Err(ServerUrlError::Syntax(text.into())) }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_a_host_and_no_credentials() {
        for text in ["tls://nats-1.example:4222", "nats://127.0.0.1", "tls://[::1]:4222", "nats://a_b"] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().as_str(), text);
        }
        assert!("tls://a".parse::<ServerUrl>().unwrap().is_encrypted());
        assert!(!"nats://a".parse::<ServerUrl>().unwrap().is_encrypted());
        for (text, expected) in [
            ("", "does not begin with tls:// or nats://"),
            ("localhost:4222", "does not begin with tls:// or nats://"),
            ("ws://a:80", "does not begin with tls:// or nats://"),
            ("http://a", "does not begin with tls:// or nats://"),
            ("TLS://a", "does not begin with tls:// or nats://"),
            ("tls://", "is no address of a NATS server"),
            ("tls://:4222", "is no address of a NATS server"),
            ("tls://a:", "is no address of a NATS server"),
            ("tls://a:65536", "is no address of a NATS server"),
            ("tls://a:b", "is no address of a NATS server"),
            ("tls://a:1/x", "is no address of a NATS server"),
            ("tls://a b", "is no address of a NATS server"),
            ("tls://a,tls://b", "is no address of a NATS server"),
            ("nats://u:s3cret@a:4222", "cluster.user and cluster.password_file"),
            ("s3cret@a", "cluster.user and cluster.password_file"),
        ] {
            let error = text.parse::<ServerUrl>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
