use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
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
    let mut arrivals = Arrivals::new(plan.start);
    for n in 0..plan.count {
        let due = clock.start() + arrivals.next();
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

/// Start times of clients since the start of the run, the first at 0.
struct Arrivals {
    start: Start,
    /// Number of the next client, from 0.
    next: u64,
    /// Time of the last client of a Poisson process, seconds.
    last: f64,
    random: Rng,
}

impl Arrivals {
    fn new(start: Start) -> Self {
        Self { start, next: 0, last: 0.0, random: Rng::new() }
    }

    fn next(&mut self) -> Duration {
        let n = self.next;
        self.next += 1;
        let nanos = match self.start {
            Start::Every(interval) => interval.as_nanos().saturating_mul(n.into()),
            Start::PerSecond(rate) => (u128::from(n) * 1_000_000_000).checked_div(rate.into()).unwrap_or(0),
            Start::Poisson(rate) => {
                if n > 0 {
                    // Distances of a Poisson process are exponential; the argument is above 0.
                    self.last -= (1.0 - self.random.f64()).ln() / f64::from(rate.max(1));
                }
                return Duration::try_from_secs_f64(self.last).unwrap_or(Duration::MAX);
            }
        };
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_that_was_asked_for() {
        let of = |start| {
            let mut arrivals = Arrivals { random: Rng::with_seed(7), ..Arrivals::new(start) };
            (0..4001).map(|_| arrivals.next()).collect::<Vec<_>>()
        };
        let even = of(Start::PerSecond(100));
        assert_eq!(even[..3], [0, 10, 20].map(Duration::from_millis));
        assert_eq!(of(Start::Every(Duration::from_millis(5)))[4000], Duration::from_secs(20));
        let random = of(Start::Poisson(100));
        assert_eq!(random[0], Duration::ZERO);
        assert!((38.0..42.0).contains(&random[4000].as_secs_f64()), "{:?}", random[4000]);
        // A share of 1/e of exponential distances is longer than their mean.
        let long = random.windows(2).filter(|pair| pair[1] - pair[0] > Duration::from_millis(10)).count();
        assert!((1370..1570).contains(&long), "{long}");
    }
}
