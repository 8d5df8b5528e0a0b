//! Errors of a run, and their exit codes.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use braid_bench::emqtt::TopicsFileError;
use braid_bench::exchange::LoadError;
use braid_bench::generator::{DialError, PlanError};
use braid_transport::{BindError, CertificateError};

use super::options::OptionsError;

/// Error of a run, one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Options(#[from] OptionsError),
    #[error(transparent)]
    Topics(#[from] TopicsFileError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("cannot read {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write --json {}: {source}", .path.display())]
    Json { path: PathBuf, source: io::Error },
    #[error("cannot write --gate-log {}: {source}", .path.display())]
    GateLog { path: PathBuf, source: io::Error },
    #[error("cannot make the directory {}: {source}", .path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot serve metrics at {address}: {source}: give another port")]
    Metrics { address: SocketAddr, source: io::Error },
    #[error("cannot find the server {host:?}: {source}: check -h")]
    UnknownHost { host: String, source: io::Error },
    #[error("cannot find the server {host:?}: {source}: check the URL, or --connect-to")]
    UnknownServer { host: String, source: io::Error },
    #[error(transparent)]
    HttpLoad(#[from] braid_bench::http::LoadError),
    #[error(transparent)]
    Http(#[from] braid_bench::http::RunError),
    #[error("cannot start threads: {0}")]
    Runtime(io::Error),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
    #[error("cannot measure: {0}")]
    Measure(#[from] braid_bench::Failure),
    #[error("{measured:.0} messages per CPU-second are fewer than {at_least}")]
    TooSlow { measured: f64, at_least: u64 },
    #[error("no client could connect to {server}: {cause}")]
    Unreachable { server: String, cause: String },
    #[error("there was no response: {0}")]
    NoResponse(String),
    #[error("the listener failed: {0}")]
    Listener(io::Error),
    #[error("{0} alarms were not acknowledged: allow more time with --patience, or see the events above")]
    Unacknowledged(u64),
    #[error("every connection was lost before the end: {cause}")]
    Lost { cause: String },
}

impl Failure {
    /// Prints the error, and returns its exit code.
    pub(super) fn report(&self) -> ExitCode {
        // Standard error may be closed; the exit code remains.
        let _ = writeln!(io::stderr(), "Error: {self}");
        ExitCode::from(match self {
            Self::Unreachable { .. }
            | Self::TooSlow { .. }
            | Self::NoResponse(_)
            | Self::Unacknowledged(_)
            | Self::Listener(_) => 1,
            Self::Lost { .. } => 7,
            _ => 2,
        })
    }
}
