//! Requesting side, which measures.

mod connection;
mod dial;
mod failure;
mod load;
mod source;
mod tally;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

pub use self::dial::{Dial, Reach};
pub use self::failure::Failure;
pub use self::load::{Load, LoadError, Reuse};

use self::source::Requests;
use self::tally::Tally;
use self::worker::Worker;
use super::Alarm;
use crate::summary::RunSummary;

/// Time limit of closing the connections, after the measured time.
const CLOSE: Duration = Duration::from_secs(1);

/// Puts `load` on the server that `dial` connects to, until it is done or `stop` completes.
///
/// Counters of the summary: `requests` are those begun; each became one of `responses`, of the `failed`, or is
/// `unfinished` at the end. A request fails when its connection fails or ends before the response,
/// or brings no bytes for [`Load::patience`]; the first failure of each kind is an event.
///
/// # Errors
/// The load is contradictory; no request was sent.
pub async fn run(
    load: &Load,
    dial: impl Dial,
    alarm: &Alarm,
    stop: impl Future<Output = ()>,
) -> Result<RunSummary, LoadError> {
    load.check()?;
    let tally = Arc::new(Tally::new(load));
    let requests = Arc::new(Requests::new(load));
    let (over, is_over) = watch::channel(());
    let mut workers = JoinSet::new();
    for number in 0..load.connections {
        let source = requests.source(load, number, tally.started(), alarm);
        let worker = Worker::new(load, dial.clone(), source, Arc::clone(&tally));
        workers.spawn(worker.run(is_over.clone()));
    }
    let time = async {
        match load.duration {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = join(&mut workers) => {}
        () = time => {}
        () = stop => tally.note("stopped before the end"),
    }
    let summary = tally.summary();
    drop((over, is_over));
    let _ = timeout(CLOSE, join(&mut workers)).await;
    Ok(summary)
}

async fn join(workers: &mut JoinSet<()>) {
    while workers.join_next().await.is_some() {}
}
