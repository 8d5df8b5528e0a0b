//! What happened in each run.

use super::{counted, heads, number_table, row, run_title, text_table};
use crate::emulator::{PathCounters, Tally};
use crate::report::number::{NONE, bytes, fixed, short};
use crate::report::plot::shown_run;
use crate::report::text::Escaped;
use crate::report::{Event, LinkRun, PathRun, Profile, ProgramRun, Report, Run};

/// More events of one run than these are in `report.json` only.
const MOST_EVENTS: usize = 60;
const EVENT_COLUMNS: [&str; 3] = ["At", "Who", "What"];

/// Runs whose numbers are in no table, and why.
pub(super) fn refused(report: &Report) -> String {
    let rows: String = report
        .runs
        .iter()
        .filter(|run| !run.refused.is_empty())
        .map(|run| {
            let reasons: String =
                run.refused.iter().map(|reason| format!("<li>{}</li>", Escaped(reason))).collect();
            row(&run_title(report, run), &[format!("<ul>{reasons}</ul>")])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let table = text_table("Refused runs", &heads(["Run", "Why it cannot be used"]), &rows);
    format!(
        "<section>\n<h2>Refused runs</h2>\n<p class=\"quiet\">The laboratory could not vouch for these runs. Their numbers \
         are in no median, bound or picture.</p>\n{table}</section>\n"
    )
}

/// What happened in the runs that the pictures show: a table for each profile, its rows grouped by variant.
pub(super) fn events(report: &Report) -> String {
    let tables: String = report.profiles.iter().map(|profile| profile_events(report, profile)).collect();
    if tables.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>Events</h2>\n<p class=\"quiet\">What happened in the runs that the pictures show.</p>\n\
         {tables}</section>\n"
    )
}

fn profile_events(report: &Report, profile: &Profile) -> String {
    let mut body = String::new();
    for variant in &report.variants {
        let run = shown_run(report, &variant.name, &profile.name).filter(|run| !run.events.is_empty());
        if let Some(run) = run {
            if !body.is_empty() {
                body.push_str("</tbody>\n<tbody>\n");
            }
            let title = Escaped(&variant.title);
            body.push_str(&format!(
                "<tr><th class=\"group\" scope=\"rowgroup\" colspan=\"3\">{title}</th></tr>\n"
            ));
            body.push_str(&event_rows(&run.events));
        }
    }
    if body.is_empty() {
        return body;
    }
    let table = text_table(&format!("Events, {}", profile.title), &heads(EVENT_COLUMNS), &body);
    format!("<h3>{}</h3>\n{table}", Escaped(&profile.title))
}

fn event_rows(events: &[Event]) -> String {
    let shown = events.iter().take(MOST_EVENTS).map(|event| {
        let at = format!("{} s", fixed(event.at, 1));
        row(&at, &[&event.source, &event.what].map(|text| Escaped(text).to_string()))
    });
    let mut rows: String = shown.collect();
    if let Some(more @ 1..) = events.len().checked_sub(MOST_EVENTS) {
        rows.push_str(&row(
            "later",
            &[String::new(), format!("{} more in report.json", counted(more, "event"))],
        ));
    }
    rows
}

/// Every run, folded.
pub(super) fn section(report: &Report) -> String {
    if report.runs.is_empty() {
        return "<section>\n<h2>Runs</h2>\n<p>There was none.</p>\n</section>\n".into();
    }
    let runs: String = report.runs.iter().map(|run| one(report, run)).collect();
    format!(
        "<section>\n<h2>Runs</h2>\n<p class=\"quiet\">All {} in the order of execution: numbers, links, programs. Open one \
         to see it.</p>\n{runs}</section>\n",
        report.runs.len()
    )
}

fn one(report: &Report, run: &Run) -> String {
    let title = run_title(report, run);
    let state = if run.refused.is_empty() { "used" } else { "refused" };
    let metrics: String = run.metrics.iter().map(|(name, value)| row(name, &[short(*value)])).collect();
    let mut parts = String::new();
    if !metrics.is_empty() {
        let table = number_table(&format!("Numbers, {title}"), &heads(["Metric", "Value"]), &metrics);
        parts.push_str(&format!("<h4>Numbers</h4>\n{table}"));
    }
    if !run.links.is_empty() {
        parts.push_str(&format!("<h4>Links</h4>\n{}", links(&title, &run.links)));
    }
    if !run.programs.is_empty() {
        parts.push_str(&format!("<h4>Programs</h4>\n{}", programs(&title, &run.programs)));
    }
    if !run.events.is_empty() {
        let table = text_table(&format!("Events, {title}"), &heads(EVENT_COLUMNS), &event_rows(&run.events));
        parts.push_str(&format!("<h4>Events</h4>\n{table}"));
    }
    format!(
        "<details class=\"run\">\n<summary>{} <span class=\"quiet\">{} s, {state}</span></summary>\n{parts}</details>\n",
        Escaped(&title),
        fixed(run.seconds, 1)
    )
}

/// One column for each direction of each link; what never happened anywhere is left out.
fn links(title: &str, links: &[LinkRun]) -> String {
    let directions: Vec<(String, &PathRun)> = links
        .iter()
        .flat_map(|link| {
            [(format!("{} up", link.name), &link.up), (format!("{} down", link.name), &link.down)]
        })
        .collect();
    let mut body = String::new();
    for (name, tally, always) in TALLIES {
        let tallies: Vec<Tally> = directions.iter().map(|(_, path)| tally(&path.counters)).collect();
        if *always || tallies.iter().any(|tally| tally.packets > 0) {
            let cells: Vec<String> = tallies.into_iter().map(tally_words).collect();
            body.push_str(&row(name, &cells));
        }
    }
    for (name, words) in FIGURES {
        let cells: Vec<String> = directions.iter().map(|(_, path)| words(path)).collect();
        body.push_str(&row(name, &cells));
    }
    let columns = ["".to_owned()].into_iter().chain(directions.into_iter().map(|(name, _)| name));
    number_table(&format!("Links, {title}"), &heads(columns), &body)
}

type TallyOf = fn(&PathCounters) -> Tally;

/// What a direction counts, and whether it is told even when it is 0.
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
    ("still on the way", |counters| counters.queued, false),
    ("corrupted", |counters| counters.corrupted, false),
    ("sent ahead", |counters| counters.overtook, false),
];

type WordsOf = fn(&PathRun) -> String;

/// What else is told of a direction.
const FIGURES: &[(&str, WordsOf)] = &[
    ("bytes per packet that left", |path| match path.counters.sent.packets {
        0 => NONE.into(),
        packets => fixed(path.counters.sent.bytes as f64 / packets as f64, 0),
    }),
    ("largest packet, bytes", |path| path.counters.largest.to_string()),
    ("late by, µs: 50 % / 99 % / most", |path| path.lateness_us.map(|us| fixed(us, 0)).join(" / ")),
    ("CPU per packet, µs", |path| fixed(path.cpu_us_per_packet, 1)),
    ("its thread runs", |path| if path.realtime { "before all others" } else { "as all others do" }.into()),
    ("waiting to be read is known", |path| {
        match path.reading.as_str() {
            "timestamps" => "by the kernel's timestamps",
            "run queue" => "by the thread's own waiting",
            _ => "not at all: lateness is that of sending",
        }
        .into()
    }),
];

fn tally_words(tally: Tally) -> String {
    match tally.packets {
        0 => "0".into(),
        packets => format!("{} <span class=\"unit\">{}</span>", fixed(packets as f64, 0), bytes(tally.bytes)),
    }
}

fn programs(title: &str, programs: &[ProgramRun]) -> String {
    let body: String = programs
        .iter()
        .map(|program| {
            let cells = [
                Escaped(&program.end).to_string(),
                format!("{} s", fixed(program.cpu_seconds, 2)),
                program.peak_memory.map_or_else(|| NONE.into(), bytes),
            ];
            row(&program.name, &cells)
        })
        .collect();
    let columns = ["Program", "How it ended", "CPU", "Most memory"];
    let table = number_table(&format!("Programs, {title}"), &heads(columns), &body);
    let said: String = programs.iter().map(said).collect();
    table + &said
}

fn said(program: &ProgramRun) -> String {
    let tail = program.tail.iter().map(|line| Escaped(line).to_string()).collect::<Vec<_>>().join("\n");
    let tail = if tail.is_empty() { "It said nothing.".to_owned() } else { tail };
    format!(
        "<details>\n<summary>{}: command and last lines</summary>\n<pre><code>{}</code></pre>\n<pre>{tail}</pre>\n</details>\n",
        Escaped(&program.name),
        Escaped(&program.command)
    )
}
