//! Rest of a request body on HTTP/2 that the handler did not read.
//!
//! RFC 9113, 8.1 lets a server answer before the body has come and reset the stream with NO_ERROR. curl 7.88 of Debian
//! 12 then fails without the response, so the rest of a small body is read before the response is sent.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Version;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::timeout;

/// Bytes that are read at most. A client that sends more gets the response first.
const MAX_BYTES: u64 = 64 << 10;

/// Time for them.
const MAX_TIME: Duration = Duration::from_secs(1);

type Slot<B> = Arc<Mutex<Option<B>>>;

/// Body that goes to [`Unread`] when it is dropped.
pub(super) struct Returned<B> {
    /// Taken when it is dropped.
    body: Option<B>,
    /// `None` on other versions of HTTP, and for a request without a body.
    slot: Option<Slot<B>>,
}

/// Receiver of the rest.
pub(super) struct Unread<B>(Option<Slot<B>>);

impl<B: Body<Data = Bytes> + Unpin> Unread<B> {
    /// The body for the handler, and the receiver of what it leaves.
    pub(super) fn of(body: B, version: Version) -> (Returned<B>, Self) {
        let is_wanted = version == Version::HTTP_2 && !body.is_end_stream();
        let slot = is_wanted.then(Slot::default);
        (Returned { body: Some(body), slot: slot.clone() }, Self(slot))
    }

    /// Reads what the handler has left, if it is small and comes soon. Does nothing while the handler still reads.
    pub(super) async fn discard(self) {
        let body = self.0.and_then(|slot| lock(&slot).take());
        if let Some(body) = body {
            discard(body).await;
        }
    }
}

fn lock<B>(slot: &Mutex<Option<B>>) -> MutexGuard<'_, Option<B>> {
    // Poisoning is harmless: the value is replaced as a whole.
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a body to its end, if it is small and comes soon.
pub(super) async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    if body.size_hint().lower() > MAX_BYTES {
        return;
    }
    let read = async {
        let mut received = 0;
        while let Some(Ok(frame)) = body.frame().await {
            received += frame.data_ref().map_or(0, |data| data.len() as u64);
            if received > MAX_BYTES {
                return;
            }
        }
    };
    // Late or not: the response follows.
    let _ = timeout(MAX_TIME, read).await;
}

impl<B: Body<Data = Bytes> + Unpin> Body for Returned<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl<B> Drop for Returned<B> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            *lock(slot) = self.body.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use tokio::time::{Instant, interval_at};

    use super::*;

    /// A body of parts, one each `pause`, and the number of those that were taken.
    fn parts(sizes: &[usize], pause: Duration) -> (impl Body<Data = Bytes> + Unpin, Arc<Mutex<usize>>) {
        let taken = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&taken);
        let ticks = interval_at(Instant::now() + pause, pause);
        let frames = stream::unfold((sizes.iter().copied(), ticks), move |(mut sizes, mut ticks)| {
            let counted = Arc::clone(&counted);
            async move {
                let size = sizes.next()?;
                ticks.tick().await;
                *counted.lock().unwrap() += 1;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; size]))), (sizes, ticks)))
            }
        });
        (StreamBody::new(Box::pin(frames)), taken)
    }

    #[tokio::test(start_paused = true)]
    async fn small_rests_are_read_to_their_end() {
        for (sizes, pause_ms, expected, time_ms) in [
            (&[10, 10][..], 100, 2, 200),
            (&[], 100, 0, 0),
            (&[40_000, 25_536], 100, 2, 200),
            (&[40_000, 25_537, 10], 100, 2, 200),
            (&[10, 10, 10], 400, 2, 1000),
        ] {
            let (body, taken) = parts(sizes, Duration::from_millis(pause_ms));
            let (handed, unread) = Unread::of(body, Version::HTTP_2);
            let began = Instant::now();
            drop(handed);
            unread.discard().await;
            let elapsed = began.elapsed().as_millis();
            assert_eq!((*taken.lock().unwrap(), elapsed), (expected, time_ms), "{sizes:?}");
        }
    }

    #[tokio::test]
    async fn a_body_that_is_announced_as_large_is_not_read() {
        let body = Full::new(Bytes::from(vec![0; 65_537]));
        let (mut handed, unread) = Unread::of(body, Version::HTTP_2);
        assert_eq!(handed.size_hint().exact(), Some(65_537));
        discard(&mut handed).await;
        assert!(!handed.is_end_stream());
        // Still read by the handler.
        unread.discard().await;
        assert_eq!(handed.frame().await.unwrap().unwrap().into_data().unwrap().len(), 65_537);
        assert!(handed.is_end_stream());
    }
}
