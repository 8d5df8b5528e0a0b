//! HTTP/1.1 client of one URL, with limits of time, size and number.
//!
//! Redirects are not followed, and no proxy of the environment is used: credentials go to the given URL only.

mod connection;
mod endpoint;

use std::fmt;
use std::time::Duration;

use braid_transport::{CertificateError, ClientTls, ClientTlsOptions, ConnectError, ConnectOptions, Link};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use connection::{ConnectionPool, ExchangeError, HttpConnection};
pub use endpoint::{Endpoint, EndpointError};

/// Default limit of a request's time.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers that belong to the connection or to the message, which options must not set.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Header of every request. Its value may be a secret; `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretHeader {
    /// Name, such as `Authorization`.
    pub name: String,
    /// Value.
    pub value: String,
}

impl fmt::Debug for SecretHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: (hidden)", self.name)
    }
}

/// Options of an [`HttpClient`].
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// URL of all requests.
    pub endpoint: Endpoint,
    /// Headers of all requests.
    pub headers: Vec<SecretHeader>,
    /// Verification of the server, and the certificate of this client, for `https`.
    pub tls: ClientTlsOptions,
    /// Limit for a whole request: its wait for others, name lookup, connect, TLS, request and response.
    pub timeout: Duration,
    /// Maximum length of the body of a response, in bytes.
    pub max_body: usize,
    /// Maximum number of requests at the same time, and of connections; at least 1.
    pub max_concurrent: usize,
    /// Maximum number of requests that wait for others. Beyond it requests fail at once.
    pub max_waiting: usize,
}

impl HttpOptions {
    /// The defaults: 5 s, a body of 64 KiB, 16 requests at the same time and 256 that wait.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            headers: Vec::new(),
            tls: ClientTlsOptions::default(),
            timeout: DEFAULT_TIMEOUT,
            max_body: 64 << 10,
            max_concurrent: 16,
            max_waiting: 256,
        }
    }
}

/// Defect of [`HttpOptions`].
#[derive(Debug, Error)]
pub enum HttpOptionsError {
    /// A name that no header can have.
    #[error("{0:?} cannot be the name of a header: write letters, digits and hyphens")]
    HeaderName(String),
    /// A value that no header can have. The value is not repeated.
    #[error(
        "the value of the header {0} has characters that a header cannot hold: write it without line breaks"
    )]
    HeaderValue(String),
    /// A header that the client sets by itself.
    #[error("the header {0} is set by the client itself: remove it")]
    OwnHeader(String),
    /// A file for TLS cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
}

/// Response to a request.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// Body. [`Debug`](fmt::Debug) hides it.
    pub body: Bytes,
}

impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}, {} bytes", self.status, self.body.len())
    }
}

/// Failure of a request, or a response that cannot be used: one line with the URL, without its query. Headers and
/// bodies are never repeated, except for the word of an access rule that is malformed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{url}: {problem}")]
pub struct HttpError {
    /// URL without its query.
    pub url: Box<str>,
    /// Cause.
    pub problem: HttpProblem,
}

/// Cause of an [`HttpError`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HttpProblem {
    /// The maximum number of requests waits already.
    #[error("too many requests wait for answers; is the service too slow?")]
    Busy,
    /// The limit of time ended.
    #[error("no complete answer within {0:?}")]
    Timeout(Duration),
    /// No connection, or no TLS on it.
    #[error("{0}")]
    Connect(String),
    /// The connection broke, or its bytes are not HTTP/1.1.
    #[error("{0}")]
    Broken(String),
    /// The head of the response is above its limit.
    #[error("the headers of the answer are above {} KiB or too many", connection::HEAD_LIMIT >> 10)]
    HeadTooLarge,
    /// The body of the response is above its limit.
    #[error("the answer is larger than {} KiB", limit >> 10)]
    BodyTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// A status code without a meaning here.
    #[error("unexpected status {status}{}", status_hint(*status))]
    Status {
        /// The status code.
        status: u16,
    },
    /// A body without a meaning here.
    #[error("{0}")]
    Content(String),
}

fn status_hint(status: u16) -> &'static str {
    match status {
        300..=399 => ": redirects are not followed, set the final URL",
        401 | 403 => ": the service refuses this broker, check the headers that hold its credentials",
        404 => ": check the path of the URL",
        _ => "",
    }
}

/// HTTP/1.1 client of one URL.
///
/// Every call can be dropped at any time; that closes its connection. No task runs beside the calls.
pub struct HttpClient {
    endpoint: Endpoint,
    headers: HeaderMap,
    tls: ClientTls,
    timeout: Duration,
    max_body: usize,
    /// A permit for each request, those that wait included.
    admitted: Semaphore,
    /// A permit for each request that has a connection or makes one.
    active: Semaphore,
    pool: ConnectionPool,
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpClient({})", self.endpoint)
    }
}

impl HttpClient {
    /// A client without connections yet. Files for TLS are read now, for `https`.
    ///
    /// # Errors
    /// Every [`HttpOptionsError`].
    pub fn new(options: HttpOptions) -> Result<Self, HttpOptionsError> {
        let HttpOptions { endpoint, headers, tls, timeout, max_body, max_concurrent, max_waiting } = options;
        let tls = ClientTls::new(tls);
        if endpoint.is_encrypted() {
            tls.check()?;
        }
        let headers = header_map(&endpoint, headers)?;
        let max_concurrent = max_concurrent.clamp(1, Semaphore::MAX_PERMITS);
        let max_admitted = max_concurrent.saturating_add(max_waiting).min(Semaphore::MAX_PERMITS);
        Ok(Self {
            endpoint,
            headers,
            tls,
            timeout,
            max_body,
            admitted: Semaphore::new(max_admitted),
            active: Semaphore::new(max_concurrent),
            pool: ConnectionPool::default(),
        })
    }

    /// Fetches the URL.
    ///
    /// # Errors
    /// Every [`HttpProblem`] except unexpected statuses and bodies, which are returned.
    pub async fn get(&self) -> Result<HttpResponse, HttpError> {
        self.send(Method::GET, Bytes::new()).await
    }

    /// Sends JSON to the URL. The server may see it twice, if it closes a connection of earlier requests at the same
    /// time: the request must be a question, without effects.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn post_json(&self, body: Bytes) -> Result<HttpResponse, HttpError> {
        self.send(Method::POST, body).await
    }

    /// An error with the URL of this client.
    #[must_use]
    pub fn error(&self, problem: HttpProblem) -> HttpError {
        HttpError { url: self.endpoint.to_string().into(), problem }
    }

    async fn send(&self, method: Method, body: Bytes) -> Result<HttpResponse, HttpError> {
        let Ok(_admitted) = self.admitted.try_acquire() else { return Err(self.error(HttpProblem::Busy)) };
        let result = timeout(self.timeout, self.exchange(method, body)).await;
        result.unwrap_or(Err(HttpProblem::Timeout(self.timeout))).map_err(|problem| self.error(problem))
    }

    async fn exchange(&self, method: Method, body: Bytes) -> Result<HttpResponse, HttpProblem> {
        // An error would mean that the semaphore is closed, which never happens.
        let _active = self.active.acquire().await;
        if let Some(mut idle) = self.pool.take().await {
            match idle.exchange(self.request(&method, &body), self.max_body).await {
                Ok(response) => {
                    self.pool.put(idle);
                    return Ok(response);
                }
                // Servers close idle connections when they like, also while a request is on its way.
                Err(ExchangeError::Closed(_)) => {}
                Err(ExchangeError::Failed(problem)) => return Err(problem),
            }
        }
        let mut connection = self.connect().await?;
        let response = connection.exchange(self.request(&method, &body), self.max_body).await;
        let response = response.map_err(ExchangeError::into_problem)?;
        self.pool.put(connection);
        Ok(response)
    }

    fn request(&self, method: &Method, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = self.endpoint.uri.clone();
        *request.headers_mut() = self.headers.clone();
        if *method == Method::POST {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        request
    }

    async fn connect(&self) -> Result<HttpConnection, HttpProblem> {
        let target = &self.endpoint.target;
        let addresses = target.resolve().await.map_err(connect_problem)?;
        if let Some(address) = addresses.iter().find(|address| !self.endpoint.permits(**address)) {
            let (host, address) = (&target.host, address.ip());
            return Err(HttpProblem::Connect(format!(
                "{host} has the address {address}, and plain HTTP is for this machine only: use https"
            )));
        }
        let options = ConnectOptions::default();
        let (link, _) = braid_transport::connect_timed(target, &addresses, &self.tls, &options)
            .await
            .map_err(connect_problem)?;
        match link {
            Link::Single(single) => HttpConnection::new(single.io).await,
            // TCP and TLS are single streams.
            Link::Multi(_) => Err(HttpProblem::Connect("HTTP needs a single stream".to_owned())),
        }
    }
}

/// Headers of all requests.
fn header_map(endpoint: &Endpoint, headers: Vec<SecretHeader>) -> Result<HeaderMap, HttpOptionsError> {
    let mut map = HeaderMap::new();
    map.insert(HOST, endpoint.host_header.clone());
    map.insert(ACCEPT, HeaderValue::from_static("application/json"));
    for SecretHeader { name, value } in headers {
        let Ok(key) = HeaderName::try_from(&name) else { return Err(HttpOptionsError::HeaderName(name)) };
        if OWN_HEADERS.contains(&key.as_str()) {
            return Err(HttpOptionsError::OwnHeader(name));
        }
        let Ok(mut value) = HeaderValue::try_from(value) else {
            return Err(HttpOptionsError::HeaderValue(name));
        };
        value.set_sensitive(true);
        map.append(key, value);
    }
    map.entry(USER_AGENT).or_insert(HeaderValue::from_static("braidmq"));
    Ok(map)
}

fn connect_problem(error: ConnectError) -> HttpProblem {
    HttpProblem::Connect(match error {
        // The transport's own texts name flags of the command line.
        ConnectError::NotTrusted(host) => {
            format!("the certificate of {host} is not trusted: configure the file with its CA")
        }
        ConnectError::WrongName { host, reason } => {
            format!("the certificate of {host} is for another name ({reason}): connect by a name it has")
        }
        error => error.to_string(),
    })
}

/// Describes a body that should be JSON and is not, without repeating it.
pub(crate) fn not_json(body: &[u8], error: &serde_json::Error) -> HttpProblem {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    HttpProblem::Content(match first {
        None => "the answer is empty instead of JSON".to_owned(),
        Some(b'<') => "the answer is HTML or XML instead of JSON; check the path of the URL".to_owned(),
        // The text of the error may repeat a value.
        Some(_) => {
            let (line, column) = (error.line(), error.column());
            format!("the answer is not the expected JSON (line {line}, column {column})")
        }
    })
}
