//! Properties of the parser: what is written reads back, and nothing that is read panics.

use std::time::Duration;

use braid_emulator::{LinkSpec, Pipeline, Probability};
use proptest::prelude::*;

fn share() -> impl Strategy<Value = String> {
    (0_u32..=1_000_000_000).prop_map(|units| Probability::from_billionths(units).to_string())
}

fn duration() -> impl Strategy<Value = String> {
    (0_u64..10_000_000_000, prop::sample::select(vec!["ns", "us", "ms", "s"]))
        .prop_map(|(n, unit)| format!("{n}{unit}"))
}

fn loss() -> impl Strategy<Value = String> {
    let list = |name: &'static str, most| {
        prop::collection::vec(0_u32..=500_000_000, 1..=most).prop_map(move |shares| {
            let shares = shares.iter().map(|&units| Probability::from_billionths(units).to_string());
            format!("{name}:{}", shares.collect::<Vec<_>>().join(","))
        })
    };
    let pattern = prop::collection::vec((1_u64..1_000_000, 0_u64..5), 1..6).prop_map(|steps| {
        let mut last = 0;
        let ranges = steps.iter().map(|(gap, length)| {
            let first = last + gap;
            last = first + length;
            if *length == 0 { format!("{first}") } else { format!("{first}-{last}") }
        });
        format!("pattern:{}", ranges.collect::<Vec<_>>().join(","))
    });
    // p31 defaults to 1 - p13, so that a lone p32 could exceed what is left.
    prop_oneof![
        share(),
        list("gemodel", 4),
        list("state", 2),
        list("state", 5).prop_filter("5", |t| t.matches(',').count() == 4),
        pattern
    ]
}

fn word() -> impl Strategy<Value = String> {
    let rate = prop_oneof![
        (1_u64..100_000_000_000, prop::sample::select(vec!["bit", "pps"]))
            .prop_map(|(n, unit)| format!("{n}{unit}")),
        (1_u64..100_000, prop::sample::select(vec!["kbit", "mbit", "gbit"]))
            .prop_map(|(n, unit)| format!("{n}{unit}")),
    ];
    let policer = prop_oneof![
        (1_u64..1_000_000, 1_u64..10_000).prop_map(|(rate, burst)| format!("{rate}pps/{burst}")),
        (1_u64..10_000, 1_u64..100).prop_map(|(rate, burst)| format!("xt:{rate}pps/{burst}")),
        (1_u64..1_000_000, 1_u64..1_000_000).prop_map(|(rate, burst)| format!("{rate}kbit/{burst}b")),
    ];
    let nat = (
        prop::sample::select(vec!["rebind", "rst", "move"]),
        prop::collection::btree_set(1_u64..1_000_000, 1..4),
    )
        .prop_map(|(kind, times)| {
            let times: Vec<String> = times.iter().map(|time| format!("{time}ms")).collect();
            format!("{kind}{}{}", if times.len() == 1 { ":" } else { "@" }, times.join(","))
        });
    prop_oneof![
        prop::sample::select(vec!["udp", "tcp:1883", "tcp,udp:14567,icmp"])
            .prop_map(|v| format!("match={v}")),
        policer.prop_map(|v| format!("policer={v}")),
        share().prop_map(|v| format!("dup={v}")),
        loss().prop_map(|v| format!("loss={v}")),
        share().prop_map(|v| format!("corrupt={v}")),
        (1_u64..100_000, 1_u64..100_000).prop_map(|(p, b)| format!("limit={p}p/{b}b")),
        rate.prop_map(|v| format!("rate={v}")),
        duration().prop_map(|v| format!("delay={v}")),
        (duration(), duration(), prop::collection::vec(-4_000_000_i32..4_000_000, 1..5)).prop_map(
            |(d, j, table)| {
                let table: Vec<String> =
                    table.iter().map(|millionths| format!("{}", f64::from(*millionths) / 1e6)).collect();
                format!("delay={d} jitter={j} dist=table:{}", table.join(","))
            }
        ),
        (duration(), share()).prop_map(|(d, v)| format!("delay={d} reorder={v}")),
        nat.prop_map(|v| format!("nat={v}")),
        (1_u32.., duration()).prop_map(|(packets, after)| format!("replay={packets}p/{after}")),
        (68_u16..).prop_map(|v| format!("mtu={v}")),
        prop::sample::select(vec!["netem", "line"]).prop_map(|v| format!("order={v}")),
        any::<u64>().prop_map(|v| format!("seed={v}")),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let section = (prop::sample::select(vec!["", "up: ", "down: "]), prop::collection::vec(word(), 0..5))
        .prop_map(|(prefix, words)| format!("{prefix}{}", words.join(" ")));
    let entry = prop::collection::vec(section, 1..3).prop_map(|sections| sections.join(" / "));
    prop::collection::vec(entry, 1..4).prop_map(|entries| {
        let entry = |(place, entry): (usize, &String)| {
            if place == 0 { entry.clone() } else { format!("t={place}s {entry}") }
        };
        entries.iter().enumerate().map(entry).collect::<Vec<_>>().join(" ; ")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 100_000, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn every_word_is_accepted_and_reads_back(word in word()) {
        let link: LinkSpec = word.parse().map_err(|error| TestCaseError::fail(format!("{word}: {error}")))?;
        prop_assert_eq!(link.to_string().parse::<LinkSpec>(), Ok(link));
    }

    #[test]
    fn every_link_reads_back(text in text()) {
        let parsed = text.parse::<LinkSpec>();
        prop_assume!(parsed.is_ok());
        let link = parsed.unwrap();
        let written = link.to_string();
        prop_assert_eq!(written.parse::<LinkSpec>(), Ok(link), "{} was written as {}", text, written);
    }

    #[test]
    fn every_link_runs_at_any_time(words in prop::collection::vec(word(), 1..4), seed: u64) {
        let Ok(link) = words.join(" ").parse::<LinkSpec>() else { return Ok(()) };
        let (mut up, mut down) = Pipeline::pair(&link, seed);
        for pipeline in [&mut up, &mut down] {
            for now in [Duration::ZERO, Duration::from_nanos(1), Duration::from_secs(3600), Duration::MAX] {
                pipeline.handle(now, &[0x45; 60]);
                pipeline.handle(now, &[]);
                while pipeline.take_due(now).is_some() {}
            }
            prop_assert_eq!(pipeline.counters().queued.packets, 0, "all is due at the end of time");
        }
    }

    #[test]
    fn garbage_is_refused_in_one_line(text: String) {
        if let Err(error) = text.parse::<LinkSpec>() {
            prop_assert!(!error.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn mangled_words_never_panic(word in word(), place: prop::sample::Index, with in any::<char>()) {
        let mut mangled: Vec<char> = word.chars().collect();
        let place = place.index(mangled.len());
        mangled[place] = with;
        let mangled: String = mangled.into_iter().collect();
        if let Err(error) = mangled.parse::<LinkSpec>() {
            let line = error.to_string();
            prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
            prop_assert!(line.len() < 500, "{}", line);
        }
    }
}
