//! HTTP/1.1 and 2 on TCP and TLS.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use braid_transport::http::{HttpIncoming, HttpListener};
use hyper::body::Incoming;
use hyper::header::UPGRADE;
use hyper::service::service_fn;
use hyper::{Request, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::time::{sleep, timeout};

use super::count::Permit;
use super::head::{Exchange, ExchangeBody, HeadRefusal, HeadRefusals};
use super::idle::IdleTimeout;
use super::poll_first::PollFirst;
use super::{ACCEPT_PAUSE, Connection, Front};
use crate::counters::{FrontListener, FrontRefusal, HttpVersion};
use crate::limits::Limits;
use crate::request::Upgraded;

/// Fields of a head on HTTP/1.1; above: 431.
const FIELDS: usize = 100;

/// Streams that the client has reset before they were answered; above: GOAWAY (rapid reset, CVE-2023-44487).
const PENDING_RESETS: usize = 20;

/// Streams that were reset for errors of the client; above: GOAWAY (CVE-2025-8671).
const ERROR_RESETS: usize = 100;

/// Accepts until the server stops.
pub(super) async fn accept(listener: HttpListener, state: Arc<FrontListener>, front: Arc<Front>) {
    let (mut stopped, address) = (front.stopped.clone(), listener.local_addr());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => return,
        };
        let Ok(incoming) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Without a permit it is closed.
        if let Some(permit) = front.count.admit(incoming.peer_address().ip()) {
            let (accepted, serving) =
                (state.accepted(), serve(incoming, address, permit, Arc::clone(&front)));
            tokio::spawn(async move {
                serving.await;
                drop(accepted);
            });
        }
    }
}

fn builder(limits: &Limits, alpn: Option<&str>) -> auto::Builder<PollFirst> {
    let mut http = auto::Builder::new(PollFirst);
    http.http1()
        .timer(TokioTimer::new())
        // The stream has a limit of its own, which begins with the first byte of a head.
        .header_read_timeout(None)
        .max_buf_size(limits.head_bytes)
        .max_headers(FIELDS)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS)
        .max_local_error_reset_streams(ERROR_RESETS);
    match alpn {
        Some("h2") => http.http2_only(),
        Some(_) => http.http1_only(),
        None => http,
    }
}

/// Tests whether a connection of HTTP/2 ended with ENHANCE_YOUR_CALM, by the text of that code.
fn is_excessive(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("excessive load") {
            return true;
        }
        next = error.source();
    }
    false
}

async fn serve(incoming: HttpIncoming, listener: SocketAddr, permit: Permit, front: Arc<Front>) {
    let (client, limits) = (incoming.peer_address(), &front.limits);
    // Errors concern this connection only.
    let activity = Arc::clone(permit.activity());
    let handshake = timeout(limits.head_timeout, incoming.handshake());
    let stream = tokio::select! {
        done = handshake => done,
        () = activity.evicted() => return,
    };
    let Ok(Ok(stream)) = stream else { return };
    let is_encrypted = stream.peer.transport.is_encrypted();
    let version = match stream.peer.alpn.as_deref() {
        Some("h2") => HttpVersion::Two,
        _ => HttpVersion::One,
    };
    let connection =
        Connection::new(&front, &permit, version, client, listener, is_encrypted, Arc::new(stream.probe));
    let http = builder(limits, stream.peer.alpn.as_deref());
    let reference = permit.reference();
    let sent = (front.counters.clone(), version);
    let io = IdleTimeout::new(stream.io, limits.head_timeout, limits.idle_timeout, permit, sent);
    let is_upgraded = io.upgraded();
    let counters = front.counters.clone();
    let count = move |refusal: HeadRefusal| counters.count(refusal.into());
    let io = HeadRefusals::new(io, stream.peer.alpn.as_deref(), limits.head_timeout, count);
    let exchanges = io.exchanges();
    let service = {
        let connection = Arc::clone(&connection);
        service_fn(move |mut request: Request<Incoming>| {
            if request.headers().contains_key(UPGRADE) {
                let (is_upgraded, permit) = (Arc::clone(&is_upgraded), reference.clone());
                request.extensions_mut().insert(Upgraded { is_upgraded, permit });
            }
            let in_flight = activity.begin();
            let mut exchange = (request.version() < Version::HTTP_2).then(|| exchanges.begin());
            let response = connection.answer(request);
            async move {
                let response = response.await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    exchange.iter_mut().for_each(Exchange::keep);
                    in_flight.keep();
                }
                Ok::<_, Infallible>(response.map(|body| ExchangeBody {
                    body,
                    _exchange: exchange,
                    _in_flight: Some(in_flight),
                }))
            }
        })
    };
    let serving = http.serve_connection_with_upgrades(TokioIo::new(io), service);
    tokio::pin!(serving);
    tokio::select! {
        served = serving.as_mut() => {
            if served.is_err_and(|error| is_excessive(&*error)) {
                front.counters.count(FrontRefusal::Resets);
            }
        }
        drain = connection.ending() => {
            serving.as_mut().graceful_shutdown();
            tokio::select! {
                _ = serving.as_mut() => {}
                () = connection.drained(drain) => {}
            }
        }
    }
    // Before the socket is closed.
    connection.observer.ended();
}
