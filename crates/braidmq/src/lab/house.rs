//! Into the namespaces, and out of them when somebody says stop.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use braid_lab::house::{self, Entry};
use tokio::signal::unix::{SignalKind, signal};

use super::{STOPPED, refuse};

/// Who signals a whole process group reaches us more than once: see [`house::enter`]. What comes so soon after the
/// first signal is no second one.
const SAME: Duration = Duration::from_millis(200);

/// What asks to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGINT: Ctrl-C, or `kill -INT`.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Goes on inside new namespaces. `Err`: this process stayed outside, and the other one has ended with this code.
///
/// Called before anything has started a thread.
pub(super) fn enter() -> Result<(), ExitCode> {
    match house::enter() {
        Ok(Entry::Inside) => Ok(()),
        Ok(Entry::Ended(code)) => Err(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        Err(error) => Err(refuse(&error)),
    }
}

/// Tells the first Ctrl-C or SIGTERM to `on_first`, on a thread of its own. The second one ends this process, and with
/// it everything in the namespaces.
pub(super) fn listen(on_first: impl FnOnce(Signal) + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    let mut next = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => Signal::Interrupt,
                _ = terminate.recv() => Signal::Terminate,
            }
        })
    };
    let listen = move || {
        on_first(next());
        let first = Instant::now();
        loop {
            next();
            if first.elapsed() >= SAME {
                // The terminal may be gone, and its last line one that was to be replaced.
                let _ = writeln!(std::io::stderr(), "\nbraidmq: ended at once");
                std::process::exit(STOPPED.into());
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
}
