//! Failures of `pub` and `sub`, with the exit codes of mosquitto's programs.

use std::process::ExitCode;

use braid_client::{Error, ProtocolVersion};

/// Exit code of `mosquitto_pub` and `mosquitto_sub` for a lost connection.
const CONNECTION_LOST: u8 = 7;
/// Exit code of `mosquitto_sub` when the time of `-W` has passed.
const TIMED_OUT: u8 = 27;

/// Failure of a command: one line and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Invalid options, or a file that cannot be read.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    pub(crate) fn timed_out() -> Self {
        Self { code: TIMED_OUT, message: "Timed out".to_owned() }
    }

    /// Lost connection after which there is no other.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self { code: CONNECTION_LOST, message: message.into() }
    }

    /// Error of the client, with the exit code of mosquitto's programs.
    pub(crate) fn of(error: &Error, version: ProtocolVersion) -> Self {
        let code = match error {
            Error::Refused { reason, .. } if version.is_v5() => reason.value(),
            Error::Refused { reason, .. } => reason.connack_v3().unwrap_or(1),
            Error::Disconnected { .. } | Error::Violation(_) | Error::ConnectionLost => CONNECTION_LOST,
            _ => 1,
        };
        Self { code, message: format!("Error: {error}") }
    }

    /// Prints the line unless `quiet`.
    pub(crate) fn report(&self, quiet: bool) -> ExitCode {
        if !quiet {
            eprintln!("{}", self.message);
        }
        ExitCode::from(self.code)
    }

    #[cfg(test)]
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use braid_client::ReasonCode;

    use super::*;

    #[test]
    fn refusals_have_the_code_of_their_version() {
        let refused = Error::Refused { reason: ReasonCode::NotAuthorized, text: None };
        assert_eq!(Failure::of(&refused, ProtocolVersion::V311).code(), 5);
        assert_eq!(Failure::of(&refused, ProtocolVersion::V5).code(), 135);
    }

    #[test]
    fn a_lost_connection_is_7_and_an_unreachable_server_1() {
        assert_eq!(Failure::of(&Error::ConnectionLost, ProtocolVersion::V5).code(), 7);
        assert_eq!(Failure::of(&Error::ConnectTimeout { seconds: 1 }, ProtocolVersion::V5).code(), 1);
    }

    #[test]
    fn the_end_of_the_time_is_27() {
        assert_eq!(Failure::timed_out().code(), 27);
    }
}
