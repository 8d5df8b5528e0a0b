//! Server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::caller::{Admitted, Caller};
use super::event_streams::{Reached, StreamPermit};
use super::extract::Refused;
use super::{Api, Lease};
use crate::counters::FrontRefusal;

/// Interval of comments that keep proxies and the front from closing a quiet stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Interval at which the caller is verified again, beside the signal of the broker.
const VERIFY: Duration = Duration::from_secs(3);

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
    api: Api,
    caller: Caller,
    /// Signal that users or bans have changed.
    rechecks: watch::Receiver<()>,
    verify_at: Instant,
    broker: watch::Receiver<Option<Lease>>,
    heartbeat: Instant,
    end: Instant,
    has_begun: bool,
    _permit: StreamPermit,
}

impl<S: Source> Stream<S> {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let comment = Bytes::from_static(b": \n\n");
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some((Ok(comment), self));
        }
        let chunk = loop {
            tokio::select! {
                // Events that come without a pause must not delay what ends the stream.
                biased;
                // An error: the API is gone.
                _ = self.broker.wait_for(Option::is_none) => return None,
                () = sleep_until(self.end) => return None,
                // An error: the broker is gone.
                changed = self.rechecks.changed() => changed.ok()?,
                () = sleep_until(self.verify_at) => {}
                next = self.source.next() => break next?,
                () = sleep_until(self.heartbeat) => break comment,
            }
            self.verify_at = Instant::now() + VERIFY;
            if let Err(refused) = self.api.verify(&self.caller).await {
                let (from, cause) = (self.caller.client.address, refused.detail());
                tracing::info!(%from, cause, "an event stream over HTTP ends");
                return None;
            }
        };
        self.heartbeat = Instant::now() + HEARTBEAT;
        Some((Ok(chunk), self))
    }
}

/// Response that ends with its source, the broker or the client, and when its caller may not use the API any more.
///
/// # Errors
/// There are too many event streams, or the broker has ended.
pub(super) fn respond(api: &Api, admitted: Admitted, source: impl Source) -> Result<Response, Refused> {
    let Admitted { caller, user } = admitted;
    let opened = api.0.load.event_streams.open(caller.client.address.ip(), user);
    let permit = opened.map_err(|Reached(limit)| {
        api.0.front.count(FrontRefusal::EventStreams);
        let detail = format!("there are as many event streams as http.api.{limit} permits: close one");
        Refused::new(StatusCode::TOO_MANY_REQUESTS, detail).retry_after(HEARTBEAT)
    })?;
    let now = Instant::now();
    let stream = Stream {
        source,
        api: api.clone(),
        caller,
        rechecks: api.handle()?.rechecks(),
        verify_at: now + VERIFY,
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
