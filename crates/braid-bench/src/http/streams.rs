use std::rc::Rc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::account::Answer;
use super::failure::{Ended, Failure};
use super::link::Link;

/// Exchange of one request on a stream of its own.
pub(super) trait Exchange {
    /// Sends a request, and receives its response.
    async fn exchange(&mut self) -> Result<Answer, StreamFailure>;
}

/// Failure of an exchange.
pub(super) enum StreamFailure {
    /// One stream failed, and the connection goes on.
    Stream,
    /// The connection failed.
    Connection(Failure),
}

/// Exchanges the requests of the client, on `depth` streams at a time, until all have a response or the connection
/// ends. `connection` moves its bytes.
pub(super) async fn run<E: Exchange + 'static>(
    link: &Rc<Link>,
    depth: usize,
    mut exchange: impl FnMut() -> E,
    connection: impl Future<Output = Result<(), Failure>>,
) -> Result<Ended, Failure> {
    link.account().connected();
    let mut streams = JoinSet::new();
    for _ in 0..link.account().width(depth) {
        streams.spawn_local(repeat(exchange(), Rc::clone(link)));
    }
    let all = async {
        let mut first = Ok(());
        while let Some(ended) = streams.join_next().await {
            first = first.and(ended.unwrap_or(Ok(())));
        }
        first
    };
    tokio::pin!(connection, all);
    // A connection that has ended wakes its streams, which say why.
    tokio::select! {
        biased;
        ended = &mut all => ended?,
        ended = &mut connection => {
            all.await?;
            ended?;
        }
    }
    if link.is_over() { Ok(Ended::Complete) } else { Err(Failure::Closed) }
}

async fn repeat<E: Exchange>(mut exchange: E, link: Rc<Link>) -> Result<(), Failure> {
    while let Some(started) = link.begin(Instant::now()) {
        match exchange.exchange().await {
            Ok(answer) => link.finish(started, answer, Instant::now()),
            Err(StreamFailure::Stream) => link.fail(started),
            // The client counts the requests in flight.
            Err(StreamFailure::Connection(failure)) => return Err(failure),
        }
    }
    Ok(())
}
