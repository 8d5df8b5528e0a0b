//! The report as one HTML page without references: no script, no font, no request.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use askama::Template;
use braid_measure::number::{NONE, bytes, fixed, short};
use braid_measure::text::Escaped;

use super::plot::{Figure, figures, shown_run};
use super::table::ProfileTable;
use super::{Check, Event, LinkRun, PathRun, Profile, ProgramRun, Report, Run, Variant};
use braid_emulator::{PacketCount, PathCounters};

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
    memory: String,
    load_before: String,
    load_in_runs: String,
    figures_of_selftest: Vec<Row>,
    seeds: String,
}

struct PageRun<'a> {
    title: String,
    state: String,
    metrics: Vec<Row>,
    /// Both directions of each link, with their titles.
    directions: Vec<(String, &'a PathRun)>,
    /// Title, and a count for each direction.
    tallies: Vec<(&'static str, Vec<Tally>)>,
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
            memory: bytes(report.machine.memory),
            load_before: report.machine.load.map(|load| fixed(load, 2)).join(", "),
            load_in_runs: load_in_runs(report),
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
        let directions = run.links.iter().flat_map(|LinkRun { name, up, down }| {
            [(format!("{name} up"), up), (format!("{name} down"), down)]
        });
        let directions: Vec<(String, &PathRun)> = directions.collect();
        Self {
            title: run_title(report, run),
            state: format!("{} s, {state}", fixed(run.seconds, 1)),
            metrics: run.metrics.iter().map(|(name, value)| (name.clone(), short(*value))).collect(),
            tallies: tallies(&directions),
            directions,
            programs: &run.programs,
            events: event_rows(&run.events),
        }
    }
}

/// Counts of each direction; those that are 0 everywhere are omitted, unless they are important.
fn tallies(directions: &[(String, &PathRun)]) -> Vec<(&'static str, Vec<Tally>)> {
    let counted = TALLIES.iter().map(|(name, tally, is_important)| {
        let tallies: Vec<Tally> = directions.iter().map(|(_, path)| Tally(tally(&path.counters))).collect();
        (*name, tallies, *is_important)
    });
    let is_shown = |tallies: &[Tally]| tallies.iter().any(Tally::is_some);
    let shown = counted.filter(|(_, tallies, is_important)| *is_important || is_shown(tallies));
    shown.map(|(name, tallies, _)| (name, tallies)).collect()
}

/// Texts of a count for the template.
struct Tally(PacketCount);

impl Tally {
    fn is_some(&self) -> bool {
        self.0.packets > 0
    }

    fn packets(&self) -> String {
        fixed(self.0.packets as f64, 0)
    }

    fn bytes(&self) -> String {
        bytes(self.0.bytes)
    }
}

/// Texts of a direction for the template.
impl PathRun {
    fn bytes_per_packet(&self) -> String {
        match self.counters.sent.packets {
            0 => NONE.into(),
            packets => fixed(self.counters.sent.bytes as f64 / packets as f64, 0),
        }
    }

    fn lateness(&self) -> String {
        self.lateness_us.map(|us| fixed(us, 0)).join(" / ")
    }

    fn cpu(&self) -> String {
        fixed(self.cpu_us_per_packet, 1)
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

type TallyOf = fn(&PathCounters) -> PacketCount;

/// Counters of a direction, and whether each is shown even when it is 0.
const TALLIES: &[(&str, TallyOf, bool)] = &[
    ("came", |counters| counters.offered, true),
    ("left", |counters| counters.sent, true),
    ("copied", |counters| counters.duplicated, false),
    ("not selected by match", |counters| counters.unmatched, false),
    ("dropped by the policer", |counters| counters.policed, false),
    ("dropped by loss", |counters| counters.lost, false),
    ("dropped, queue full", |counters| counters.queue_full, false),
    ("dropped by its management", |counters| counters.managed, false),
    ("dropped by a NAT", |counters| counters.forgotten, false),
    ("dropped for their size", |counters| counters.too_big, false),
    ("still queued", |counters| counters.queued, false),
    ("marked, congestion experienced", |counters| counters.marked, false),
    ("corrupted", |counters| counters.corrupted, false),
    ("sent ahead", |counters| counters.overtook, false),
];

/// Load averages of one minute during the runs.
fn load_in_runs(report: &Report) -> String {
    let loads = || report.runs.iter().flat_map(|run| run.load);
    match report.runs.is_empty() {
        true => NONE.into(),
        false => {
            let (least, most) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
            format!("{} to {}", fixed(least, 2), fixed(most, 2))
        }
    }
}

/// Title and value of a figure, whose unit is the last word of its name.
fn selftest_figure(name: &str, value: f64) -> Row {
    let (name, unit) = name.rsplit_once('_').unwrap_or((name, ""));
    (name.replace('_', " "), format!("{} {unit}", short(value)))
}
