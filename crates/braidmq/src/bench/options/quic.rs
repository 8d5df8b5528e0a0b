//! Options: QUIC.

use std::path::PathBuf;

use braid_client::{Congestion, LocalPath, PathMode};
use braid_transport::Transport;
use braid_transport::quic::Multipath;
use clap::Args;

use super::{OptionsError, QUIC};
use crate::client::{parse_congestion, parse_path_mode};

/// Options of the connections that only QUIC has.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct QuicOptions {
    /// Congestion control: bbr3 keeps the queues on the path short, cubic and newreno fill them. bbr3 by
    /// default.
    #[arg(long, value_name = "NAME", value_parser = parse_congestion, help_heading = QUIC)]
    pub(in crate::bench) quic_cc: Option<Congestion>,
    /// Turn the congestion gate off: bulk is then not limited in favour of urgent messages.
    #[arg(long, help_heading = QUIC)]
    pub(in crate::bench) no_gate: bool,
    /// Write the gate's model of the path of each connection to this file: JSON lines, five times a second.
    #[arg(long, value_name = "FILE", conflicts_with = "no_gate", help_heading = QUIC)]
    pub(in crate::bench) gate_log: Option<PathBuf>,
    /// The most bytes per second of each client, if the rate of the uplink is known: messages then wait in this
    /// program, where urgent ones overtake, and not in queues of the path.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..), help_heading = QUIC)]
    pub(in crate::bench) link_rate: Option<u64>,
    /// Reconnect one round trip sooner (0-RTT), with --reconnect. Early data is encrypted with the keys of a session
    /// ticket and may be replayed; the first connection of a client has no ticket.
    #[arg(long, help_heading = QUIC)]
    pub(in crate::bench) zero_rtt: bool,
    /// Messages of QoS 0 in datagrams of QUIC, which are sent once and may be lost, where the server permits them
    /// (quic.datagrams of braidmq) and a message fits into a packet. With -V 5.
    #[arg(long, help_heading = QUIC)]
    pub(in crate::bench) datagrams: bool,
    /// Keep a path of each connection on this interface, or at this address of this machine. To be given twice or more
    /// often, the preferred one first: when one does not answer, messages go on on another.
    #[arg(long, value_name = "INTERFACE", help_heading = QUIC)]
    pub(in crate::bench) path: Vec<String>,
    /// Use of the paths: standby sends on the first one that answers, both on all of them.
    #[arg(
        long,
        value_name = "MODE",
        value_parser = parse_path_mode,
        default_value = "standby",
        requires = "path",
        help_heading = QUIC
    )]
    pub(in crate::bench) path_mode: PathMode,
    /// Write a qlog of each connection into this directory, for `braidmq explain` or qvis.
    #[arg(long, value_name = "DIR", help_heading = QUIC)]
    pub(in crate::bench) qlog_dir: Option<PathBuf>,
}

impl QuicOptions {
    pub(super) fn check(&self, transport: Transport) -> Result<(), OptionsError> {
        if transport.is_quic() {
            return self.check_paths();
        }
        if self.quic_cc.is_some() {
            return Err(OptionsError::new("--quic-cc is for QUIC: add --quic, or use --tcp-cc"));
        }
        let given = [
            ("--no-gate", self.no_gate),
            ("--gate-log", self.gate_log.is_some()),
            ("--link-rate", self.link_rate.is_some()),
            ("--zero-rtt", self.zero_rtt),
            ("--datagrams", self.datagrams),
            ("--path", !self.path.is_empty()),
            ("--qlog-dir", self.qlog_dir.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => {
                Err(OptionsError::new(format!("{name} needs QUIC: add --quic, or leave it out")))
            }
            None => Ok(()),
        }
    }

    /// Paths of each connection.
    pub(in crate::bench) fn multipath(&self) -> Multipath {
        let locals = self.path.iter().map(|path| LocalPath::parse(path)).collect();
        Multipath { locals, mode: self.path_mode, ..Multipath::default() }
    }

    fn check_paths(&self) -> Result<(), OptionsError> {
        if let [only] = &self.path[..] {
            let what = format!("{only:?} is the only --path: give two or more, or leave it out");
            return Err(OptionsError::new(what));
        }
        for (index, path) in self.path.iter().enumerate() {
            if self.path[..index].contains(path) {
                return Err(OptionsError::new(format!("--path {path} is given twice")));
            }
            LocalPath::parse(path).check().map_err(|error| OptionsError::new(error.to_string()))?;
        }
        Ok(())
    }
}
