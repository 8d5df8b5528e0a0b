//! The cap against simulated networks: packets are acknowledged or lost a round trip later.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::PolicerCap;

const BYTES: u64 = 1400;

/// Network: tells whether a packet passes.
type Passes = dyn FnMut(Instant) -> bool;

/// A sender that always has something to send, at `pace` packets a second or what the cap permits.
struct Sender {
    cap: PolicerCap,
    now: Instant,
    rtt: Duration,
    number: u64,
    in_flight: VecDeque<(Instant, u64, bool)>,
}

impl Sender {
    fn new(rtt: Duration) -> Self {
        let now = Instant::now();
        Self { cap: PolicerCap::new(now), now, rtt, number: 0, in_flight: VecDeque::new() }
    }

    /// Runs, and returns the packets that were sent and those that were lost.
    fn run(&mut self, lasting: Duration, pace: f64, passes: &mut Passes) -> (f64, f64) {
        let (end, mut sent, mut lost) = (self.now + lasting, 0.0, 0.0);
        while self.now < end {
            let cap = self.cap.rate().map_or(f64::INFINITY, |rate| as_f64(rate) / as_f64(BYTES));
            self.now += Duration::from_secs_f64(1.0 / pace.min(cap));
            self.settle(false);
            self.number += 1;
            self.cap.handle_sent(self.number);
            let passed = passes(self.now);
            sent += 1.0;
            lost += if passed { 0.0 } else { 1.0 };
            self.in_flight.push_back((self.now + self.rtt, self.number, passed));
        }
        (sent, lost)
    }

    fn settle(&mut self, app_limited: bool) {
        while let Some(&(due, number, passed)) = self.in_flight.front()
            && due <= self.now
        {
            self.in_flight.pop_front();
            if passed {
                self.cap.handle_acked(number, BYTES, due);
                self.cap.handle_end_of_acks(app_limited, due);
            } else {
                self.cap.handle_lost(number, due);
            }
        }
    }
}

fn as_f64(value: u64) -> f64 {
    f64::from(u32::try_from(value).expect("small"))
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Policer of `rate` packets a second with a burst of 5.
fn policer(rate: f64) -> Box<Passes> {
    let (mut tokens, mut last) = (5.0_f64, None);
    Box::new(move |now: Instant| {
        let passed = now.duration_since(last.replace(now).unwrap_or(now));
        tokens = (tokens + passed.as_secs_f64() * rate).min(5.0);
        let passes = tokens >= 1.0;
        tokens -= if passes { 1.0 } else { 0.0 };
        passes
    })
}

/// Link that loses `share` of the packets at random.
fn radio(share: f64) -> Box<Passes> {
    let mut state = 1_u64;
    Box::new(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from(u32::try_from(state >> 32).expect("32 bits")) / f64::from(u32::MAX) >= share
    })
}

#[test]
fn losses_behind_a_policer_end_and_nearly_all_of_its_rate_is_used() {
    for (rate, rtt) in [(29.0, 2), (29.0, 40), (29.0, 600), (500.0, 40)] {
        let (mut sender, mut network) = (Sender::new(Duration::from_millis(rtt)), policer(rate));
        sender.run(seconds(10), rate * 1.4, &mut network);
        assert!(sender.cap.rate().is_some(), "{rate} per second, {rtt} ms");
        let (sent, lost) = sender.run(seconds(120), rate * 1.4, &mut network);
        assert!(lost / sent < 0.05, "{lost} of {sent} lost at {rate} per second, {rtt} ms");
        assert!(sent - lost > 0.93 * rate * 120.0, "{sent} less {lost} at {rate} per second, {rtt} ms");
    }
}

#[test]
fn a_link_that_loses_at_random_is_not_slowed_down() {
    for share in [0.02, 0.08, 0.15, 0.3] {
        let mut sender = Sender::new(Duration::from_millis(40));
        let (sent, _) = sender.run(seconds(300), 900.0, &mut radio(share));
        assert!(sent > 0.99 * 900.0 * 300.0, "{sent} sent of 270,000, {share} lost");
    }
}

#[test]
fn a_cap_does_not_follow_losses_down_without_end() {
    let mut sender = Sender::new(Duration::from_millis(40));
    sender.run(seconds(20), 900.0, &mut policer(600.0));
    assert!(sender.cap.rate().is_some());
    // The policer goes away, and the link loses more at random than a cap accepts.
    let (sent, _) = sender.run(seconds(300), 900.0, &mut radio(0.08));
    assert!(sent > 0.95 * 900.0 * 300.0, "{sent} sent of 270,000");
}

#[test]
fn a_limit_that_is_gone_is_noticed() {
    let mut sender = Sender::new(Duration::from_millis(40));
    sender.run(seconds(20), 100.0, &mut policer(29.0));
    assert!(sender.cap.rate().is_some());
    sender.run(seconds(20), 1000.0, &mut radio(0.0));
    assert_eq!(sender.cap.rate(), None);
}

#[test]
fn a_cap_that_limits_nothing_is_lifted() {
    let mut sender = Sender::new(Duration::from_millis(40));
    sender.run(seconds(20), 100.0, &mut policer(29.0));
    assert!(sender.cap.rate().is_some());
    // Once with so little to send that the network is never at its limit, once after a silence.
    let mut quiet = Sender { cap: sender.cap.clone(), in_flight: VecDeque::new(), ..Sender::new(sender.rtt) };
    (quiet.now, quiet.number) = (sender.now, sender.number);
    quiet.run(seconds(40), 2.0, &mut radio(0.0));
    assert_eq!(quiet.cap.rate(), None);
    sender.now += seconds(40);
    sender.run(Duration::from_millis(1), 100.0, &mut radio(0.0));
    sender.now += sender.rtt;
    sender.settle(true);
    assert_eq!(sender.cap.rate(), None);
}

#[test]
fn outages_and_single_losses_are_no_policer() {
    let mut sender = Sender::new(Duration::from_millis(40));
    let begun = sender.now;
    // A second in each three is lost.
    let mut outages = move |now: Instant| now.duration_since(begun).as_secs() % 3 != 2;
    for _ in 0..60 {
        sender.run(seconds(1), 900.0, &mut outages);
        assert_eq!(sender.cap.rate(), None);
    }
}

#[test]
fn a_sender_with_little_to_send_learns_nothing() {
    let (mut sender, mut network) = (Sender::new(Duration::from_millis(40)), policer(29.0));
    for _ in 0..600 {
        sender.run(Duration::from_millis(100), 45.0, &mut network);
        sender.now += sender.rtt;
        sender.settle(true);
        assert_eq!(sender.cap.rate(), None);
    }
}
