//! Request body with the limits of its size and its time.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::limits::Limits;

/// Bytes of a body that add a second to its time.
const RATE: u64 = 1024;

/// Reason for which a body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFailure {
    /// More bytes than the limit.
    TooLarge,
    /// Slower than the limit.
    TooSlow,
    /// More or fewer bytes than `Content-Length` says.
    WrongLength,
    /// The client broke off.
    Broken,
}

impl BodyFailure {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::WrongLength | Self::Broken => StatusCode::BAD_REQUEST,
        }
    }
}

impl fmt::Display for BodyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "the body is larger than this server accepts",
            Self::TooSlow => "the body took too long",
            Self::WrongLength => "the body has not the length that Content-Length says",
            Self::Broken => "the body broke off",
        })
    }
}

impl Error for BodyFailure {}

/// The first failure of a request's body, for its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyOutcome(Arc<OnceLock<BodyFailure>>);

impl BodyOutcome {
    pub(crate) fn failure(&self) -> Option<BodyFailure> {
        self.0.get().copied()
    }
}

/// Body with limits. The time runs from the first read, so that a handler may wait before.
pub(super) struct LimitedBody<B> {
    body: B,
    limit: u64,
    /// `Content-Length`.
    declared: Option<u64>,
    received: u64,
    time: Duration,
    timer: Option<(Instant, Pin<Box<Sleep>>)>,
    outcome: BodyOutcome,
}

impl<B> LimitedBody<B> {
    pub(super) fn new(body: B, declared: Option<u64>, limits: &Limits) -> (Self, BodyOutcome) {
        let outcome = BodyOutcome::default();
        let (limit, time) = (limits.body_bytes, limits.body_timeout);
        let limited =
            Self { body, limit, declared, received: 0, time, timer: None, outcome: outcome.clone() };
        (limited, outcome)
    }

    fn fail(&self, failure: BodyFailure) -> BodyFailure {
        *self.outcome.0.get_or_init(|| failure)
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.time;
        let (began, timer) = self.timer.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(time))));
        let end = *began + time + Duration::from_secs(self.received / RATE);
        while timer.as_mut().poll(cx).is_ready() {
            if end <= Instant::now() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

impl<B> Body for LimitedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = BodyFailure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFailure>>> {
        if let Some(failure) = self.outcome.failure() {
            return Poll::Ready(Some(Err(failure)));
        }
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            ready!(self.poll_timer(cx));
            return Poll::Ready(Some(Err(self.fail(BodyFailure::TooSlow))));
        };
        let failure = match &frame {
            Some(Ok(frame)) => {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                if self.declared.is_some_and(|declared| self.received > declared) {
                    Some(BodyFailure::WrongLength)
                } else {
                    (self.received > self.limit).then_some(BodyFailure::TooLarge)
                }
            }
            Some(Err(_)) => Some(BodyFailure::Broken),
            None => {
                let is_short = self.declared.is_some_and(|declared| self.received < declared);
                is_short.then_some(BodyFailure::WrongLength)
            }
        };
        Poll::Ready(match (failure, frame) {
            (Some(failure), _) => Some(Err(self.fail(failure))),
            (None, Some(Ok(frame))) => Some(Ok(frame)),
            (None, _) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.declared.is_none_or(|declared| self.received == declared)
    }

    fn size_hint(&self) -> SizeHint {
        match self.declared {
            Some(declared) => SizeHint::with_exact(declared.saturating_sub(self.received)),
            None => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};

    use tokio::time::interval_at;

    use super::*;

    /// A body of `parts` bytes each second, and the outcome of reading it.
    async fn read(parts: &[usize], declared: Option<u64>, limits: &Limits) -> Result<usize, BodyFailure> {
        let second = Duration::from_secs(1);
        let seconds = interval_at(Instant::now() + second, second);
        let frames = stream::unfold((parts.iter(), seconds), |(mut parts, mut seconds)| async move {
            let part = parts.next()?;
            seconds.tick().await;
            let frame = Frame::data(Bytes::from(vec![0; *part]));
            Some((Ok::<_, BodyFailure>(frame), (parts, seconds)))
        });
        let (body, outcome) = LimitedBody::new(StreamBody::new(Box::pin(frames)), declared, limits);
        let read = body.collect().await.map(|body| body.to_bytes().len());
        assert_eq!(outcome.failure(), read.err());
        read
    }

    #[tokio::test(start_paused = true)]
    async fn size_length_and_time_are_limited() {
        let limits = Limits { body_bytes: 5000, body_timeout: Duration::from_secs(3), ..Limits::default() };
        let slow = [1; 10];
        let steady = [500; 10];
        for (parts, declared, expected) in [
            (&[2500, 2500][..], None, Ok(5000)),
            (&[2500, 2500], Some(5000), Ok(5000)),
            (&[2500, 2501], None, Err(BodyFailure::TooLarge)),
            (&[10], Some(9), Err(BodyFailure::WrongLength)),
            (&[10], Some(11), Err(BodyFailure::WrongLength)),
            (&[], None, Ok(0)),
            (&slow, None, Err(BodyFailure::TooSlow)),
            // Two more seconds for each two KiB: still too slow. A second each KiB is the least.
            (&steady, None, Err(BodyFailure::TooSlow)),
        ] {
            assert_eq!(read(parts, declared, &limits).await, expected, "{parts:?} {declared:?}");
        }
        let patient = Limits { body_timeout: Duration::from_secs(8), ..limits };
        assert_eq!(read(&steady, None, &patient).await, Ok(5000));
    }
}
