//! A link in real time: two wires and a thread per direction.

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::clock::Clock;
use super::end::{DirectionEnd, Stopped};
use super::log::Log;
use super::path::{Order, Parts, Path, Publication};
use super::wake::Wake;
use super::{Wire, WireError};
use braid_emulator::{Direction, LinkSpec, Loss, PathCounters, PathSpec, Pipeline, Timeline};

/// Options of a running link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Writes what became of each packet there, as [`VerdictLog`](super::VerdictLog) reads it.
    pub verdicts: Option<PathBuf>,
    /// Writes the packets there, as pcapng, with what became of them as comments.
    pub pcap: Option<PathBuf>,
    /// Lets the threads run before all ordinary ones (SCHED_FIFO), if that is permitted.
    pub realtime: bool,
    /// The MTU of the devices; a larger packet marks the run.
    pub mtu: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self { verdicts: None, pcap: None, realtime: false, mtu: 1500 }
    }
}

/// A link at work, until it is stopped or dropped.
pub struct Running {
    up: Thread,
    down: Thread,
    // After the directions: it ends when they have said their last.
    log: Option<Log>,
    clock: Clock,
}

/// Starts `link` between two wires of the same kind; `seed` is for links that name none. From then on both belong to
/// it.
///
/// # Errors
/// [`WireError`] if the wires differ, a log cannot be created or the system has no thread left.
pub fn start(
    link: &LinkSpec,
    seed: u64,
    left: Box<dyn Wire>,
    right: Box<dyn Wire>,
    options: &Options,
) -> Result<Running, WireError> {
    let head = left.link_header();
    if head != right.link_header() {
        let (left, right) = (left.kind(), right.kind());
        let remedy = "use the same kind of wire at both ends";
        return Err(WireError(format!("a link from {left} to {right} cannot be: {remedy}")));
    }
    let clock = Clock::start();
    let log = Log::start(options.verdicts.as_deref(), options.pcap.as_deref(), link, seed, head, clock)?;
    let (left, right): (Arc<dyn Wire>, Arc<dyn Wire>) = (left.into(), right.into());
    let (up, down) = Pipeline::pair(link, seed);
    let thread = |direction, pipeline: Pipeline, from: &Arc<dyn Wire>, to: &Arc<dyn Wire>| {
        Thread::start(|wake, orders, publication| Parts {
            direction,
            pipeline: pipeline.with_link_header(head),
            from: Arc::clone(from),
            to: Arc::clone(to),
            clock,
            wake,
            orders,
            publication,
            log: log.as_ref().map(|log| log.direction(direction)),
            realtime: options.realtime,
            mtu: options.mtu,
            expected_loss: expected_loss(link.timeline(direction)),
        })
    };
    let up = thread(Direction::Up, up, &left, &right)?;
    let down = thread(Direction::Down, down, &right, &left)?;
    Ok(Running { up, down, log, clock })
}

impl Running {
    /// Counters of both directions, up first, at most 20 ms old. Cheap enough for several samples a second.
    pub fn counters(&self) -> [PathCounters; 2] {
        // Poisoned or not: the holders only copy.
        [&self.up, &self.down]
            .map(|thread| *thread.publication.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The time since the start, which verdicts and changes are given in.
    pub fn elapsed(&self) -> Duration {
        self.clock.now()
    }

    /// Lets `path` hold for `direction` from now on, in place of what its timeline says; later changes of the timeline
    /// still come. The NAT stays what it is.
    pub fn change(&self, direction: Direction, path: PathSpec) {
        let thread = match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        };
        thread.order(Order::Change(Box::new(path)));
    }

    /// Stops both directions at once; packets inside are gone. Returns when the logs are written.
    pub fn stop(mut self) -> Stopped {
        self.up.order(Order::Stop);
        let (down, up) = (self.down.finish(), self.up.finish());
        Stopped { up, down, log_error: self.log.take().and_then(Log::finish) }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("elapsed", &self.elapsed()).finish_non_exhaustive()
    }
}

/// The share that independent loss takes, if it is the same all the time and nothing else makes losses more or fewer.
fn expected_loss(timeline: &Timeline) -> Option<f64> {
    let share = |path: &PathSpec| match (&path.loss, path.duplicate) {
        (Some(Loss::Independent(share)), None) => Some(share.as_f64()),
        (None, _) => Some(0.0),
        _ => None,
    };
    let first = share(&timeline.start)?;
    timeline.changes.iter().all(|change| share(&change.path) == Some(first)).then_some(first)
}

// === impl Thread ===

/// The thread of a direction, seen from outside. It ends with this.
struct Thread {
    handle: Option<JoinHandle<DirectionEnd>>,
    orders: Sender<Order>,
    wake: Arc<Wake>,
    publication: Publication,
}

impl Thread {
    fn start(
        parts: impl FnOnce(Arc<Wake>, Receiver<Order>, Publication) -> Parts,
    ) -> Result<Self, WireError> {
        let (orders, received) = channel();
        let wake = Arc::new(Wake::new().map_err(WireError::start)?);
        let publication = Publication::default();
        let parts = parts(Arc::clone(&wake), received, Arc::clone(&publication));
        let handle = thread::Builder::new()
            .name(format!("lab-{}", parts.direction))
            .spawn(move || Path::new(parts).run())
            .map_err(WireError::start)?;
        Ok(Self { handle: Some(handle), orders, wake, publication })
    }

    fn order(&self, order: Order) {
        // Fails only after the end of the direction.
        let _ = self.orders.send(order);
        self.wake.notify();
    }

    /// Ends the thread.
    fn finish(&mut self) -> DirectionEnd {
        self.order(Order::Stop);
        let died = || DirectionEnd {
            first_error: Some("the thread of this direction has died".to_owned()),
            ..DirectionEnd::default()
        };
        self.handle.take().and_then(|handle| handle.join().ok()).unwrap_or_else(died)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.handle.is_some() {
            self.finish();
        }
    }
}
