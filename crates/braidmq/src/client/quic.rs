//! Options of QUIC connections.

use std::path::PathBuf;

use braid_client::{Builder, Congestion, LocalPath, PathMode};

use super::Failure;

/// Heading of the options for QUIC.
pub(crate) const HEADING: &str = "QUIC";

/// Options of QUIC connections.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct QuicOptions {
    /// Reconnect one round trip sooner (0-RTT). Early data is encrypted with the keys of a session ticket and may be
    /// replayed; the first connection of a run has no ticket.
    #[arg(long, help_heading = HEADING)]
    zero_rtt: bool,
    /// Congestion control: bbr3 keeps the queues of the path short, cubic and newreno fill them. bbr3 by default.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion, help_heading = HEADING)]
    quic_cc: Option<Congestion>,
    /// Turn the congestion gate off: bulk is then not limited in favour of urgent messages.
    #[arg(long, help_heading = HEADING)]
    no_gate: bool,
    /// The most bytes per second to send, if the rate of the uplink is known: messages then wait in this program, where
    /// urgent ones overtake, and not in queues of the path.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), help_heading = HEADING)]
    link_rate: Option<u64>,
    /// Keep a path of the connection on this interface, or at this address of this machine. To be given twice or more
    /// often, the preferred one first: when one does not answer, messages go on on another. --events tells how they
    /// are, as does -v of `braidmq pub`.
    #[arg(long, value_name = "INTERFACE", help_heading = HEADING)]
    path: Vec<String>,
    /// Use of the paths: standby sends on the first one that answers, both on all of them.
    #[arg(
        long,
        value_name = "MODE",
        value_parser = parse_path_mode,
        default_value = "standby",
        requires = "path",
        help_heading = HEADING
    )]
    path_mode: PathMode,
    /// Write a qlog into this directory, for `braidmq explain` or qvis.
    #[arg(long, value_name = "DIR", help_heading = HEADING)]
    qlog_dir: Option<PathBuf>,
}

impl QuicOptions {
    /// The first option that was given.
    pub(crate) fn first(&self) -> Option<&'static str> {
        let given = [
            ("--zero-rtt", self.zero_rtt),
            ("--quic-cc", self.quic_cc.is_some()),
            ("--no-gate", self.no_gate),
            ("--link-rate", self.link_rate.is_some()),
            ("--path", !self.path.is_empty()),
            ("--qlog-dir", self.qlog_dir.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
    }

    /// Sets the options of the client.
    pub(crate) fn apply(&self, mut builder: Builder) -> Result<Builder, Failure> {
        builder = builder.zero_rtt(self.zero_rtt).gate(!self.no_gate);
        if let Some(congestion) = self.quic_cc {
            builder = builder.congestion(congestion);
        }
        if let Some(bytes_per_second) = self.link_rate {
            builder = builder.link_rate(bytes_per_second);
        }
        if !self.path.is_empty() {
            let paths = self.path.iter().map(|path| LocalPath::parse(path));
            builder = builder.paths(paths, self.path_mode);
        }
        if let Some(directory) = &self.qlog_dir {
            std::fs::create_dir_all(directory).map_err(|error| {
                Failure::usage(format!("Error: cannot make the directory {}: {error}.", directory.display()))
            })?;
            builder = builder.qlog_dir(directory);
        }
        Ok(builder)
    }
}

pub(crate) fn parse_path_mode(text: &str) -> Result<PathMode, String> {
    PathMode::from_name(text).ok_or_else(|| "use standby or both".to_owned())
}

pub(crate) fn parse_congestion(text: &str) -> Result<Congestion, String> {
    Congestion::from_name(text).ok_or_else(|| "use bbr3, cubic or newreno".to_owned())
}
