use std::path::PathBuf;

use braid_client::{Builder, Congestion};

use super::Failure;

/// For what only QUIC has.
pub(crate) const HEADING: &str = "QUIC";

/// Options of a connection that only QUIC has.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct QuicOptions {
    /// Replace a lost connection one round trip sooner (0-RTT): what goes first is encrypted with the keys of a ticket
    /// and may be replayed. The first connection of a run has no ticket.
    #[arg(long, help_heading = HEADING)]
    zero_rtt: bool,
    /// Who decides how fast to send: bbr3 keeps the queues on the way short, cubic and newreno fill them. bbr3 by
    /// default.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion, help_heading = HEADING)]
    quic_cc: Option<Congestion>,
    /// Do not find out what a slow path lets through: bulk is then not kept back for what is urgent.
    #[arg(long, help_heading = HEADING)]
    no_gate: bool,
    /// The most bytes per second to send, if you know what the uplink carries: then nothing queues up on the way,
    /// where what is urgent cannot overtake.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), help_heading = HEADING)]
    link_rate: Option<u64>,
    /// Write what QUIC does to a file in this directory (qlog), for `braidmq explain` or qvis.
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
            ("--qlog-dir", self.qlog_dir.is_some()),
        ];
        given.iter().find(|(_, is_given)| *is_given).map(|(name, _)| *name)
    }

    /// Sets them.
    pub(crate) fn apply(&self, mut builder: Builder) -> Result<Builder, Failure> {
        builder = builder.zero_rtt(self.zero_rtt).gate(!self.no_gate);
        if let Some(congestion) = self.quic_cc {
            builder = builder.congestion(congestion);
        }
        if let Some(bytes_per_second) = self.link_rate {
            builder = builder.link_rate(bytes_per_second);
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

fn parse_congestion(text: &str) -> Result<Congestion, String> {
    Congestion::from_name(text).ok_or_else(|| "use bbr3, cubic or newreno".to_owned())
}
