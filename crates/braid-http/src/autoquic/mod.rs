//! Automatic upgrade to HTTP/3 and downgrade from it, by the measurements of all connections of a client network.
//!
//! [`AutoQuic`] is the [`Upgrade`] of a front that serves HTTP/3. It gives the measurements of each connection to one
//! [`Selector`], advertises HTTP/3 where QUIC is chosen, and withdraws that where TCP is chosen again, with GOAWAY on
//! HTTP/3 connections that began before. Nothing runs while no request is answered.

mod meter;
mod observer;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use braid_select::{AltSvc, Config, Decision, Explanation, Key, Mode, Network, Protocol, Reason, Selector};
use lru::LruCache;
use tokio::sync::broadcast;
use tokio::time::Instant;

use self::observer::ConnectionObserver;
use crate::upgrade::{Link, NoUpgrade, Observer, Upgrade};

/// Clients whose latest answer over TCP is remembered.
const CLIENTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16_383);

/// Age from which on an answer over TCP says nothing about the client any more.
const ANSWER_AGE: Duration = Duration::from_secs(10);

/// Decisions that wait for a reader of events.
const EVENTS: usize = 256;

/// Policy of the automatic upgrade. Cheap to clone.
#[derive(Clone)]
pub struct AutoQuic(Arc<Shared>);

struct Shared {
    mode: Mode,
    port: Option<u16>,
    /// Epoch of the selector's times, on both clocks.
    began: (Instant, SystemTime),
    state: Mutex<State>,
    decided: broadcast::Sender<Arc<Change>>,
}

struct State {
    selector: Selector,
    /// Latest answer of clients over TCP.
    answered: LruCache<IpAddr, Duration>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

/// Decision, at a time in seconds since the Unix epoch.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) at: f64,
    pub(crate) decision: Decision,
}

/// Advertisement that is in force for a key.
struct Standing {
    alt_svc: AltSvc,
    chosen: Protocol,
    /// Latest change of the protocol.
    changed: Option<Duration>,
}

impl AutoQuic {
    /// Policy that knows nothing yet. `port`: UDP port that clients reach HTTP/3 on, if it is not that of the listener.
    /// `seed`: random number for the jitter of back-offs.
    #[must_use]
    pub fn new(mode: Mode, port: Option<u16>, seed: u64) -> Self {
        Self(Arc::new(Shared {
            mode,
            port,
            began: (Instant::now(), SystemTime::now()),
            state: Mutex::new(State {
                selector: Selector::new(&Config::new(mode, Protocol::Tcp, seed)),
                answered: LruCache::sparse(CLIENTS),
                // From zero, so that rates begin with the first change.
                counts: Reason::NAMES.iter().map(|(to, reason)| ((name(*to), *reason), 0)).collect(),
            }),
            decided: broadcast::Sender::new(EVENTS),
        }))
    }

    /// Way of deciding.
    pub(crate) fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Networks that are known, on each listener.
    pub(crate) fn len(&self) -> usize {
        self.with(|state, _| state.selector.len())
    }

    /// Latest changes, newest first.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.with(|state, _| {
            let decisions: Vec<_> = state.selector.decisions().cloned().collect();
            decisions.into_iter().rev().map(|decision| self.change(decision)).collect()
        })
    }

    /// Changes from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<Change>> {
        self.0.decided.subscribe()
    }

    /// Number of changes by new protocol and reason.
    pub(crate) fn counts(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.with(|state, _| state.counts.clone())
    }

    /// Networks of which something is known, each with a listener, the latest used first.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.with(|state, now| state.selector.keys(now).cloned().collect())
    }

    /// Numbers about networks, without those of which nothing is known.
    pub(crate) fn explain<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) -> Vec<Explanation> {
        self.with(|state, now| keys.into_iter().filter_map(|key| state.selector.explain(now, key)).collect())
    }

    /// Numbers about the network of an address, one for each listener, the latest used first.
    pub(crate) fn explain_address(&self, address: IpAddr) -> Vec<Explanation> {
        let network = Network::from(address);
        self.explain(self.keys().iter().filter(|key| key.network == network))
    }

    /// Time since the epoch of the selector.
    fn now(&self) -> Duration {
        self.0.began.0.elapsed()
    }

    fn with<R>(&self, call: impl FnOnce(&mut State, Duration) -> R) -> R {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut state, self.now())
    }

    fn change(&self, decision: Decision) -> Change {
        let at = self.0.began.1.checked_add(decision.when).unwrap_or(SystemTime::UNIX_EPOCH);
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Change { at: at.as_secs_f64(), decision }
    }

    /// Gives something to the selector, and makes its decision known.
    fn update(&self, call: impl FnOnce(&mut Selector, Duration) -> Option<Decision>) {
        let decision = self.with(|state, now| {
            let decision = call(&mut state.selector, now)?;
            *state.counts.entry((name(decision.to), decision.reason.name())).or_default() += 1;
            Some(decision)
        });
        if let Some(decision) = decision {
            tracing::info!(%decision, "autoquic");
            // An error: there is no reader.
            let _ = self.0.decided.send(Arc::new(self.change(decision)));
        }
    }

    /// Notes that a client has acknowledged something over TCP.
    fn answered(&self, client: IpAddr) {
        self.with(|state, now| state.answered.put(client, now));
    }

    /// Tests whether a client has acknowledged something over TCP lately.
    fn answers(&self, client: IpAddr) -> bool {
        self.with(|state, now| {
            state.answered.peek(&client).is_some_and(|answered| now.saturating_sub(*answered) <= ANSWER_AGE)
        })
    }

    fn standing(&self, key: &Key) -> Standing {
        self.with(|state, now| Standing {
            alt_svc: state.selector.alt_svc(now, key),
            chosen: state.selector.chosen(now, key),
            changed: state.selector.changed(now, key),
        })
    }
}

/// Name of a protocol in labels and JSON.
pub(crate) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Quic => "quic",
    }
}

impl Upgrade for AutoQuic {
    fn connected(&self, link: Link) -> Box<dyn Observer> {
        // A client must not take the advice of a connection that others on the path could have changed. [RFC 7838, 2.1]
        if link.is_encrypted { Box::new(ConnectionObserver::new(self, link)) } else { Box::new(NoUpgrade) }
    }
}

impl std::fmt::Debug for AutoQuic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AutoQuic").field("mode", &self.0.mode).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use braid_select::{Failure, QuicMeter, QuicReading};

    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));

    /// Moves a key to TCP by a failure, after `always` has moved it to QUIC.
    fn failed(policy: &AutoQuic, key: &Key) {
        policy.update(|selector, now| selector.quic_failed(now, key, Failure::BlackHole));
    }

    #[test]
    fn changes_are_counted_kept_and_sent_to_readers() {
        let policy = AutoQuic::new(Mode::AutoquicCompat, None, 1);
        let key = Key::new(CLIENT, "198.51.100.1:18083".into());
        let mut events = policy.subscribe();
        // The rule of autoquic: a retransmission upgrades.
        policy.update(|selector, now| {
            let reading =
                braid_select::TcpReading { total_retrans: 1, snd_ssthresh: 10, ..Default::default() };
            selector.observe_tcp(now, &key, &mut braid_select::TcpMeter::default(), &reading)
        });
        // Again: nothing changes.
        policy.update(|selector, now| {
            let reading = QuicReading { sent: 1000, ..QuicReading::default() };
            selector.observe_quic(now, &key, &mut QuicMeter::default(), &reading)
        });
        let change = events.try_recv().unwrap();
        assert_eq!((change.decision.to, change.decision.key.clone()), (Protocol::Quic, key.clone()));
        assert!(events.try_recv().is_err());
        let counts = policy.counts();
        assert_eq!(counts.len(), Reason::NAMES.len());
        assert!(counts.iter().all(|(label, count)| *count == u64::from(*label == ("quic", "compat_loss"))));
        assert_eq!((policy.changes().len(), policy.len()), (1, 1));
        let standing = policy.standing(&key);
        assert_eq!(standing.chosen, Protocol::Quic);
        assert!(matches!(standing.alt_svc, AltSvc::Advertise { .. }) && standing.changed.is_some());
        assert_eq!(policy.keys(), [key]);
        for (address, known) in [([192, 0, 2, 200], 1), ([192, 0, 3, 7], 0)] {
            assert_eq!(policy.explain_address(address.into()).len(), known, "{address:?}");
        }
    }

    #[test]
    fn a_failure_without_an_offer_changes_nothing() {
        let policy = AutoQuic::new(Mode::Auto, None, 1);
        let key = Key::new(CLIENT, "198.51.100.1:18083".into());
        failed(&policy, &key);
        assert!(policy.changes().is_empty() && policy.counts().values().all(|count| *count == 0));
        assert_eq!(policy.standing(&key).alt_svc, AltSvc::None);
    }
}
