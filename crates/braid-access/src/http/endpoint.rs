//! URL of a service, checked once.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use braid_transport::{Target, Transport};
use hyper::Uri;
use hyper::header::HeaderValue;
use thiserror::Error;
use url::{Host, Url};

/// Reason why a text is no URL of a service. The text of the URL is not repeated, because it may hold credentials.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// The text is no URL.
    #[error("the URL is invalid ({0}): write https://HOST/PATH or http://HOST:PORT/PATH")]
    Syntax(String),
    /// The scheme is none of HTTP's.
    #[error(
        "the scheme of the URL is neither https nor http: write https://HOST/PATH or http://HOST:PORT/PATH"
    )]
    Scheme,
    /// The URL has a user name or a password.
    #[error("the URL has a user name or a password: remove them, and set the header Authorization")]
    Credentials,
    /// Plain HTTP to another machine.
    #[error(
        "http to {0} would carry credentials over the network in clear: use https, or allow plain HTTP for this URL"
    )]
    Plain(String),
}

/// URL of a service over `https`, or over `http` on this machine. Its [`Display`](fmt::Display) has no query, and so
/// no secrets of one.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) target: Target,
    pub(super) host_header: HeaderValue,
    /// Path and query.
    pub(super) uri: Uri,
    /// Plain HTTP goes to loopback addresses only.
    loopback_only: bool,
    name: Box<str>,
}

impl Endpoint {
    /// Parses a URL. `allow_plain_http` permits `http` to other machines: credentials then cross the network in clear.
    ///
    /// # Errors
    /// Every [`EndpointError`].
    pub fn parse(url: &str, allow_plain_http: bool) -> Result<Self, EndpointError> {
        let syntax = |reason: &dyn fmt::Display| EndpointError::Syntax(reason.to_string());
        let url = Url::parse(url).map_err(|error| syntax(&error))?;
        let transport = match url.scheme() {
            "https" => Transport::Tls,
            "http" => Transport::Tcp,
            _ => return Err(EndpointError::Scheme),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointError::Credentials);
        }
        // Both schemes have a host and a default port.
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(syntax(&"no host"));
        };
        let loopback_only = transport == Transport::Tcp && !allow_plain_http;
        if loopback_only && !names_loopback(&host) {
            return Err(EndpointError::Plain(host.to_string()));
        }
        let authority = url.port().map_or_else(|| host.to_string(), |port| format!("{host}:{port}"));
        let name = format!("{}://{authority}{}", url.scheme(), url.path());
        let path =
            url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
        let host = match host {
            Host::Domain(name) => name.to_owned(),
            Host::Ipv4(address) => address.to_string(),
            // Without brackets.
            Host::Ipv6(address) => address.to_string(),
        };
        Ok(Self {
            target: Target { transport, host, port, path: String::new() },
            host_header: HeaderValue::try_from(authority).map_err(|error| syntax(&error))?,
            uri: Uri::try_from(path).map_err(|error| syntax(&error))?,
            loopback_only,
            name: name.into(),
        })
    }

    /// True if the answers of a server are authenticated and encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        self.target.transport.is_encrypted()
    }

    /// Tests whether requests may go to this address of the host: the name `localhost` may have been given another.
    pub(super) fn permits(&self, address: SocketAddr) -> bool {
        !self.loopback_only || is_loopback(address.ip())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn names_loopback(host: &Host<&str>) -> bool {
    match host {
        // RFC 6761 reserves these names for the loopback interface.
        Host::Domain(name) => name.rsplit('.').find(|label| !label.is_empty()) == Some("localhost"),
        Host::Ipv4(address) => is_loopback((*address).into()),
        Host::Ipv6(address) => is_loopback((*address).into()),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_accepted_or_refused_without_being_repeated() {
        let cases = [
            ("https://a.example/auth", Ok("https://a.example/auth")),
            ("HTTPS://A.example:443", Ok("https://a.example/")),
            ("https://a.example:8443/x?key=s3cret#s3cret", Ok("https://a.example:8443/x")),
            ("http://localhost:1/", Ok("http://localhost:1/")),
            ("http://auth.localhost./", Ok("http://auth.localhost./")),
            ("http://127.8.8.8/", Ok("http://127.8.8.8/")),
            ("http://[::1]:80/a", Ok("http://[::1]/a")),
            ("http://[::ffff:127.0.0.1]/a", Ok("http://[::ffff:7f00:1]/a")),
            ("http://localhost.example/", Err("http to localhost.example would carry credentials")),
            ("http://10.0.0.1/?key=s3cret", Err("http to 10.0.0.1 would carry credentials")),
            ("http://[::ffff:10.0.0.1]/", Err("http to [::ffff:a00:1] would carry credentials")),
            ("http://0.0.0.0/", Err("http to 0.0.0.0 would carry credentials")),
            ("https://bob:s3cret@a.example/", Err("the URL has a user name or a password")),
            ("https://s3cret@a.example/", Err("the URL has a user name or a password")),
            ("ftp://a.example/s3cret", Err("the scheme of the URL is neither https nor http")),
            ("file:///etc/s3cret", Err("the scheme of the URL is neither https nor http")),
            ("s3cret", Err("the URL is invalid (relative URL without a base)")),
            ("", Err("the URL is invalid (relative URL without a base)")),
            ("https://", Err("the URL is invalid (empty host)")),
            ("https://s3cret:99999/", Err("the URL is invalid (invalid port number)")),
        ];
        for (url, expected) in cases {
            let parsed = Endpoint::parse(url, false);
            let text = parsed.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            assert!(!format!("{text}{parsed:?}").contains("s3cret"), "{url}: {text}");
            match expected {
                Ok(name) => assert_eq!((parsed.is_ok(), text.as_str()), (true, name), "{url}"),
                Err(reason) => assert!(parsed.is_err() && text.starts_with(reason), "{url}: {text}"),
            }
        }
    }

    #[test]
    fn plain_http_stays_on_this_machine_unless_allowed() {
        let (near, far) = (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from(([192, 0, 2, 1], 80)));
        for (url, allow, expected) in [
            ("http://localhost/", false, false),
            ("http://localhost/", true, true),
            ("https://localhost/", false, true),
        ] {
            let endpoint = Endpoint::parse(url, allow).expect("a URL");
            assert!(endpoint.permits(near), "{url}");
            assert_eq!(endpoint.permits(far), expected, "{url} {allow}");
        }
        assert!(Endpoint::parse("http://192.0.2.1/", true).is_ok());
    }

    #[test]
    fn request_names_host_port_path_and_query() {
        let endpoint = Endpoint::parse("https://[2001:db8::1]:8443/a%20b?c=d", false).expect("a URL");
        assert_eq!(endpoint.host_header, "[2001:db8::1]:8443");
        assert_eq!(endpoint.uri, "/a%20b?c=d");
        assert_eq!((endpoint.target.host.as_str(), endpoint.target.port), ("2001:db8::1", 8443));
    }
}
