//! Common parts of `pub` and `sub`: options of the connection, properties, failures and exit codes.

mod failure;
mod foreign;
mod options;
mod properties;
mod quic;
mod session;

use std::path::PathBuf;

use braid_transport::Transport;

pub(crate) use failure::Failure;
pub(crate) use options::{ClientOptions, Connection, parse_priority, parse_qos};
pub(crate) use properties::Properties;
pub(crate) use quic::{HEADING as QUIC, parse_congestion, parse_path_mode};
pub(crate) use session::{run, stopped};

/// File for the secrets of TLS and QUIC, for Wireshark: `SSLKEYLOGFILE` names it, as in browsers and curl.
pub(crate) fn key_log() -> Option<PathBuf> {
    std::env::var_os("SSLKEYLOGFILE").filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// Path of a server's URL unless another is given.
pub(crate) const fn default_path(transport: Transport) -> &'static str {
    match transport {
        Transport::Ws | Transport::Wss => "/mqtt",
        Transport::Tcp | Transport::Tls | Transport::Quic | Transport::Mem => "",
    }
}

/// Exit codes for the help texts; `more` has the lines for codes of one command only.
pub(crate) fn exit_codes(more: &str) -> String {
    format!(
        "\
Exit codes:
  0    success
  1    wrong options, or the server cannot be reached
  7    the connection was lost
{more}  other: the server refused the connection; 1 to 5 are the return codes of MQTT 3, 128 to 162 the reason
         codes of MQTT 5 (135: not authorized)"
    )
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use crate::{publish, subscribe};

    #[test]
    fn each_help_text_lists_the_exit_codes_of_its_command() {
        let help = |mut command: Command| command.render_long_help().to_string();
        let publish = help(publish::Args::augment_args(Command::new("pub")));
        let subscribe = help(subscribe::Args::augment_args(Command::new("sub")));
        assert!(publish.contains("\n  7    the connection was lost\n  other: "), "{publish}");
        assert!(subscribe.contains("lost\n  27   the time of -W has passed\n  other: "), "{subscribe}");
    }
}
