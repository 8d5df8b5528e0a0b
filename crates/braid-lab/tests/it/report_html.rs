//! HTML page of a report.

use std::collections::BTreeMap;

use braid_lab::report::{Report, SelftestResult, html, overview};
use proptest::prelude::*;

use crate::report_fixture::{empty, profile, published, refused, run, small, urgent_behind_large};

/// Tag with the names of its attributes.
#[derive(Debug, PartialEq, Eq)]
struct Tag {
    name: String,
    attributes: Vec<String>,
}

/// The tags of a page, as a browser finds them outside of styles.
fn tags(page: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once('<') {
        let mut end = after.len();
        let mut quoted = false;
        for (at, c) in after.char_indices() {
            match c {
                '"' => quoted = !quoted,
                '>' if !quoted => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        // Every second piece between quotes is a value.
        let outside: String = after[..end].split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let mut words = outside.split_whitespace().filter(|word| *word != "/");
        let name = words.next().unwrap_or_default().to_owned();
        rest = &after[end..];
        if name == "style" {
            rest = rest.split_once("</style").unwrap().1;
        }
        tags.push(Tag { name, attributes: words.map(str::to_owned).collect() });
    }
    tags
}

fn assert_balanced(page: &str) {
    const EMPTY: [&str; 8] = ["!DOCTYPE", "meta", "rect", "line", "polyline", "polygon", "circle", "br"];
    let mut open = Vec::new();
    for tag in tags(page).iter().filter(|tag| !EMPTY.contains(&tag.name.as_str()) && tag.name != "style") {
        match tag.name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name.to_owned())),
            None => open.push(tag.name.clone()),
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

/// The page without tags, white space as one space.
fn words(page: &str) -> String {
    let text: String = page
        .split('<')
        .map(|piece| piece.split_once('>').map_or("", |(_, text)| text))
        .collect::<Vec<_>>()
        .join(" ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_whole_report_is_there() {
    let report = urgent_behind_large();
    let page = html(&report);
    assert_balanced(&page);
    let words = words(&page);
    for expected in [
        "How many urgent messages arrive, and when?",
        "✗ 1 of 3 bounds failed",
        "✗ 24 runs, 1 refused and not counted",
        "✓ The machine passed its selftest",
        "Made 2026-11-22T06:00:00Z by braidmq 0.1.0 on Linux 6.18.0, 2 cores. Each workload: 150 s.",
        "of all due %",
        "published 1495",
        "2 of 3",
        "✗ failed quic-multi on 4g: latency_p99 141.2 (bound: at most 100)",
        "✓ held quic-multi on lan: delivered_share 99.7 (bound: at least 95)",
        "the emulator was late: 99 % of packets by 4.1 ms",
        "121.3 s pub client(1): disconnected with reason 141: keepalive_timeout",
        "dropped by the policer 2781 3.3 MB 0",
        "bytes per packet that left 1200 66",
        "12 / 96 / 310",
        "exit code 0 3.42 s 151.4 MB",
        "1s pub total=9 rate=9.00/sec",
        "Kernel Linux 6.18.0",
        "TCP available reno, bbr, cubic",
        "Offloads all off, as they must be",
        "delay error p99 143.5 us",
        "Seeds of the links: 1, 2, 3.",
        "braidmq lab run hol --seeds 1,2,3",
        "up: policer=29pps/5 delay=20ms / down: delay=20ms",
    ] {
        assert!(words.contains(expected), "{expected}");
    }
    assert!(words.find("✗ failed") < words.find("✓ held"), "what failed comes first");
    assert!(!words.contains("dropped by a NAT"), "what never happened is left out");
    assert_eq!(page.matches("<svg ").count(), 2 * 8, "each picture for wide and for narrow pages");
    assert_eq!(page.matches("<svg ").count(), page.matches("role=\"img\" aria-label=\"").count());
}

#[test]
fn the_page_has_no_external_references() {
    let page = html(&urgent_behind_large());
    let tags = tags(&page);
    for banned in ["script", "link", "img", "iframe", "object", "image", "use", "a"] {
        assert!(tags.iter().all(|tag| tag.name != banned), "{banned}");
    }
    let reaches_out = |attribute: &str| {
        ["src=", "href=", "on", "style=", "xlink"].iter().any(|name| attribute.starts_with(name))
    };
    assert!(tags.iter().flat_map(|tag| &tag.attributes).all(|attribute| !reaches_out(attribute)));
    assert_eq!(
        page.matches("http").count(),
        page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count() + 1
    );
    assert!(!page.contains("url(") && !page.contains("@import"));
    assert!(page.contains(
        "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\""
    ));
}

#[test]
fn medians_are_of_usable_runs() {
    let mut report = small(&[10.0, 30.0, 20.0], &[]);
    let mut late = refused(run("tcp", "lan", 9, "rate", 4711.0), "late");
    late.attempt = 1;
    report.runs.push(late);
    report.published = published("lan", "tcp", "rate", 19.5);
    let page = html(&report);
    assert!(words(&page).contains("tcp on lan, seed 9, repetition 1, attempt 2"), "{page}");
    assert!(!words(&page).contains("attempt 1"), "the first one needs no number");
    let row = words(page.split_once("<tbody>").unwrap().1.split_once("</tbody>").unwrap().0);
    assert_eq!(row, "tcp 20.0 10.0..30.0 published 19.5 3 of 4");
}

#[test]
fn missing_parts_are_named() {
    let page = html(&empty());
    assert_balanced(&page);
    let text = words(&page);
    for expected in [
        "0 runs, none refused",
        "Nothing was compared.",
        "There was none.",
        "the accuracy of this machine is unknown",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("Bounds") && !text.contains("Charts") && !text.contains("Refused"), "{text}");

    let mut report = small(&[f64::NAN], &[f64::INFINITY]);
    report.machine.offloads = vec!["tx-udp-segmentation".into()];
    report.machine.load = [f64::NAN; 3];
    report.selftest = Some(SelftestResult {
        refused: vec!["too late".into()],
        busy: true,
        figures: BTreeMap::from([("a_ms".into(), f64::NAN)]),
    });
    report.runs[0].metrics.insert("other".into(), f64::NEG_INFINITY);
    let text = words(&html(&report));
    assert!(text.contains("✗ The machine failed its selftest") && text.contains("too late"), "{text}");
    assert!(text.contains("ON, though all must be off: tx-udp-segmentation"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
}

#[test]
fn deviations_from_the_scenario_are_named() {
    let mut report = urgent_behind_large();
    let text = words(&html(&report));
    assert!(!text.contains("hort form") && !text.contains("was replaced by"), "{text}");
    report.quick = true;
    report.duration = 30.0;
    report.replaced = BTreeMap::from([("broker".into(), "mosquitto -c <x>".into())]);
    let text = words(&html(&report));
    for expected in [
        "Short form of the scenario",
        "broker was replaced by mosquitto -c &lt;x&gt;",
        "Each workload: 30 s.",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_profile_without_runs_has_no_table() {
    let mut report = small(&[1.0], &[2.0]);
    report.profiles.push(profile("4g"));
    let text = words(&html(&report));
    assert!(text.contains("lan") && !text.contains("4g"), "{text}");
    report.runs.clear();
    let text = words(&html(&report));
    assert!(text.contains("Nothing was compared.") && !text.contains("lan"), "{text}");
}

#[test]
fn long_lists_of_events_are_cut() {
    let mut report = urgent_behind_large();
    report.runs.truncate(2);
    let event = report.runs[1].events[0].clone();
    report.runs[1].events = vec![event; 1000];
    let text = words(&html(&report));
    assert!(text.contains("later 940 events more in report.json"));
}

/// Small report in which every text from outside is `text`.
fn saying(text: &str) -> Report {
    let mut report = urgent_behind_large();
    let text = || text.to_owned();
    report.runs = vec![report.runs[1].clone(), report.runs[0].clone()];
    report.variants.truncate(1);
    report.profiles.truncate(1);
    report.columns.truncate(1);
    report.checks.truncate(1);
    for field in [
        &mut report.schema,
        &mut report.scenario,
        &mut report.title,
        &mut report.about,
        &mut report.command,
        &mut report.started,
        &mut report.version,
        &mut report.machine.kernel,
        &mut report.machine.processor,
        &mut report.machine.tcp_congestion_control,
        &mut report.machine.privileges,
        &mut report.machine.wire,
    ] {
        *field = text();
    }
    report.checks[0].bound = text();
    let column = &mut report.columns[0];
    (column.metric, column.title, column.unit) = (text(), text(), text());
    (report.variants[0].name, report.variants[0].title) = (text(), text());
    (report.profiles[0].name, report.profiles[0].title) = (text(), text());
    report.machine.tcp_available = vec![text()];
    report.quick = true;
    report.replaced = BTreeMap::from([(text(), text())]);
    report.machine.offloads = vec![text()];
    report.selftest =
        Some(SelftestResult { refused: vec![text()], busy: true, figures: BTreeMap::from([(text(), 1.0)]) });
    report.published = published(&text(), &text(), &text(), 2.0);
    report.profiles[0].links = BTreeMap::from([(text(), text())]);
    for run in &mut report.runs {
        (run.variant, run.profile) = (text(), text());
        run.metrics = BTreeMap::from([(text(), 1.0)]);
        run.series.iter_mut().for_each(|series| (series.name, series.unit) = (text(), text()));
        run.series.iter_mut().for_each(|series| series.values.truncate(3));
        run.cdfs.iter_mut().for_each(|cdf| cdf.name = text());
        run.cdfs.iter_mut().for_each(|cdf| cdf.points.truncate(3));
        run.links.iter_mut().for_each(|link| link.name = text());
        run.events.iter_mut().for_each(|event| (event.source, event.what) = (text(), text()));
        for program in &mut run.programs {
            (program.name, program.command, program.end) = (text(), text(), text());
            program.tail = vec![text(), text()];
        }
    }
    report.runs[1].refused = vec![text()];
    report
}

/// Copy of `text` without characters that are special in HTML.
fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() || c.is_control() { c } else { 'x' }).collect()
}

fn assert_only_text(text: &str) {
    let page = html(&saying(text));
    assert_eq!(tags(&page), tags(&html(&saying(&harmless(text)))), "{text:?} became more than text");
    assert!(page.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
    assert_balanced(&page);
    let picture = |text| overview(&saying(text)).unwrap().svg;
    assert_eq!(tags(&picture(text)), tags(&picture(&harmless(text))), "{text:?} became more than text");
}

#[test]
fn known_attacks_stay_text() {
    for text in [
        "<script>alert(1)</script>",
        "\" onload=\"alert(1)",
        "' onload='alert(1)",
        "</title></style></pre><img src=x onerror=alert(1)>",
        "&lt;b&gt; & <!-- ]]> -->",
        "\u{202e}\0\x1b[2J</code>",
    ] {
        assert_only_text(text);
    }
    let page = html(&saying("<&\"'>"));
    assert!(page.contains("&lt;&amp;&quot;&#39;&gt;") && !page.contains("<&\"'>"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn text_from_outside_stays_text(text in "([<>&\"'/= a-z-]|[^a-zA-Z%]){0,40}") {
        assert_only_text(&text);
    }
}
