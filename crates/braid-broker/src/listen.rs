//! Accept loop of a listener. Handshakes and all else that is slow run in the connection's own task.

use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::reason::ReasonCode;
use braid_transport::Listener;
use tokio::sync::watch;

use crate::clock::now;
use crate::core::Core;
use crate::driver;
use crate::listener_policy::ListenerPolicy;
use crate::log_throttle::LogThrottle;
use crate::statistics::Counter;
use crate::token_bucket::TokenBucket;

/// Pause after an accept failed for want of a resource of the process, such as descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Listener of a broker, with the policy for its clients.
pub struct BrokerListener {
    /// Bound listener.
    pub listener: Listener,
    /// Policy for its clients.
    pub policy: ListenerPolicy,
}

impl From<Listener> for BrokerListener {
    fn from(listener: Listener) -> Self {
        Self { listener, policy: ListenerPolicy::default() }
    }
}

/// Accepts until `stop` turns true, then returns the listener.
pub(crate) async fn run(
    core: Arc<Core>,
    BrokerListener { mut listener, policy }: BrokerListener,
    mut stop: watch::Receiver<bool>,
) -> Listener {
    let policy = Arc::new(policy);
    let mut endpoint = listener.endpoint_health();
    let mut failure_log = LogThrottle::default();
    let mut rate_limit = ConnectionRateLimit::new(core.config.limits.connections_per_second);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return listener,
        };
        let health = listener.endpoint_health();
        core.statistics.note_endpoint(std::mem::replace(&mut endpoint, health), health);
        if accepted.is_ok()
            && let Some(failures) = failure_log.end()
        {
            tracing::info!(transport = %listener.transport(), failures, "connections are accepted again");
        }
        match accepted {
            Ok(incoming) if core.statistics.connections() >= core.config.limits.connections as u64 => {
                core.statistics.add(Counter::ConnectionsRefused, 1);
                tracing::warn!(from = ?incoming.peer_address(), "refused: the limit of connections is reached");
                incoming.refuse();
            }
            Ok(incoming) => {
                let refusal = match rate_limit.admit(now()) {
                    Admission::Accepted => None,
                    Admission::Answered => Some(ReasonCode::ConnectionRateExceeded),
                    Admission::Refused => {
                        core.statistics.add(Counter::ConnectionsRefused, 1);
                        tracing::debug!(from = ?incoming.peer_address(), "refused: connections come too fast");
                        incoming.refuse();
                        continue;
                    }
                };
                core.statistics.add(Counter::ConnectionsRefused, u64::from(refusal.is_some()));
                let guard = ConnectionCount::new(core.clone());
                let (incoming, policy) = (Box::new(incoming), policy.clone());
                tokio::spawn(async move {
                    driver::serve(guard.core.clone(), policy, incoming, refusal).await;
                    drop(guard);
                });
            }
            Err(error) => {
                if let Some(failures) = failure_log.note(1, now()) {
                    let transport = listener.transport();
                    tracing::warn!(%transport, %error, failures, "connections cannot be accepted; trying again");
                }
                tokio::time::sleep(SHORTAGE_PAUSE).await;
            }
        }
    }
}

/// Rate limit of one listener's connections; `None` accepts all.
struct ConnectionRateLimit(Option<Buckets>);

/// As many connections as are accepted are refused with a CONNACK, which costs a handshake each. Any more are refused
/// without one.
struct Buckets {
    accepted: TokenBucket,
    answered: TokenBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Accepted,
    /// Refused with a CONNACK.
    Answered,
    Refused,
}

impl ConnectionRateLimit {
    /// `per_second`: 0 for no limit.
    fn new(per_second: u64) -> Self {
        let bucket = || TokenBucket::new(per_second, now());
        Self(bucket().zip(bucket()).map(|(accepted, answered)| Buckets { accepted, answered }))
    }

    fn admit(&mut self, now: Instant) -> Admission {
        let Some(Buckets { accepted, answered }) = &mut self.0 else { return Admission::Accepted };
        if accepted.try_take(1, now) {
            Admission::Accepted
        } else if answered.try_take(1, now) {
            Admission::Answered
        } else {
            Admission::Refused
        }
    }
}

/// Guard that counts a connection for as long as its task lives, however that ends.
struct ConnectionCount {
    core: Arc<Core>,
}

impl ConnectionCount {
    fn new(core: Arc<Core>) -> Self {
        core.statistics.connection_opened();
        Self { core }
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.core.statistics.connection_closed();
        self.core.lifecycle.note_connection_ended();
    }
}
