//! What `pub` and `sub` have in common: options of the connection, properties, and how failures end them.

mod failure;
mod options;
mod properties;
mod quic;
mod session;

pub(crate) use failure::Failure;
pub(crate) use options::{ClientOptions, Connection, parse_priority, parse_qos};
pub(crate) use properties::Properties;
pub(crate) use quic::HEADING as QUIC;
pub(crate) use session::{run, stopped};

/// The exit codes, for the help texts of both; `more` are the lines of those that only one of them has.
pub(crate) fn exit_codes(more: &str) -> String {
    format!(
        "\
Exit codes:
  0    everything was done
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
    fn each_help_text_tells_the_exit_codes_that_its_command_has() {
        let help = |mut command: Command| command.render_long_help().to_string();
        let publish = help(publish::Args::augment_args(Command::new("pub")));
        let subscribe = help(subscribe::Args::augment_args(Command::new("sub")));
        assert!(publish.contains("\n  7    the connection was lost\n  other: "), "{publish}");
        assert!(subscribe.contains("lost\n  27   the time of -W is over\n  other: "), "{subscribe}");
    }
}
