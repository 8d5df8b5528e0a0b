//! Entry into the testbed, and the signals that end it.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use braid_lab::testbed::{self, Entry};
use tokio::signal::unix::{SignalKind, signal};

use super::{STOPPED, refuse};

/// Time after the first signal during which others are copies of it: a signal to the whole process group arrives more
/// than once, see [`testbed::enter`].
const SAME: Duration = Duration::from_millis(200);

/// Request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGINT: Ctrl-C, or `kill -INT`.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Enters the testbed. `Err`: this is the outer process, and the inner one has ended with this code.
///
/// Must be called before any thread is started.
pub(super) fn enter() -> Result<(), ExitCode> {
    match testbed::enter() {
        Ok(Entry::Inside) => Ok(()),
        Ok(Entry::Ended(code)) => Err(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        Err(error) => Err(refuse(&error)),
    }
}

/// Starts a thread that calls `on_first` at the first SIGINT or SIGTERM. The second one ends this process, and with it
/// everything in the namespaces.
///
/// # Errors
/// The system refuses a signal handler or the thread.
pub(super) fn listen(on_first: impl FnOnce(Signal) + Send + 'static) -> Result<(), String> {
    try_listen(on_first).map_err(|error| format!("cannot watch for signals: {error}"))
}

fn try_listen(on_first: impl FnOnce(Signal) + Send + 'static) -> std::io::Result<()> {
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
                // The terminal may be gone; its last line may be a progress line.
                let _ = writeln!(std::io::stderr(), "\nbraidmq: ended at once");
                std::process::exit(STOPPED.into());
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
}
