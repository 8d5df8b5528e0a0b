//! Log on standard error, with a level that can be changed.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use super::StartError;
use crate::config::{LogConfig, LogFormat};

/// Changes the log level of the running process.
pub(super) struct Reload(reload::Handle<EnvFilter, Registry>);

/// Starts logging to standard error.
pub(super) fn start(config: &LogConfig) -> Result<Reload, StartError> {
    let (filter, handle) = reload::Layer::new(parse(&config.level)?);
    let registry = Registry::default().with(filter);
    let writer = std::io::stderr;
    // Fails only for a second call in the process.
    let _ = match config.format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal();
            registry.with(fmt::layer().with_writer(writer).with_ansi(colours)).try_init()
        }
        LogFormat::Json => registry.with(fmt::layer().json().with_writer(writer)).try_init(),
    };
    Ok(Reload(handle))
}

fn parse(level: &str) -> Result<EnvFilter, StartError> {
    // The cluster tells of its connections itself. A directive of the same target that follows replaces this one.
    let is_for_all = ["debug", "trace"].contains(&level);
    EnvFilter::try_new(if is_for_all { level.to_owned() } else { format!("async_nats=warn,{level}") })
        .map_err(|error| StartError::LogLevel { level: level.to_owned(), problem: error.to_string() })
}

impl Reload {
    /// Parses a level, and changes nothing. To call what is returned puts it in force.
    pub(super) fn begin_set(&self, level: &str) -> Result<impl FnOnce(), StartError> {
        let filter = parse(level)?;
        // Fails only while the process ends.
        Ok(|| _ = self.0.reload(filter))
    }
}
