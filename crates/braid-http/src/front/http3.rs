//! HTTP/3 on QUIC.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use axum::http::{HeaderValue, Method, Response};
use braid_transport::http::{Http3Connection, Http3Incoming, Http3Listener, Http3Recv, PathProbe};
use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::quic::{OpenStreams, SendStream};
use h3::server::{self, RequestResolver, RequestStream};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::limits::Permit;
use super::tail::TailProbes;
use super::{ACCEPT_PAUSE, Connection, Front};
use crate::route::remove_hop_by_hop;
use crate::upgrade::{Probe, Sent};

/// Time after the last response in which the client closes the connection, so that no byte of it is lost.
const LINGER: Duration = Duration::from_secs(1);

/// Requests that the client may break off beyond those that it lets complete (rapid reset).
const RESETS: u64 = 100;

/// Time between two looks of the policy of the upgrade at a connection on which a response is being sent.
const TICK: Duration = Duration::from_secs(1);

/// Accepts until the server stops.
pub(super) async fn accept(mut listener: Http3Listener, front: Arc<Front>) {
    let mut stopped = front.stopped.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::warn!(%error, "HTTP/3 cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match front.count.admit(incoming.peer_address().ip()) {
            Some(permit) => {
                let address = listener.local_addr().unwrap_or(incoming.peer_address());
                tokio::spawn(serve(incoming, address, permit, Arc::clone(&front)));
            }
            None => incoming.refuse(),
        }
    }
    drop(front);
    // The connections use its socket.
    listener.close().await;
}

type Server = server::Connection<Http3Connection, Bytes>;

async fn serve(incoming: Http3Incoming, listener: SocketAddr, _permit: Permit, front: Arc<Front>) {
    let (client, limits) = (incoming.peer_address(), &front.limits);
    // Errors concern this connection only.
    let Ok(Ok(quic)) = timeout(limits.head_timeout, incoming.handshake()).await else { return };
    let connection = Connection::new(&front, client, listener, true, Probe::Quic(quic.probe()));
    let path = quic.probe();
    let mut opener = h3::quic::Connection::<Bytes>::opener(&quic);
    let mut http = server::builder();
    http.max_field_section_size(limits.head_bytes as u64);
    let Ok(Ok(mut server)) = timeout(limits.head_timeout, http.build(quic)).await else { return };
    let outcome = requests(&mut server, &connection, &path).await;
    connection.observer.ended();
    if outcome.is_err() {
        // Before the server closes it without an error.
        let reason = b"too many requests were broken off";
        OpenStreams::<Bytes>::close(&mut opener, Code::H3_EXCESSIVE_LOAD, reason);
    }
}

/// The client broke off too many requests.
struct ExcessiveLoad;

/// Answers the requests of a connection until its end.
async fn requests(
    server: &mut Server,
    connection: &Arc<Connection>,
    path: &PathProbe,
) -> Result<(), ExcessiveLoad> {
    let limits = &connection.front.limits;
    let (mut tasks, mut complete, mut broken) = (JoinSet::new(), 0_u64, 0_u64);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tail = TailProbes::default();
    let ending = connection.ending();
    tokio::pin!(ending);
    // Set by GOAWAY: resolves when the connection is to be closed.
    let mut draining: Option<Pin<Box<dyn Future<Output = ()> + std::marker::Send + '_>>> = None;
    loop {
        tokio::select! {
            accepted = server.accept(), if tasks.len() < limits.streams as usize => match accepted {
                // The client may send this request elsewhere: it is above the number in GOAWAY.
                Ok(Some(mut resolver)) if draining.is_some() => {
                    SendStream::<Bytes>::reset(
                        &mut resolver.frame_stream,
                        Code::H3_REQUEST_REJECTED.value(),
                    );
                }
                Ok(Some(resolver)) => {
                    tail.stop();
                    tasks.spawn(request(resolver, Arc::clone(connection)));
                }
                Ok(None) | Err(_) => return Ok(()),
            },
            Some(outcome) = tasks.join_next() => {
                if outcome.is_ok_and(|outcome| outcome.is_ok()) { complete += 1 } else { broken += 1 }
                if tasks.is_empty() {
                    tail.begin(Instant::now());
                }
                if broken > RESETS + complete {
                    return Err(ExcessiveLoad);
                }
                if draining.is_some() && tasks.is_empty() {
                    draining = Some(Box::pin(sleep(LINGER)));
                }
            }
            () = tail.due() => tail.send(path, Instant::now()),
            _ = ticks.tick(), if !tasks.is_empty() => connection.observer.tick(),
            drain = &mut ending, if draining.is_none() => {
                // One more than the last request that was accepted; `h3` would name that one as rejected.
                if server.shutdown(1).await.is_err() {
                    return Ok(());
                }
                draining = Some(match tasks.is_empty() {
                    true => Box::pin(sleep(LINGER.min(limits.drain))),
                    false => Box::pin(connection.drained(drain)),
                });
            }
            // The client closes the connection when it has its responses.
            () = async { if let Some(draining) = &mut draining { draining.await } }, if draining.is_some() => {
                return Ok(());
            }
        }
    }
}

/// Answers one request.
async fn request(
    resolver: RequestResolver<Http3Connection, Bytes>,
    connection: Arc<Connection>,
) -> Result<(), StreamError> {
    let limit = connection.front.limits.head_timeout;
    let Ok(resolved) = timeout(limit, resolver.resolve_request()).await else {
        // Dropped: the stream is stopped.
        return Ok(());
    };
    let (head, stream) = resolved?;
    let is_head = head.method() == Method::HEAD;
    let (mut send, recv) = stream.split();
    let mut body = Incoming { stream: recv, first: None, has_data: true };
    // A proxy has to know whether there is a body.
    if head.method().is_safe() && !head.headers().contains_key(CONTENT_LENGTH) {
        let Ok(first) = timeout(limit, body.frame()).await else { return Ok(()) };
        body.first = Some(first);
    }
    let response = connection.answer(head.map(|()| body)).await;
    let outcome = respond(&mut send, with_fields(response), is_head).await;
    connection.observer.sent(outcome.as_ref().ok().copied().flatten());
    outcome.map(|_| ())
}

/// Sends a response; `None` if its body broke off.
async fn respond(
    send: &mut Send,
    response: Response<Body>,
    is_head: bool,
) -> Result<Option<Sent>, StreamError> {
    let (head, body) = response.into_parts();
    send.send_response(Response::from_parts(head, ())).await?;
    let sent = if is_head { Some(Sent::default()) } else { send_body(send, body).await? };
    if sent.is_some() {
        send.finish().await?;
    }
    Ok(sent)
}

type Send = RequestStream<braid_transport::http::Http3Send<Bytes>, Bytes>;

async fn send_body(send: &mut Send, mut body: Body) -> Result<Option<Sent>, StreamError> {
    let mut sent = Sent::default();
    loop {
        let asked = Instant::now();
        let frame = body.frame().await;
        sent.paused += asked.elapsed();
        let Some(frame) = frame else { return Ok(Some(sent)) };
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) if data.has_remaining() => {
                sent.bytes += data.len() as u64;
                send.send_data(data).await?;
            }
            Ok(Ok(_)) => {}
            Ok(Err(frame)) => {
                if let Ok(trailers) = frame.into_trailers() {
                    send.send_trailers(trailers).await?;
                }
            }
            // A shorter body would look complete.
            Err(_) => {
                send.stop_stream(Code::H3_INTERNAL_ERROR);
                return Ok(None);
            }
        }
    }
}

/// Fields that hyper adds and removes on the other versions.
fn with_fields(mut response: Response<Body>) -> Response<Body> {
    let length = response.body().size_hint().exact();
    let has_body =
        !response.status().is_informational() && response.status() != 204 && response.status() != 304;
    let headers = response.headers_mut();
    remove_hop_by_hop(headers);
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
    if let Some(length) = length.filter(|_| has_body && !headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(SystemTime::now())) {
        headers.entry(DATE).or_insert(date);
    }
    response
}

/// Body of a request.
struct Incoming {
    stream: RequestStream<Http3Recv, Bytes>,
    /// Result of a read that was done already.
    first: Option<Option<Result<Frame<Bytes>, StreamError>>>,
    /// The last DATA frame has not been read.
    has_data: bool,
}

impl hyper::body::Body for Incoming {
    type Data = Bytes;
    type Error = StreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(first);
        }
        if self.has_data {
            match std::task::ready!(self.stream.poll_recv_data(cx)) {
                Ok(Some(mut data)) => {
                    let data = data.copy_to_bytes(data.remaining());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Ok(None) => self.has_data = false,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let trailers = std::task::ready!(self.stream.poll_recv_trailers(cx)).transpose();
        Poll::Ready(trailers.map(|trailers| trailers.map(Frame::trailers)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.first, Some(None))
    }
}
