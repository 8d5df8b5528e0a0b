//! The report as one page that needs nothing else: no script, no font, no request.

mod machine;
mod pictures;
mod results;
mod runs;

use std::fmt::Display;

use super::number::short;
use super::text::Escaped;
use super::{Report, Run};

const STYLE: &str = include_str!("style.css");

/// The report as a self-contained HTML page with its pictures inside. Everything that is not ours is escaped; the
/// page's own policy forbids scripts and requests as well.
pub fn html(report: &Report) -> String {
    let parts = [
        header(report),
        results::section(report),
        results::checks(report),
        pictures::section(report),
        runs::refused(report),
        runs::events(report),
        runs::section(report),
        machine::section(report),
        machine::again(report),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        Escaped(&report.title),
        parts.concat()
    )
}

/// What was asked, and the answer in a line for those who read no further.
fn header(report: &Report) -> String {
    let about: String = report
        .about
        .split("\n\n")
        .filter(|paragraph| !paragraph.trim().is_empty())
        .map(|paragraph| format!("<p>{}</p>\n", Escaped(paragraph.trim())))
        .collect();
    let mut verdicts = Vec::new();
    let held = report.checks.iter().filter(|check| check.holds).count();
    match (report.checks.len(), held) {
        (0, _) => {}
        (all, held) if all == held => {
            verdicts.push(verdict(true, &format!("All {} hold", counted(all, "bound"))));
        }
        (all, held) => {
            verdicts.push(verdict(false, &format!("{} of {} failed", all - held, counted(all, "bound"))));
        }
    }
    let refused = report.runs.iter().filter(|run| !run.refused.is_empty()).count();
    let runs = counted(report.runs.len(), "run");
    verdicts.push(match refused {
        0 => verdict(true, &format!("{runs}, none refused")),
        refused => verdict(false, &format!("{runs}, {refused} refused and not counted")),
    });
    if let Some(selftest) = &report.selftest {
        verdicts.push(match selftest.refused.is_empty() {
            true => verdict(true, "The machine passed its selftest"),
            false => verdict(false, "The machine failed its selftest"),
        });
    }
    if report.quick {
        verdicts.push("<li>Short form of the scenario</li>\n".into());
    }
    let replaced = report.replaced.iter().map(|(program, command)| {
        let (program, command) = (Escaped(program), Escaped(command));
        format!("<p>Instead of its <strong>{program}</strong> ran <code>{command}</code></p>\n")
    });
    let duration = match report.duration {
        seconds if seconds > 0.0 => format!(" Each workload: {} s.", short(seconds)),
        _ => String::new(),
    };
    format!(
        "<header>\n<p class=\"kicker\">Experiment <code>{}</code></p>\n<h1>{}</h1>\n{about}<ul class=\"verdicts\">\n{}\
         </ul>\n{}<p class=\"quiet\">Made {} by braidmq {} on {}, {}.{duration}</p>\n</header>\n",
        Escaped(&report.scenario),
        Escaped(&report.title),
        verdicts.concat(),
        replaced.collect::<String>(),
        Escaped(&report.started),
        Escaped(&report.version),
        Escaped(&report.machine.kernel),
        counted(usize::try_from(report.machine.cores).unwrap_or(usize::MAX), "core"),
    )
}

fn verdict(good: bool, words: &str) -> String {
    let (class, sign) = if good { ("good", '✓') } else { ("bad", '✗') };
    format!("<li class=\"{class}\"><span aria-hidden=\"true\">{sign}</span> {}</li>\n", Escaped(words))
}

/// `1 run`, `2 runs`.
fn counted(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// `variant on profile, seed 1, repetition 2`, by the titles that the report gives them.
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

/// A table of numbers, which scrolls by itself where it is wider than the page. `head` is cells, `body` rows.
fn number_table(label: &str, head: &str, body: &str) -> String {
    framed("numbers", label, head, body)
}

/// The same for words.
fn text_table(label: &str, head: &str, body: &str) -> String {
    framed("text", label, head, body)
}

fn framed(class: &str, label: &str, head: &str, body: &str) -> String {
    let head = if head.is_empty() { String::new() } else { format!("<thead><tr>{head}</tr></thead>\n") };
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n<table class=\"{class}\">\n{head}\
         <tbody>\n{body}</tbody>\n</table>\n</div>\n",
        Escaped(label)
    )
}

/// A row of a table whose first cell says what the row is about. `cells` are HTML already.
fn row(header: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", Escaped(header))
}

/// Cells of a table's head.
fn heads<T: Display>(titles: impl IntoIterator<Item = T>) -> String {
    titles
        .into_iter()
        .map(|title| format!("<th scope=\"col\">{}</th>", Escaped(&title.to_string())))
        .collect()
}
