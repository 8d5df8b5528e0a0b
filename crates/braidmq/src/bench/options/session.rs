//! Options: fields of CONNECT.

use std::time::Duration;

use braid_client::ProtocolVersion;
use clap::{ArgAction, Args};

use super::MQTT;
use super::words::{switch, version};
use crate::secret::Secret;

/// Fields of CONNECT.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct SessionOptions {
    /// The version of MQTT: 3 (3.1), 4 (3.1.1) or 5.
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version, help_heading = MQTT)]
    pub(in crate::bench) version: ProtocolVersion,
    /// The user name.
    #[arg(short, long, value_name = "NAME", help_heading = MQTT)]
    pub(in crate::bench) username: Option<String>,
    /// The password. Others on this machine can see it in the list of processes: the environment variable is a
    /// better place.
    #[arg(short = 'P', long, value_name = "PASSWORD", env = "BRAIDMQ_PASSWORD", hide_env_values = true,
        allow_hyphen_values = true, help_heading = MQTT)]
    pub(in crate::bench) password: Option<Secret>,
    /// Keep Alive in seconds; 0 turns it off.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 300, help_heading = MQTT)]
    pub(in crate::bench) keepalive: u16,
    /// Send a PINGREQ so often, whatever else is sent, and tell in --json how long the answers took: 500ms.
    #[arg(long, value_name = "TIME", value_parser = super::words::duration, help_heading = MQTT)]
    pub(in crate::bench) ping: Option<Duration>,
    /// Begin a new session.
    #[arg(short = 'C', long, value_name = "BOOL", num_args = 0..=1, default_value = "true",
        default_missing_value = "true", value_parser = switch, action = ArgAction::Set, help_heading = MQTT)]
    pub(in crate::bench) clean: bool,
    /// Seconds for which the server keeps the session after the connection (MQTT 5).
    // emqtt_bench takes the last of several.
    #[arg(short = 'x', long, value_name = "SECONDS", default_value_t = 0, overrides_with = "session_expiry",
        help_heading = MQTT)]
    pub(in crate::bench) session_expiry: u32,
}

impl SessionOptions {
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.session_expiry > 0 && !self.version.is_v5() {
            notes.push("-x has no effect without -V 5: session expiry is MQTT 5's".to_owned());
        }
        if self.password.is_some() && self.username.is_none() {
            notes.push("the password has no effect without a user name: add -u".to_owned());
        }
        notes
    }
}
