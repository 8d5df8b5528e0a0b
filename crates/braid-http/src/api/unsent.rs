//! Limit of the answers in memory that their clients have not taken.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body as _;

use super::extract::Refused;
use crate::counters::{FrontCounters, FrontRefusal};
use crate::quota::{Quota, QuotaExceeded, QuotaPermit};

/// Bytes of all such answers.
const TOTAL: usize = 64 << 20;

/// Bytes of those to one address. A larger answer, of names that clients have chosen, takes all of them.
const PER_ADDRESS: usize = 16 << 20;

/// Largest answer that is not counted.
const SMALL: usize = 4 << 10;

/// Answers that are whole in memory until their clients have taken them.
pub(super) struct UnsentAnswers(Quota);

impl Default for UnsentAnswers {
    fn default() -> Self {
        Self(Quota::new(TOTAL, PER_ADDRESS))
    }
}

/// Bytes that are counted as long as anything refers to them: a body ends when its last part is passed on.
struct CountedBytes {
    bytes: Bytes,
    _permit: QuotaPermit,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl UnsentAnswers {
    /// Counts an answer until its bytes are sent. One without a length, such as an event stream, is passed on.
    ///
    /// # Errors
    /// Too many bytes of other answers have not been taken, or the answer is too large.
    pub(super) async fn count(
        &self,
        address: IpAddr,
        response: Response,
        counters: &FrontCounters,
    ) -> Result<Response, Refused> {
        let Some(size) = response.body().size_hint().exact() else { return Ok(response) };
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size <= SMALL {
            return Ok(response);
        }
        let charged = if size <= TOTAL { size.min(PER_ADDRESS) } else { size };
        let permit = self.0.take(Some(address), charged).map_err(|exceeded| {
            counters.count(FrontRefusal::Answers);
            refusal(size, exceeded)
        })?;
        let (head, body) = response.into_parts();
        let failed = |_| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer broke off");
        let bytes = body.collect().await.map_err(failed)?.to_bytes();
        let counted = Bytes::from_owner(CountedBytes { bytes, _permit: permit });
        Ok(Response::from_parts(head, Body::from(counted)))
    }
}

fn refusal(size: usize, exceeded: QuotaExceeded) -> Refused {
    if size > TOTAL {
        let most = TOTAL >> 20;
        return Refused::bad(format!(
            "the answer is larger than {most} MiB: ask for fewer items, with limit"
        ));
    }
    let detail = match exceeded {
        QuotaExceeded::Total => "too many answers wait for their clients; ask again",
        QuotaExceeded::Client => {
            "too many answers wait for clients of this address: read them, and ask again"
        }
    };
    Refused::new(StatusCode::SERVICE_UNAVAILABLE, detail).retry_after(std::time::Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::super::extract::Json;
    use super::*;

    fn answer(size: usize) -> Response {
        // With its quotation marks.
        Json("a".repeat(size - 2)).into_response()
    }

    #[tokio::test]
    async fn answers_are_counted_until_their_bytes_are_gone() {
        let (unsent, counters) = (UnsentAnswers::default(), FrontCounters::default());
        let count = |text: &str, size| {
            let address = text.parse().unwrap();
            unsent.count(address, answer(size), &counters)
        };
        let mut bodies = Vec::new();
        for host in 1..=4 {
            let address = format!("192.0.2.{host}");
            for _ in 0..2 {
                let response = count(&address, PER_ADDRESS / 2).await.unwrap();
                assert_eq!(response.headers()["content-type"], "application/json");
                bodies.push(response.into_body());
            }
            assert!(count(&address, SMALL).await.is_ok());
        }
        assert!(count("192.0.2.1", SMALL + 1).await.is_err());
        assert!(count("192.0.2.5", SMALL + 1).await.is_err(), "the total");
        assert!(count("192.0.2.5", SMALL).await.is_ok(), "small ones are not counted");
        // The body of a response ends before its bytes are sent.
        let mut body = bodies.remove(0);
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((data.len(), body.is_end_stream()), (PER_ADDRESS / 2, true));
        drop(body);
        assert!(count("192.0.2.1", SMALL + 1).await.is_err());
        drop(data);
        assert!(count("192.0.2.1", SMALL + 1).await.is_ok());
        drop(bodies);
        let large = count("192.0.2.1", PER_ADDRESS + 1).await;
        assert!(large.is_ok() && count("192.0.2.1", SMALL + 1).await.is_err());
        let refused = count("192.0.2.1", TOTAL + 1).await.unwrap_err();
        assert!(refused.detail().contains("larger than 64 MiB"), "{refused:?}");
        let counted: Vec<_> = counters.values().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("answers", 5)]);
    }
}
