//! Standard output during a run.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use braid_bench::emqtt::{CounterLines, PUBLISH_COMPLETE, StartLine, secrets_line};
use braid_bench::generator::{Ended, RunStatistics};
use braid_bench::summary::Role;
use terminal_size::{Height, Width, terminal_size_of};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::live::Live;
use super::view::Snapshot;
use crate::bench::options::{LogTo, OutputOptions};
use crate::printable::printable;

const EVERY: Duration = Duration::from_secs(1);

/// Standard output during a run.
#[derive(Debug)]
pub(in crate::bench) struct Screen {
    form: Form,
    /// Number of events that were printed.
    events: usize,
}

#[derive(Debug)]
enum Form {
    Silent,
    /// As emqtt_bench prints them; `qoe`: with those of `-Q`.
    Lines {
        counters: CounterLines,
        qoe: bool,
    },
    View {
        title: String,
        live: Live,
        before: Snapshot,
    },
}

impl Screen {
    /// Lines, or a view on a terminal. `server` is the target of the load.
    pub(in crate::bench) fn new(options: &OutputOptions, role: Role, server: &str) -> Self {
        let form = if options.log_to == LogTo::Null {
            Form::Silent
        } else if options.plain || !io::stdout().is_terminal() {
            Form::Lines { counters: CounterLines::default(), qoe: options.has_qoe() }
        } else {
            let title = match role {
                Role::Sub => format!("sub from {server}"),
                Role::Pub => format!("pub to {server}"),
                _ => format!("conn to {server}"),
            };
            Form::View { title, live: Live::default(), before: Snapshot::default() }
        };
        Self { form, events: 0 }
    }

    /// Prints the first lines. `secrets`: file for the secrets of TLS.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(in crate::bench) fn begin(
        &self,
        statistics: &RunStatistics,
        secrets: Option<&Path>,
        line: &StartLine,
    ) -> io::Result<()> {
        let Form::Lines { qoe, .. } = &self.form else { return Ok(()) };
        if *qoe {
            statistics.keep_qoe();
        }
        if let Some(file) = secrets {
            writeln!(io::stdout(), "{}", secrets_line(file))?;
        }
        writeln!(io::stdout(), "{line}\n")
    }

    /// Prints changes once a second, until standard output is closed.
    pub(in crate::bench) async fn watch(&mut self, statistics: &RunStatistics) {
        let mut ticks = interval_at(Instant::now() + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.tell(statistics).is_err() {
                return;
            }
        }
    }

    /// Tells the rest.
    pub(in crate::bench) fn end(&mut self, statistics: &RunStatistics, ended: Ended) {
        if let Form::View { before, .. } = &mut self.form {
            // The last view shows the rates of the whole run.
            *before = Snapshot::default();
        }
        // Standard output may be closed.
        let _ = self.tell(statistics);
        if let (Form::Lines { .. }, Ended::Complete) = (&self.form, ended) {
            let _ = writeln!(io::stdout(), "{PUBLISH_COMPLETE}");
        }
    }

    fn tell(&mut self, statistics: &RunStatistics) -> io::Result<()> {
        let events = statistics.events(self.events);
        self.events += events.len();
        let mut lines: Vec<String> = events.iter().map(|event| printable(&event.what).into_owned()).collect();
        let text = match &mut self.form {
            Form::Silent => return Ok(()),
            Form::Lines { counters, qoe } => {
                // A run of less than a second is shown as one of a second: its rate over less would mislead.
                let at = statistics.elapsed().max(EVERY);
                lines.extend(counters.lines(at, &statistics.counters()));
                if *qoe {
                    lines.extend(statistics.take_qoe().lines());
                }
                lines.iter().map(|line| format!("{line}\n")).collect()
            }
            Form::View { title, live, before } => {
                let now = Snapshot::of(statistics);
                let window = window();
                let view = now.lines(title, before, window);
                *before = now;
                live.redraw(window.0, &lines, &view)
            }
        };
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The terminal's columns and rows.
fn window() -> (usize, usize) {
    let (Width(columns), Height(rows)) = terminal_size_of(io::stdout()).unwrap_or((Width(80), Height(24)));
    (columns.into(), rows.into())
}
