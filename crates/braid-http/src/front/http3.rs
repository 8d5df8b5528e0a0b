//! HTTP/3 on QUIC.

mod frames;

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, DATE};
use axum::http::{HeaderValue, Method, Response};
use braid_transport::EndpointHealth;
use braid_transport::http::{
    Cancellations, Http3Connection, Http3Incoming, Http3Listener, Http3Recv, TailProbes,
};
use bytes::{Buf, Bytes, BytesMut};
use h3::error::{Code, StreamError};
use h3::quic::{OpenStreams, SendStream};
use h3::server::{self, RequestResolver, RequestStream};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::count::Permit;
use super::poll_first::{First, poll_first};
use super::{ACCEPT_PAUSE, Connection, Front};
use crate::counters::{FrontListener, FrontRefusal, HttpVersion};
use crate::fields::remove_hop_by_hop;
use crate::upgrade::Sent;

/// Time after the last response in which the client closes the connection, so that no byte of it is lost.
const LINGER: Duration = Duration::from_secs(1);

/// Requests that the client may break off beyond those that it lets complete (rapid reset).
const RESETS: u64 = 100;

/// Time between two looks of the policy of the upgrade at a connection on which a response is being sent.
const TICK: Duration = Duration::from_secs(1);
/// Bytes of a part of a body up to which it is copied behind the frames before it.
const COPIED: usize = 4096;

/// Bytes that are allocated for head and body of a small response.
const FRAMES: usize = 1024;

/// Accepts until the server stops.
pub(super) async fn accept(mut listener: Http3Listener, state: Arc<FrontListener>, front: Arc<Front>) {
    let mut stopped = front.stopped.clone();
    let mut failures = Failures::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let (health, address) = (listener.health(), state.address);
        state.note_health(health);
        match failures.note(health) {
            Some(Condition::Failed) => {
                tracing::warn!(%address, "the QUIC endpoint of HTTP/3 failed and cannot restart; trying again");
            }
            Some(Condition::Restarted) => {
                tracing::warn!(%address, "the QUIC endpoint of HTTP/3 failed and was restarted; its connections are lost");
            }
            None => {}
        }
        let incoming = match accepted {
            Ok(incoming) => incoming,
            Err(error) => {
                tracing::debug!(%error, "HTTP/3 cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        match front.count.admit(incoming.peer_address().ip()) {
            Some(permit) => {
                let address = listener.local_addr().unwrap_or(incoming.peer_address());
                let (accepted, serving) =
                    (state.accepted(), serve(incoming, address, permit, Arc::clone(&front)));
                tokio::spawn(async move {
                    serving.await;
                    drop(accepted);
                });
            }
            None => incoming.refuse(),
        }
    }
    drop(front);
    // The connections use its socket.
    listener.close().await;
}

/// Change of the endpoint that the log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Failed,
    Restarted,
}

/// Condition of the endpoint that the log has told.
#[derive(Debug, Default)]
struct Failures(EndpointHealth);

impl Failures {
    /// The change since the condition before, if there is one.
    fn note(&mut self, now: EndpointHealth) -> Option<Condition> {
        let before = std::mem::replace(&mut self.0, now);
        if now.restarts > before.restarts {
            Some(Condition::Restarted)
        } else if before.is_available && !now.is_available {
            Some(Condition::Failed)
        } else {
            None
        }
    }
}

type Server = server::Connection<Http3Connection, Bytes>;

async fn serve(incoming: Http3Incoming, listener: SocketAddr, permit: Permit, front: Arc<Front>) {
    let (client, limits) = (incoming.peer_address(), &front.limits);
    // Errors concern this connection only.
    let handshake = timeout(limits.head_timeout, incoming.handshake());
    let quic = tokio::select! {
        done = handshake => done,
        () = permit.activity().evicted() => return,
    };
    let Ok(Ok(quic)) = quic else { return };
    let connection =
        Connection::new(&front, &permit, HttpVersion::Three, client, listener, true, Arc::new(quic.probe()));
    let (tail, cancellations) = (TailProbes::new(quic.probe()), quic.cancellations());
    let quic = quic.without_data_headers().with_stall_limit(limits.idle_timeout);
    let mut opener = h3::quic::Connection::<Bytes>::opener(&quic);
    let mut http = server::builder();
    http.max_field_section_size(limits.head_bytes as u64);
    let Ok(Ok(mut server)) = timeout(limits.head_timeout, http.build(quic)).await else { return };
    let outcome = requests(&mut server, &connection, tail, &cancellations).await;
    connection.observer.ended();
    if outcome.is_err() {
        front.counters.count(FrontRefusal::Resets);
        // Before the server closes it without an error.
        let reason = b"too many requests were broken off";
        OpenStreams::<Bytes>::close(&mut opener, Code::H3_EXCESSIVE_LOAD, reason);
    }
}

/// The client broke off too many requests.
struct ExcessiveLoad;

/// Time until a connection is closed.
type Draining<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Numbers of requests that have ended.
#[derive(Default)]
struct Ended {
    complete: u64,
    broken: u64,
}

impl Ended {
    fn count(&mut self, is_complete: bool) -> Result<(), ExcessiveLoad> {
        *if is_complete { &mut self.complete } else { &mut self.broken } += 1;
        if self.broken > RESETS + self.complete { Err(ExcessiveLoad) } else { Ok(()) }
    }
}

/// Answers the requests of a connection until its end.
async fn requests(
    server: &mut Server,
    connection: &Arc<Connection>,
    mut tail: TailProbes,
    cancellations: &Cancellations,
) -> Result<(), ExcessiveLoad> {
    let limits = &connection.front.limits;
    let (mut tasks, mut ended) = (JoinSet::new(), Ended::default());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ending = connection.ending();
    tokio::pin!(ending);
    // Set by GOAWAY: resolves when the connection is to be closed.
    let mut draining: Option<Draining<'_>> = None;
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
                    let answering = request(resolver, Arc::clone(connection), cancellations.clone());
                    match poll_first(answering) {
                        First::Ready(outcome) => ended.count(outcome.is_ok())?,
                        First::Waiting(waiting) => drop(tasks.spawn(waiting)),
                        First::Panicked => ended.count(false)?,
                    }
                    tail.begin(Instant::now());
                }
                Ok(None) | Err(_) => return Ok(()),
            },
            Some(outcome) = tasks.join_next() => {
                ended.count(outcome.is_ok_and(|outcome| outcome.is_ok()))?;
                tail.begin(Instant::now());
                if tasks.is_empty() {
                    draining = draining.map(|_| -> Draining<'_> { Box::pin(sleep(LINGER)) });
                }
            }
            () = tail.due() => tail.send(Instant::now()),
            _ = ticks.tick(), if !tasks.is_empty() => connection.observer.tick(),
            drain = &mut ending, if draining.is_none() => {
                // One more than the last request that was accepted; `h3` would name that one as rejected.
                if server.shutdown(1).await.is_err() {
                    return Ok(());
                }
                draining = Some(match tasks.is_empty() {
                    true => Box::pin(sleep(drain.unwrap_or(limits.drain).min(LINGER))),
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

/// Request that did not get its response.
struct Broken;

impl From<StreamError> for Broken {
    fn from(_: StreamError) -> Self {
        Self
    }
}

/// Sending half of a request's stream.
struct ResponseStream {
    stream: RequestStream<braid_transport::http::Http3Send<Bytes>, Bytes>,
    cancellations: Cancellations,
}

impl ResponseStream {
    /// Waits for a part of the response until the client wants none any more, or is gone: a handler must not go on
    /// without a reader, nor an event stream keep its place.
    fn unless_cancelled<F: Future>(
        &self,
        part: F,
    ) -> impl Future<Output = Result<F::Output, Broken>> + use<F> {
        let (id, cancellations) = (self.stream.send_id(), self.cancellations.clone());
        async move {
            tokio::select! {
                biased;
                part = part => Ok(part),
                () = poll_fn(|cx| cancellations.poll_cancelled(id, cx)) => Err(Broken),
            }
        }
    }
}

/// Answers one request.
async fn request(
    resolver: RequestResolver<Http3Connection, Bytes>,
    connection: Arc<Connection>,
    cancellations: Cancellations,
) -> Result<(), Broken> {
    let limit = connection.front.limits.head_timeout;
    let too_slow = |_| {
        // Dropped: the stream is stopped.
        connection.front.counters.count(FrontRefusal::HeadTime);
        Broken
    };
    let (head, stream) = timeout(limit, resolver.resolve_request()).await.map_err(too_slow)??;
    let is_head = head.method() == Method::HEAD;
    let (send, recv) = stream.split();
    let mut send = ResponseStream { stream: send, cancellations };
    let mut body = Incoming { stream: recv, first: None, has_data: true };
    // A proxy has to know whether there is a body.
    if head.method().is_safe() && !head.headers().contains_key(CONTENT_LENGTH) {
        body.first = Some(timeout(limit, body.frame()).await.map_err(too_slow)?);
    }
    let in_flight = connection.activity.begin();
    let outcome = match send.unless_cancelled(connection.answer(head.map(|()| body))).await {
        Ok(response) => {
            let response = with_fields(response, is_head, &connection.front.date);
            respond(&mut send, response, is_head).await
        }
        Err(broken) => Err(broken),
    };
    drop(in_flight);
    connection.activity.moved(Instant::now());
    if let Ok(Some(sent)) = &outcome {
        connection.front.counters.sent(HttpVersion::Three, sent.bytes);
    }
    connection.observer.sent(outcome.as_ref().ok().copied().flatten());
    outcome?;
    Ok(())
}

/// Sends a response; `None` if its body broke off. Its head and what is there of its body are one write.
async fn respond(
    send: &mut ResponseStream,
    response: Response<Body>,
    is_head: bool,
) -> Result<Option<Sent>, Broken> {
    let (head, body) = response.into_parts();
    // Whole frames that were not sent.
    let mut frames = BytesMut::with_capacity(FRAMES);
    if !frames::put_headers(&mut frames, head.status, &head.headers) {
        send.stream.send_response(Response::from_parts(head, ())).await?;
    }
    let sent = if is_head { Some(Sent::default()) } else { send_body(send, &mut frames, body).await? };
    if sent.is_some() {
        flush(send, &mut frames).await?;
        send.stream.finish().await?;
    }
    Ok(sent)
}

/// Sends the frames of a body, or leaves the last ones in `frames`. `None`: it broke off, and so does the stream.
async fn send_body(
    send: &mut ResponseStream,
    frames: &mut BytesMut,
    mut body: Body,
) -> Result<Option<Sent>, Broken> {
    let mut sent = Sent::default();
    loop {
        let there = poll_fn(|cx| Poll::Ready(Pin::new(&mut body).poll_frame(cx))).await;
        let frame = match there {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                flush(send, frames).await?;
                let asked = Instant::now();
                let frame = send.unless_cancelled(body.frame()).await?;
                sent.paused += asked.elapsed();
                frame
            }
        };
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None => return Ok(Some(sent)),
            Some(Ok(Ok(data))) if data.has_remaining() => {
                sent.bytes += data.len() as u64;
                frames::put_data_header(frames, data.len());
                if data.len() <= COPIED {
                    frames.extend_from_slice(&data);
                } else {
                    flush(send, frames).await?;
                    send.stream.send_data(data).await?;
                }
                if frames.len() > COPIED {
                    flush(send, frames).await?;
                }
            }
            Some(Ok(Ok(_))) => {}
            Some(Ok(Err(frame))) => {
                flush(send, frames).await?;
                if let Ok(trailers) = frame.into_trailers() {
                    send.stream.send_trailers(trailers).await?;
                }
            }
            // A shorter body would look complete.
            Some(Err(_)) => {
                flush(send, frames).await?;
                send.stream.stop_stream(Code::H3_INTERNAL_ERROR);
                return Ok(None);
            }
        }
    }
}

async fn flush(send: &mut ResponseStream, frames: &mut BytesMut) -> Result<(), StreamError> {
    if frames.is_empty() { Ok(()) } else { send.stream.send_data(frames.split().freeze()).await }
}

/// Fields that hyper adds and removes on the other versions.
fn with_fields(mut response: Response<Body>, is_head: bool, date: &CachedDate) -> Response<Body> {
    let length = response.body().size_hint().exact();
    let status = response.status();
    // To HEAD an upstream without a length has no body, and that is not the length of its page.
    let has_body = !is_head && !status.is_informational() && status != 204 && status != 304;
    let headers = response.headers_mut();
    remove_hop_by_hop(headers);
    if let Some(length) = length.filter(|_| has_body && !headers.contains_key(CONTENT_LENGTH)) {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    headers.entry(DATE).or_insert_with(|| date.at(SystemTime::now()));
    response
}

/// Value of `Date`, formatted once a second.
#[derive(Debug, Default)]
pub(super) struct CachedDate(Mutex<Option<(u64, HeaderValue)>>);

impl CachedDate {
    fn at(&self, now: SystemTime) -> HeaderValue {
        let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        // Poisoning is harmless: a value is whole.
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cached {
            Some((at, value)) if *at == second => value.clone(),
            _ => {
                let text = httpdate::fmt_http_date(now);
                let value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
                cached.insert((second, value)).1.clone()
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_that_of_the_second() {
        let cached = CachedDate::default();
        let at = |millis| cached.at(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!(at(784_111_777_000), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(784_111_777_999), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(784_111_778_000), "Sun, 06 Nov 1994 08:49:38 GMT");
        // The clock may be set back.
        assert_eq!(at(784_111_777_000), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn each_change_of_the_endpoint_is_told_once() {
        let mut failures = Failures::default();
        let mut note =
            |restarts, is_available| failures.note(EndpointHealth { restarts, is_available, turned_away: 0 });
        assert_eq!(note(0, true), None);
        assert_eq!([note(0, false), note(0, false)], [Some(Condition::Failed), None]);
        assert_eq!([note(1, true), note(1, true)], [Some(Condition::Restarted), None]);
        assert_eq!(note(2, true), Some(Condition::Restarted), "it was restarted at once");
        assert_eq!(note(2, false), Some(Condition::Failed));
    }

    #[test]
    fn a_connection_ends_above_a_hundred_broken_requests_more_than_complete_ones() {
        let mut ended = Ended::default();
        assert!((0..5).all(|_| ended.count(true).is_ok()));
        assert!((0..105).all(|_| ended.count(false).is_ok()));
        assert!(ended.count(false).is_err());
    }
}
