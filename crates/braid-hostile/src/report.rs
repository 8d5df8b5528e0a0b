//! Report of a run: a table for the terminal, Markdown and JSON for the repository.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use braid_measure::machine::{Machine, load_average};
use braid_measure::{Alignment, Table};
use serde_json::json;

use crate::row::{ROWS, Row};
use crate::verdict::{FLOOR_MS, Finding, PairFinding};

const TITLES: [&str; 9] = [
    "row",
    "done",
    "refused",
    "p99 before > attack > after, ms",
    "memory, MiB",
    "grew of",
    "cores",
    "descriptors",
    "verdict",
];

/// All findings of a run, and its machine.
pub(crate) struct Record {
    machine: Machine,
    version: String,
    seconds: u64,
    pub(crate) findings: Vec<Finding>,
}

/// Rows with their attacks.
pub(crate) fn list(rows: &[Row]) -> String {
    let mut table = Table::new(Alignment::Left, ["row", "attack"]);
    for row in rows {
        table.row([row.name, row.summary]);
    }
    table.to_string()
}

impl Record {
    pub(crate) fn begin(binary: &Path, seconds: u64) -> Self {
        let version = braid_torture::version(binary);
        Self { machine: Machine::here(), version, seconds, findings: Vec::new() }
    }

    /// True if there are findings, and no row fails.
    pub(crate) fn is_good(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(Finding::is_good)
    }

    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new(Alignment::Right, TITLES);
        for finding in &self.findings {
            table.row(cells(finding));
        }
        table
    }

    /// Writes `hostile.md` and `hostile.json` into a directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), String> {
        let failed = |path: &Path, error: std::io::Error| format!("cannot write {}: {error}", path.display());
        std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        let json = json!({
            "machine": self.machine,
            "load_average_at_end": load_average(),
            "version": self.version,
            "seconds": self.seconds,
            "rows": self.findings,
        });
        let json = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())? + "\n";
        for (name, text) in [("hostile.md", self.markdown()), ("hostile.json", json)] {
            let file = directory.join(name);
            std::fs::write(&file, text).map_err(|error| failed(&file, error))?;
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let Machine { cores, processor, kernel, load_average, unix_time } = &self.machine;
        let seconds = i64::try_from(*unix_time).unwrap_or(0);
        let date = jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default();
        let failed = self.findings.iter().filter(|finding| !finding.is_good()).count();
        let mut text = format!(
            "# Hostile clients\n\n\
             `cargo xtask hostile --seconds {attack}`, {date}: {rows} rows, {failed} failed. {version}; {cores} cores \
             ({processor}), Linux {kernel}, load average {load_average} at the start.\n\n\
             Each row has a broker of its own with all listeners on loopback, and pairs of a publisher and a \
             subscriber (braid-client, 50 messages a second, 100 bytes, QoS 1) over TCP and QUIC. A quiet phase of \
             {quiet} s, the attack for {attack} s, 2 s without figures, a quiet phase of {quiet} s. The figure \
             of a quiet phase is the median of three periods; that of the attack is the p99 of all its messages, from \
             PUBLISH to arrival. The attacker is a process of nice value 19 on the same cores, so what it uses is taken \
             from idle time. A row fails if p99 in the attack or after it exceeds twice that before and {FLOOR_MS} ms, if a well-behaved \
             client loses its connection or a message, if memory (anonymous resident) grows by more than the row \
             allows, if after the attack a fresh client is not served over TCP and QUIC or a fresh request is not answered \
             over HTTP/1.1 and 3, or if the broker panics or does not end in order.\n\n",
            attack = self.seconds,
            quiet = self.seconds as f64 / 2.0,
            rows = self.findings.len(),
            version = self.version,
        );
        text.push_str(&line(&TITLES.map(str::to_owned)));
        text.push_str(&line(&TITLES.map(|_| "---".to_owned())));
        for finding in &self.findings {
            text.push_str(&line(&cells(finding)));
        }
        text.push_str("\nMemory: before, at most, and after the second quiet phase. Cores: of the broker, and of all other processes.\n\n");
        text.push_str("| row | attack | growth of memory that is allowed |\n|---|---|---|\n");
        for row in ROWS.iter().filter(|row| self.findings.iter().any(|finding| finding.name == row.name)) {
            let bound = format!("{:.0} MiB: {}", row.growth_mib, row.growth_reason);
            let settings: Vec<_> = row.settings.iter().map(|setting| format!("; `{setting}`")).collect();
            text.push_str(&line(&[row.name.to_owned(), row.summary.to_owned() + &settings.concat(), bound]));
        }
        if failed > 0 {
            text.push_str("\n## Failed\n\n");
        }
        for finding in self.findings.iter().filter(|finding| !finding.is_good()) {
            text.push_str(&format!("- {}: {}\n", finding.name, finding.wrong.join("; ")));
        }
        text
    }
}

/// A row of a table in Markdown.
fn line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

fn cells(finding: &Finding) -> [String; 9] {
    let usage = &finding.usage;
    let memory = [usage.before, usage.peak, usage.after].map(|sample| format!("{:.0}", sample.memory));
    let descriptors = [usage.before, usage.peak, usage.after].map(|sample| sample.descriptors.to_string());
    let latencies: Vec<_> = finding.pairs.iter().map(pair).collect();
    [
        finding.name.to_owned(),
        format!("{} {}", finding.attack.done, finding.unit),
        finding.attack.refused.to_string(),
        latencies.join("; "),
        memory.join(" > "),
        format!("{:.0} of {:.0}", finding.growth(), finding.growth_bound),
        format!("{:.2}, {:.2}", usage.cores, usage.other_cores),
        descriptors.join(" > "),
        if finding.is_good() { "good" } else { "FAILED" }.to_owned(),
    ]
}

fn pair(pair: &PairFinding) -> String {
    let show = |millis: Option<f64>| millis.map_or("never".to_owned(), |millis| format!("{millis:.1}"));
    let [before, attack, after] = [pair.quiet, pair.attack, pair.after].map(|phase| show(phase.p99));
    format!("{} {before} > {attack} > {after}", pair.name)
}

impl Display for Finding {
    /// The row on one line, and a line for everything that is wrong.
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let [name, done, refused, latencies, memory, _, cores, descriptors, verdict] = cells(self);
        write!(
            out,
            "hostile: {name}: {verdict}; {done}, {refused} refused; p99 {latencies} ms; memory {memory} MiB; cores \
             {cores}; descriptors {descriptors}; fresh client {:.0} ms",
            self.fresh_client_ms
        )?;
        self.wrong.iter().try_for_each(|line| write!(out, "\nhostile:   {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Latency;

    fn record(wrong: &[&str]) -> Record {
        let quiet = Latency { p50: Some(0.5), p99: Some(1.25), max: Some(9.0) };
        let attack = Latency { p99: None, ..quiet };
        let finding = Finding {
            pairs: vec![PairFinding {
                name: "tcp",
                quiet,
                attack,
                after: quiet,
                missing: 0,
                faults: Vec::new(),
            }],
            wrong: wrong.iter().map(|line| (*line).to_owned()).collect(),
            ..Finding::new(&ROWS[0])
        };
        Record {
            machine: Machine::here(),
            version: "braidmq 1".to_owned(),
            seconds: 10,
            findings: vec![finding],
        }
    }

    #[test]
    fn a_report_has_each_row_its_bound_and_its_faults() {
        let text = record(&["it broke"]).markdown();
        for part in [
            "1 rows, 1 failed. braidmq 1;",
            "| tcp 1.2 > never > 1.2 |",
            "| FAILED |",
            ROWS[0].summary,
            ROWS[0].growth_reason,
            &format!("- {}: it broke\n", ROWS[0].name),
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!record(&[]).markdown().contains("## Failed"));
    }

    #[test]
    fn a_run_is_good_without_faults_and_with_rows() {
        assert!(record(&[]).is_good());
        assert!(!record(&["wrong"]).is_good());
        assert!(!Record { findings: Vec::new(), ..record(&[]) }.is_good());
    }

    #[test]
    fn files_are_written_into_a_new_directory() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = home.path().join("new");
        record(&[]).write(&directory).expect("written");
        let json = std::fs::read_to_string(directory.join("hostile.json")).expect("JSON");
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["rows"][0]["name"], ROWS[0].name);
        assert!(directory.join("hostile.md").is_file());
    }
}
