//! Whatever peers and clocks do: the gate neither panics nor keeps a packet back for ever. And what it is there for.

mod path;

use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Class, Gate, Leave, Permit};
use path::{Counts, Limit, Path, Sender};

#[derive(Clone, Debug)]
enum Step {
    /// ms; most of the time none at all.
    Wait(u64),
    Send {
        bytes: u64,
    },
    Silent,
    Withhold,
    /// Of the packet so many before the last, or of one that was never sent; with a round trip of so many ms.
    Ack {
        back: u64,
        trip: u64,
    },
    Lose {
        back: u64,
    },
    Urgent {
        bytes: u64,
    },
    Received,
    /// On an open path, of so many packets.
    EndOfAcks {
        acked: u32,
        lost: u32,
        app_limited: bool,
    },
    Mtu(u16),
    /// To another path, in mid-transfer.
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![Just(0), 1..40_u64, Just(3_600_000)].prop_map(Step::Wait),
        8 => prop_oneof![Just(1452_u64), 30..1500_u64].prop_map(|bytes| Step::Send { bytes }),
        1 => Just(Step::Silent),
        1 => Just(Step::Withhold),
        8 => (0..40_u64, 0..5000_u64).prop_map(|(back, trip)| Step::Ack { back, trip }),
        4 => (0..40_u64).prop_map(|back| Step::Lose { back }),
        2 => (0..100_000_u64).prop_map(|bytes| Step::Urgent { bytes }),
        1 => Just(Step::Received),
        2 => (0..100_u32, 0..100_u32, any::<bool>())
            .prop_map(|(acked, lost, app_limited)| Step::EndOfAcks { acked, lost, app_limited }),
        1 => (0..2000_u16).prop_map(Step::Mtu),
        1 => Just(Step::Move),
    ]
}

fn permits(gate: &mut Gate, now: Instant) -> bool {
    match gate.permit(now) {
        Permit::Window(packets) => packets > 0,
        Permit::Open | Permit::One | Permit::Yes => true,
        Permit::No => false,
    }
}

fn apply(gate: &mut Gate, step: &Step, now: Instant, number: &mut u64) {
    match *step {
        Step::Wait(_) => {
            // As its keeper does.
            if gate.class().is_limited() || gate.next(now).is_some() {
                (0..=*number).rev().take(40).for_each(|number| {
                    gate.leave(number, now);
                });
            }
        }
        Step::Send { bytes } => {
            if permits(gate, now) {
                *number += 1;
                gate.handle_packet(*number, bytes, now);
                gate.handle_transmit(bytes, now);
            }
        }
        Step::Silent => gate.handle_transmit(40, now),
        Step::Withhold => {
            gate.handle_withheld(1200);
            if gate.wants_later() {
                *number += 1;
                gate.handle_later(*number, 1200, now);
            }
            gate.handle_transmit(1200, now);
        }
        Step::Ack { back, trip } => {
            gate.handle_acked(number.wrapping_sub(back), Duration::from_millis(trip).as_secs_f64(), now);
        }
        Step::Lose { back } => gate.handle_lost(number.wrapping_sub(back), now),
        Step::Urgent { bytes } => gate.handle_urgent(bytes, now),
        Step::Received => gate.handle_received(now),
        Step::EndOfAcks { acked, lost, app_limited } => match gate.class() {
            Class::Open => gate.handle_open(acked, lost, (acked > 0).then_some(0.05), app_limited, now),
            _ => gate.handle_end_of_acks(),
        },
        Step::Mtu(mtu) => gate.handle_mtu(mtu),
        Step::Move => *gate = Gate::moved(now, 1200, 2),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn nothing_is_kept_back_for_ever(steps in vec(step(), 0..400)) {
        let mut now = Instant::now();
        let (mut gate, mut number) = (Gate::new(now, 1200, 2), 0);
        for step in &steps {
            if let Step::Wait(millis) = step {
                now += Duration::from_millis(*millis);
            }
            apply(&mut gate, step, now, &mut number);
            if let Some(rate) = gate.rate() {
                prop_assert!(rate.is_finite() && rate >= 0.9, "{rate} packets a second");
            }
            prop_assert!(gate.next(now).is_none_or(|wait| wait <= Duration::from_secs(10)));
            prop_assert!(gate.backlog().is_none_or(|bytes| bytes < 1 << 32));
        }
        // Twice the time of a packet of the slowest path, or thirty milliseconds.
        now += Duration::from_millis(2500);
        prop_assert!((0..=number).all(|number| gate.leave(number, now) != Leave::Wait));
        now += Duration::from_millis(2500);
        prop_assert!(permits(&mut gate, now), "{:?}", gate.class());
        prop_assert!(gate.permits_probe(now));
    }

    /// A clock that stands still lets nothing pass but what there is room for.
    #[test]
    fn no_more_leaves_at_once_than_there_is_room_for(urgent in 0..2_000_000_u64) {
        let start = Instant::now();
        let mut gate = policed(start, 2);
        let now = start + Duration::from_secs(2);
        gate.handle_urgent(urgent, now);
        let sent = (0..1000).take_while(|number| {
            let may = permits(&mut gate, now);
            if may {
                gate.handle_packet(1000 + number, 1200, now);
                gate.handle_transmit(1200, now);
            }
            may
        });
        prop_assert!(sent.count() <= 8);
    }
}

/// Behind a policer of some twenty packets a second.
fn policed(start: Instant, reserve: u8) -> Gate {
    let mut gate = Gate::new(start, 1200, reserve);
    for number in 0..40_u64 {
        let now = start + Duration::from_millis(number * 20);
        gate.handle_packet(number, 1200, now);
        gate.handle_transmit(1200, now);
        if number % 2 == 0 {
            gate.handle_acked(number, 0.001, now);
        } else {
            gate.handle_lost(number, now);
        }
    }
    assert_eq!(gate.class(), Class::Policed);
    assert!(gate.rate().is_some_and(|rate| (15.0..35.0).contains(&rate)), "{:?}", gate.rate());
    gate
}

fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// How many leave at once, with nothing urgent or with much.
fn burst(gate: &mut Gate, urgent: u64, first: u64, now: Instant) -> u64 {
    gate.handle_urgent(urgent, now);
    let may_leave = |gate: &mut Gate, number: &u64| {
        let may = permits(gate, now);
        if may {
            gate.handle_packet(first + number, 1200, now);
            gate.handle_transmit(1200, now);
        }
        may
    };
    (0..100).take_while(|number| may_leave(gate, number)).count() as u64
}

#[test]
fn bulk_leaves_the_reserve() {
    for reserve in 1..=3_u8 {
        let start = Instant::now();
        let mut gate = policed(start, reserve);
        burst(&mut gate, 100, 1000, start + Duration::from_secs(2));
        // The bucket is full again, and it is no time for a probe: one that is urgent has just been, and bulk before it.
        let now = start + Duration::from_millis(2400);
        assert_eq!(burst(&mut gate, 100, 2000, now), u64::from(5 - reserve));
        assert_eq!(burst(&mut gate, 100_000, 3000, now), u64::from(reserve), "what is urgent has the rest");
    }
}

/// Packets that pass in a minute.
const MINUTE: f64 = 60.0;

#[test]
fn what_is_urgent_passes_a_policer_at_once() {
    for (rate, trip) in [(29.0, 1), (29.0, 20), (29.0, 40), (29.0, 100), (100.0, 1), (100.0, 100)] {
        let mut path = Path::new(rate, trip, 1);
        path.run(63);
        let Counts { passed, dropped, urgent, urgent_dropped, late, latest } = path.senders[0].counts;
        let what = format!("{rate} packets a second, {trip} ms");
        assert!(urgent >= 715, "{urgent}: {what}");
        assert!(share(urgent_dropped, urgent) <= 0.01, "{urgent_dropped} of {urgent} dropped: {what}");
        assert!(share(late, urgent) <= 0.01, "{late} of {urgent} late: {what}");
        // A packet's time behind a probe.
        assert!(latest <= 36, "{latest} ms: {what}");
        assert!(passed as f64 >= 0.94 * MINUTE * rate, "{passed} passed: {what}");
        assert!(
            share(dropped, passed + dropped) <= 0.022,
            "{dropped} of {} dropped: {what}",
            passed + dropped
        );
    }
}

/// What the library has sent too early leaves with the next token, before anything else, unless it is sent again.
#[test]
fn what_is_kept_leaves_first() {
    for is_lost in [false, true] {
        let start = Instant::now();
        let mut gate = policed(start, 2);
        let now = start + Duration::from_secs(2);
        burst(&mut gate, 100_000, 1000, now);
        assert!(gate.wants_later());
        gate.handle_withheld(1200);
        gate.handle_later(2000, 1200, now);
        gate.handle_transmit(1200, now);
        assert!(!gate.wants_later(), "one is enough");
        assert_eq!(gate.leave(2000, now), Leave::Wait, "there is no token");
        let wait = gate.next(now).expect("a token comes");
        assert!(wait < Duration::from_millis(60), "{wait:?}");
        let then = now + wait + Duration::from_millis(1);
        assert!(!permits(&mut gate, then), "the token is for what is kept");
        if is_lost {
            gate.handle_lost(2000, then);
        }
        assert_eq!(gate.leave(2000, then), if is_lost { Leave::Never } else { Leave::Now });
        assert_eq!(permits(&mut gate, then), is_lost);
    }
}

/// Whatever becomes of what is kept, nothing waits for it for ever, and what was urgent in it is urgent again.
#[test]
fn what_is_kept_and_does_not_leave_holds_up_nobody() {
    let start = Instant::now();
    let mut gate = policed(start, 2);
    let now = start + Duration::from_secs(2);
    burst(&mut gate, 100_000, 1000, now);
    gate.forget_urgent();
    gate.handle_urgent(100, now);
    gate.handle_later(2000, 1200, now);
    assert!(!gate.wants_later(), "what is urgent is in the packet");
    // All but silent, so that the rule for silence does not let anything pass.
    let then = (1..=15).map(|turn| now + Duration::from_millis(100 * turn));
    let mut permitted = 0;
    for (number, then) in (3000..).zip(then) {
        if permits(&mut gate, then) {
            permitted += 1;
            gate.handle_packet(number, 1200, then);
        }
        gate.handle_transmit(40, then);
    }
    assert!(permitted > 2, "{permitted}");
    assert_eq!(gate.leave(2000, now + Duration::from_secs(2)), Leave::Never);
}

#[test]
fn a_new_rate_is_found() {
    for trip in [1, 40] {
        let mut path = Path::new(29.0, trip, 1);
        path.run(10);
        for (rate, seconds) in [(14.0, 2), (29.0, 4), (10.0, 2), (29.0, 7)] {
            path.rate = rate;
            path.run(seconds);
            let known = path.senders[0].gate.rate().unwrap_or(0.0);
            assert!((rate * 0.7..rate * 1.5).contains(&known), "{known} of {rate}, {trip} ms");
            path.run(8);
            let known = path.senders[0].gate.rate().unwrap_or(0.0);
            assert!((rate * 0.85..rate * 1.15).contains(&known), "{known} of {rate}, {trip} ms");
        }
    }
}

/// Alarms alone need more than the lower rate: who is starved looks for more at once.
#[test]
fn a_new_rate_is_found_within_two_seconds() {
    for (trip, rate) in [1, 40].into_iter().flat_map(|trip| [(trip, 10.0), (trip, 29.0)]) {
        let mut slow = 0;
        for phase in 0..30 {
            let mut path = Path::new(29.0, trip, 1);
            path.run(10);
            path.run_for(phase * 97);
            path.rate = 10.0;
            if rate > path.rate {
                path.run(20);
                path.rate = rate;
            }
            path.run(2);
            let known = path.senders[0].gate.rate().unwrap_or(0.0);
            slow += u32::from(!(rate * 0.85..rate * 1.15).contains(&known));
        }
        assert!(slow <= 3, "{slow} of 30: to {rate} packets a second, {trip} ms");
    }
}

/// What is dropped until it is known that the rate has fallen is not lost by chance.
#[test]
fn a_rate_that_falls_by_much_is_no_loss_by_chance() {
    for phase in 0..20 {
        let mut path = Path::new(100.0, 40, 1);
        path.run(10);
        path.run_for(phase * 97);
        path.rate = 29.0;
        path.run(5);
        let gate = &path.senders[0].gate;
        assert_eq!(gate.class(), Class::Policed, "{phase}");
        let known = gate.rate().unwrap_or(0.0);
        assert!((25.0..33.0).contains(&known), "{known} of 29, {phase}");
    }
}

/// Drops of a first burst and alarms that all pass are no losses by chance.
#[test]
fn a_policer_is_known_when_bulk_begins_late() {
    for (trip, first) in [1, 40, 100].into_iter().flat_map(|trip| (2..10).map(move |first| (trip, first))) {
        for begins in [1000, 5000, 6000, 7000, 12_000] {
            let mut path = Path::new(29.0, trip, 1);
            path.pause = first * trip.max(2)..begins;
            path.run(begins / 1000 + 3);
            let class = path.senders[0].gate.class();
            assert_eq!(class, Class::Policed, "bulk until {:?} ms, {trip} ms", path.pause);
        }
    }
}

#[test]
fn what_the_congestion_controller_finds_is_believed() {
    let now = Instant::now();
    let mut gate = Gate::new(now, 1200, 2);
    gate.handle_policer(48_000, now);
    assert_eq!(gate.class(), Class::Start, "it looks for itself");
    gate.open(0.0);
    gate.deaf_until = 1.0;
    gate.handle_policer(48_000, now);
    assert_eq!(gate.class(), Class::Open, "losses by chance were seen just now");
    gate.handle_policer(48_000, now + Duration::from_secs(2));
    assert_eq!(gate.class(), Class::Policed);
    assert!(gate.rate().is_some_and(|rate| (38.0..41.0).contains(&rate)), "{:?}", gate.rate());
}

/// An acknowledgement of packets that do not ask for one tells no round trip, and makes no queue of the next that does.
#[test]
fn an_open_path_keeps_its_round_trip() {
    let start = Instant::now();
    let mut gate = Gate::new(start, 1200, 2);
    gate.open(0.0);
    for turn in 1..40_u64 {
        let trip = (turn != 7).then_some(0.05);
        gate.handle_open(10, 0, trip, false, start + Duration::from_millis(turn * 100));
    }
    assert_eq!(gate.class(), Class::Open);
}

/// What is cut for a while says nothing of what limits the path.
#[test]
fn a_policer_is_known_after_an_interruption() {
    for (trip, lasts) in [1, 40].into_iter().flat_map(|trip| [500, 1000, 2000].map(|lasts| (trip, lasts))) {
        for place in 0..20 {
            let mut path = Path::new(29.0, trip, 1);
            let begins = 6000 + place * 53;
            path.outage = begins..begins + lasts;
            path.run(13);
            let class = path.senders[0].gate.class();
            assert_eq!(class, Class::Policed, "cut for {lasts} ms at {begins}, {trip} ms");
            path.count_anew();
            path.run(20);
            let Counts { passed, urgent, late, .. } = path.senders[0].counts;
            assert!(
                share(late, urgent) <= 0.02,
                "{late} of {urgent}, cut for {lasts} ms at {begins}, {trip} ms"
            );
            assert!(
                passed as f64 >= 0.9 * 20.0 * 29.0,
                "{passed}, cut for {lasts} ms at {begins}, {trip} ms"
            );
        }
    }
}

#[test]
fn a_queue_in_the_place_of_a_policer_is_noticed() {
    for (trip, rate) in [(1, 29.0), (40, 29.0), (40, 100.0), (40, 400.0)] {
        let mut path = Path::new(29.0, trip, 1);
        path.run(10);
        (path.limit, path.rate) = (Limit::Queue { most: 50.0 }, rate);
        path.run(5);
        let class = path.senders[0].gate.class();
        assert_eq!(class, Class::Queued, "{rate} packets a second, {trip} ms");
        path.run(5);
        path.count_anew();
        path.run(20);
        let Counts { passed, latest, .. } = path.senders[0].counts;
        // A full queue would be 1.7 s of 29 packets a second.
        assert!(latest <= 150, "{latest} ms: {rate} packets a second, {trip} ms");
        assert!(passed as f64 >= 0.85 * 20.0 * rate, "{passed}: {rate} packets a second, {trip} ms");
    }
}

#[test]
fn a_queue_stays_short() {
    for (rate, trip) in [29.0, 60.0, 100.0, 200.0, 300.0, 500.0, 860.0]
        .into_iter()
        .flat_map(|rate| [1, 10, 40, 100].map(|trip| (rate, trip)))
    {
        let mut path = Path::new(rate, trip, 1);
        path.limit = Limit::Queue { most: 100.0 };
        path.run(10);
        path.count_anew();
        path.run(40);
        let Counts { passed, latest, .. } = path.senders[0].counts;
        // A packet of bulk, its own, and the milliseconds in which the path goes.
        let most = 2500.0 / rate + 10.0;
        assert!(latest as f64 <= most, "{latest} ms: {rate} packets a second, {trip} ms");
        assert!(passed as f64 >= 0.95 * 40.0 * rate, "{passed}: {rate} packets a second, {trip} ms");
    }
}

/// A processor that is busy with something else for a moment tells late what came.
#[test]
fn a_queue_is_known_though_acknowledgements_are_late_at_times() {
    for (rate, trip) in [(100.0, 40), (300.0, 40), (860.0, 1), (860.0, 40), (860.0, 100)] {
        let mut path = Path::new(rate, trip, 1);
        path.limit = Limit::Queue { most: 100.0 };
        path.run(10);
        path.count_anew();
        for _ in 0..20 {
            path.lateness = 20;
            path.run_for(100);
            path.lateness = 0;
            path.run_for(900);
        }
        let Sender { gate, counts, .. } = &path.senders[0];
        assert_eq!(gate.class(), Class::Queued, "{rate} packets a second, {trip} ms");
        let passed = counts.passed as f64 / (20.0 * rate);
        assert!(passed >= 0.85, "{passed} of what can pass: {rate} packets a second, {trip} ms");
    }
}

#[test]
fn a_policer_in_the_place_of_a_queue_is_noticed() {
    for (trip, before, rate) in [
        (40, 29.0, 29.0),
        (40, 29.0, 10.0),
        (40, 100.0, 29.0),
        (1, 29.0, 29.0),
        (40, 860.0, 100.0),
        (40, 29.0, 100.0),
    ] {
        let mut path = Path::new(before, trip, 1);
        path.limit = Limit::Queue { most: 50.0 };
        path.run(10);
        assert_eq!(path.senders[0].gate.class(), Class::Queued, "{before} packets a second, {trip} ms");
        (path.limit, path.rate) = (Limit::Policer { depth: 5.0 }, rate);
        path.run(4);
        let class = path.senders[0].gate.class();
        assert_eq!(class, Class::Policed, "{before}, then {rate} packets a second, {trip} ms");
    }
}

/// What is lost by chance is no policer's, before a queue.
#[test]
fn a_queue_is_known_though_packets_are_lost_by_chance() {
    for (loss, chance) in
        [0.01, 0.05, 0.1].into_iter().flat_map(|loss| (1..20).map(move |chance| (loss, chance)))
    {
        let mut path = Path::new(860.0, 40, 1);
        path.limit = Limit::Queue { most: 100.0 };
        (path.loss, path.chance) = (loss, chance * 7919);
        path.run(10);
        path.count_anew();
        path.run(20);
        let Sender { gate, counts, .. } = &path.senders[0];
        assert_eq!(gate.class(), Class::Queued, "{loss} lost, {chance}");
        let passed = counts.passed as f64 / (20.0 * 860.0 * (1.0 - loss));
        assert!(passed >= 0.8, "{passed} of what can pass, {loss} lost, {chance}");
    }
}

#[test]
fn losses_by_chance_are_seldom_taken_for_a_policer() {
    let mut wrong = 0;
    for chance in 1..100 {
        let mut path = Path::new(860.0, 40, 1);
        path.limit = Limit::Queue { most: 100.0 };
        (path.loss, path.chance) = (0.1, chance * 7919);
        let is_wrong = (0..8).any(|_| {
            path.run(1);
            path.senders[0].gate.class() == Class::Policed
        });
        wrong += u32::from(is_wrong);
    }
    assert!(wrong <= 4, "{wrong} of 100");
}

#[test]
fn late_acknowledgements_starve_nobody() {
    for lateness in [100, 500, 1000] {
        let mut path = Path::new(29.0, 2, 1);
        path.run(5);
        path.lateness = lateness;
        path.run(10);
        path.count_anew();
        path.run(60);
        let Counts { passed, urgent, late, .. } = path.senders[0].counts;
        assert!(passed as f64 >= 0.94 * MINUTE * 29.0, "{passed} passed, {lateness} ms late");
        assert!(share(late, urgent) <= 0.01, "{late} of {urgent}, {lateness} ms late");
    }
}

#[test]
fn two_senders_share_a_policer() {
    for trip in [1, 40, 100] {
        let mut path = Path::new(58.0, trip, 2);
        path.run(10);
        path.count_anew();
        path.run(60);
        for sender in &path.senders {
            let Counts { passed, dropped, urgent, urgent_dropped, .. } = sender.counts;
            assert!(passed as f64 >= 0.15 * 58.0 * MINUTE, "{passed} passed, {trip} ms");
            assert!(share(urgent_dropped, urgent) <= 0.05, "{urgent_dropped} of {urgent} dropped, {trip} ms");
            assert!(
                share(dropped, passed + dropped) <= 0.1,
                "{dropped} of {} dropped, {trip} ms",
                passed + dropped
            );
        }
    }
}
