//! Clients of the cluster, on a thread of their own, which write down what they do and see.

mod client;
mod message;
mod roles;
mod session;
mod tally;
mod wire;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use braid_proto::reason::ReasonCode;
use braid_torture::means_illegal_packet;
use tokio::runtime;
use tokio::sync::watch;
use tokio::task::LocalSet;

pub(crate) use tally::{RoundCounts, Tally};

/// Instructions for all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Connect and subscribe.
    Gather,
    /// Publish, leave, return.
    Load,
    /// Publish nothing new, return and stay.
    Settle,
    /// Read what is retained, at each node.
    Look,
    /// End.
    Over,
}

/// Handle of the clients; dropping it ends them.
pub(crate) struct Clients {
    /// Names of the nodes.
    nodes: Vec<String>,
    phase: watch::Sender<Phase>,
    tally: Arc<Mutex<Tally>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Clients {
    /// Starts the clients of these nodes, with their histories in `dir`.
    ///
    /// # Errors
    /// No thread, no runtime or no history.
    pub(crate) fn start(nodes: Vec<(String, SocketAddr)>, dir: &Path, seed: u64) -> Result<Self, String> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no runtime for the clients: {error}"))?;
        let (phase, phases) = watch::channel(Phase::Gather);
        let tally = Arc::new(Mutex::new(Tally::new(Instant::now())));
        let (shared, dir) = (Arc::clone(&tally), dir.to_owned());
        let names = nodes.iter().map(|(name, _)| name.clone()).collect();
        let run = move || {
            let world = World {
                nodes,
                phase: phases.clone(),
                tally: shared,
                random: RefCell::new(fastrand::Rng::with_seed(seed)),
                connections: Cell::new(0),
                dir,
            };
            LocalSet::new().block_on(&runtime, run(Rc::new(world), phases));
        };
        let thread = thread::Builder::new().name("clients".to_owned()).spawn(run);
        let thread = thread.map_err(|error| format!("no thread for the clients: {error}"))?;
        Ok(Self { nodes: names, phase, tally, thread: Some(thread) })
    }

    pub(crate) fn tell(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Adds a client for each node that reads what is retained there.
    ///
    /// # Errors
    /// The clients have ended.
    pub(crate) fn look(&self) -> Result<(), String> {
        let mut tally = self.tally()?;
        self.nodes.iter().for_each(|node| tally.add_client(&roles::looker(node)));
        self.tell(Phase::Look);
        Ok(())
    }

    /// Counts of the clients.
    ///
    /// # Errors
    /// The clients have ended.
    pub(crate) fn tally(&self) -> Result<MutexGuard<'_, Tally>, String> {
        if self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished) {
            return Err("the clients have ended".to_owned());
        }
        Ok(self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Over);
        if let Some(thread) = self.thread.take() {
            // A panic was reported by its thread.
            let _ = thread.join();
        }
    }
}

async fn run(world: Rc<World>, mut phases: watch::Receiver<Phase>) {
    if let Err(reason) = roles::populate(&world) {
        return world.tally().fault(reason);
    }
    // The sender lives as long as the handle.
    let _ = phases.wait_for(|phase| *phase == Phase::Over).await;
}

/// State shared by all clients.
pub(crate) struct World {
    /// Names and addresses of the brokers.
    nodes: Vec<(String, SocketAddr)>,
    phase: watch::Receiver<Phase>,
    tally: Arc<Mutex<Tally>>,
    random: RefCell<fastrand::Rng>,
    /// Number of connections so far.
    connections: Cell<u64>,
    /// Folder of the run.
    dir: PathBuf,
}

impl World {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an illegal packet. A connection that was cut in the middle of a packet is merely lost.
    fn note_error(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::InvalidData {
            self.tally().fault(format!("a server sent an illegal packet: {error}"));
        }
    }

    /// Records a reason by which a server says that a packet was illegal.
    fn note_reason(&self, reason: ReasonCode) {
        if means_illegal_packet(reason) {
            self.tally().fault(format!("a server took a packet for illegal: {reason}"));
        }
    }

    fn name(&self, node: usize) -> &str {
        &self.nodes[node].0
    }

    fn address(&self, node: usize) -> SocketAddr {
        self.nodes[node].1
    }

    /// A random node but `not`, if there are others.
    fn node_except(&self, not: Option<usize>) -> usize {
        let others = |node: &usize| Some(*node) != not || self.nodes.len() == 1;
        let nodes: Vec<_> = (0..self.nodes.len()).filter(others).collect();
        nodes[self.draw(nodes.len())]
    }

    fn next_connection(&self) -> u64 {
        self.connections.set(self.connections.get() + 1);
        self.connections.get()
    }

    /// Random number below `end`.
    fn draw(&self, end: usize) -> usize {
        self.random.borrow_mut().usize(..end)
    }

    /// Random time below `end`.
    fn draw_time(&self, end: Duration) -> Duration {
        end.mul_f64(self.random.borrow_mut().f64())
    }

    fn is_loading(&self) -> bool {
        *self.phase.borrow() == Phase::Load
    }

    /// Waits for a phase.
    async fn wait_for(&self, wanted: Phase) {
        // The sender lives as long as the clients.
        let _ = self.phase.clone().wait_for(|phase| *phase == wanted).await;
    }

    /// Waits for a random time below `end`, and then for a load.
    async fn pause(&self, end: Duration) {
        tokio::time::sleep(self.draw_time(end)).await;
        self.wait_for(Phase::Load).await;
    }

    /// Waits for a random time below `end`, or for the end of the load.
    async fn pause_loading(&self, end: Duration) {
        tokio::select! {
            () = tokio::time::sleep(self.draw_time(end)) => {}
            () = self.wait_for(Phase::Settle) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn illegal_packets_are_faults_and_lost_connections_are_not() {
        let (_sender, phase) = watch::channel(Phase::Gather);
        let world = World {
            nodes: Vec::new(),
            phase,
            tally: Arc::new(Mutex::new(Tally::new(Instant::now()))),
            random: RefCell::new(fastrand::Rng::with_seed(1)),
            connections: Cell::new(0),
            dir: PathBuf::new(),
        };
        world.note_error(&io::ErrorKind::UnexpectedEof.into());
        world.note_error(&io::ErrorKind::ConnectionReset.into());
        [ReasonCode::Success, ReasonCode::ServerShuttingDown]
            .iter()
            .for_each(|reason| world.note_reason(*reason));
        assert_eq!(world.tally().faults, [""; 0]);
        world.note_error(&wire::illegal(&"a reserved type"));
        world.note_reason(ReasonCode::MalformedPacket);
        world.note_reason(ReasonCode::ProtocolError);
        assert_eq!(world.tally().faults.len(), 3);
    }
}
