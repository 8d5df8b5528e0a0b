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

/// Connections of one address at a time. One more ends the oldest: who asks now is answered, whoever else holds connections
/// and says nothing.
const CONNECTIONS: usize = 64;

/// For a question and its answer, of which a connection has one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes that the head of a request may have: the least that the library takes.
const HEAD: usize = 8192;

/// The pause after a connection could not be accepted: most likely there are no files left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why nobody can ask how the broker is.
#[derive(Debug, Error)]
pub enum ServerError {
    /// The address is in use, or not this machine's.
    #[error("cannot listen for HTTP on {address}: {source}")]
    Bind {
        /// What was to be listened on.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system has no thread, or no event queue, for it.
    #[error("the system refuses a thread for HTTP: {0}")]
    Thread(#[from] io::Error),
}

/// Answers how the broker is, from the moment it is made until it is dropped.
#[derive(Debug)]
pub struct HealthServer {
    addresses: Vec<SocketAddr>,
    /// The thread ends with it.
    _alive: oneshot::Sender<()>,
}

impl HealthServer {
    /// Listens on all of `addresses`, and answers from `state`. On a thread of its own: what keeps the threads of clients
    /// busy, and the end of their runtime, does not concern it.
    ///
    /// # Errors
    /// Every [`ServerError`]; then nothing is listened on.
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
                // It cannot be sent to: this is the end of the server.
                let _ = ended.await;
            });
        })?;
        tracing::debug!(?addresses, "listening for HTTP");
        Ok(Self { addresses, _alive: alive })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Within a runtime.
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
        open.push_back(tokio::spawn(converse(stream, state.clone())).abort_handle());
    }
}

/// One question, one answer.
async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, state: HealthState) {
    let service = service_fn(move |request| {
        let response = answer(&request, &state);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    // Who has asked may close its half at once.
    http.keep_alive(false).half_close(true).max_buf_size(HEAD);
    // Whoever asks and goes away, or is too slow, hurts nobody but themselves.
    let _ = timeout(PATIENCE, http.serve_connection(TokioIo::new(stream), service)).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What comes back, until the server closes.
    async fn ask(request: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        tokio::spawn(converse(server, HealthState::default()));
        client.write_all(request).await.expect("the server reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the server closes");
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_end_is_waited_for_no_longer_than_five_seconds() {
        let began = tokio::time::Instant::now();
        assert_eq!(ask(b"GET /health HTTP/1.1\r\nA: b\r\n").await, "");
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_is_too_large_is_refused() {
        let request = format!("GET /health HTTP/1.1\r\nA: {}", "x".repeat(2 * HEAD));
        let answer = ask(request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_has_one_answer() {
        let request = "GET /live HTTP/1.1\r\nConnection: keep-alive\r\n\r\n";
        let answer = ask(request.repeat(2).as_bytes()).await;
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 1, "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_asked_may_close_its_half() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(b"GET /live HTTP/1.0\r\n\r\n").await.expect("there is room");
        client.shutdown().await.expect("the server is there");
        tokio::spawn(converse(server, HealthState::default()));
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the server closes");
        assert!(answer.starts_with("HTTP/1.0 200 OK"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_http_is_refused() {
        let answer = ask(b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\0").await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}
