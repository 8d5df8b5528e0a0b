//! What programs wrote down of themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use braid_bench::summary::{self, RunSummary};

use super::Plan;
use super::measure::Evidence;
use crate::report::Event;

/// What programs wrote that were told to.
pub(super) fn summaries(
    plan: &Plan,
    variant: &str,
    dir: &Path,
    refused: &mut Vec<String>,
) -> BTreeMap<String, RunSummary> {
    let mut summaries = BTreeMap::new();
    for program in plan.scenario.programs.iter().filter(|program| program.runs_in(variant)) {
        if !plan.line_of(program).contains("{json}") {
            continue;
        }
        match summary(&dir.join(format!("{}.json", program.name))) {
            Ok(summary) => drop(summaries.insert(program.name.clone(), summary)),
            Err(problem) => {
                refused.push(format!("{} did not write what it measured: {problem}", program.name))
            }
        }
    }
    summaries
}

fn summary(path: &Path) -> Result<RunSummary, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let summary: RunSummary =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    if summary.schema == summary::SCHEMA {
        Ok(summary)
    } else {
        Err(format!("{}: schema {:?}, not {:?}", path.display(), summary.schema, summary::SCHEMA))
    }
}

/// What programs told, in the order of time.
pub(super) fn events(evidence: &Evidence<'_>) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for (name, summary) in &evidence.summaries {
        let shift = evidence.shift(summary);
        events.extend(summary.events.iter().map(|event| Event {
            at: event.at + shift,
            source: name.clone(),
            what: event.what.clone(),
        }));
    }
    events.sort_by(|a, b| a.at.total_cmp(&b.at));
    events
}

#[cfg(test)]
mod tests {
    use super::super::fixture::plan;
    use super::super::measure::tests::{consumer, of_programs};
    use super::*;

    /// Of a program that began at this time, microseconds, and told of `events`.
    fn summary(started_unix_us: u64, events: &[(f64, &str)]) -> RunSummary {
        let event = |&(at, what): &(f64, &str)| summary::Event { at, what: what.into() };
        RunSummary { started_unix_us, events: events.iter().map(event).collect(), ..consumer() }
    }

    /// What is found in a directory where `ping.json` has this text, and why the run is refused.
    fn found(text: Option<&str>) -> (BTreeMap<String, RunSummary>, Vec<String>) {
        let folder = tempfile::tempdir().expect("a directory");
        if let Some(text) = text {
            fs::write(folder.path().join("ping.json"), text).expect("a file");
        }
        let mut refused = Vec::new();
        (summaries(&plan(), "one", folder.path(), &mut refused), refused)
    }

    #[test]
    fn who_was_told_to_write_and_did_is_read() {
        let written = summary(1, &[]);
        let (summaries, refused) = found(Some(&serde_json::to_string(&written).expect("JSON")));
        assert_eq!(refused, Vec::<String>::new(), "the other program was not told to");
        assert_eq!(summaries, BTreeMap::from([("ping".to_owned(), written)]));
    }

    #[test]
    fn who_wrote_nothing_or_something_else_refuses_the_run() {
        let other = serde_json::to_string(&RunSummary { schema: "other/1".into(), ..summary(1, &[]) });
        let other = other.expect("JSON");
        for (text, why) in [
            (None, "No such file"),
            (Some("{"), "EOF while parsing"),
            (Some("{\"schema\": \"braidmq-bench/1\"}"), "missing field"),
            (Some(other.as_str()), "schema \"other/1\", not \"braidmq-bench/1\""),
        ] {
            let (summaries, refused) = found(text);
            assert!(summaries.is_empty());
            let [reason] = refused.try_into().expect("one reason");
            assert!(reason.starts_with("ping did not write what it measured: "), "{reason}");
            assert!(reason.contains("ping.json") && reason.contains(why), "{reason}");
        }
    }

    #[test]
    fn a_replaced_program_that_does_not_write_is_not_asked() {
        let mut plan = plan();
        plan.replaced.insert("ping".into(), "ping {b}".into());
        let mut refused = Vec::new();
        assert!(summaries(&plan, "one", Path::new("nowhere"), &mut refused).is_empty());
        assert_eq!(refused, Vec::<String>::new());
    }

    #[test]
    fn events_of_all_programs_are_in_the_order_of_the_workloads_time() {
        let summaries = BTreeMap::from([
            ("early".to_owned(), summary(8_000_000, &[(0.5, "connected"), (4.0, "lost")])),
            ("late".to_owned(), summary(11_000_000, &[(0.5, "connected")])),
        ]);
        let evidence = Evidence { origin_unix_us: 10_000_000, ..of_programs(summaries) };
        let events = events(&evidence);
        let told: Vec<_> =
            events.iter().map(|event| (event.at, event.source.as_str(), &*event.what)).collect();
        assert_eq!(told, [(-1.5, "early", "connected"), (1.5, "late", "connected"), (2.0, "early", "lost")]);
    }
}
