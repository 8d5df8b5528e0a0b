use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::account::Account;
use super::alt_svc::AltSvcCache;
use super::client;
use super::load::{Extent, HttpLoad, share};
use super::progress::Progress;
use super::tally::Tally;
use super::worker::Worker;

/// Runs the clients of thread `index` on a runtime of its own, until they are done, the time is over, or `stop` is
/// true.
///
/// # Errors
/// There is no runtime.
pub(super) fn run(
    load: Arc<HttpLoad>,
    alt_svc: Option<Arc<AltSvcCache>>,
    index: u32,
    progress: Progress,
    stop: watch::Receiver<bool>,
) -> io::Result<Tally> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worker = Rc::new(Worker::new(load, alt_svc, index, progress));
    LocalSet::new().block_on(&runtime, work(&worker, stop));
    Ok(worker.take_tally())
}

async fn work(worker: &Rc<Worker>, mut stop: watch::Receiver<bool>) {
    let (mut accounts, mut clients) = (Vec::new(), JoinSet::new());
    let begun = Cell::new(Instant::now());
    tokio::select! {
        biased;
        // A sender that is gone has nothing to wait for either.
        _ = stop.wait_for(|stop| *stop) => {}
        () = timeline(worker, &begun) => {}
        () = start(worker, &mut accounts, &mut clients) => {}
    }
    let now = Instant::now();
    clients.shutdown().await;
    let mut tally = worker.tally();
    tally.main = now.saturating_duration_since(begun.get());
    tally.clients = accounts.iter().map(|account| account.sample(begun.get(), now)).collect();
}

/// Starts the clients at their pace, and waits for all.
async fn start(worker: &Rc<Worker>, accounts: &mut Vec<Rc<Account>>, tasks: &mut JoinSet<()>) {
    let (load, index) = (worker.load(), worker.index());
    let of_thread = |total| share(total, load.threads, index);
    let clients = of_thread(load.clients.into());
    let requests = match load.extent {
        Extent::Requests(requests) => Some(of_thread(requests)),
        Extent::Duration { .. } => None,
    };
    let pace = load.rate.map(|rate| (of_thread(rate.connections.into()), interval(rate.period)));
    let (at_once, mut ticks) = pace.map_or((u64::MAX, None), |(at_once, ticks)| (at_once, Some(ticks)));
    if let Some(ticks) = &mut ticks {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    }
    for client in 0..clients {
        if client % at_once == 0
            && let Some(ticks) = &mut ticks
        {
            ticks.tick().await;
        }
        let requests = requests.map(|requests| share_of_client(requests, clients, client));
        let account = Rc::new(Account::new(Rc::clone(worker), requests));
        accounts.push(Rc::clone(&account));
        tasks.spawn_local(client::run(account));
    }
    while tasks.join_next().await.is_some() {}
}

fn share_of_client(requests: u64, clients: u64, client: u64) -> u64 {
    requests / clients + u64::from(client < requests % clients)
}

/// Begins the measurement after the warm-up, and waits for its end; forever without one.
async fn timeline(worker: &Worker, begun: &Cell<Instant>) {
    let Extent::Duration { main, warm_up } = worker.load().extent else {
        return std::future::pending().await;
    };
    if !warm_up.is_zero() {
        sleep(warm_up).await;
        worker.begin_counting();
        begun.set(Instant::now());
    }
    sleep(main).await;
}
