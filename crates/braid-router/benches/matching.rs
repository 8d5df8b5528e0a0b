//! Nanoseconds per match, for routers of very different size: `cargo bench -p braid-router`.
//!
//! The bytes per filter are true for the first case only, as later ones use freed memory again: name one,
//! `cargo bench -p braid-router -- cmd/dev-N/+`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use braid_proto::session::Subscription;
use braid_proto::topic::{TopicFilter, TopicName};
use braid_router::{Matches, Retained, Router};

/// Measuring time of each case.
const BUDGET: Duration = Duration::from_millis(500);
/// Number of different names that a case publishes to.
const NAMES: usize = 1 << 16;

/// Label of a case, filter of session `n`, and topic of publication `n`.
type Case = (&'static str, fn(usize) -> String, fn(usize) -> String);

const CASES: [Case; 6] = [
    ("site/line/dev-N/state", |n| format!("site/line/dev-{n}/state"), |n| format!("site/line/dev-{n}/state")),
    ("cmd/dev-N/#", |n| format!("cmd/dev-{n}/#"), |n| format!("cmd/dev-{n}/reboot")),
    ("cmd/dev-N/+", |n| format!("cmd/dev-{n}/+"), |n| format!("cmd/dev-{n}/reboot")),
    ("+/dev-N/+/state", |n| format!("+/dev-{n}/+/state"), |n| format!("site/dev-{n}/a/state")),
    ("site/+/dev-N/state/#", |n| format!("site/+/dev-{n}/state/#"), |n| format!("site/a/dev-{n}/state/x")),
    ("no match: other/dev-N", |n| format!("cmd/dev-{n}/+"), |n| format!("other/dev-{n}/reboot")),
];

fn main() {
    let sizes = [10, 10_000, 1_000_000];
    println!("{:<26}{:>12}{:>12}{:>12}   ns per match, filters:", "", sizes[0], sizes[1], sizes[2]);
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    for (label, filter, name) in CASES {
        if only.as_ref().is_some_and(|only| !label.starts_with(only.as_str())) {
            continue;
        }
        let columns = sizes.map(|size| one_each(size, filter, name));
        println!("{label:<26}{:>12.0}{:>12.0}{:>12.0}", columns[0], columns[1], columns[2]);
    }
    if only.is_some() {
        return;
    }
    println!("\n{:<26}{:>12}   ns per subscription found", "fan-out, subscribers", "");
    for size in [1, 10, 100, 10_000, 1_000_000] {
        println!("{size:<26}{:>12.2}{:>12.2}", fan_out(size, &["a/b"]), fan_out(size, &["a/b", "a/+", "#"]));
    }
    println!("\nretained replay");
    for size in [10, 10_000, 1_000_000] {
        replay(size);
    }
}

fn one_each(size: usize, filter: fn(usize) -> String, name: fn(usize) -> String) -> f64 {
    let mut router = Router::new();
    let before = resident_kib();
    let started = Instant::now();
    for n in 0..size {
        router.subscribe(n as u64, &parse_filter(&filter(n)), Subscription::default());
    }
    if size == 1_000_000 {
        let bytes = (resident_kib().saturating_sub(before)) * 1024 / size;
        println!(
            "  ({bytes} bytes and {} ns per filter to build)",
            started.elapsed().as_nanos() as usize / size
        );
    }
    let mut rng = fastrand::Rng::with_seed(1);
    let names: Vec<_> = (0..NAMES.min(size)).map(|_| parse_name(&name(rng.usize(0..size)))).collect();
    let mut matches = Matches::default();
    measure(&names, |name| {
        router.matches(name, &mut matches);
        black_box(&matches);
    })
}

fn fan_out(subscribers: usize, filters: &[&str]) -> f64 {
    let mut router = Router::new();
    for filter in filters {
        for key in 0..subscribers {
            router.subscribe(key as u64, &parse_filter(filter), Subscription::default());
        }
    }
    let mut matches = Matches::default();
    let ns = measure(&[parse_name("a/b")], |name| {
        router.matches(name, &mut matches);
        black_box(&matches);
    });
    ns / matches.direct.len() as f64
}

fn replay(size: usize) {
    let mut retained = Retained::new();
    let started = Instant::now();
    for n in 0..size {
        retained.insert(parse_name(&format!("site/dev-{n}/{}", n % 7)), n);
    }
    let insert = started.elapsed().as_nanos() as usize / size;
    print!("{size:<10} insert {insert} ns;");
    for pattern in ["site/dev-7/0", "site/dev-7/#", "site/+/3", "site/#"] {
        let filter = parse_filter(pattern);
        let mut found = 0;
        let ns = measure(&[0], |_| {
            found = 0;
            retained.matching(&filter, |_, message| found += black_box(message).min(&1));
        });
        print!("  {pattern}: {ns:.0} ns for {found}");
    }
    println!();
}

/// Nanoseconds per call, in the quickest of the passes over `inputs` that the budget allows: what a busy
/// machine adds is left out.
fn measure<T>(inputs: &[T], mut call: impl FnMut(&T)) -> f64 {
    let rounds = if inputs.len() == 1 { 16 } else { 1 + 4096 / inputs.len() };
    let (begun, mut best) = (Instant::now(), Duration::MAX);
    while begun.elapsed() < BUDGET {
        let pass = Instant::now();
        for input in std::iter::repeat_n(inputs, rounds).flatten() {
            call(input);
        }
        best = best.min(pass.elapsed());
    }
    best.as_nanos() as f64 / (rounds * inputs.len()) as f64
}

fn parse_filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a filter")
}

fn parse_name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a name")
}

/// The resident memory of this process; 0 where there is no procfs.
fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
