use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Uri};
use url::Url;

/// Most bytes of copies of a request that are written at once.
const BATCH_BYTES: usize = 16 * 1024;

/// Request that every client repeats.
#[derive(Clone, Debug)]
pub struct Request {
    is_https: bool,
    host: String,
    port: u16,
    method: Method,
    /// `example.org`, or `example.org:8080` if it is not the scheme's port.
    authority: String,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// Error in a URL or a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No URL.
    #[error("{url:?} is no URL: {reason}: write one such as http://localhost:8080/index.html")]
    Url {
        /// The text.
        url: String,
        /// Error of the parser.
        reason: String,
    },
    /// Another scheme.
    #[error("{0}: the scheme is http or https")]
    Scheme(String),
    /// A user name or password in the URL.
    #[error("the URL holds a user name or a password: leave it out, and give -H 'authorization: ...'")]
    User,
    /// No header.
    #[error("-H {0:?}: write NAME: VALUE")]
    Header(String),
    /// Another pseudo-header field than can be replaced.
    #[error("-H {0:?}: of the pseudo-header fields, :method and :authority can be set")]
    Pseudo(String),
}

impl Request {
    /// GET of a URL.
    ///
    /// # Errors
    /// [`RequestError::Url`], [`RequestError::Scheme`] or [`RequestError::User`].
    pub fn get(url: &str) -> Result<Self, RequestError> {
        let wrong = |reason: String| RequestError::Url { url: url.to_owned(), reason };
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !["http", "https"].contains(&parsed.scheme()) {
            return Err(RequestError::Scheme(parsed.scheme().to_owned()));
        }
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(RequestError::User);
        }
        let host = parsed.host_str().ok_or_else(|| wrong("it has no host".to_owned()))?.to_owned();
        let port = parsed.port_or_known_default().ok_or_else(|| wrong("it has no port".to_owned()))?;
        let authority = parsed.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let query = parsed.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("braidmq/", env!("CARGO_PKG_VERSION"))));
        Ok(Self {
            is_https: parsed.scheme() == "https",
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            method: Method::GET,
            authority,
            path: format!("{}{query}", parsed.path()),
            headers,
            body: Bytes::new(),
        })
    }

    /// Adds a header `NAME: VALUE`, or replaces `user-agent`, `host`, `:authority` or `:method`.
    ///
    /// # Errors
    /// [`RequestError::Header`] or [`RequestError::Pseudo`].
    pub fn header(mut self, line: &str) -> Result<Self, RequestError> {
        let wrong = || RequestError::Header(line.to_owned());
        let (pseudo, rest) = line.strip_prefix(':').map_or(("", line), |rest| (":", rest));
        let (name, value) = rest.split_once(':').ok_or_else(wrong)?;
        let (name, value) = (name.trim(), value.trim());
        if value.is_empty() {
            return Err(wrong());
        }
        match (pseudo, name) {
            (":", "method") => self.method = value.parse().map_err(|_| wrong())?,
            (":", "authority") => self.authority = authority(value).ok_or_else(wrong)?,
            (":", _) => return Err(RequestError::Pseudo(line.to_owned())),
            (_, name) => {
                let name: HeaderName = name.parse().map_err(|_| wrong())?;
                let value: HeaderValue = value.parse().map_err(|_| wrong())?;
                if name == HOST {
                    self.authority = value.to_str().ok().and_then(authority).ok_or_else(wrong)?;
                } else if name == USER_AGENT {
                    self.headers.insert(name, value);
                } else {
                    self.headers.append(name, value);
                }
            }
        }
        Ok(self)
    }

    /// Makes it a POST of a body, unless another method was given.
    #[must_use]
    pub fn post(mut self, body: Bytes) -> Self {
        if self.method == Method::GET {
            self.method = Method::POST;
        }
        self.headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        self.body = body;
        self
    }

    /// Host of the URL, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port of the URL.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// True if the URL asks for TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    pub(super) fn body(&self) -> &Bytes {
        &self.body
    }

    /// True if the request may be sent again without another effect.
    pub(super) fn is_safe(&self) -> bool {
        self.method.is_safe()
    }

    /// True if responses have no body in spite of a length.
    pub(super) fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    /// The bytes of HTTP/1.1, in copies.
    pub(super) fn http1(&self) -> RepeatedBytes {
        let mut one =
            format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.path, self.authority).into_bytes();
        for (name, value) in &self.headers {
            one.extend_from_slice(name.as_str().as_bytes());
            one.extend_from_slice(b": ");
            one.extend_from_slice(value.as_bytes());
            one.extend_from_slice(b"\r\n");
        }
        one.extend_from_slice(b"\r\n");
        one.extend_from_slice(&self.body);
        let len = one.len();
        RepeatedBytes { bytes: one.repeat((BATCH_BYTES / len).max(1)).into(), len }
    }

    /// The head for HTTP/2 and 3.
    ///
    /// # Errors
    /// The URL is none that the `http` crate takes; after the parser of URLs that is not known to occur.
    pub(super) fn head(&self) -> Result<http::Request<()>, http::Error> {
        let scheme = if self.is_https { "https" } else { "http" };
        let uri =
            Uri::builder().scheme(scheme).authority(&*self.authority).path_and_query(&*self.path).build()?;
        let mut request = http::Request::builder().method(self.method.clone()).uri(uri).body(())?;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

/// Value for `Host`, if it is one.
fn authority(value: &str) -> Option<String> {
    value.parse::<http::uri::Authority>().ok().map(|authority| authority.to_string())
}

/// Bytes of a request, several times in a row: pipelined requests are slices of them.
#[derive(Clone, Debug)]
pub(super) struct RepeatedBytes {
    bytes: Bytes,
    len: usize,
}

impl RepeatedBytes {
    /// Bytes of one request.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// At most `unsent` bytes from `position` in the first request on; it is below [`RepeatedBytes::len`].
    pub(super) fn from(&self, position: usize, unsent: usize) -> &[u8] {
        &self.bytes[position..self.bytes.len().min(position.saturating_add(unsent))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Request) -> String {
        let bytes = request.http1();
        String::from_utf8(bytes.from(0, bytes.len()).to_vec()).unwrap()
    }

    #[test]
    fn a_url_becomes_the_lines_of_a_request() {
        let get = Request::get("http://Example.org:8080/a%20b?c=d#e").unwrap();
        assert_eq!((get.host(), get.port()), ("example.org", 8080));
        let agent = concat!("user-agent: braidmq/", env!("CARGO_PKG_VERSION"), "\r\n");
        assert_eq!(text(&get), format!("GET /a%20b?c=d HTTP/1.1\r\nHost: example.org:8080\r\n{agent}\r\n"));
        let six = Request::get("http://[::1]").unwrap();
        assert_eq!((six.host(), six.port()), ("::1", 80));
        assert!(text(&six).starts_with("GET / HTTP/1.1\r\nHost: [::1]\r\n"));
        let changed = get.header("Host: other").and_then(|get| get.header("User-Agent: x"));
        let changed = changed.and_then(|get| get.header("a: b:c")).unwrap().post(Bytes::from_static(b"body"));
        let expected = "POST /a%20b?c=d HTTP/1.1\r\nHost: other\r\nuser-agent: x\r\na: b:c\r\ncontent-length: 4\r\n\r\nbody";
        assert_eq!(text(&changed), expected);
        let head =
            changed.header(":method: HEAD").and_then(|head| head.header(":authority: third:1")).unwrap();
        assert!(head.is_head() && text(&head).starts_with("HEAD /a%20b?c=d HTTP/1.1\r\nHost: third:1\r\n"));
        assert_eq!(head.head().unwrap().uri(), "http://third:1/a%20b?c=d");
        let secure = Request::get("https://a/").unwrap();
        assert_eq!((secure.port(), secure.is_https(), head.is_https()), (443, true, false));
        assert_eq!(secure.head().unwrap().uri(), "https://a/");
    }

    #[test]
    fn pipelined_requests_are_slices_of_copies() {
        let bytes = Request::get("http://localhost/").unwrap().http1();
        let len = bytes.len();
        let all = bytes.from(0, usize::MAX).len();
        assert!(all.is_multiple_of(len) && all > len, "{all} bytes");
        assert_eq!(bytes.from(5, len), &bytes.from(0, 2 * len)[5..5 + len]);
        let large = Request::get("http://localhost/").unwrap().post(vec![0; 1 << 20].into());
        assert_eq!(large.http1().from(0, usize::MAX).len(), large.http1().len());
    }

    #[test]
    fn wrong_urls_and_headers_are_told() {
        let of = |url| Request::get(url).unwrap_err().to_string();
        assert!(of("localhost").starts_with("\"localhost\" is no URL: relative URL without a base: write"));
        assert!(of("http://").contains("empty host"));
        assert_eq!(of("mqtt://localhost/"), "mqtt: the scheme is http or https");
        let error = of("http://user:secret@localhost/");
        assert!(error.starts_with("the URL holds a user name") && !error.contains("secret"), "{error}");
        let get = Request::get("http://localhost/").unwrap();
        for wrong in [
            "",
            "name",
            "name:",
            ":",
            ":method",
            ": x",
            "na me: x",
            "a: b\r\nc: d",
            ":method: a b",
            "host: /",
        ] {
            assert!(get.clone().header(wrong).is_err(), "{wrong:?}");
        }
        assert!(get.header(":path: /").unwrap_err().to_string().contains(":method and :authority"));
    }
}
