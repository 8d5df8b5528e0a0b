//! The report as one HTML page without references: no script, no font, no request.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use askama::Template;
use braid_measure::number::{NONE, bytes, fixed, short};
use braid_measure::text::Escaped;

use super::plot::{Figure, figures, shown_run};
use super::{Check, Column, Event, LinkRun, PathRun, Profile, ProgramRun, Reference, Report, Run, Variant};
use crate::emulator::{PathCounters, Tally};

/// Limit of events of one run on the page; `report.json` has all.
const MOST_EVENTS: usize = 60;

/// The report as a self-contained HTML page with its charts inside. All text is escaped, and the content policy of the
/// page forbids scripts and requests.
pub fn html(report: &Report) -> String {
    // Writing to a string fails only where a value's own formatting does, and none of these does.
    Page::of(report).render().unwrap_or_default()
}

/// Escapes text as charts do, which also replaces control characters.
#[derive(Clone, Copy)]
pub(crate) struct HtmlEscaper;

impl askama::filters::Escaper for HtmlEscaper {
    fn write_escaped_str<W: Write>(&self, mut dest: W, text: &str) -> fmt::Result {
        write!(dest, "{}", Escaped(text))
    }
}

/// Title and value of a table's row.
type Row = (String, String);
/// Time, source and description of an event.
type EventRow = (String, String, String);
/// Events by the title of a variant.
type VariantEvents<'a> = Vec<(&'a str, Vec<EventRow>)>;

/// Contents of the template.
#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    report: &'a Report,
    /// Class, sign and text.
    verdicts: Vec<(&'static str, char, String)>,
    cores: String,
    duration: String,
    tables: Vec<ProfileTable<'a>>,
    /// Those that do not hold first.
    checks: Vec<&'a Check>,
    figures: Vec<Figure>,
    /// Title and reasons.
    refused: Vec<(String, &'a [String])>,
    /// By profile and variant: events of the runs that the charts show.
    events: Vec<(&'a str, VariantEvents<'a>)>,
    runs: Vec<PageRun<'a>>,
    machine: Vec<(&'static str, String)>,
    figures_of_selftest: Vec<Row>,
    seeds: String,
}

struct ProfileTable<'a> {
    profile: &'a Profile,
    variants: Vec<VariantRow<'a>>,
    references: Vec<(&'a str, Vec<String>)>,
}

struct VariantRow<'a> {
    title: &'a str,
    cells: Vec<Cell>,
    runs: String,
}

/// Metric of a variant on a profile.
struct Cell {
    value: String,
    /// Smallest and largest value, empty if equal; `None` if it was not measured.
    range: Option<String>,
    published: Option<String>,
}

struct PageRun<'a> {
    title: String,
    state: String,
    metrics: Vec<Row>,
    /// Titles of the columns of `links`.
    directions: Vec<String>,
    /// Title, and a value with its unit for each direction.
    links: Vec<(&'static str, Vec<Row>)>,
    programs: &'a [ProgramRun],
    events: Vec<EventRow>,
}

impl<'a> Page<'a> {
    fn of(report: &'a Report) -> Self {
        let mut checks: Vec<&Check> = report.checks.iter().collect();
        checks.sort_by_key(|check| check.holds);
        let refused = report.runs.iter().filter(|run| !run.refused.is_empty());
        let seeds: BTreeSet<u64> = report.runs.iter().map(|run| run.seed).collect();
        let selftest = report.selftest.iter().flat_map(|selftest| &selftest.figures);
        Self {
            report,
            verdicts: verdicts(report),
            cores: counted(usize::try_from(report.machine.cores).unwrap_or(usize::MAX), "core"),
            duration: match report.duration {
                seconds if seconds > 0.0 => format!(" Each workload: {} s.", short(seconds)),
                _ => String::new(),
            },
            tables: report.profiles_run().map(|profile| ProfileTable::of(report, profile)).collect(),
            checks,
            figures: figures(report).into_iter().flat_map(|(_, figures)| figures).collect(),
            refused: refused.map(|run| (run_title(report, run), run.refused.as_slice())).collect(),
            events: events(report),
            runs: report.runs.iter().map(|run| PageRun::of(report, run)).collect(),
            machine: machine(report),
            figures_of_selftest: selftest.map(|(name, value)| selftest_figure(name, *value)).collect(),
            seeds: seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
        }
    }
}

fn verdicts(report: &Report) -> Vec<(&'static str, char, String)> {
    let verdict = |is_good: bool, good: String, bad: String| match is_good {
        true => ("good", '✓', good),
        false => ("bad", '✗', bad),
    };
    let mut verdicts = Vec::new();
    let (all, failed) = (report.checks.len(), report.checks.iter().filter(|check| !check.holds).count());
    let bounds = counted(all, "bound");
    if all > 0 {
        verdicts.push(verdict(
            failed == 0,
            format!("All {bounds} hold"),
            format!("{failed} of {bounds} failed"),
        ));
    }
    let refused = report.runs.iter().filter(|run| !run.refused.is_empty()).count();
    let runs = counted(report.runs.len(), "run");
    let bad = format!("{runs}, {refused} refused and not counted");
    verdicts.push(verdict(refused == 0, format!("{runs}, none refused"), bad));
    if let Some(selftest) = &report.selftest {
        let [passed, failed] = ["passed", "failed"].map(|end| format!("The machine {end} its selftest"));
        verdicts.push(verdict(selftest.refused.is_empty(), passed, failed));
    }
    verdicts
}

/// `1 run`, `2 runs`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// `variant on profile, seed 1, repetition 2`, by their titles.
fn run_title(report: &Report, run: &Run) -> String {
    let variant = report.variants.iter().find(|variant| variant.name == run.variant);
    let profile = report.profiles.iter().find(|profile| profile.name == run.profile);
    let variant = variant.map_or(&run.variant, |variant| &variant.title);
    let profile = profile.map_or(&run.profile, |profile| &profile.title);
    let attempt = match run.attempt {
        0 => String::new(),
        before => format!(", attempt {}", before.saturating_add(1)),
    };
    format!("{variant} on {profile}, seed {}, repetition {}{attempt}", run.seed, run.repetition)
}

impl<'a> ProfileTable<'a> {
    fn of(report: &'a Report, profile: &'a Profile) -> Self {
        let row = |variant: &'a Variant| VariantRow {
            title: &variant.title,
            cells: report.columns.iter().map(|column| Cell::of(report, profile, variant, column)).collect(),
            runs: format!(
                "{} of {}",
                report.usable(&variant.name, &profile.name).count(),
                report.runs_of(&variant.name, &profile.name).count()
            ),
        };
        let reference = |reference: &'a Reference| {
            let cells = report.columns.iter().map(|column| {
                reference.values.get(&column.metric).map_or(NONE.into(), |value| column.shown(*value))
            });
            (reference.title.as_str(), cells.collect())
        };
        Self {
            profile,
            variants: report.variants_on(&profile.name).map(row).collect(),
            references: report.references_on(&profile.name).map(reference).collect(),
        }
    }
}

impl Cell {
    fn of(report: &Report, profile: &Profile, variant: &Variant, column: &Column) -> Self {
        let spread = report.spread(&variant.name, &profile.name, &column.metric);
        let published = report.published(&profile.name, &variant.name, &column.metric);
        Self {
            value: spread.map_or(NONE.into(), |spread| column.shown(spread.median)),
            range: spread.map(|spread| column.range(spread).unwrap_or_default()),
            published: published.map(|value| column.shown(value)),
        }
    }
}

fn events(report: &Report) -> Vec<(&str, VariantEvents<'_>)> {
    let of_profile = |profile: &Profile| {
        let of_variant = |variant: &'_ Variant| {
            shown_run(report, &variant.name, &profile.name).map(|run| event_rows(&run.events))
        };
        let variants =
            report.variants.iter().filter_map(|variant| Some((variant.title.as_str(), of_variant(variant)?)));
        variants.filter(|(_, rows)| !rows.is_empty()).collect::<Vec<_>>()
    };
    let profiles = report.profiles.iter().map(|profile| (profile.title.as_str(), of_profile(profile)));
    profiles.filter(|(_, variants)| !variants.is_empty()).collect()
}

fn event_rows(events: &[Event]) -> Vec<EventRow> {
    let shown = events.iter().take(MOST_EVENTS);
    let mut rows: Vec<EventRow> = shown
        .map(|event| (format!("{} s", fixed(event.at, 1)), event.source.clone(), event.what.clone()))
        .collect();
    if let Some(more @ 1..) = events.len().checked_sub(MOST_EVENTS) {
        rows.push(("later".into(), String::new(), format!("{} more in report.json", counted(more, "event"))));
    }
    rows
}

impl<'a> PageRun<'a> {
    fn of(report: &Report, run: &'a Run) -> Self {
        let state = if run.refused.is_empty() { "used" } else { "refused" };
        let directions: Vec<(String, &PathRun)> = run
            .links
            .iter()
            .flat_map(|LinkRun { name, up, down }| {
                [(format!("{name} up"), up), (format!("{name} down"), down)]
            })
            .collect();
        let paths: Vec<&PathRun> = directions.iter().map(|(_, path)| *path).collect();
        let titles = [String::new()].into_iter().chain(directions.into_iter().map(|(title, _)| title));
        Self {
            title: run_title(report, run),
            state: format!("{} s, {state}", fixed(run.seconds, 1)),
            metrics: run.metrics.iter().map(|(name, value)| (name.clone(), short(*value))).collect(),
            directions: if paths.is_empty() { Vec::new() } else { titles.collect() },
            links: link_rows(&paths),
            programs: &run.programs,
            events: event_rows(&run.events),
        }
    }
}

/// Texts of a program for the template.
impl ProgramRun {
    fn cpu(&self) -> String {
        format!("{} s", fixed(self.cpu_seconds, 2))
    }

    fn memory(&self) -> String {
        self.peak_memory.map_or_else(|| NONE.into(), bytes)
    }

    fn output(&self) -> String {
        if self.tail.is_empty() { "No output.".into() } else { self.tail.join("\n") }
    }
}

/// A value with its unit for each direction; counters that are 0 everywhere are omitted, unless they are important.
fn link_rows(paths: &[&PathRun]) -> Vec<(&'static str, Vec<Row>)> {
    let counted = TALLIES.iter().filter_map(|(name, tally, is_important)| {
        let tallies: Vec<Tally> = paths.iter().map(|path| tally(&path.counters)).collect();
        let is_shown = *is_important || tallies.iter().any(|tally| tally.packets > 0);
        let cell = |tally: Tally| match tally.packets {
            0 => ("0".to_owned(), String::new()),
            packets => (fixed(packets as f64, 0), bytes(tally.bytes)),
        };
        is_shown.then(|| (*name, tallies.into_iter().map(cell).collect()))
    });
    let figures = FIGURES
        .iter()
        .map(|(name, text)| (*name, paths.iter().map(|path| (text(path), String::new())).collect()));
    counted.chain(figures).collect()
}

type TallyOf = fn(&PathCounters) -> Tally;

/// Counters of a direction, and whether each is shown even when it is 0.
const TALLIES: &[(&str, TallyOf, bool)] = &[
    ("came", |counters| counters.offered, true),
    ("left", |counters| counters.sent, true),
    ("copied", |counters| counters.duplicated, false),
    ("not selected by match", |counters| counters.unmatched, false),
    ("dropped by the policer", |counters| counters.policed, false),
    ("dropped by loss", |counters| counters.lost, false),
    ("dropped, queue full", |counters| counters.queue_full, false),
    ("dropped by a NAT", |counters| counters.forgotten, false),
    ("dropped for their size", |counters| counters.too_big, false),
    ("still queued", |counters| counters.queued, false),
    ("corrupted", |counters| counters.corrupted, false),
    ("sent ahead", |counters| counters.overtook, false),
];

type TextOf = fn(&PathRun) -> String;

/// Other figures of a direction.
const FIGURES: &[(&str, TextOf)] = &[
    ("bytes per packet that left", |path| match path.counters.sent.packets {
        0 => NONE.into(),
        packets => fixed(path.counters.sent.bytes as f64 / packets as f64, 0),
    }),
    ("largest packet, bytes", |path| path.counters.largest.to_string()),
    ("lateness, µs: 50 % / 99 % / most", |path| path.lateness_us.map(|us| fixed(us, 0)).join(" / ")),
    ("CPU per packet, µs", |path| fixed(path.cpu_us_per_packet, 1)),
    ("scheduling of its thread", |path| if path.realtime { "real-time" } else { "ordinary" }.into()),
    ("source of the time spent unread", |path| {
        match path.reading.as_str() {
            "timestamps" => "timestamps of the kernel",
            "run queue" => "run queue of the thread",
            _ => "none: lateness is that of sending",
        }
        .into()
    }),
];

fn machine(report: &Report) -> Vec<(&'static str, String)> {
    let machine = &report.machine;
    let loads = || report.runs.iter().flat_map(|run| run.load);
    let (least, most) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
    let resumed = report.resumed.iter().map(|time| format!(", resumed {time}"));
    vec![
        ("Kernel", machine.kernel.clone()),
        ("Processor", machine.processor.clone()),
        ("Cores", machine.cores.to_string()),
        ("Memory", bytes(machine.memory)),
        ("Load before: 1, 5, 15 min", machine.load.map(|load| fixed(load, 2)).join(", ")),
        (
            "Load in the runs, 1 min",
            match report.runs.is_empty() {
                true => NONE.into(),
                false => format!("{} to {}", fixed(least, 2), fixed(most, 2)),
            },
        ),
        ("TCP congestion control", machine.tcp_congestion_control.clone()),
        ("TCP available", machine.tcp_available.join(", ")),
        ("Privileges", machine.privileges.clone()),
        ("Wire of the links", machine.wire.clone()),
        (
            "Offloads",
            match machine.offloads.as_slice() {
                [] => "all off, as they must be".into(),
                on => format!("ON, though all must be off: {}", on.join(", ")),
            },
        ),
        ("BraidMQ", report.version.clone()),
        ("Made", [report.started.clone()].into_iter().chain(resumed).collect()),
    ]
}

/// Title and value of a figure, whose unit is the last word of its name.
fn selftest_figure(name: &str, value: f64) -> Row {
    let (name, unit) = name.rsplit_once('_').unwrap_or((name, ""));
    (name.replace('_', " "), format!("{} {unit}", short(value)))
}
