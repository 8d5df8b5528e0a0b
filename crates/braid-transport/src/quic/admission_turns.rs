//! Turns of handshakes that are being begun: the next client is admitted when one before it was answered.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Turns at a time for each thread of the runtime: one that runs, and one behind it, so that none has to wait for the
/// listener. The endpoint accepts one client at a time, within its turn; what leaves then is built at once by all.
const PER_THREAD: usize = 2;

/// Longest wait for a turn, if one is held by a client that is not shaken hands with.
const LONGEST: Duration = Duration::from_millis(100);

/// Turns of a listener. A turn takes processor time and waits for those before it alone: it is not the handshake, which
/// lasts as long as the peer pleases.
///
/// Without them all clients of a crowd are begun at once, and stand in the queue of the runtime before all that the
/// others send next, and before the messages of connections that are up.
#[derive(Clone)]
pub(super) struct AdmissionTurns(Arc<Semaphore>);

/// Turn to answer the first packet of a client, until it is dropped. `None`: none was free for too long.
pub(super) type AdmissionTurn = Option<OwnedSemaphorePermit>;

impl AdmissionTurns {
    /// Must be called inside a tokio runtime.
    pub(super) fn new() -> Self {
        let threads = Handle::current().metrics().num_workers();
        Self(Arc::new(Semaphore::new(PER_THREAD * threads)))
    }

    /// Waits for a turn. Cancel safe.
    pub(super) async fn next(&self) -> AdmissionTurn {
        if let Ok(turn) = Arc::clone(&self.0).try_acquire_owned() {
            return Some(turn);
        }
        timeout(LONGEST, Arc::clone(&self.0).acquire_owned()).await.ok()?.ok()
    }
}
