//! Accept loop of a listener. Handshakes and all else that is slow run in the connection's own task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_proto::reason::ReasonCode;
use braid_transport::Listener;
use tokio::sync::watch;

use crate::admission::{ConnectionRate, RateDecision};
use crate::clock::now;
use crate::connection_guard::{self, ConnectionGuard};
use crate::core::Core;
use crate::driver;
use crate::limit::Limit;
use crate::listener_policy::ListenerPolicy;
use crate::log_throttle::LogThrottle;
use crate::view::BrokerEvent;

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

/// Accepts until `stop` turns true, then returns the listener. `index`: its position among those of the broker.
pub(crate) async fn run(
    core: Arc<Core>,
    index: u16,
    BrokerListener { mut listener, policy }: BrokerListener,
    mut stop: watch::Receiver<bool>,
) -> Listener {
    let policy = Arc::new(policy);
    let mut endpoint = listener.endpoint_health();
    let (mut failure_log, mut limit_log) = (LogThrottle::default(), LogThrottle::default());
    let mut rate = ConnectionRate::new(core.config.limits.connections_per_second, now());
    let is_proved = proves_addresses(&listener);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => {
                // Clients that are disconnected now come back at once, and would wait for nothing.
                listener.stop_accepting();
                return listener;
            }
        };
        let health = listener.endpoint_health();
        core.statistics.note_endpoint(std::mem::replace(&mut endpoint, health), health);
        if let Some(state) = core.lifecycle.listener(index)
            && state.note_health(health)
        {
            core.lifecycle.events.record(|| BrokerEvent::ListenerRestarted { listener: state.status() });
        }
        if accepted.is_ok()
            && let Some(failures) = failure_log.end()
        {
            tracing::info!(transport = %listener.transport(), failures, "connections are accepted again");
        }
        match accepted {
            Ok(incoming) => {
                let address = incoming.peer_address();
                let reached = reached_limit(&core, index, &policy);
                match admit(&core, address, reached, is_proved, rate.as_mut(), &mut limit_log) {
                    Some((guard, refusal)) => {
                        let guard = guard.accepted(index);
                        tokio::spawn(driver::serve(guard, policy.clone(), Box::new(incoming), refusal));
                    }
                    None => incoming.refuse(),
                }
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

/// Tests whether the address of an incoming connection is proved to be that of its client. On QUIC the handshake proves
/// it, behind a proxy a header tells it, and the limits of the address count the connection only then.
fn proves_addresses(listener: &Listener) -> bool {
    !listener.transport().is_quic() && !listener.has_proxy()
}

/// The limit of connections that is reached, if one is.
fn reached_limit(core: &Core, index: u16, policy: &ListenerPolicy) -> Option<Limit> {
    if core.statistics.connections() >= core.config.limits.connections as u64 {
        return Some(Limit::Connections);
    }
    let state = core.lifecycle.listener(index)?;
    policy.connections.filter(|most| state.connections() >= *most).map(|_| Limit::ListenerConnections)
}

/// Decides about a connection before its handshake: the guard that counts it, and the reason to refuse it with, if it
/// is to get a CONNACK. `None`: it is refused without a handshake.
fn admit(
    core: &Arc<Core>,
    address: Option<SocketAddr>,
    reached: Option<Limit>,
    is_proved: bool,
    rate: Option<&mut ConnectionRate>,
    limit_log: &mut LogThrottle,
) -> Option<(ConnectionGuard, Option<ReasonCode>)> {
    if let Some(limit) = reached {
        connection_guard::note_limit(core, None, None, address, limit);
        if let Some(refused) = limit_log.note(1, now()) {
            tracing::warn!(from = ?address, refused, "a limit of connections is reached");
        }
        return None;
    }
    // Before the rate of the listener: an address above its limits uses up nothing that others are accepted with.
    let mut guard = ConnectionGuard::new(core.clone());
    let answer = if is_proved {
        guard.admit(address).ok()?
    } else {
        let checked = core.access.admission.check(address, now());
        checked.map_err(|refusal| connection_guard::note_refusal(core, None, address, &refusal)).ok()?;
        None
    };
    if answer.is_some() {
        // A CONNACK costs a handshake, of which the listener does a limited number.
        let has_room = rate.is_none_or(|rate| rate.answer(now()));
        return has_room.then_some((guard, answer));
    }
    let decision = rate.map_or(RateDecision::Accept, |rate| rate.admit(now()));
    if decision != RateDecision::Accept {
        core.statistics.refuse_connection(Limit::ListenerRate);
    }
    match decision {
        RateDecision::Accept => Some((guard, None)),
        RateDecision::Answer => Some((guard, Some(ReasonCode::ConnectionRateExceeded))),
        RateDecision::Refuse => {
            tracing::debug!(from = ?address, "refused: connections come too fast");
            None
        }
    }
}
