//! Budget of queries that visit many clients, subscriptions or topics: how many run at a time, and their rate by cost.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Api;
use super::caller::Admitted;
use super::extract::Refused;
use crate::counters::FrontRefusal;
use crate::network::of_host;

/// Queries of all clients that run at a time.
const AT_ONCE: usize = 2;

/// Time that a query waits for those before it.
const WAIT: Duration = Duration::from_secs(5);

/// Clients or topics that are visited for the price of a request.
pub(super) const ENTRIES: usize = 2000;

/// Sessions that are visited and asked for the price of a request: each is a turn of its connection.
pub(super) const QUESTIONS: usize = 100;

/// Queries that may run.
pub(super) struct Queries(Arc<Semaphore>);

impl Default for Queries {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Queries {
    /// Waits for its turn.
    ///
    /// # Errors
    /// Those before it take too long.
    async fn begin(&self) -> Result<OwnedSemaphorePermit, Refused> {
        match timeout(WAIT, self.0.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                let detail = "too many queries of all clients wait for each other; ask again";
                let refused = Refused::new(StatusCode::SERVICE_UNAVAILABLE, detail);
                Err(refused.retry_after(Duration::ZERO))
            }
        }
    }
}

/// Permission for one query until it is dropped, and the account of its client.
pub(super) struct Query {
    api: Api,
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl Query {
    /// Takes the price of `visited` entries from the requests of the client, also where it has too few left: it waits
    /// until they are there again. `for_one` entries cost as much as a request.
    pub(super) fn charge(&self, visited: usize, for_one: usize) {
        // Exact up to 2^53.
        #[expect(clippy::cast_precision_loss, reason = "a price")]
        self.api.0.load.requests.charge(of_host(self.address), visited as f64 / for_one as f64);
    }
}

impl FromRequestParts<Api> for Query {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Refused> {
        let (address, load) = (Admitted::of(parts)?.caller.client.address.ip(), &api.0.load);
        let began = load.queries.begin().await;
        let permit = began.inspect_err(|_| api.0.front.count(FrontRefusal::Queries))?;
        // Those before it may have been of the same client.
        load.requests.check(of_host(address)).map_err(|wait| {
            api.0.front.count(FrontRefusal::Rate);
            Refused::too_many(wait)
        })?;
        Ok(Self { api: api.clone(), address, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queries_wait_for_those_before_them_but_not_for_ever() {
        let queries = Queries::default();
        let mut running = Vec::new();
        for _ in 0..AT_ONCE {
            running.push(queries.begin().await.unwrap());
        }
        let began = Instant::now();
        assert!(queries.begin().await.is_err());
        assert_eq!(began.elapsed(), WAIT);
        running.pop();
        assert!(queries.begin().await.is_ok());
    }
}
