//! Reports for tests, built in code.

use std::collections::BTreeMap;

use braid_emulator::{PacketCount, PathCounters};
use braid_lab::report::{
    Cdf, Check, Column, Event, LinkRun, Machine, PathRun, Profile, ProgramRun, Published, Report, Run,
    SCHEMA, SelftestResult, Series, SeriesKind, Variant,
};

pub(crate) fn map(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

pub(crate) fn published(profile: &str, variant: &str, metric: &str, value: f64) -> Published {
    let of_variant = BTreeMap::from([(variant.to_owned(), map(&[(metric, value)]))]);
    BTreeMap::from([(profile.to_owned(), of_variant)])
}

/// Empty report.
pub(crate) fn empty() -> Report {
    Report {
        schema: SCHEMA.into(),
        scenario: "hol".into(),
        title: "Urgent messages behind a large one".into(),
        about: String::new(),
        command: "braidmq lab run hol".into(),
        started: "2026-11-22T06:00:00Z".into(),
        resumed: Vec::new(),
        version: "0.1.0".into(),
        build: String::new(),
        inputs: BTreeMap::new(),
        duration: 0.0,
        quick: false,
        replaced: BTreeMap::new(),
        machine: Machine::default(),
        selftest: None,
        columns: Vec::new(),
        latencies: Vec::new(),
        variants: Vec::new(),
        profiles: Vec::new(),
        published: Published::new(),
        references: Vec::new(),
        runs: Vec::new(),
        checks: Vec::new(),
    }
}

/// A run with one metric.
pub(crate) fn run(variant: &str, profile: &str, seed: u64, metric: &str, value: f64) -> Run {
    Run {
        variant: variant.into(),
        profile: profile.into(),
        seed,
        repetition: 1,
        seconds: 10.0,
        metrics: map(&[(metric, value)]),
        ..Run::default()
    }
}

pub(crate) fn refused(mut run: Run, reason: &str) -> Run {
    run.refused.push(reason.into());
    run
}

pub(crate) fn column(metric: &str, title: &str, unit: &str, digits: u8) -> Column {
    Column { metric: metric.into(), title: title.into(), unit: unit.into(), digits }
}

pub(crate) fn variant(name: &str) -> Variant {
    Variant { name: name.into(), title: name.into() }
}

pub(crate) fn profile(name: &str) -> Profile {
    Profile { name: name.into(), title: name.into(), links: BTreeMap::new() }
}

/// Variants `tcp` and `quic` on profile `lan` with the metric `rate`, by its values.
pub(crate) fn small(tcp: &[f64], quic: &[f64]) -> Report {
    let runs = |name: &'static str, values: &[f64]| {
        let runs = values.iter().zip(1..).map(|(value, seed)| run(name, "lan", seed, "rate", *value));
        runs.collect::<Vec<_>>()
    };
    Report {
        columns: vec![column("rate", "Rate", "msg/s", 1)],
        variants: vec![variant("tcp"), variant("quic")],
        profiles: vec![profile("lan")],
        runs: [runs("tcp", tcp), runs("quic", quic)].concat(),
        ..empty()
    }
}

/// The experiment of urgent messages behind large ones: four transports, two networks, three seeds, everything filled.
pub(crate) fn urgent_behind_large() -> Report {
    let names = [
        ("tcp", "Raw TCP", 49.0),
        ("tls", "TCP + TLS", 49.0),
        ("quic-single", "QUIC, one stream", 49.0),
        ("quic-multi", "QUIC, many streams", 1495.0),
    ];
    let variants = names.map(|(name, title, _)| Variant { name: name.into(), title: title.into() });
    let published = names.map(|(name, _, delivered)| (name.to_owned(), map(&[("delivered", delivered)])));
    let profiles = [
        ("lan", "LAN, 29 packets/s", "up: policer=29pps/5"),
        ("4g", "4G, 40 ms", "up: policer=29pps/5 delay=20ms / down: delay=20ms"),
    ];
    let profiles = profiles.map(|(name, title, link)| Profile {
        name: name.into(),
        title: title.into(),
        links: BTreeMap::from([("up".to_owned(), link.to_owned())]),
    });
    let mut runs = Vec::new();
    for seed in 1..=3 {
        for profile in &profiles {
            runs.extend(variants.iter().map(|variant| large_run(&variant.name, &profile.name, seed)));
        }
    }
    runs[0].refused.push("the emulator was late: 99 % of packets by 4.1 ms, at most 1 ms may be".into());
    Report {
        about: "A producer publishes a small urgent message every 100 ms and, from the fifth second on, 102.4 MB every 5 s \
                over a link that passes 29 packets/s.\n\nHow many urgent messages arrive, and when?"
            .into(),
        command: "braidmq lab run hol --seeds 1,2,3".into(),
        duration: SECONDS as f64,
        machine: Machine {
            kernel: "Linux 6.18.0".into(),
            processor: "Some Processor 9000".into(),
            cores: 2,
            memory: 8_000_000_000,
            load: [0.12, 0.3, 0.41],
            tcp_congestion_control: "cubic".into(),
            tcp_available: ["reno", "bbr", "cubic"].map(String::from).to_vec(),
            privileges: "user namespace".into(),
            wire: "tun".into(),
            offloads: Vec::new(),
        },
        selftest: Some(SelftestResult {
            refused: Vec::new(),
            busy: false,
            figures: map(&[("delay_error_p50_us", 21.0), ("delay_error_p99_us", 143.5), ("cpu_per_packet_us", 5.2)]),
        }),
        columns: vec![
            column("delivered", "Delivered", "messages", 0),
            column("delivered_share", "of all due", "%", 1),
            column("latency_p50", "p50", "ms", 1),
            column("latency_p99", "p99", "ms", 1),
            column("bulk_rate", "Bulk", "KB/s", 1),
            column("disconnects", "Disconnects", "", 0),
            column("producer_memory", "Producer memory", "MB", 0),
        ],
        variants: variants.to_vec(),
        profiles: profiles.to_vec(),
        published: BTreeMap::from([("lan".to_owned(), BTreeMap::from(published))]),
        runs,
        checks: vec![
            Check { bound: "quic-multi on lan: delivered_share 99.7 (bound: at least 95)".into(), measured: Some(99.7), holds: true },
            Check { bound: "tcp on lan: delivered 49 (bound: at most 60)".into(), measured: Some(49.0), holds: true },
            Check { bound: "quic-multi on 4g: latency_p99 141.2 (bound: at most 100)".into(), measured: Some(141.2), holds: false },
        ],
        ..empty()
    }
}

const SECONDS: usize = 150;

fn large_run(variant: &str, profile: &str, seed: u64) -> Run {
    let multi = variant == "quic-multi";
    let mut noise = Noise(seed * 7 + variant.len() as u64 * 131 + profile.len() as u64);
    let base = if profile == "lan" { 0.3 } else { 20.4 };
    let urgent: Vec<f64> = (0..SECONDS)
        .map(|second| match second {
            0 => 9.0,
            second if multi || second < 5 => 9.0 + (noise.next() * 2.5).floor(),
            _ => 0.0,
        })
        .collect();
    let delivered: f64 = urgent.iter().sum();
    let share = (delivered / 1500.0).min(1.0);
    let mut metrics = map(&[
        ("delivered", delivered),
        ("delivered_share", share * 100.0),
        ("bulk_rate", if multi { 31.2 } else { 33.9 } + noise.next()),
        ("disconnects", if multi { 0.0 } else { 1.0 }),
        ("producer_memory", 151.0 + noise.next()),
    ]);
    metrics.insert("latency_p50".into(), base * (1.0 + noise.next() / 10.0));
    metrics.insert("latency_p99".into(), base * 7.0);
    let points = (1..=200).map(|at| {
        let part = f64::from(at) / 200.0;
        (base * (1.0 + part * 0.4 + (part * part * 9.0).exp() / 600.0), part * share)
    });
    let steady = |value: f64, noise: &mut Noise| -> Vec<f64> {
        (0..SECONDS)
            .map(|second| if second < 5 { value / 3.0 } else { value + noise.next() * value / 9.0 })
            .collect()
    };
    let series = vec![
        series(SeriesKind::Rate, "Topic1", "messages/s", urgent.clone()),
        series(SeriesKind::Rate, "Topic2", "messages/s", vec![0.0; SECONDS]),
        series(SeriesKind::Link, "up passed", "packets/s", steady(27.0, &mut noise)),
        series(
            SeriesKind::Link,
            "up policed",
            "packets/s",
            steady(if multi { 2.0 } else { 17.0 }, &mut noise),
        ),
        series(SeriesKind::Link, "up lost", "packets/s", vec![0.0; SECONDS]),
        series(SeriesKind::Link, "down passed", "packets/s", steady(21.0, &mut noise)),
        series(SeriesKind::Stream, "stream 0", "bytes/s", urgent.iter().map(|_| 2.0).collect()),
        series(SeriesKind::Stream, "stream 1", "bytes/s", urgent.iter().map(|count| count * 120.0).collect()),
        series(SeriesKind::Stream, "stream 2", "bytes/s", steady(31_000.0, &mut noise)),
    ];
    let mut events = vec![
        Event { at: 0.04, source: "pub".into(), what: "connected".into() },
        Event { at: 5.0, source: "pub".into(), what: "Topic2: first message of 102,400,000 bytes".into() },
    ];
    if !multi {
        events.push(Event {
            at: 121.3,
            source: "pub".into(),
            what: "client(1): disconnected with reason 141: keepalive_timeout".into(),
        });
    }
    Run {
        variant: variant.into(),
        profile: profile.into(),
        seed,
        repetition: 1,
        attempt: 0,
        load: [0.2, 0.4],
        seconds: SECONDS as f64,
        refused: Vec::new(),
        metrics,
        series,
        gates: Vec::new(),
        cdfs: vec![Cdf { name: "Topic1".into(), points: points.collect() }],
        links: vec![link()],
        programs: vec![
            program("broker", "braidmq serve --config broker.toml", "stopped"),
            program(
                "pub",
                "braidmq bench pub -h 192.168.200.1 --topics-payload topics.json --json pub.json",
                "exit code 0",
            ),
        ],
        events,
    }
}

fn series(kind: SeriesKind, name: &str, unit: &str, values: Vec<f64>) -> Series {
    Series { kind, name: name.into(), unit: unit.into(), start: 0.0, step: 1.0, values }
}

fn link() -> LinkRun {
    let tally = |packets, bytes| PacketCount { packets, bytes };
    let up = PathCounters {
        offered: tally(7131, 8_557_200),
        sent: tally(4350, 5_220_000),
        policed: tally(2781, 3_337_200),
        largest: 1500,
        ..PathCounters::default()
    };
    let down = PathCounters {
        offered: tally(3350, 220_000),
        sent: tally(3350, 220_000),
        largest: 320,
        ..PathCounters::default()
    };
    let path = |counters| PathRun {
        counters,
        lateness_us: [12.0, 96.4, 310.0],
        cpu_us_per_packet: 5.31,
        realtime: true,
        reading: "timestamps".into(),
    };
    LinkRun { name: "up".into(), up: path(up), down: path(down) }
}

fn program(name: &str, command: &str, end: &str) -> ProgramRun {
    ProgramRun {
        name: name.into(),
        command: command.into(),
        end: end.into(),
        cpu_seconds: 3.417,
        peak_memory: Some(151_400_000),
        tail: vec!["1s pub total=9 rate=9.00/sec".into(), "2s pub total=19 rate=10.00/sec".into()],
    }
}

/// Numbers from 0 to 1, always the same.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / (1_u64 << 24) as f64
    }
}
