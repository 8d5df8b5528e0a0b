//! Line of progress on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use braid_bench::http::{Extent, HttpLoad, Progress};
use terminal_size::{Width, terminal_size_of};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::bench::output::Live;

const EVERY: Duration = Duration::from_secs(1);

/// Standard output during a run: a line that is redrawn each second on a terminal, otherwise nothing.
#[derive(Debug)]
pub(super) struct Screen {
    live: Option<Live>,
    progress: Progress,
    extent: Extent,
    begun: Instant,
    /// Requests that were done a second ago.
    before: u64,
}

impl Screen {
    pub(super) fn new(load: &HttpLoad, progress: Progress) -> Self {
        let live = io::stdout().is_terminal().then(Live::default);
        Self { live, progress, extent: load.extent, begun: Instant::now(), before: 0 }
    }

    /// Redraws the line each second, until standard output is closed.
    pub(super) async fn watch(&mut self) {
        let Some(live) = &mut self.live else { return std::future::pending().await };
        let mut ticks = interval_at(self.begun + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            let done = self.progress.done();
            let line = line(self.extent, now - self.begun, done, done - self.before);
            self.before = done;
            if write(&live.redraw(columns(), &[], &[line])).is_err() {
                return;
            }
        }
    }

    /// Removes the line.
    pub(super) fn end(&mut self) {
        if let Some(live) = &mut self.live {
            // Standard output may be closed.
            let _ = write(&live.redraw(columns(), &[], &[]));
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn columns() -> usize {
    terminal_size_of(io::stdout()).map_or(80, |(Width(columns), _)| columns.into())
}

fn line(extent: Extent, elapsed: Duration, done: u64, per_second: u64) -> String {
    let seconds = elapsed.as_secs();
    match extent {
        Extent::Requests(total) => {
            let percent = done.saturating_mul(100) / total.max(1);
            format!("{seconds} s: {done} of {total} requests done ({percent} %), {per_second} req/s")
        }
        Extent::Duration { main, warm_up } if elapsed < warm_up => {
            format!("{seconds} s: warming up for {} s, then {} s", warm_up.as_secs_f64(), main.as_secs_f64())
        }
        Extent::Duration { main, warm_up } => {
            let of = (main + warm_up).as_secs_f64();
            format!("{seconds} of {of} s: {done} requests done, {per_second} req/s")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_the_run_is() {
        let second = Duration::from_secs(1);
        let requests = line(Extent::Requests(1000), 3 * second, 250, 90);
        assert_eq!(requests, "3 s: 250 of 1000 requests done (25 %), 90 req/s");
        let timed = Extent::Duration { main: 10 * second, warm_up: second * 5 / 2 };
        assert_eq!(line(timed, 2 * second, 0, 0), "2 s: warming up for 2.5 s, then 10 s");
        assert_eq!(line(timed, 3 * second, 7, 7), "3 of 12.5 s: 7 requests done, 7 req/s");
    }
}
