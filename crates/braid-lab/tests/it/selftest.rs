//! Selftest: findings and refusals.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use braid_emulator::{PacketCount, PathCounters};
use braid_lab::report::SelftestResult;
use braid_lab::selftest::{Doubt, Options, lateness_bound, lateness_of, run, run_until, validity};
use braid_lab::testbed::WireChoice;
use braid_lab::wire::{DirectionEnd, Lateness, Stopped};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::link::{link, ms};
use crate::wire_room::is_inside;

fn packets(packets: u64) -> PacketCount {
    PacketCount { packets, bytes: packets * 100 }
}

/// The reasons against a link of which one direction is `up`.
fn against(up: DirectionEnd, delay: Duration) -> Vec<String> {
    doubts(up, delay).into_iter().map(|doubt| doubt.to_string()).collect()
}

fn doubts(up: DirectionEnd, delay: Duration) -> Vec<Doubt> {
    validity(&Stopped { up, ..Stopped::default() }, lateness_bound(delay))
}

fn late(p99_us: f64) -> DirectionEnd {
    let lateness = Lateness { packets: 100, p50_us: 1.0, p99_us, max_us: 1e6 };
    DirectionEnd { lateness, ..DirectionEnd::default() }
}

#[test]
fn lateness_is_tolerated_up_to_1_ms_or_5_percent_of_the_delay() {
    assert_eq!([0, 10, 20, 100].map(|delay| lateness_bound(ms(delay))), [ms(1), ms(1), ms(1), ms(5)]);
    assert_eq!(against(late(1000.0), ms(10)), Vec::<String>::new());
    assert_eq!(
        against(late(1100.0), ms(10)),
        ["up: 99 % of the packets left up to 1.10 ms late, more than 1.00 ms: the machine is too busy"]
    );
    assert_eq!(against(late(4900.0), ms(100)), Vec::<String>::new());
    assert_eq!(against(late(5100.0), ms(100)).len(), 1);
    let down = Stopped { down: late(1100.0), ..Stopped::default() };
    assert!(validity(&down, ms(1))[0].what.starts_with("down: "));
}

#[test]
fn the_shorter_delay_of_a_link_limits_its_lateness() {
    for (text, bound) in
        [("", 1), ("delay=100ms", 5), ("up: delay=100ms", 1), ("up: delay=200ms down: delay=60ms", 3)]
    {
        assert_eq!(lateness_of(&link(text)), ms(bound), "{text}");
    }
    assert_eq!(lateness_of(&link("delay=40ms ; t=1s delay=1s")), ms(2), "as it starts");
}

#[test]
fn loss_outside_the_interval_is_refused() {
    let lossy = |lost, policed, unmatched| {
        let counters = PathCounters {
            offered: packets(1000 + policed + unmatched),
            lost: packets(lost),
            policed: packets(policed),
            unmatched: packets(unmatched),
            ..PathCounters::default()
        };
        DirectionEnd { counters, expected_loss: Some(0.1), ..DirectionEnd::default() }
    };
    // 100 +- 31 of 1000.
    for lost in [69, 100, 131] {
        assert_eq!(against(lossy(lost, 0, 0), ms(0)), Vec::<String>::new(), "{lost}");
        assert_eq!(against(lossy(lost, 5000, 700), ms(0)), Vec::<String>::new(), "{lost}");
    }
    for lost in [68, 132] {
        let reasons = against(lossy(lost, 5000, 700), ms(0));
        let expected = format!("up: {lost} of 1000 packets were lost, which is not 10%:");
        assert!(reasons[0].starts_with(&expected), "{reasons:?}");
    }
    let unknown = DirectionEnd { expected_loss: None, ..lossy(500, 0, 0) };
    assert_eq!(against(unknown, ms(0)), Vec::<String>::new());
}

#[test]
fn losses_outside_the_emulator_are_refused() {
    let counters = PathCounters { largest: 65_535, ..PathCounters::default() };
    let end = DirectionEnd {
        counters,
        above_mtu: 12,
        mtu: 1500,
        missed: 3,
        unsent: packets(4),
        first_error: Some("sending to lq0r: Input/output error".into()),
        ..DirectionEnd::default()
    };
    assert_eq!(
        against(end, ms(0)),
        [
            "up: 12 packets were larger than the MTU of 1500, the largest 65535 bytes: an offload is on",
            "up: 3 packets were lost before the emulator could read them: the machine is too busy",
            "up: the kernel did not take 4 packets: sending to lq0r: Input/output error",
        ]
    );
    let dead = DirectionEnd { first_error: Some("it has died".into()), ..DirectionEnd::default() };
    assert_eq!(against(dead, ms(0)), ["up: it has died"]);
}

#[test]
fn only_doubts_of_a_busy_machine_permit_a_repetition() {
    let busy = |end| doubts(end, ms(0)).iter().map(|doubt| doubt.is_busy).collect::<Vec<_>>();
    assert_eq!(busy(late(1100.0)), [true]);
    assert_eq!(busy(DirectionEnd { missed: 1, ..DirectionEnd::default() }), [true]);
    assert_eq!(busy(DirectionEnd { above_mtu: 1, ..late(1100.0) }), [true, false]);
    assert_eq!(busy(DirectionEnd { unsent: packets(1), ..DirectionEnd::default() }), [false]);
    assert_eq!(
        busy(DirectionEnd { first_error: Some("it has died".into()), ..DirectionEnd::default() }),
        [false]
    );
    let counters = PathCounters { offered: packets(1000), lost: packets(500), ..PathCounters::default() };
    assert_eq!(busy(DirectionEnd { counters, expected_loss: Some(0.1), ..DirectionEnd::default() }), [false]);
}

/// Refusals that do not depend on the load of the machine.
fn facts(result: &SelftestResult) -> Vec<&String> {
    let of_time = ["too busy", "packets per second instead", "were expected"];
    result.refused.iter().filter(|reason| !of_time.iter().any(|words| reason.contains(words))).collect()
}

fn assert_trusted(wire: WireChoice, name: &str) {
    let options = Options { cell: ms(400), wire, ..Options::default() };
    let result = run(&options);
    assert_eq!(facts(&result), Vec::<&String>::new());
    let figure = |key: &str| result.figures[&format!("{name}_{key}")];
    let segments = figure("segments_seen_packets");
    assert!(segments == 200.0 || segments == 0.0, "{segments}");
    assert_eq!(segments, figure("segments_sent_packets"));
    assert!(figure("largest_packet_bytes") <= 1228.0);
    assert!(figure("bulk_packets") > 0.0 && figure("cpu_per_packet_us") > 0.0);
    assert!(figure("round_trip_floor_us") > 0.0);
    for share in ["loss", "dup", "corrupt"] {
        assert!(figure(&format!("{share}_chi_square")) < 10.83);
        assert!((1.0..20.0).contains(&figure(&format!("{share}_percent"))));
    }
    // The exact number depends on the duration.
    assert!(figure("policer_accepted_packets") >= 5.0);
    for key in ["delay_error_p50_us", "delay_error_p99_us", "lateness_p99_us", "rate_pps_error_percent"] {
        assert!(figure(key).is_finite(), "{key}");
    }
}

#[test]
fn tun_emulates_links_accurately() {
    if is_inside("selftest::tun_emulates_links_accurately") {
        assert_trusted(WireChoice::Tun, "tun");
    }
}

#[test]
fn packet_sockets_emulate_links_accurately() {
    if is_inside("selftest::packet_sockets_emulate_links_accurately") {
        assert_trusted(WireChoice::Packet, "packet");
    }
}

#[test]
fn the_selftest_stops_on_request() {
    const STOPPED: &str = "the selftest was stopped before its end";
    if is_inside("selftest::the_selftest_stops_on_request") {
        let options = Options { cell: ms(3_600_000), wire: WireChoice::Packet, ..Options::default() };
        let result = run_until(&options, &|| true);
        assert_eq!((result.figures.len(), result.refused), (0, vec![STOPPED.to_owned()]));

        // During a cell that would last an hour, after one that may have found the machine busy.
        let asked = Cell::new(0);
        let stop = || asked.replace(asked.get() + 1) >= 20;
        assert_eq!(run_until(&options, &stop).refused.last().unwrap(), STOPPED);
    }
}

#[test]
fn a_machine_without_the_rights_is_refused() {
    if is_inside("selftest::a_machine_without_the_rights_is_refused") {
        let powerless = || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
            set_capabilities(None, sets).unwrap();
            run(&Options::default())
        };
        let result = thread::spawn(powerless).join().unwrap();
        assert!(result.figures.is_empty());
        assert_eq!(result.refused.len(), 2, "{:?}", result.refused);
        assert!(result.refused[0].starts_with("tun: ") && result.refused[1].starts_with("packet: "));
    }
}
