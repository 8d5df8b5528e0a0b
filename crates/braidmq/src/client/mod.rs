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

/// The exit codes, for the help texts of both.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    everything was done
  1    wrong options, or the server cannot be reached
  7    the connection was lost
  27   the time of -W is over
  other: the server refused the connection; 1 to 5 are the return codes of MQTT 3, 128 to 162 the reason
         codes of MQTT 5 (135: not authorized)";
