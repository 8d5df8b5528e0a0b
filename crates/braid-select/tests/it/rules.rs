//! Rules of the selector: failures, modes, memory, advertisements, and the first protocol of a client.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::time::Duration;

use braid_select::{
    AltSvc, Config, Decision, Failure, First, Key, Mode, Network, Protocol, QuicMeter, QuicReading, Reason,
    Remembered, Selector, TcpMeter, TcpReading,
};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

fn key(network: u32) -> Key {
    Key::new(IpAddr::V4(Ipv4Addr::from_bits(network << 8)), "https://example.org".into())
}

/// Selector with one TCP and one QUIC connection of one network.
struct Testbed {
    selector: Selector,
    key: Key,
    tcp: (TcpMeter, TcpReading),
    quic: (QuicMeter, QuicReading),
}

impl Testbed {
    fn new(mode: Mode, initial: Protocol) -> Self {
        Self {
            selector: Selector::new(&Config::new(mode, initial, 1)),
            key: key(1),
            tcp: (TcpMeter::default(), TcpReading::default()),
            quic: (QuicMeter::default(), QuicReading::default()),
        }
    }

    /// One second of TCP with 100 packets and an RTT of 50 ms.
    fn tcp(&mut self, second: u64, lost: u64) -> Option<Decision> {
        let (meter, reading) = &mut self.tcp;
        (reading.srtt, reading.rttvar) = (Duration::from_millis(50), Duration::from_millis(5));
        reading.min_rtt = reading.srtt;
        reading.segments_out += 100;
        reading.total_retrans += lost;
        reading.delivered += 100 - lost;
        self.selector.observe_tcp(at(second), &self.key, meter, reading)
    }

    /// One second of QUIC with 100 packets and an RTT of 50 ms.
    fn quic(&mut self, second: u64, lost: u64, pto_count: u32) -> Option<Decision> {
        let (meter, reading) = &mut self.quic;
        (reading.srtt, reading.rttvar) = (Duration::from_millis(50), Duration::from_millis(5));
        reading.min_rtt = reading.srtt;
        reading.sent += 100;
        reading.lost += lost;
        reading.delivered += if pto_count == 0 { 100 - lost } else { 0 };
        reading.pto_count = pto_count;
        self.selector.observe_quic(at(second), &self.key, meter, reading)
    }

    /// Server on whose lossy network QUIC was chosen, at the returned second.
    fn upgraded() -> (Self, u64) {
        let mut network = Self::new(Mode::Auto, Protocol::Tcp);
        let second = (1..100).find(|second| network.tcp(*second, 10).is_some());
        let second = second.expect("losses upgrade");
        (network, second)
    }

    fn alt_svc(&mut self, second: u64) -> AltSvc {
        self.selector.alt_svc(at(second), &self.key)
    }
}

#[test]
fn losses_upgrade_and_say_why() {
    let (network, second) = Testbed::upgraded();
    assert!(second <= 10, "{second}");
    let decision = network.selector.decisions().next().unwrap().to_string();
    let begin = "0.0.1.0/24 to https://example.org: TCP to QUIC: QUIC costs less: QUIC ";
    assert!(decision.starts_with(begin) && decision.contains(", loss 7.8 %"), "{decision}");
    assert!(decision.ends_with(" by TCP") && !decision.contains('\n'), "{decision}");
    let explanation = network.selector.explain(SECOND * 20, &network.key).unwrap().to_string();
    for part in [
        ": QUIC (mode auto), for ",
        "\n  TCP:  RTT 50.0 ms",
        "\n  QUIC: not measured",
        "\n  predicted over TCP:  ",
    ] {
        assert!(explanation.contains(part), "{part:?} in {explanation}");
    }
}

#[test]
fn reordering_alone_does_not() {
    let mut network = Testbed::new(Mode::Auto, Protocol::Tcp);
    for second in 1..600 {
        // All retransmissions were spurious.
        network.tcp.1.dsack_dups += 10;
        assert!(network.tcp(second, 10).is_none());
    }
}

#[test]
fn hard_events_do_not_wait() {
    for failure in [Failure::Handshake, Failure::BlackHole] {
        let (mut network, second) = Testbed::upgraded();
        let now = at(second);
        let decision = network.selector.quic_failed(now, &network.key, failure).unwrap();
        assert_eq!((decision.from, decision.to, decision.when), (Protocol::Quic, Protocol::Tcp, now));
        // Ten minutes later the losses count again.
        let back = (second + 1..2000).find(|second| network.tcp(*second, 10).is_some()).unwrap();
        assert_eq!(back - second, 600);
    }
}

#[test]
fn unanswered_probes_count_while_tcp_answers() {
    // Seconds since QUIC and TCP answered, probes; failure or not.
    for (quic_answered, tcp_answered, probes, fails) in
        [(11, 1, 3, true), (11, 1, 2, false), (11, 11, 3, false), (9, 1, 3, false)]
    {
        let (mut network, second) = Testbed::upgraded();
        let now = second + 30;
        network.quic(now - quic_answered, 10, 0);
        network.tcp(now - tcp_answered, 10);
        let decision = network.quic(now, 10, probes);
        assert_eq!(decision.is_some(), fails, "{quic_answered} {tcp_answered} {probes}");
        if let Some(decision) = decision {
            assert!(matches!(decision.reason, Reason::ProbeTimeouts { count: 3, .. }), "{decision}");
            // Further probes of the connection are the same failure.
            network.quic(now + 1, 10, 4);
            let explanation = network.selector.explain(at(now + 1), &network.key).unwrap();
            assert_eq!(explanation.failures, 1);
        }
    }
}

#[test]
fn an_advertisement_that_is_not_used_ends() {
    let (mut network, up) = Testbed::upgraded();
    let down = (up + 1..).find(|second| network.tcp(*second, 10).is_some()).unwrap();
    assert_eq!(down - up, 60);
    let reason = network.selector.decisions().last().unwrap().reason;
    assert!(matches!(reason, Reason::NotUsed { packets: 6000, .. }), "{reason}");
    // A handshake within the minute keeps it.
    let (mut network, up) = Testbed::upgraded();
    network.selector.quic_works(at(up + 1), &network.key);
    assert!((up + 1..up + 601).all(|second| network.tcp(second, 10).is_none()));
    // UDP may be blocked later on.
    assert!(network.tcp(up + 601, 10).is_some());
    let reason = network.selector.decisions().last().unwrap().reason;
    assert!(matches!(reason, Reason::NotUsed { packets: 1000.., .. }), "{reason}");
}

#[test]
fn quic_that_costs_more_is_withdrawn_after_the_dwell_time() {
    for (slow, after) in [(2000, 60), (9000, 10)] {
        let (mut network, up) = Testbed::upgraded();
        let down = (up + 1..1000)
            .find(|second| {
                let now = at(*second);
                let slow = Duration::from_millis(slow);
                let decision = network.quic(*second, 10, 0);
                let response =
                    network.selector.observe_response(now, &network.key, Protocol::Quic, 65_536, slow);
                network.selector.observe_response(now, &network.key, Protocol::Tcp, 65_536, SECOND);
                decision.or(response).is_some()
            })
            .unwrap();
        assert_eq!(down - up, after, "{slow}");
        assert!(matches!(network.selector.decisions().last().unwrap().reason, Reason::QuicCostsMore(_)));
    }
}

#[test]
fn advertisements_live_longer_while_they_are_right_and_are_cleared() {
    let (mut network, up) = Testbed::upgraded();
    network.selector.quic_works(at(up), &network.key);
    for (second, max_age) in [(up, 600), (up + 599, 600), (up + 3000, 3000)] {
        assert_eq!(network.alt_svc(second), AltSvc::Advertise { max_age: Duration::from_secs(max_age) });
    }
    network.selector.quic_failed(at(up + 3001), &network.key, Failure::BlackHole);
    assert_eq!(network.alt_svc(up + 3001), AltSvc::Clear);
    assert_eq!(network.alt_svc(up + 5999), AltSvc::Clear);
    assert_eq!(network.alt_svc(up + 6001), AltSvc::None);
    // A question about an unknown network makes no entry.
    assert_eq!(network.selector.alt_svc(SECOND, &key(2)), AltSvc::None);
    assert_eq!(network.selector.len(), 1);
}

#[test]
fn modes() {
    let random = |mode| {
        let mut network = Testbed::new(mode, Protocol::Tcp);
        network.tcp.1.snd_ssthresh = 10;
        let mut rng = fastrand::Rng::with_seed(3);
        let mut answers = Vec::new();
        for second in 1..2000 {
            network.tcp(second, rng.u64(0..50));
            network.quic(second, rng.u64(0..50), rng.u32(0..4));
            if rng.u8(..) == 0 {
                network.selector.quic_failed(at(second), &network.key, Failure::Handshake);
            }
            answers.push(network.alt_svc(second));
        }
        assert_eq!(network.selector.decisions().len() == 0, mode != Mode::AutoquicCompat);
        answers
    };
    assert!(random(Mode::Never).iter().all(|answer| *answer == AltSvc::Clear));
    assert!(random(Mode::Always).iter().all(|answer| *answer == AltSvc::Advertise { max_age: DAY }));
    assert!(random(Mode::AutoquicCompat).iter().all(|answer| *answer != AltSvc::Clear));
}

#[test]
fn autoquic_compat_follows_the_rule_of_the_module() {
    // Retransmissions, threshold so far and now; upgrade or not.
    for (total_retrans, before, snd_ssthresh, upgrades) in
        [(0, 100, 100, false), (1, 100, 100, true), (0, 100, 49, true), (0, 100, 50, false), (1, 0, 0, false)]
    {
        let mut network = Testbed::new(Mode::AutoquicCompat, Protocol::Tcp);
        network.tcp.1.snd_ssthresh = before;
        assert!(network.tcp(1, 0).is_none());
        network.tcp.1.snd_ssthresh = snd_ssthresh;
        let decision = network.tcp(2, total_retrans);
        assert_eq!(decision.is_some(), upgrades, "{total_retrans} {before} {snd_ssthresh}");
    }
    for (seconds, largest_received, downgrades) in [(29, 100, false), (30, 40, true), (30, 39, false)] {
        let mut network = Testbed::new(Mode::AutoquicCompat, Protocol::Tcp);
        network.tcp.1.snd_ssthresh = 10;
        assert!(network.tcp(1, 1).is_some());
        network.quic.1.largest_received = largest_received;
        assert_eq!(network.quic(1 + seconds, 0, 0).is_some(), downgrades, "{seconds} {largest_received}");
    }
}

#[test]
fn no_input_flaps_twice_in_ten_minutes() {
    for (seed, initial) in (0..8).flat_map(|seed| [(seed, Protocol::Tcp), (seed, Protocol::Quic)]) {
        let mut network = Testbed::new(Mode::Auto, initial);
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut tcp, mut quic) = (0, 0);
        for second in 1..4 * 3600 {
            if rng.u8(..) < 8 {
                (tcp, quic) = (rng.u64(0..40), rng.u64(0..90));
            }
            let now = at(second);
            if rng.u8(..) < 128 {
                network.tcp(second, tcp);
            } else {
                network.quic(second, quic, rng.u32(0..4));
            }
            match rng.u16(..) {
                0..50 => network.selector.quic_failed(now, &network.key, Failure::Handshake),
                50..100 => network.selector.quic_works(now, &network.key),
                _ => None,
            };
        }
        let downs: Vec<Duration> =
            network.selector.decisions().filter(|of| of.to == Protocol::Tcp).map(|of| of.when).collect();
        assert!(downs.len() > 1, "{seed}");
        assert!(downs.windows(2).all(|pair| pair[1] - pair[0] >= 600 * SECOND), "{seed}: {downs:?}");
    }
}

#[test]
fn memory_is_bounded() {
    let capacity = NonZeroUsize::new(1000).unwrap();
    let config = Config { capacity, decisions: 10, ..Config::new(Mode::Auto, Protocol::Quic, 1) };
    let mut selector = Selector::new(&config);
    let reading = TcpReading { segments_out: 30, ..TcpReading::default() };
    for network in 0..1_000_000 {
        let now = SECOND * (network / 1000);
        selector.observe_tcp(now, &key(network), &mut TcpMeter::default(), &reading);
        if network % 1000 == 0 {
            selector.quic_failed(now, &key(network), Failure::Handshake);
        }
        // Always in use, so never evicted.
        selector.alt_svc(now, &key(7));
    }
    assert_eq!((selector.len(), selector.decisions().len()), (1000, 10));
    let now = SECOND * 1000;
    assert!(selector.explain(now, &key(7)).is_some() && selector.explain(now, &key(8)).is_none());
}

#[test]
fn old_and_other_networks_are_forgotten() {
    let (mut network, up) = Testbed::upgraded();
    let chosen = |network: &Testbed, after| network.selector.chosen(at(up) + after, &network.key);
    assert_eq!(chosen(&network, DAY), Protocol::Quic);
    assert_eq!(chosen(&network, DAY + SECOND), Protocol::Tcp);
    assert!(network.selector.explain(at(up) + DAY + SECOND, &network.key).is_none());
    network.selector.forget(Network::from(IpAddr::V4(Ipv4Addr::new(0, 0, 2, 9))));
    assert_eq!(chosen(&network, SECOND), Protocol::Quic);
    network.selector.forget(Network::from(IpAddr::V4(Ipv4Addr::new(0, 0, 1, 9))));
    assert_eq!(chosen(&network, SECOND), Protocol::Tcp);
    assert!(network.selector.is_empty());
}

#[test]
fn clients_try_quic_first_unless_it_failed() {
    let mut network = Testbed::new(Mode::Auto, Protocol::Quic);
    let first = |network: &Testbed, second: u64| network.selector.first(at(second), &network.key);
    let quic = |millis| First::Quic { tcp_after: Duration::from_millis(millis) };
    assert_eq!(first(&network, 0), quic(250));
    network.quic(1, 0, 0);
    assert_eq!(first(&network, 1), quic(75));
    let decision = network.selector.quic_failed(2 * SECOND, &network.key, Failure::BlackHole).unwrap();
    assert_eq!(decision.to, Protocol::Tcp);
    assert_eq!(first(&network, 301), First::Tcp { probe_quic: false });
    // At most 300 s and a quarter more, but not before a success may be followed.
    assert_eq!(first(&network, 378), First::Tcp { probe_quic: false });
    assert_eq!(first(&network, 602), First::Tcp { probe_quic: true });
    // The probe failed too: at least 600 s.
    assert!(network.selector.quic_failed(602 * SECOND, &network.key, Failure::Handshake).is_none());
    assert_eq!(first(&network, 1201), First::Tcp { probe_quic: false });
    assert_eq!(first(&network, 1353), First::Tcp { probe_quic: true });
    let decision = network.selector.quic_works(1353 * SECOND, &network.key).unwrap();
    assert!(matches!(decision.reason, Reason::QuicWorks) && decision.to == Protocol::Quic);
    assert_eq!(first(&network, 1354), quic(75));
    // A success right after a failure: TCP stays first, and no probe follows, until the dwell time is over.
    network.selector.quic_failed(1355 * SECOND, &network.key, Failure::Handshake);
    assert!(network.selector.quic_works(1356 * SECOND, &network.key).is_none());
    assert_eq!(first(&network, 1364), First::Tcp { probe_quic: false });
    assert!(network.quic(1955, 0, 0).is_some());
    for (mode, answer) in [(Mode::Never, First::Tcp { probe_quic: false }), (Mode::Always, quic(250))] {
        assert_eq!(Testbed::new(mode, Protocol::Quic).selector.first(SECOND, &key(1)), answer);
    }
}

#[test]
fn knowledge_of_an_earlier_run_is_kept_with_its_age() {
    let mut network = Testbed::new(Mode::Auto, Protocol::Quic);
    network.selector.quic_failed(DAY, &network.key, Failure::Handshake);
    let known = network.selector.known(DAY + 100 * SECOND, &network.key).unwrap();
    assert_eq!((known.failures, known.age), (1, 100 * SECOND));
    assert!((200 * SECOND..=275 * SECOND).contains(&known.retry_in), "{known:?}");
    // Ten minutes later in another run.
    let mut later = Testbed::new(Mode::Auto, Protocol::Quic);
    let after = Remembered { retry_in: Duration::ZERO, age: 700 * SECOND, ..known };
    later.selector.restore(DAY, &after);
    assert_eq!(later.selector.known(DAY, &network.key), Some(after));
    assert_eq!(later.selector.first(DAY, &network.key), First::Tcp { probe_quic: true });
    assert_eq!(later.selector.known(2 * DAY - 600 * SECOND, &network.key), None, "too old");
    let decision = later.selector.quic_works(DAY + SECOND, &network.key).unwrap();
    assert_eq!(decision.to, Protocol::Quic);
    // In doubt QUIC is tried beside TCP at once, and needs no success after a failure.
    later.selector.quic_doubtful(DAY + 2 * SECOND, &network.key);
    assert_eq!(later.selector.known(DAY + 2 * SECOND, &network.key).unwrap().retry_in, Duration::ZERO);
}

#[test]
fn a_clock_that_goes_backwards_does_no_harm() {
    let (mut network, up) = Testbed::upgraded();
    network.quic(up, 5, 0);
    for second in [0, up, 1, 0] {
        network.tcp(second, 10);
        network.quic(second, 10, 5);
        network.selector.observe_response(at(second), &network.key, Protocol::Tcp, 0, Duration::ZERO);
        network.selector.quic_failed(at(second), &network.key, Failure::Handshake);
        assert!(network.selector.explain(at(second), &network.key).is_some());
    }
    let late = Duration::MAX;
    network.selector.quic_failed(late, &network.key, Failure::Handshake);
    network.selector.observe_response(late, &network.key, Protocol::Quic, u64::MAX, Duration::MAX);
    network.alt_svc(u64::from(u32::MAX));
}
