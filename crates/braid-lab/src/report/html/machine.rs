//! Where it ran, whether that machine can be trusted, and how to do it again.

use std::collections::BTreeSet;

use super::{heads, number_table, row, text_table};
use crate::report::number::{NONE, bytes, fixed, short};
use crate::report::text::Escaped;
use crate::report::{Report, SelftestResult};

/// The machine and its selftest.
pub(super) fn section(report: &Report) -> String {
    let machine = &report.machine;
    let load = machine.load.map(|load| fixed(load, 2)).join(", ");
    let offloads = match machine.offloads.as_slice() {
        [] => "all off, as they must be".to_owned(),
        on => format!("ON, though all must be off: {}", on.join(", ")),
    };
    let rows: String = [
        ("Kernel", machine.kernel.clone()),
        ("Processor", machine.processor.clone()),
        ("Cores", machine.cores.to_string()),
        ("Memory", bytes(machine.memory)),
        ("Load before: 1, 5, 15 min", load),
        ("Load in the runs, 1 min", load_in_runs(report)),
        ("TCP congestion control", machine.tcp_congestion_control.clone()),
        ("TCP available", machine.tcp_available.join(", ")),
        ("Privileges", machine.privileges.clone()),
        ("Wire of the links", machine.wire.clone()),
        ("Offloads", offloads),
        ("BraidMQ", report.version.clone()),
        ("Made", made(report)),
    ]
    .iter()
    .map(|(name, value)| row(name, &[Escaped(value).to_string()]))
    .collect();
    let selftest = report.selftest.as_ref().map(selftest).unwrap_or_else(|| {
        "<h3>Selftest</h3>\n<p>None was made: nobody checked how exact this machine is.</p>\n".into()
    });
    format!("<section>\n<h2>Machine</h2>\n{}{selftest}</section>\n", text_table("Machine", "", &rows))
}

/// The least and the most, before and after any of them.
fn load_in_runs(report: &Report) -> String {
    let loads = || report.runs.iter().flat_map(|run| run.load);
    let (least, most) = (loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
    if report.runs.is_empty() { NONE.into() } else { format!("{} to {}", fixed(least, 2), fixed(most, 2)) }
}

fn made(report: &Report) -> String {
    let resumed = report.resumed.iter().map(|time| format!(", gone on with {time}"));
    [report.started.clone()].into_iter().chain(resumed).collect()
}

fn selftest(selftest: &SelftestResult) -> String {
    let verdict = if selftest.refused.is_empty() {
        "<p>Passed: the links of this machine are as exact as these figures say.</p>\n".to_owned()
    } else {
        let reasons: String =
            selftest.refused.iter().map(|reason| format!("<li>{}</li>", Escaped(reason))).collect();
        format!(
            "<p><strong>Failed:</strong> do not trust numbers from this machine now.</p>\n<ul>{reasons}</ul>\n"
        )
    };
    let figures: String = selftest
        .figures
        .iter()
        .map(|(name, value)| {
            // The last word of a name is its unit.
            let (name, unit) = name.rsplit_once('_').unwrap_or((name, ""));
            row(&name.replace('_', " "), &[format!("{} {}", short(*value), Escaped(unit))])
        })
        .collect();
    let table = match figures.is_empty() {
        true => String::new(),
        false => number_table("Selftest", &heads(["Figure", "Measured"]), &figures),
    };
    format!("<h3>Selftest</h3>\n{verdict}{table}")
}

/// How to make this report again.
pub(super) fn again(report: &Report) -> String {
    let seeds: BTreeSet<u64> = report.runs.iter().map(|run| run.seed).collect();
    let seeds = seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let seeds = match seeds.as_str() {
        "" => String::new(),
        seeds => {
            format!(
                "<p>Seeds of the links: {seeds}. With the same seed chance falls alike on packet n.</p>\n"
            )
        }
    };
    format!(
        "<section>\n<h2>Do it again</h2>\n<pre><code>{}</code></pre>\n{seeds}<p class=\"quiet\">All numbers of this page are \
         in <code>report.json</code> beside it (schema <code>{}</code>).</p>\n</section>\n",
        Escaped(&report.command),
        Escaped(&report.schema)
    )
}
