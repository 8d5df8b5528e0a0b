//! One connection of HTTP/1.1 and the pool of idle ones.

use std::error::Error;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use braid_transport::ByteStream;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::{HttpProblem, HttpResponse};

/// Maximum length of the head of a response, in bytes.
pub(super) const HEAD_LIMIT: usize = 16 << 10;

/// Maximum time that a connection waits for its next request: less than the 5 s after which common servers (Node.js,
/// uvicorn) close it.
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// Failure of an exchange of request and response.
#[derive(Debug, PartialEq)]
pub(super) enum ExchangeError {
    /// The server closed the connection before any response.
    Closed(HttpProblem),
    /// Any other failure.
    Failed(HttpProblem),
}

impl ExchangeError {
    pub(super) fn into_problem(self) -> HttpProblem {
        match self {
            Self::Closed(problem) | Self::Failed(problem) => problem,
        }
    }
}

/// Future that reads and writes the socket of a connection.
type HttpDriver = Connection<TokioIo<Box<dyn ByteStream>>, Full<Bytes>>;

/// Connection to a server. No task belongs to it: its socket makes progress while an exchange is polled, and dropping
/// the connection closes it.
pub(super) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
    /// Reads and writes the socket; `None` once that has ended.
    driver: Option<HttpDriver>,
}

impl HttpConnection {
    pub(super) async fn new(io: Box<dyn ByteStream>) -> Result<Self, HttpProblem> {
        let mut builder = Builder::new();
        builder.max_buf_size(HEAD_LIMIT);
        let (sender, driver) = builder.handshake(TokioIo::new(io)).await.map_err(|error| problem(&error))?;
        Ok(Self { sender, driver: Some(driver) })
    }

    /// Sends a request and reads the whole response, of at most `max_body` bytes.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        max_body: usize,
    ) -> Result<HttpResponse, ExchangeError> {
        let Self { sender, driver } = self;
        let mut answer = pin!(async {
            let response = match sender.send_request(request).await {
                Ok(response) => response,
                Err(error) if error.is_parse() => return Err(ExchangeError::Failed(problem(&error))),
                Err(error) => return Err(ExchangeError::Closed(problem(&error))),
            };
            read(response, max_body).await.map_err(ExchangeError::Failed)
        });
        if let Some(socket) = driver {
            tokio::select! {
                biased;
                result = &mut answer => return result,
                // An error of the socket is in the answer too.
                _ = socket => {}
            }
        }
        // The driver's own end of the channel has to be closed, or the answer would wait for it.
        *driver = None;
        answer.await
    }

    /// Waits until a request can be sent; false if the connection has ended.
    async fn is_ready(&mut self) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        tokio::select! {
            biased;
            _ = driver => false,
            ready = self.sender.ready() => ready.is_ok(),
        }
    }
}

async fn read(response: Response<Incoming>, max_body: usize) -> Result<HttpResponse, HttpProblem> {
    let status = response.status().as_u16();
    let mut body = response.into_body();
    // Content-Length, if there is one.
    if body.size_hint().lower() > u64::try_from(max_body).unwrap_or(u64::MAX) {
        return Err(HttpProblem::BodyTooLarge { limit: max_body });
    }
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| problem(&error))?;
        let Ok(piece) = frame.into_data() else { continue };
        if piece.len() > max_body - bytes.len() {
            return Err(HttpProblem::BodyTooLarge { limit: max_body });
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(HttpResponse { status, body: bytes.into() })
}

/// Cause of an error of the library, in one line without bytes of the response.
fn problem(error: &hyper::Error) -> HttpProblem {
    if error.is_parse_too_large() {
        HttpProblem::HeadTooLarge
    } else if error.is_parse() {
        HttpProblem::Broken("the answer is not HTTP/1.1; is this the port of another service?".to_owned())
    } else if error.is_incomplete_message() {
        HttpProblem::Broken("the server closed the connection before the end of its answer".to_owned())
    } else {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        HttpProblem::Broken(format!("the connection broke: {error}{cause}"))
    }
}

/// Idle connections to one server.
///
/// Their number is bounded by that of concurrent requests: a connection is made only if none is idle.
#[derive(Default)]
pub(super) struct ConnectionPool {
    idle: Mutex<Vec<(HttpConnection, Instant)>>,
}

impl ConnectionPool {
    /// The idle connection that was used last, if it is still open.
    pub(super) async fn take(&self) -> Option<HttpConnection> {
        loop {
            let (mut connection, since) = self.idle().pop()?;
            if since.elapsed() < IDLE_LIMIT && connection.is_ready().await {
                return Some(connection);
            }
        }
    }

    /// Keeps a connection for the next request, unless it is closed or the server has asked to close it.
    pub(super) fn put(&self, mut connection: HttpConnection) {
        if connection.is_ready().now_or_never() == Some(true) {
            let mut idle = self.idle();
            idle.retain(|(_, since)| since.elapsed() < IDLE_LIMIT);
            idle.push((connection, Instant::now()));
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(HttpConnection, Instant)>> {
        // Poisoning is harmless: each change is one insertion or removal.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
