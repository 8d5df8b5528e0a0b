use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::client::Client;
use super::shared::{Phase, Shared, reached};
use super::{Clock, Dialer, Plan, RunStatistics, Start, TimerService};

/// Time limit of all DISCONNECTs together.
const CLOSE: Duration = Duration::from_secs(3);

/// Reason of the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The time of [`Ending::after`](super::Ending) is over.
    Time,
    /// `-L` messages were published and acknowledged, or 30 seconds went by without progress:
    /// [`PUBLISH_COMPLETE`](crate::emqtt::PUBLISH_COMPLETE).
    Complete,
    /// Every connection has ended or failed. A run with a duration lasts that long all
    /// the same, once a client was connected.
    NoClients,
    /// The stop signal arrived.
    Stopped,
}

/// Carries out a plan until it ends or `stop` is ready. Then every client disconnects, which takes three seconds at
/// most. Messages that were due before the end and are not acknowledged have failed.
///
/// Messages with an interval wait for a timer of `timers`; the others never do.
///
/// Failures of clients are counted and reported in `statistics`, and are no error: the load goes on without them.
pub async fn run(
    plan: Plan,
    dialer: Dialer,
    timers: TimerService,
    statistics: RunStatistics,
    stop: impl Future<Output = ()>,
) -> Ended {
    let clock = statistics.clock();
    let after = plan.ending.after;
    let shared = Arc::new(Shared::new(plan, dialer, timers, statistics.clone()));
    let mut clients = JoinSet::new();
    let ended = tokio::select! {
        biased;
        () = stop => Ended::Stopped,
        () = sleep_until(clock.start() + after.unwrap_or_default()), if after.is_some() => Ended::Time,
        ended = load(&shared, clock, &mut clients) => ended,
    };
    let is_lost = ended == Ended::Time && statistics.connected() == 0;
    statistics.end();
    shared.end();
    let all_gone = async { while clients.join_next().await.is_some() {} };
    let _ = timeout(CLOSE, all_gone).await;
    if is_lost { Ended::NoClients } else { ended }
}

/// Starts the clients, and waits until all of them have ended.
async fn load(shared: &Arc<Shared>, clock: Clock, clients: &mut JoinSet<()>) -> Ended {
    let plan = &shared.plan.clients;
    let needless = if shared.plan.ending.keep_connected { Phase::Over } else { Phase::Spent };
    let mut phase = shared.phase.subscribe();
    for n in 0..plan.count {
        let due = clock.start() + since_start(plan.start, n);
        // The clock is read first: a late client needs no timer.
        if Instant::now() < due {
            tokio::select! {
                biased;
                _ = reached(&mut phase, needless) => {}
                () = sleep_until(due) => {}
            }
        }
        if *phase.borrow() >= needless {
            // `-L` is used up: the other clients are not needed.
            shared.finished(plan.count - n);
            break;
        }
        let number = plan.start_number.saturating_add(n).saturating_add(1);
        clients.spawn(Client::new(Arc::clone(shared), number).live());
        if n % 64 == 63 {
            // Started clients are polled, and the end may arrive in between.
            tokio::task::yield_now().await;
        }
        while clients.try_join_next().is_some() {}
    }
    while clients.join_next().await.is_some() {}
    if shared.statistics.is_complete() { Ended::Complete } else { Ended::NoClients }
}

/// Start time of client `n`, from 0: the first at once.
fn since_start(start: Start, n: u64) -> Duration {
    let nanos = match start {
        Start::Every(interval) => interval.as_nanos().saturating_mul(n.into()),
        Start::PerSecond(rate) => (u128::from(n) * 1_000_000_000).checked_div(rate.into()).unwrap_or(0),
    };
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
