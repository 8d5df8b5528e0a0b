//! Accepting connections: cheap here, everything slow in the connection's own task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::reason::ReasonCode;
use braid_transport::Listener;
use tokio::sync::watch;

use crate::core::Core;
use crate::driver;
use crate::token_bucket::TokenBucket;

/// The pause after the process ran short of something that every accept needs, such as descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Accepts until `stop` turns true, then gives the listener back.
pub(crate) async fn run(
    core: Arc<Core>,
    mut listener: Listener,
    mut stop: watch::Receiver<bool>,
) -> Listener {
    let mut gate = Gate::new(core.config.limits.connections_per_second);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return listener,
        };
        match accepted {
            Ok(incoming) if core.statistics.connections() >= core.config.limits.connections as u64 => {
                core.statistics.refused(1);
                tracing::warn!(from = ?incoming.peer_address(), "refused: the limit of connections is reached");
                incoming.refuse();
            }
            Ok(incoming) => {
                let refusal = match gate.pass(now()) {
                    Pass::Accepted => None,
                    Pass::Told => Some(ReasonCode::ConnectionRateExceeded),
                    Pass::Refused => {
                        core.statistics.refused(1);
                        tracing::debug!(from = ?incoming.peer_address(), "refused: connections come too fast");
                        incoming.refuse();
                        continue;
                    }
                };
                core.statistics.refused(u64::from(refusal.is_some()));
                let guard = Counted::new(core.clone());
                tokio::spawn(async move {
                    driver::serve(guard.core.clone(), incoming, refusal).await;
                    drop(guard);
                });
            }
            Err(error) => {
                tracing::warn!(transport = %listener.transport(), %error, "accept failed, pausing");
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
}

/// How fast connections of one listener may come.
struct Gate(Option<Rates>);

/// Beside those that are accepted as many are told why they are not, which costs a handshake each. Any more are turned
/// away without one.
struct Rates {
    accepted: TokenBucket,
    told: TokenBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Accepted,
    /// CONNACK says that they come too fast.
    Told,
    Refused,
}

impl Gate {
    /// `per_second`: 0 lets all pass.
    fn new(per_second: u64) -> Self {
        let bucket = || TokenBucket::new(per_second, now());
        Self(bucket().zip(bucket()).map(|(accepted, told)| Rates { accepted, told }))
    }

    fn pass(&mut self, now: Instant) -> Pass {
        let Some(Rates { accepted, told }) = &mut self.0 else { return Pass::Accepted };
        for (bucket, pass) in [(accepted, Pass::Accepted), (told, Pass::Told)] {
            if bucket.try_take(1, now) {
                return pass;
            }
        }
        Pass::Refused
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Counts a connection for as long as its task lives, however that ends.
struct Counted {
    core: Arc<Core>,
}

impl Counted {
    fn new(core: Arc<Core>) -> Self {
        core.statistics.connection_opened();
        Self { core }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.core.statistics.connection_closed();
        self.core.connection_ended.notify_one();
    }
}
