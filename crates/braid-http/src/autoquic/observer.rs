//! Observer of one connection.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::HeaderValue;
use braid_select::{AltSvc, Key, Network, Protocol};
use braid_transport::http::{PathStats, TcpMetrics};

use super::meter::{Completion, QuicConnection, TcpConnection};
use super::{AutoQuic, Standing};
use crate::upgrade::{Advice, Link, Observer, PathSample, Sent};

/// Time between two samples of a connection, for which its advice stays the same.
const INTERVAL: Duration = Duration::from_secs(1);

/// Gives the measurements of a connection to the policy, and remembers its advice.
pub(super) struct ConnectionObserver {
    policy: AutoQuic,
    link: Link,
    port: u16,
    opened: Duration,
    state: Mutex<State>,
}

struct State {
    /// Network of the client, and the listener: the path to it is that of all hosts.
    key: Key,
    connection: Connection,
    advice: Advice,
    due: Duration,
}

enum Connection {
    Tcp(TcpConnection),
    Quic(QuicConnection),
}

impl ConnectionObserver {
    pub(super) fn new(policy: &AutoQuic, link: Link) -> Self {
        let (port, opened) = (policy.0.port.unwrap_or(link.listener.port()), policy.now());
        let key = Key::new(link.client.ip(), link.listener.to_string().into());
        let connection = match link.is_quic() {
            true => {
                policy.update(|selector, now| selector.quic_works(now, &key));
                Connection::Quic(QuicConnection::default())
            }
            false => Connection::Tcp(TcpConnection::default()),
        };
        let state = State { key, connection, advice: Advice::default(), due: opened };
        Self { policy: policy.clone(), link, port, opened, state: Mutex::new(state) }
    }

    fn with<R>(&self, call: impl FnOnce(&mut State) -> R) -> R {
        call(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives a sample to the policy.
    fn sample(&self, now: Duration, state: &mut State) {
        state.due = now + INTERVAL;
        let State { key, connection, .. } = state;
        match (connection, self.link.sample()) {
            (Connection::Tcp(tcp), Some(PathSample::Tcp(metrics))) => self.sample_tcp(key, tcp, &metrics),
            (Connection::Quic(quic), Some(PathSample::Quic(stats))) => {
                self.sample_quic(now, key, quic, &stats);
            }
            _ => {}
        }
        state.advice = self.policy.standing(&state.key).advice(self.link.is_quic(), self.opened, self.port);
    }

    fn sample_tcp(&self, key: &Key, tcp: &mut TcpConnection, metrics: &TcpMetrics) {
        if metrics.acknowledged_bytes > tcp.acknowledged() {
            self.policy.answered(self.link.client.ip());
        }
        let (reading, completion) = tcp.sample(metrics);
        self.policy.update(|selector, now| selector.observe_tcp(now, key, &mut tcp.meter, &reading));
        self.complete(key, completion);
    }

    fn sample_quic(&self, now: Duration, key: &mut Key, quic: &mut QuicConnection, stats: &PathStats) {
        let client = stats.remote.unwrap_or(self.link.client).ip();
        if Network::from(client) != key.network {
            *key = Key::new(client, Arc::clone(&key.origin));
            quic.moved();
        }
        let mut reading = quic.sample(now, stats);
        if !self.policy.answers(client) {
            // The client itself may be gone.
            reading.pto_count = 0;
        }
        self.policy.update(|selector, now| selector.observe_quic(now, key, &mut quic.meter, &reading));
    }

    fn complete(&self, key: &Key, completion: Option<Completion>) {
        if let Some(Completion { bytes, elapsed }) = completion {
            let over = if self.link.is_quic() { Protocol::Quic } else { Protocol::Tcp };
            self.policy.update(|selector, now| selector.observe_response(now, key, over, bytes, elapsed));
        }
    }
}

impl Standing {
    /// Advice for a connection that was opened at a time.
    fn advice(&self, is_quic: bool, opened: Duration, port: u16) -> Advice {
        let alt_svc = match self.alt_svc {
            AltSvc::None => None,
            AltSvc::Clear => Some(HeaderValue::from_static("clear")),
            AltSvc::Advertise { max_age } => {
                let value = format!("h3=\":{port}\"; ma={}", max_age.as_secs());
                HeaderValue::try_from(value).ok()
            }
        };
        // One that began after the change is the client's own choice.
        let goaway =
            is_quic && self.chosen == Protocol::Tcp && self.changed.is_some_and(|changed| changed >= opened);
        Advice { alt_svc, goaway }
    }
}

impl Observer for ConnectionObserver {
    fn advise(&self) -> Advice {
        let now = self.policy.now();
        self.with(|state| {
            let is_due = now >= state.due;
            if is_due {
                self.sample(now, state);
            }
            match &mut state.connection {
                Connection::Tcp(tcp) => tcp.responds(now),
                Connection::Quic(quic) => {
                    if quic.responds(now, is_due) {
                        self.link.wait_for_acknowledgements(true);
                    }
                }
            }
            state.advice.clone()
        })
    }

    fn sent(&self, response: Option<Sent>) {
        let now = self.policy.now();
        self.with(|State { key, connection, .. }| {
            let Connection::Quic(quic) = connection else { return };
            let (completion, is_timed) = quic.sent(now, response);
            if !is_timed {
                self.link.wait_for_acknowledgements(false);
            }
            self.complete(key, completion);
        });
    }

    fn tick(&self) {
        let now = self.policy.now();
        self.with(|state| {
            if now >= state.due {
                self.sample(now, state);
            }
        });
    }

    fn ended(&self) {
        let now = self.policy.now();
        self.with(|state| self.sample(now, state));
    }
}

#[cfg(test)]
mod tests {
    use braid_select::Mode;

    use super::*;
    use crate::upgrade::{Probe, Upgrade};

    #[test]
    fn advice_names_the_port_and_ends_older_connections() {
        let secs = Duration::from_secs;
        let advertise = AltSvc::Advertise { max_age: Duration::from_millis(600_500) };
        // State, opened and transport of the connection; header, end.
        for (alt_svc, chosen, changed, opened, is_quic, header, goaway) in [
            (AltSvc::None, Protocol::Tcp, None, 5, false, None, false),
            (AltSvc::None, Protocol::Tcp, None, 5, true, None, false),
            (advertise, Protocol::Quic, Some(3), 1, false, Some("h3=\":443\"; ma=600"), false),
            (advertise, Protocol::Quic, Some(3), 1, true, Some("h3=\":443\"; ma=600"), false),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 1, true, Some("clear"), true),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 1, false, Some("clear"), false),
            (AltSvc::Clear, Protocol::Tcp, Some(9), 10, true, Some("clear"), false),
        ] {
            let standing = Standing { alt_svc, chosen, changed: changed.map(secs) };
            let advice = standing.advice(is_quic, secs(opened), 443);
            let alt_svc = header.map(HeaderValue::from_static);
            assert_eq!(advice, Advice { alt_svc, goaway }, "{chosen} {changed:?} {opened} {is_quic}");
        }
    }

    /// Measurements that the test writes.
    #[derive(Debug)]
    struct ScriptedProbe(Arc<Mutex<PathSample>>);

    impl Probe for ScriptedProbe {
        fn sample(&self) -> Option<PathSample> {
            Some(*self.0.lock().unwrap())
        }

        fn is_quic(&self) -> bool {
            matches!(*self.0.lock().unwrap(), PathSample::Quic(_))
        }
    }

    /// Connection of a client whose measurements the test writes.
    struct Scripted {
        sample: Arc<Mutex<PathSample>>,
        observer: Box<dyn Observer>,
    }

    const CLIENT: &str = "192.0.2.7:1000";

    impl Scripted {
        fn open(policy: &AutoQuic, sample: PathSample) -> Self {
            let sample = Arc::new(Mutex::new(sample));
            let observer = policy.connected(Link {
                client: CLIENT.parse().unwrap(),
                listener: "198.51.100.1:18083".parse().unwrap(),
                is_encrypted: true,
                probe: Arc::new(ScriptedProbe(Arc::clone(&sample))),
            });
            Self { sample, observer }
        }

        fn tcp(policy: &AutoQuic) -> Self {
            Self::open(
                policy,
                PathSample::Tcp(TcpMetrics {
                    srtt: ms(40),
                    rttvar: ms(2),
                    min_rtt: ms(40),
                    ..TcpMetrics::default()
                }),
            )
        }

        fn quic(policy: &AutoQuic) -> Self {
            Self::open(policy, PathSample::Quic(PathStats { srtt: ms(40), ..PathStats::default() }))
        }

        /// A second in which 100 packets are sent, of which some are lost and the others answered.
        fn second(&self, lost: u32, is_answered: bool) -> Option<String> {
            match &mut *self.sample.lock().unwrap() {
                PathSample::Tcp(tcp) => {
                    tcp.data_segments_sent += 100;
                    tcp.total_retrans += lost;
                    tcp.delivered += 100;
                    tcp.acknowledged_bytes += 100_000;
                    tcp.busy += ms(200);
                }
                PathSample::Quic(quic) => {
                    quic.sent_packets += 100;
                    quic.lost_packets += u64::from(lost);
                    quic.received_datagrams += if is_answered { 50 } else { 0 };
                }
            }
            self.observer.tick();
            let advice = self.observer.advise();
            self.observer.sent(Some(Sent { bytes: 1000, paused: Duration::ZERO }));
            let header = advice.alt_svc.map(|value| value.to_str().unwrap().to_owned());
            if advice.goaway { header.map(|header| header + " goaway") } else { header }
        }

        fn move_to(&self, address: &str) {
            let PathSample::Quic(stats) = &mut *self.sample.lock().unwrap() else {
                panic!("TCP cannot move")
            };
            stats.remote = Some(address.parse().unwrap());
        }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Seconds until a connection gets this advice.
    async fn seconds_until(connection: &Scripted, lost: u32, expected: Option<&str>) -> u32 {
        for second in 0..300 {
            tokio::time::advance(INTERVAL).await;
            if connection.second(lost, true).as_deref() == expected {
                return second;
            }
        }
        panic!("no {expected:?} in 300 s")
    }

    const OFFER: Option<&str> = Some("h3=\":18083\"; ma=600");

    #[tokio::test(start_paused = true)]
    async fn losses_upgrade_and_worse_ones_on_quic_end_it() {
        let policy = AutoQuic::new(Mode::Auto, None, 1);
        let tcp = Scripted::tcp(&policy);
        assert_eq!(tcp.second(0, true), None);
        assert!((1..20).contains(&seconds_until(&tcp, 5, OFFER).await));
        let quic = Scripted::quic(&policy);
        assert_eq!(quic.second(0, true).as_deref(), OFFER);
        for _ in 0..30 {
            tokio::time::advance(INTERVAL).await;
            assert_eq!((tcp.second(1, true).as_deref(), quic.second(1, true).as_deref()), (OFFER, OFFER));
        }
        // A policer of UDP.
        let mut seconds = 0;
        while quic.second(60, true).as_deref() != Some("clear goaway") {
            tokio::time::advance(INTERVAL).await;
            tcp.second(0, true);
            seconds += 1;
            assert!(seconds < 300);
        }
        tokio::time::advance(INTERVAL).await;
        assert_eq!(tcp.second(0, true).as_deref(), Some("clear"));
        // A client that uses QUIC all the same.
        assert_eq!(Scripted::quic(&policy).second(0, true).as_deref(), Some("clear"));
        let reasons: Vec<_> = policy.changes().iter().map(|change| change.decision.reason.name()).collect();
        assert_eq!(reasons, ["quic_costs_more", "quic_costs_less"]);
    }

    /// Seconds of silence on QUIC until it is withdrawn, while a client of the network is answered over TCP.
    async fn silence(tcp_client: &str) -> Option<u32> {
        let policy = AutoQuic::new(Mode::Auto, None, 1);
        let tcp = Scripted::tcp(&policy);
        seconds_until(&tcp, 5, OFFER).await;
        let quic = Scripted::quic(&policy);
        quic.second(0, true);
        // Long enough for an answer over QUIC to be too old.
        for _ in 0..30 {
            tokio::time::advance(INTERVAL).await;
            tcp.second(5, true);
            quic.second(0, true);
        }
        quic.move_to(tcp_client);
        for second in 0..20 {
            tokio::time::advance(INTERVAL).await;
            tcp.second(5, true);
            if quic.second(0, false).as_deref() == Some("clear goaway") {
                return Some(second);
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn silence_on_quic_counts_if_the_same_client_answers_over_tcp() {
        assert!(silence(CLIENT).await.is_some_and(|second| second >= 2));
        // Another one of the network: this client may be gone.
        assert_eq!(silence("192.0.2.8:1000").await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_moves_takes_its_measurements_along() {
        let policy = AutoQuic::new(Mode::Auto, None, 1);
        let quic = Scripted::quic(&policy);
        quic.second(0, true);
        quic.move_to("203.0.113.9:1000");
        tokio::time::advance(INTERVAL).await;
        quic.second(0, true);
        let known: Vec<_> = policy.keys().iter().map(|key| key.network.to_string()).collect();
        assert_eq!(known, ["203.0.113.0/24", "192.0.2.0/24"]);
    }
}
