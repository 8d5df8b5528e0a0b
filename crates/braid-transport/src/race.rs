//! Connects to a host with several addresses (RFC 8305): the next one is tried when the last has failed or has had its
//! head start, and the first that answers wins.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

/// Connection Attempt Delay (RFC 8305, 8): head start of an address over the next one.
const HEAD_START: Duration = Duration::from_millis(250);

/// The first success, or the last failure; `None` if there is no address.
pub(crate) async fn race<A, T, E, F>(addresses: Vec<A>, attempt: impl Fn(A) -> F) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut waiting = addresses.into_iter();
    let mut running = FuturesUnordered::new();
    let mut failure = None;
    loop {
        running.extend(waiting.next().map(&attempt));
        tokio::select! {
            outcome = running.next() => match outcome {
                Some(Ok(success)) => return Ok(success),
                Some(Err(error)) => failure = Some(error),
                None => return Err(failure),
            },
            () = sleep(HEAD_START), if waiting.len() > 0 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::SocketAddr;

    use tokio::time::Instant;

    use super::*;

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_address_costs_a_head_start() {
        let start = Instant::now();
        let attempt = |address: SocketAddr| async move {
            if address.port() < 3 { pending().await } else { Ok::<_, ()>(address.port()) }
        };
        assert_eq!(race(addresses(5), attempt).await, Ok(3));
        assert_eq!(start.elapsed(), 2 * HEAD_START);
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_costs_no_time() {
        let start = Instant::now();
        let attempt = |address: SocketAddr| async move {
            if address.port() < 3 { Err(()) } else { Ok(address.port()) }
        };
        assert_eq!(race(addresses(3), attempt).await, Ok(3));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn earlier_address_may_still_win() {
        let attempt = |address: SocketAddr| async move {
            match address.port() {
                1 => sleep(2 * HEAD_START).await,
                _ => pending().await,
            }
            Ok::<_, ()>(address.port())
        };
        assert_eq!(race(addresses(3), attempt).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn last_failure_is_returned() {
        let attempt = |address: SocketAddr| async move { Err::<(), _>(address.port()) };
        assert_eq!(race(addresses(3), attempt).await, Err(Some(3)));
        assert_eq!(race(Vec::new(), attempt).await, Err(None));
    }
}
