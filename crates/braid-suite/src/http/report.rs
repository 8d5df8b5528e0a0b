//! Report of `bench http`.

use std::fmt::Write as _;
use std::path::Path;

use braid_measure::{Machine, Spread};
use serde::Serialize;

use super::generator::Program;
use super::servers::{PAGE, Server};
use super::{Case, HTTP2};
use crate::system::write_json;

/// Readings of a row, each of the reference and of braidmq.
#[derive(Default, Serialize)]
pub(super) struct Readings {
    /// Processor time of a request, microseconds, of each round.
    pub(super) cpu_us: Vec<[f64; 2]>,
    /// Instructions of a request in user mode; `None` if they were not counted.
    pub(super) instructions: Option<[f64; 2]>,
}

/// Measurements of one load.
#[derive(Serialize)]
pub(super) struct HttpRow {
    load: String,
    reference: String,
    bar: f64,
    #[serde(flatten)]
    readings: Readings,
}

/// Measurements of one call.
#[derive(Serialize)]
pub(super) struct HttpReport {
    pub(super) machine: Machine,
    pub(super) load_average_at_end: String,
    pub(super) command: String,
    pub(super) versions: Vec<String>,
    pub(super) rows: Vec<HttpRow>,
}

impl HttpRow {
    pub(super) fn new(
        (_, load, program, (clients, in_flight), _, reference, bar): &Case,
        readings: Readings,
    ) -> Self {
        let by = if *program == Program::H2load { ", h2load" } else { "" };
        let reference = if *reference == Server::Nginx { "nginx" } else { HTTP2.title };
        Self {
            load: format!("{}, {clients} x {in_flight}{by}", load.title),
            reference: reference.to_owned(),
            bar: *bar,
            readings,
        }
    }

    /// Requests per processor second, by those of the reference in the same round.
    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.readings.cpu_us.iter().map(|[reference, own]| reference / own))
    }

    fn is_good(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio.median >= self.bar)
    }

    fn cells(&self) -> Vec<String> {
        let us = |which: usize| Spread::of(self.readings.cpu_us.iter().map(|pair| pair[which]));
        let us = [us(0), us(1)].map(|us| us.map_or(f64::NAN, |us| us.median));
        let counted = |which: usize| {
            self.readings.instructions.map_or("-".to_owned(), |counts| format!("{:.0}", counts[which]))
        };
        vec![
            self.load.clone(),
            self.reference.clone(),
            format!("{:.2}", us[0]),
            format!("{:.2}", us[1]),
            format!("{:.0}", 1e6 / us[0]),
            format!("{:.0}", 1e6 / us[1]),
            self.ratio().map_or_else(String::new, |ratio| ratio.show(2)),
            format!("{:.1}", self.bar),
            verdict(self.is_good()).to_owned(),
            counted(0),
            counted(1),
        ]
    }
}

impl HttpReport {
    pub(super) fn is_good(&self) -> bool {
        !self.rows.is_empty() && self.rows.iter().all(HttpRow::is_good)
    }

    pub(super) fn markdown(&self) -> String {
        let Machine { cores, processor, kernel, load_average, .. } = &self.machine;
        let rounds = self.rows.first().map_or(0, |row| row.readings.cpu_us.len());
        let mut text = format!(
            "# Requests per processor second\n\n\
             `cargo xtask bench {}`: {}; {}; {cores} cores ({processor}), Linux {kernel}, load average {load_average} at the start and {} at the \
             end.\n\n\
             A file of {PAGE} bytes over loopback, CONNECTIONS x REQUESTS IN FLIGHT, from `braidmq bench http` with one thread, or h2load. nginx \
             has one worker, no log, `sendfile` and `tcp_nopush` as in Debian's file; braidmq one thread for HTTP, as by default. Processor time \
             is that of the whole server, user and kernel mode; connections are made in a run of their own, whose time is subtracted. {rounds} \
             rounds in alternation: medians, and the ratio of requests per processor second in neighbouring runs, with its least and greatest. \
             Instructions are those in user mode, counted by callgrind.\n\n",
            self.command,
            verdict(self.is_good()),
            self.versions.join(", "),
            self.load_average_at_end,
        );
        let titles = [
            "load",
            "beside",
            "its us",
            "us",
            "its requests/s",
            "requests/s",
            "ratio",
            "bar",
            "verdict",
            "its instructions",
            "instructions",
        ];
        for cells in [titles.map(str::to_owned).to_vec(), titles.map(|_| "---".to_owned()).to_vec()]
            .into_iter()
            .chain(self.rows.iter().map(HttpRow::cells))
        {
            // Writing into a String cannot fail.
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }

    pub(super) fn write(&self, directory: &Path) -> Result<(), String> {
        let file = directory.join("http.md");
        let failed = |error| format!("cannot write {}: {error}", file.display());
        std::fs::create_dir_all(directory).map_err(failed)?;
        std::fs::write(&file, self.markdown()).map_err(failed)?;
        write_json(self, Some(&directory.join("http.json")))
    }
}

fn verdict(is_good: bool) -> &'static str {
    if is_good { "good" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::super::CASES;
    use super::*;

    #[test]
    fn the_median_of_ratios_is_compared_with_the_bar() {
        let row = |cpu_us| HttpRow::new(&CASES[0], Readings { cpu_us, instructions: Some([5.0, 7.0]) });
        // Half, 0.8 and all of the requests of nginx.
        let good = row(vec![[4.0, 8.0], [4.0, 5.0], [4.0, 4.0]]);
        assert!(good.is_good());
        assert!(!row(vec![[4.0, 8.0], [4.0, 5.1], [4.0, 4.0]]).is_good());
        assert!(!row(Vec::new()).is_good(), "nothing was measured");
        assert_eq!(
            good.cells().join(" | "),
            "HTTP/1.1, 10 x 1 | nginx | 4.00 | 5.00 | 250000 | 200000 | 0.80 (0.50..1.00) | 0.8 | good | 5 | 7"
        );
    }
}
