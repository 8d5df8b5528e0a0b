//! Progress of an experiment on the terminal.

use std::io::IsTerminal;
use std::time::Duration;

use braid_lab::experiment::{Plan, Progress};
use braid_lab::report::{Column, Run};
use braid_lab::scenario::Metric;

use crate::output::replace_line;

/// Progress display: one line that is rewritten on a terminal, a line per run elsewhere.
pub(super) struct Watch {
    columns: Vec<Column>,
    head: String,
    lasts: Duration,
    is_terminal: bool,
}

/// Number of metrics in a run's line.
const COLUMNS: usize = 4;

impl Watch {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            columns: plan.scenario.metrics.iter().filter_map(Metric::column).take(COLUMNS).collect(),
            head: String::new(),
            lasts: Duration::ZERO,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&mut self, progress: &Progress<'_>) {
        match *progress {
            Progress::Begins { number, all, variant, profile, seed, attempt, lasts } => {
                let again = if attempt > 0 { format!(", again ({attempt})") } else { String::new() };
                self.head = format!("[{number}/{all}] {variant} on {profile}, seed {seed}{again}");
                self.lasts = lasts;
                if self.is_terminal {
                    self.line(&self.head.clone());
                } else {
                    eprintln!("{}: {} s", self.head, lasts.as_secs_f64());
                }
            }
            Progress::Goes { since, line } => {
                if self.is_terminal {
                    let (since, lasts) = (since.as_secs(), self.lasts.as_secs_f64());
                    self.line(&format!("{}: {since} of {lasts} s  {}", self.head, line.unwrap_or_default()));
                }
            }
            Progress::Ended(run) => {
                self.line("");
                eprintln!("{}: {}", self.head, self.result(run));
            }
            Progress::SoFar(_) => {}
            Progress::LeftOut(why) => eprintln!("{why}"),
        }
    }

    /// Clears the progress line.
    pub(super) fn finish(&self) {
        self.line("");
    }

    fn result(&self, run: &Run) -> String {
        if let Some(reason) = run.refused.first() {
            return format!("refused: {reason}");
        }
        let values = self.columns.iter().map(|column| match run.metrics.get(&column.metric) {
            Some(value) => format!("{} {}", column.title, column.shown_with_unit(*value)),
            None => format!("{} -", column.title),
        });
        values.collect::<Vec<_>>().join(", ")
    }

    /// Replaces the progress line.
    fn line(&self, text: &str) {
        if !self.is_terminal {
            return;
        }
        // A longer line would wrap and could not be replaced.
        let width = terminal_width().saturating_sub(1);
        let text: String = text.chars().filter(|c| !c.is_control()).take(width).collect();
        replace_line(&text);
    }
}

fn terminal_width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(80, |(width, _)| width.0.into())
}
