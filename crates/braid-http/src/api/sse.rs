//! Server-sent events.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::auth::Principal;
use super::event_streams::{Reached, StreamPermit};
use super::extract::Refused;
use super::{Api, Lease};
use crate::counters::FrontRefusal;
use crate::request::Client;

/// Interval of comments that keep proxies and the front from closing a quiet stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Time after which a stream ends, so that its client logs in again.
const LONGEST: Duration = Duration::from_secs(3600);

/// Source of events.
pub(super) trait Source: Send + 'static {
    /// Next event; `None` at the end. Dropped and called again after a comment: it must lose nothing then.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// Text of an event.
pub(super) fn event<T: Serialize>(name: &str, data: &T) -> Bytes {
    // JSON has no line feeds.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

struct Stream<S> {
    source: S,
    broker: watch::Receiver<Option<Lease>>,
    heartbeat: Instant,
    end: Instant,
    has_begun: bool,
    _permit: StreamPermit,
}

/// Client of a request for a stream.
pub(super) struct Subscriber {
    address: IpAddr,
    user: Option<Arc<str>>,
}

impl<S: Sync> FromRequestParts<S> for Subscriber {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        match (parts.extensions.get::<Client>(), parts.extensions.get::<Principal>()) {
            (Some(client), Some(principal)) => {
                Ok(Self { address: client.address.ip(), user: principal.user.clone() })
            }
            _ => {
                Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the client of the request is not known"))
            }
        }
    }
}

impl<S: Source> Stream<S> {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let comment = Bytes::from_static(b": \n\n");
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some((Ok(comment), self));
        }
        let chunk = tokio::select! {
            // An error: the API is gone.
            _ = self.broker.wait_for(Option::is_none) => return None,
            () = sleep_until(self.end) => return None,
            next = self.source.next() => next?,
            () = sleep_until(self.heartbeat) => comment,
        };
        self.heartbeat = Instant::now() + HEARTBEAT;
        Some((Ok(chunk), self))
    }
}

/// Response that ends with its source, the broker or the client.
///
/// # Errors
/// There are too many event streams.
pub(super) fn respond(api: &Api, subscriber: Subscriber, source: impl Source) -> Result<Response, Refused> {
    let opened = api.0.load.event_streams.open(subscriber.address, subscriber.user);
    let permit = opened.map_err(|Reached(limit)| {
        api.0.front.count(FrontRefusal::EventStreams);
        let detail = format!("there are as many event streams as http.api.{limit} permits: close one");
        Refused::new(StatusCode::TOO_MANY_REQUESTS, detail).retry_after(HEARTBEAT)
    })?;
    let now = Instant::now();
    let stream = Stream {
        source,
        broker: api.0.broker.subscribe(),
        heartbeat: now + HEARTBEAT,
        end: now + LONGEST,
        has_begun: false,
        _permit: permit,
    };
    let mut response = Response::new(Body::from_stream(stream::unfold(stream, Stream::next)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would hold events back.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}
