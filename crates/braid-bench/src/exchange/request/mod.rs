//! Requesting side, which measures.

mod connection;
mod load;
mod source;
mod worker;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use braid_transport::quic::is_early_data_rejected;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};

pub use self::load::{LoadError, RequestLoad, Reuse};

use self::source::Requests;
use self::worker::Worker;
use super::counters::Counters;
use super::{TimerService, WireError};
use crate::dial::{DialError, Dialer};
use crate::summary::RunSummary;

/// Time limit of closing the connections, after the measured time.
const CLOSE: Duration = Duration::from_secs(1);

/// Interval of the reports of a run.
const REPORT: Duration = Duration::from_millis(100);

/// Puts `load` on the server that `dialer` connects to, until it is done or `stop` completes. `report` gets the number
/// of responses so far, ten times a second.
///
/// Counters of the summary: `requests` are those begun, and in an open loop also those that were due before the end and
/// never began; each became one of `responses`, of the `failed`, or is `unfinished` at the end. A request fails when
/// its connection fails or ends before the response, or brings no bytes for [`RequestLoad::patience`]; the first
/// failure of each kind is an event.
///
/// # Errors
/// The load is contradictory; no request was sent.
pub async fn run(
    load: &RequestLoad,
    dialer: Dialer,
    timers: &TimerService,
    stop: impl Future<Output = ()>,
    mut report: impl FnMut(u64),
) -> Result<RunSummary, LoadError> {
    load.check()?;
    let dialer = Arc::new(dialer);
    let tally = Arc::new(Counters::new(&load.sizes));
    let requests = Arc::new(Requests::new(load));
    let (over, is_over) = watch::channel(());
    let mut workers = JoinSet::new();
    for number in 0..load.connections {
        let source = requests.source(load, number, tally.started(), timers);
        let worker = Worker::new(load, Arc::clone(&dialer), source, Arc::clone(&tally));
        workers.spawn(worker.run(is_over.clone()));
    }
    let reports = async {
        let mut ticks = interval(REPORT);
        loop {
            ticks.tick().await;
            report(tally.answers());
        }
    };
    tokio::select! {
        () = join(&mut workers) => {}
        () = sleep(load.duration.unwrap_or_default()), if load.duration.is_some() => {}
        () = stop => tally.note("stopped before the end"),
        () = reports => {}
    }
    if let Some(rate) = load.rate {
        let elapsed = tally.started().elapsed();
        let end = load.duration.map_or(elapsed, |duration| duration.min(elapsed));
        tally.add_overdue(rate, end, load.requests.unwrap_or(u64::MAX), &load.sizes);
    }
    let summary = tally.requests(load.connections);
    drop((over, is_over));
    let _ = timeout(CLOSE, join(&mut workers)).await;
    Ok(summary)
}

async fn join(workers: &mut JoinSet<()>) {
    while workers.join_next().await.is_some() {}
}

/// Reason of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Lost connection.
    #[error("the connection is lost: {0}")]
    Link(#[from] io::Error),
    /// End of the connection or the stream by the server.
    #[error("the server ended the connection before it had answered")]
    Ended,
    /// No bytes within the time limit.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Silence(Duration),
    /// The received bytes are no response.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The response belongs to another request.
    #[error("the server answered request {id} with {size} bytes, which is not what was asked for next")]
    Stray {
        /// Identifier in the response.
        id: u64,
        /// Length of its body.
        size: u64,
    },
}

impl Failure {
    /// The server has rejected early data: the request has to be sent again.
    pub(super) fn is_early_rejected(&self) -> bool {
        matches!(self, Self::Link(error) if is_early_data_rejected(error))
    }
}
