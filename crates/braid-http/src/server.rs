//! HTTP server for health probes, on a thread of its own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::answer::answer;
use crate::state::HealthState;

/// The most connections of one address. Another one ends the oldest, so that idle connections cannot keep a probe from
/// its answer.
const CONNECTIONS: usize = 64;

/// Limit for the one request of a connection and its response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of a request's head; the lowest limit that hyper accepts.
const HEAD_LIMIT: usize = 8192;

/// Pause after a failed accept, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Failure to start the server.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address is in use, or does not belong to this host.
    #[error("cannot listen for HTTP on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system refused a thread or an event queue.
    #[error("the system refuses a thread for HTTP: {0}")]
    Thread(#[from] io::Error),
}

/// HTTP server for health probes, from its start until it is dropped.
#[derive(Debug)]
pub struct HealthServer {
    addresses: Vec<SocketAddr>,
    /// Dropping it ends the thread.
    _alive: oneshot::Sender<()>,
}

impl HealthServer {
    /// Listens on all of `addresses` and answers from `state`, on a thread of its own: busy threads of clients, and the
    /// end of their runtime, do not delay it.
    ///
    /// # Errors
    /// Every [`ServerError`]; then no address is listened on.
    pub fn start(addresses: &[SocketAddr], state: HealthState) -> Result<Self, ServerError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = runtime.enter();
        let bound = addresses.iter().map(|address| bind(*address)).collect::<Result<Vec<_>, _>>()?;
        let (addresses, listeners): (_, Vec<_>) = bound.into_iter().unzip();
        drop(inside);
        let (alive, ended) = oneshot::channel();
        thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                for listener in listeners {
                    tokio::spawn(accept(listener, state.clone()));
                }
                // Nothing is ever sent: the channel closes when the server is dropped.
                let _ = ended.await;
            });
        })?;
        tracing::debug!(?addresses, "listening for HTTP");
        Ok(Self { addresses, _alive: alive })
    }

    /// The addresses on which it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Binds an address. Must be called in a runtime.
fn bind(address: SocketAddr) -> Result<(SocketAddr, TcpListener), ServerError> {
    let listen = || {
        let socket = std::net::TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok((socket.local_addr()?, TcpListener::from_std(socket)?))
    };
    listen().map_err(|source| ServerError::Bind { address, source })
}

async fn accept(listener: TcpListener, state: HealthState) {
    let mut open = VecDeque::<AbortHandle>::with_capacity(CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(serve(stream, state.clone())).abort_handle());
    }
}

/// Serves one request.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, state: HealthState) {
    let service = service_fn(move |request| {
        let response = answer(&request, &state);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    // Clients may close their half after the request.
    http.keep_alive(false).half_close(true).max_buf_size(HEAD_LIMIT);
    // An error or a timeout concerns this connection only.
    let _ = timeout(REQUEST_TIMEOUT, http.serve_connection(TokioIo::new(stream), service)).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Everything that the server sends for these bytes.
    async fn send(request: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        tokio::spawn(serve(server, HealthState::default()));
        client.write_all(request).await.expect("the server reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the server closes");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn an_incomplete_head_times_out_after_five_seconds() {
        let began = tokio::time::Instant::now();
        assert_eq!(send(b"GET /health HTTP/1.1\r\nA: b\r\n").await, "");
        assert_eq!(began.elapsed(), REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_above_the_limit_is_refused() {
        let request = format!("GET /health HTTP/1.1\r\nA: {}", "x".repeat(2 * HEAD_LIMIT));
        let answer = send(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_one_answer() {
        let request = "GET /live HTTP/1.1\r\nConnection: keep-alive\r\n\r\n";
        let answer = send(request.repeat(2).as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_may_close_its_half_after_the_request() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(b"GET /live HTTP/1.0\r\n\r\n").await.expect("there is room");
        client.shutdown().await.expect("the server is there");
        tokio::spawn(serve(server, HealthState::default()));
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the server closes");
        assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_not_http_is_refused() {
        let answer = send(b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}
