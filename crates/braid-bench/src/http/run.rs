use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{oneshot, watch};

use super::alt_svc::AltSvcCache;
use super::load::{Extent, HttpLoad, LoadError};
use super::progress::Progress;
use super::summary::HttpSummary;
use super::tally::{RunTimes, Tally};
use super::thread;

/// Failure of a run as a whole.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load contradicts itself.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A thread or its runtime could not be started.
    #[error("cannot start threads: {0}")]
    Thread(#[from] io::Error),
    /// A thread has panicked.
    #[error("a thread has ended early: please report that as a bug")]
    Ended,
}

/// Puts load on a server, until its extent is reached or `stop` completes; then responses that are missing are neither
/// done nor failed.
///
/// # Errors
/// [`RunError`]. Failures of clients are in the summary.
pub async fn run(
    load: HttpLoad,
    progress: Progress,
    stop: impl Future<Output = ()>,
) -> Result<HttpSummary, RunError> {
    load.check()?;
    let load = Arc::new(load);
    let alt_svc = load.alternative.is_some().then(|| Arc::new(AltSvcCache::new(load.request.host())));
    let (stopper, stopped) = watch::channel(false);
    let (begun, cpu) = (Instant::now(), cpu_time());
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut threads = Vec::new();
    for index in 0..load.threads {
        let (load, progress, stopped) = (Arc::clone(&load), progress.clone(), stopped.clone());
        let alt_svc = alt_svc.clone();
        let (sender, receiver) = oneshot::channel();
        std::thread::Builder::new().name(format!("http-{index}")).spawn(move || {
            // The receiver waits for it, or has ended with another error.
            let _ = sender.send(thread::run(load, alt_svc, index, progress, stopped));
        })?;
        threads.push(receiver);
    }
    let all = async {
        let mut sum = Tally::default();
        for thread in threads {
            sum.add(thread.await.map_err(|_| RunError::Ended)??);
        }
        Ok::<_, RunError>(sum)
    };
    tokio::pin!(all);
    let tally = tokio::select! {
        biased;
        tally = &mut all => tally?,
        () = stop => {
            stopper.send_replace(true);
            all.await?
        }
    };
    let total = match load.extent {
        Extent::Requests(requests) => Some(requests),
        Extent::Duration { .. } => None,
    };
    let protocol = tally.protocol.map_or("", |protocol| load.route.name(protocol));
    let times = RunTimes {
        started_unix_us: u64::try_from(started.as_micros()).unwrap_or(u64::MAX),
        elapsed: begun.elapsed(),
        cpu: cpu_time().saturating_sub(cpu),
    };
    Ok(tally.summary(total, protocol, times))
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}
