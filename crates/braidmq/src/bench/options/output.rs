//! Options: output.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::OUTPUT;
use super::words::{Endpoint, endpoint, qoe_switch};

/// Destination of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::bench) enum LogTo {
    /// To standard output.
    Console,
    /// Discards them.
    Null,
}

/// Kinds of output, and their destinations.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct OutputOptions {
    /// Write the results to this file as JSON when the run ends.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(in crate::bench) json: Option<PathBuf>,
    /// Add each message to --json with its due time, and for subscribers with its latency.
    #[arg(long, help_heading = OUTPUT)]
    pub(in crate::bench) trace: bool,
    /// Print emqtt_bench's lines on a terminal too, instead of the live view.
    #[arg(long, help_heading = OUTPUT)]
    pub(in crate::bench) plain: bool,
    /// Print no table of percentiles at the end, and no notes.
    #[arg(long, help_heading = OUTPUT)]
    pub(in crate::bench) quiet: bool,
    /// Answer GET /metrics at this port, or address and port, with Prometheus metrics. Without a port, --restapi
    /// names it.
    #[arg(long, value_name = "[IP:]PORT", num_args = 0..=1, value_parser = endpoint, default_missing_value = "disabled",
        help_heading = OUTPUT)]
    prometheus: Option<Endpoint>,
    /// Answer GET /metrics at this port, or address and port.
    #[arg(long, value_name = "[IP:]PORT", value_parser = endpoint, help_heading = OUTPUT)]
    restapi: Option<Endpoint>,
    /// Destination of the lines: console or null.
    #[arg(long = "log_to", value_name = "WHERE", default_value = "console", hide_default_value = true,
        help_heading = OUTPUT)]
    pub(in crate::bench) log_to: LogTo,
    /// Print a line each second with the durations of the handshakes, connections and subscriptions in that second.
    /// They are always measured: the table and --json have them.
    #[arg(short = 'Q', long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        value_parser = qoe_switch, action = ArgAction::Set, help_heading = OUTPUT)]
    qoe: Option<bool>,
    /// Print this help.
    #[arg(long, action = ArgAction::Help, help_heading = OUTPUT)]
    help: Option<bool>,
}

impl OutputOptions {
    /// True if lines show the durations of handshakes, connections and subscriptions.
    pub(in crate::bench) fn has_qoe(&self) -> bool {
        self.qoe == Some(true)
    }

    /// Address at which metrics are served; `None` without them.
    pub(in crate::bench) fn metrics(&self) -> Option<SocketAddr> {
        [self.prometheus, self.restapi].into_iter().flatten().find_map(|endpoint| match endpoint {
            Endpoint::At(address) => Some(address),
            Endpoint::Disabled => None,
        })
    }

    pub(super) fn notes(&self) -> Option<String> {
        (self.prometheus.is_some() && self.metrics().is_none())
            .then(|| "--prometheus alone serves nothing: give it a port, or add --restapi PORT".to_owned())
    }
}
