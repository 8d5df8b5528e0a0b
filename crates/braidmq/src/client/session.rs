//! Runtime, log and signals of `pub` and `sub`.

use std::io::IsTerminal;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{ClientOptions, Failure};

/// Runs a command of the client on a single-threaded runtime. `has_events`: whether to log how it is connected.
pub(crate) fn run(
    options: &ClientOptions,
    has_events: bool,
    command: impl Future<Output = Result<(), Failure>>,
) -> ExitCode {
    match (options.debug, has_events || options.events) {
        (true, _) => trace("braid_client=debug,braid_transport=debug"),
        (false, true) => trace("braid_client=info,braid_transport=warn"),
        (false, false) => {}
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(command);
            // A thread that blocks on standard input cannot be stopped.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::usage(format!("Error: no runtime: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(options.quiet),
    }
}

/// Logs the client on standard error; standard output carries messages.
fn trace(filter: &str) {
    let filter = EnvFilter::new(filter);
    let is_terminal = std::io::stderr().is_terminal();
    let lines =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_ansi(is_terminal);
    // Fails only if a subscriber is installed already.
    let _ = lines.with_target(false).try_init();
}

/// Resolves on SIGINT or SIGTERM.
pub(crate) async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        let _ = interrupted.await;
        return;
    };
    tokio::select! {
        _ = interrupted => {}
        _ = terminated.recv() => {}
    }
}
