//! Charts of a report.

use braid_lab::report::{
    Cdf, Event, GateRun, PathClass, Plot, Report, Series, SeriesKind, Variant, overview, plots,
};
use proptest::prelude::*;

use crate::report_fixture::{column, empty, refused, run, small, urgent_behind_large, variant};

fn series(kind: SeriesKind, name: &str, step: f64, values: Vec<f64>) -> Series {
    Series { kind, name: name.into(), unit: "x/s".into(), start: 0.0, step, values }
}

/// A report of one run with one series and one distribution.
fn one(values: Vec<f64>, points: Vec<(f64, f64)>) -> Report {
    let mut report = small(&[1.0], &[]);
    report.runs[0].series = vec![series(SeriesKind::Rate, "Topic1", 1.0, values)];
    report.runs[0].cdfs = vec![Cdf { name: "Topic1".into(), points }];
    report
}

/// Texts of a chart in order.
fn texts(svg: &str) -> Vec<&str> {
    let texts = svg.split("<text ").skip(1);
    texts.map(|text| text.split_once('>').unwrap().1.split_once("</text>").unwrap().0.trim()).collect()
}

/// Points of the lines of a chart, in its units.
fn lines(svg: &str) -> Vec<Vec<(f64, f64)>> {
    let point = |point: &str| {
        let (x, y) = point.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let lines = svg.split("points=\"").skip(1).map(|line| line.split_once('"').unwrap().0);
    lines.map(|line| line.split_whitespace().map(point).collect()).collect()
}

fn size(svg: &str) -> (f64, f64) {
    let (_, rest) = svg.split_once("viewBox=\"0 0 ").unwrap();
    let (width, height) = rest.split_once('"').unwrap().0.split_once(' ').unwrap();
    (width.parse().unwrap(), height.parse().unwrap())
}

/// Checks properties of every chart.
fn assert_sound(plot: &Plot) {
    let svg = &plot.svg;
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"900\""), "{svg}");
    assert!(svg.trim_end().ends_with("</svg>") && svg.len() < 400_000, "{}", svg.len());
    assert!(!svg.contains("NaN") && !svg.contains("could not be drawn"), "{svg}");
    assert!(!texts(svg).iter().any(|text| text.contains("inf")), "{svg}");
    let (width, height) = size(svg);
    for (x, y) in lines(svg).into_iter().flatten() {
        assert!(
            (0.0..=width).contains(&x) && (0.0..=height).contains(&y),
            "({x}, {y}) of ({width}, {height})"
        );
    }
}

#[test]
fn a_chart_for_each_kind_and_profile() {
    let plots = plots(&urgent_behind_large());
    plots.iter().for_each(assert_sound);
    let files: Vec<&str> = plots.iter().map(|plot| plot.file.as_str()).collect();
    let kinds = ["rate", "latency", "link", "streams"];
    let expected = ["lan", "4g"].map(|profile| kinds.map(|kind| format!("{kind}-{profile}.svg"))).concat();
    assert_eq!(files, expected);
    let titles: Vec<&str> = plots.iter().map(|plot| plot.title.as_str()).take(4).collect();
    let network = "LAN, 29 packets/s";
    let expected = ["Messages per second", "Latency", "Packets of the link", "Bytes per stream"];
    assert_eq!(titles, expected.map(|title| format!("{title}, {network}")));
    for unit in ["messages/s", "latency in ms", "packets/s", "kB/s"] {
        assert_eq!(plots.iter().filter(|plot| texts(&plot.svg).contains(&unit)).count(), 2, "{unit}");
    }
    let rate = texts(&plots[0].svg);
    let headings = rate.iter().filter(|text| text.contains("TCP") || text.contains("QUIC"));
    assert_eq!(
        headings.take(4).collect::<Vec<_>>(),
        [&"Raw TCP", &"TCP + TLS", &"QUIC, one stream", &"QUIC, many streams"]
    );
    assert!(!texts(&plots[2].svg).contains(&"up lost"), "what never happened has no line");
}

#[test]
fn the_overview_has_the_key_numbers() {
    let report = urgent_behind_large();
    let plot = overview(&report).unwrap();
    assert_sound(&plot);
    assert_eq!((plot.file.as_str(), &plot.title), ("overview.svg", &report.title));
    let shown = texts(&plot.svg);
    let median = |metric| report.spread("quic-multi", "lan", metric).unwrap().median;
    let note = format!(
        "Delivered {:.0} messages (published 1495)  ·  of all due {:.1} %  ·  p50 {:.1} ms",
        median("delivered"),
        median("delivered_share"),
        median("latency_p50")
    );
    assert!(shown.contains(&note.as_str()), "{note}: {shown:?}");
    assert!(plot.svg.contains("Made by: braidmq lab run hol"), "{shown:?}");
    assert_eq!(overview(&empty()), None);
    assert_eq!(overview(&small(&[1.0], &[2.0])), None, "there is nothing over time");
}

#[test]
fn a_line_is_as_high_and_as_long_as_its_values() {
    let mut report = one(vec![10.0, 10.0, 0.0, 5.0], Vec::new());
    report.runs[0].seconds = 8.0;
    let plot = plots(&report).remove(0);
    let stairs = lines(&plot.svg).into_iter().find(|line| line.len() == 8).unwrap();
    let heights: Vec<f64> = stairs.iter().map(|(_, y)| *y).collect();
    assert_eq!(
        (heights[0], heights[1], heights[2], heights[4]),
        (heights[3], heights[0], heights[0], heights[5])
    );
    let (high, low, middle) = (heights[0], heights[4], heights[6]);
    assert!(((low - middle) / (low - high) - 0.5).abs() < 0.02, "{heights:?}");
    let step = stairs[1].0 - stairs[0].0;
    let axis_end = size(&plot.svg).0 - (18.0 + 10.0) * 4.0;
    assert!(((axis_end - stairs[0].0) / step - 8.0).abs() < 0.05, "8 s of axis, steps of {step}: {stairs:?}");
}

#[test]
fn a_single_outlier_does_not_flatten_the_chart() {
    let mut values = vec![10.0; 150];
    values[70] = 655.0;
    let mut report = one(values, Vec::new());
    report.runs[0].seconds = 150.0;
    let plot = plots(&report).remove(0);
    assert_sound(&plot);
    let texts = texts(&plot.svg);
    assert!(texts.iter().any(|text| text.contains("up to 655 x/s")), "{texts:?}");
    assert!(texts.contains(&"20") && !texts.contains(&"500"), "the axis is of what is common: {texts:?}");

    // Twice the usual height is not cut.
    report.runs[0].series[0].values[70] = 30.0;
    let plot = plots(&report).remove(0);
    assert!(!plot.svg.contains("up to"), "{}", plot.svg);
}

#[test]
fn values_before_the_start_are_cut_off() {
    let mut report = one(vec![90.0, 80.0, 10.0, 5.0, 5.0, 5.0], Vec::new());
    report.runs[0].seconds = 8.0;
    report.runs[0].series[0].start = -2.5;
    let plot = plots(&report).remove(0);
    let stairs = lines(&plot.svg).into_iter().find(|line| line.len() == 8).unwrap();
    let axis_start = stairs[0].0;
    let axis_end = size(&plot.svg).0 - (18.0 + 10.0) * 4.0;
    let seconds = |at: usize| (stairs[at].0 - axis_start) / (axis_end - axis_start) * 8.0;
    for (at, expected) in [(1, 0.5), (2, 0.5), (3, 1.5), (7, 3.5)] {
        assert!((seconds(at) - expected).abs() < 0.02, "{at}: {} s", seconds(at));
    }
    assert!(stairs[0].1 < stairs[2].1, "the first that is drawn is 10: {stairs:?}");
    assert!(
        texts(&plot.svg).contains(&"10") && !texts(&plot.svg).contains(&"50"),
        "heights are of what is seen"
    );

    report.runs[0].series[0].start = -6.0;
    assert_eq!(plots(&report), [], "all of it was before the start");
}

#[test]
fn missing_messages_end_a_distribution_below_the_top() {
    let top = |share: f64| {
        let plot = plots(&one(Vec::new(), vec![(1.0, share / 2.0), (5.0, share)])).remove(0);
        let line = lines(&plot.svg).into_iter().find(|line| line.len() == 4).unwrap();
        (line[0].1 - line[3].1, texts(&plot.svg).join(" "))
    };
    let (whole, words) = top(1.0);
    assert!(words.contains("all arrived"), "{words}");
    let (third, words) = top(0.333);
    assert!((third / whole - 0.333).abs() < 0.01, "{third} of {whole}");
    assert!(words.contains("arrived: tcp 33.3 %"), "{words}");

    let mut report = one(Vec::new(), vec![(1.0, 1.0)]);
    report.runs.push(run("quic", "lan", 1, "rate", 1.0));
    report.runs[1].cdfs = vec![Cdf { name: "Topic1".into(), points: Vec::new() }];
    let words = texts(&plots(&report).remove(0).svg).join(" ");
    assert!(words.contains("arrived: quic 0.0 %"), "{words}");
}

#[test]
fn refused_runs_are_never_drawn() {
    let mut report = small(&[], &[]);
    let mut bad = refused(run("tcp", "lan", 1, "rate", 5.0), "the emulator was <late>");
    bad.series = vec![series(SeriesKind::Rate, "wrong", 1.0, vec![77.0; 9])];
    let mut good = run("quic", "lan", 2, "rate", 6.0);
    good.series = vec![series(SeriesKind::Rate, "right", 1.0, vec![7.0; 9])];
    report.runs = vec![bad, good];
    let plot = plots(&report).remove(0);
    assert!(!plot.svg.contains("wrong") && plot.svg.contains("right"));
    assert!(texts(&plot.svg).contains(&"no run can be used: the emulator was &lt;late&gt;"), "{}", plot.svg);
    assert!(texts(&plot.svg).contains(&"First usable run of each variant (seed 2)."));
    report.runs[0] = run("tcp", "lan", 3, "rate", 5.0);
    report.runs[0].repetition = 2;
    let shown = plots(&report).remove(0).svg;
    let footer = "First usable run of each variant (tcp: seed 3, repetition 2; quic: seed 2).";
    assert!(texts(&shown).contains(&footer), "{shown}");
    assert!(texts(&shown).contains(&"nothing was recorded"), "{shown}");
    report.runs.truncate(1);
    report.runs[0].refused.push("late".into());
    assert_eq!(plots(&report), [], "nothing usable, nothing drawn");
}

#[test]
fn events_have_labels_where_no_line_is_in_the_way() {
    let words = |values: Vec<f64>| {
        let mut report = one(values, Vec::new());
        report.runs[0].events = vec![Event { at: 40.0, source: "pub".into(), what: "disconnected".into() }];
        texts(&plots(&report).remove(0).svg).contains(&"disconnected")
    };
    assert!(words([vec![10.0; 30], vec![0.0; 70]].concat()));
    assert!(!words(vec![10.0; 100]), "the line is there");
}

#[test]
fn other_series_are_drawn_by_unit() {
    let mut report = one(Vec::new(), Vec::new());
    let other = |name: &str, unit: &str| Series {
        unit: unit.into(),
        ..series(SeriesKind::Other, name, 1.0, vec![3.0])
    };
    report.runs[0].series = vec![other("a", "MB"), other("b", "streams"), other("c", "MB")];
    let plots = plots(&report);
    plots.iter().for_each(assert_sound);
    let shown: Vec<_> =
        plots.iter().map(|plot| (plot.title.as_str(), texts(&plot.svg)[1..3].to_vec())).collect();
    assert_eq!(shown[0], ("Recorded in MB, lan", vec!["a", "c"]));
    assert_eq!(shown[1].0, "Recorded in streams, lan");
    assert_eq!(
        plots.iter().map(|plot| plot.file.as_str()).collect::<Vec<_>>(),
        ["other-lan.svg", "other-lan-2.svg"]
    );
}

#[test]
fn nothing_one_and_many_points() {
    assert_eq!(plots(&empty()), []);
    assert_eq!(plots(&one(Vec::new(), Vec::new())), []);
    for count in [1, 2, 100_000] {
        let values = (0..count).map(f64::from).collect();
        let points = (1..=count).map(|at| (f64::from(at), f64::from(at) / f64::from(count))).collect();
        let plots = plots(&one(values, points));
        assert_eq!(plots.len(), 2);
        plots.iter().for_each(assert_sound);
    }
}

#[test]
fn many_variants_and_topics() {
    let mut report = one(vec![1.0], Vec::new());
    let first = report.runs[0].clone();
    report.variants =
        (0..30).map(|at| Variant { title: "long title ".repeat(9), ..variant(&format!("v{at}")) }).collect();
    report.columns = vec![column("delivered", &"long ".repeat(40), "messages", 0)];
    report.runs = report
        .variants
        .iter()
        .map(|variant| braid_lab::report::Run { variant: variant.name.clone(), ..first.clone() })
        .collect();
    report.runs[3].series =
        (0..40).map(|at| series(SeriesKind::Rate, &format!("topic/{at}"), 1.0, vec![1.0])).collect();
    plots(&report).iter().for_each(assert_sound);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_number_breaks_a_chart(
        values in prop::collection::vec(any::<f64>(), 0..20),
        points in prop::collection::vec((any::<f64>(), any::<f64>()), 0..20),
        step in any::<f64>(),
        seconds in any::<f64>(),
    ) {
        let mut report = one(values, points);
        report.runs[0].series[0].step = step;
        report.runs[0].seconds = seconds;
        plots(&report).iter().for_each(assert_sound);
    }
}

/// Gate that detects a policer after a second.
fn gate() -> GateRun {
    let at: Vec<f64> = (0..20).map(|step| f64::from(step) * 0.4).collect();
    let known = |value: f64| at.iter().map(|at| (*at >= 1.0).then_some(value)).collect::<Vec<_>>();
    GateRun {
        program: "producer".into(),
        peer: "10.0.0.1:14567".into(),
        path: Some("bad up".into()),
        class: at.iter().map(|at| if *at < 1.0 { PathClass::Start } else { PathClass::Policed }).collect(),
        packets_per_second: known(28.5),
        bytes_per_second: known(41_000.0),
        tokens: known(-1.5),
        reserve_tokens: known(1.0),
        wait_ms: vec![None; at.len()],
        aim_ms: vec![None; at.len()],
        packets: vec![7; at.len()],
        at,
    }
}

#[test]
fn a_gate_shows_its_rate_beside_what_the_link_passed_and_its_level_below() {
    let mut report = small(&[1.0], &[2.0]);
    let mut passed = series(SeriesKind::Link, "bad up passed", 1.0, vec![29.0; 8]);
    passed.unit = "1/s".into();
    let run = report.runs.iter_mut().find(|run| run.variant == "quic").unwrap();
    (run.gates, run.series) = (vec![gate()], vec![passed]);
    let plot = plots(&report).into_iter().find(|plot| plot.file == "gate-lan.svg").unwrap();
    assert_sound(&plot);
    let shown = texts(&plot.svg);
    for expected in ["quic: producer on bad up", "packets in the bucket", "not known yet", "policed"] {
        assert!(shown.contains(&expected), "{expected}: {shown:?}");
    }
    assert!(!shown.contains(&"queued") && !shown.contains(&"wait in the queue"), "{shown:?}");
    assert!(shown.contains(&"policed 85 % of the time, median 28.5 packets/s"), "{shown:?}");
    let lines = lines(&plot.svg);
    let of_rate = lines.iter().filter(|line| line.len() == 17).count();
    assert_eq!(of_rate, 3, "the rate, the level and the reserve from when they were known: {lines:?}");
    assert!(lines.iter().any(|line| line.len() == 16), "eight seconds of the link");
    report.runs.iter_mut().for_each(|run| run.gates.clear());
    assert!(!plots(&report).iter().any(|plot| plot.file.starts_with("gate")));
}
