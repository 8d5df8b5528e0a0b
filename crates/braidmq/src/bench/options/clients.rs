//! Options: number of clients, and rate of their connections.

use std::time::Duration;

use braid_bench::generator::PlannedEnd;
use clap::Args;

use super::{CLIENTS, OptionsError};

/// Number of clients, and rate of their connections.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct ClientsOptions {
    /// Number of clients.
    #[arg(short, long, value_name = "COUNT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..),
        help_heading = CLIENTS)]
    pub(in crate::bench) count: u32,
    /// The pause between the connections of two clients, in milliseconds.
    #[arg(short, long, value_name = "MS", default_value_t = 10, help_heading = CLIENTS)]
    interval: u32,
    /// Clients that connect per second; 0 leaves it to -i.
    #[arg(short = 'R', long, value_name = "RATE", default_value_t = 0, help_heading = CLIENTS)]
    pub(in crate::bench) connrate: u32,
    /// Let the clients of -R come at random times (a Poisson process), -R a second on average.
    #[arg(long, help_heading = CLIENTS)]
    pub(in crate::bench) poisson: bool,
    /// Client Identifiers begin with this and have no random part.
    #[arg(long, value_name = "TEXT", help_heading = CLIENTS)]
    pub(in crate::bench) prefix: Option<String>,
    /// The first client's number less one: lets several machines use different Client Identifiers.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 0, help_heading = CLIENTS)]
    pub(in crate::bench) startnumber: u64,
    /// Attempts after the first one before a client gives up its first connection.
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = CLIENTS)]
    pub(in crate::bench) num_retry_connect: u32,
    /// Reconnections of a client that lost its connection, or ended it by --lifetime or --drop-at.
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = CLIENTS)]
    pub(in crate::bench) reconnect: u32,
    /// Disconnect so long after CONNACK, and connect again at once, --reconnect times: 500ms.
    #[arg(long, value_name = "TIME", value_parser = super::words::duration, conflicts_with = "drop_at",
        help_heading = CLIENTS)]
    pub(in crate::bench) lifetime: Option<Duration>,
    /// Close all connections at this time of the run, without DISCONNECT, and connect again at once; with --reconnect.
    #[arg(long, value_name = "TIME", value_parser = super::words::duration, help_heading = CLIENTS)]
    pub(in crate::bench) drop_at: Option<Duration>,
    /// End after this time, such as 30s, 2m or 1h30m. Without it -L, a signal or the last connection's end does.
    #[arg(long, value_name = "TIME", value_parser = super::words::duration, help_heading = CLIENTS)]
    pub(in crate::bench) duration: Option<Duration>,
}

impl ClientsOptions {
    /// End of the connections by the clients themselves.
    pub(in crate::bench) fn planned_end(&self) -> PlannedEnd {
        match (self.lifetime, self.drop_at) {
            (Some(lifetime), _) => PlannedEnd::After(lifetime),
            (None, Some(time)) => PlannedEnd::At(time),
            (None, None) => PlannedEnd::Never,
        }
    }

    pub(super) fn check(&self) -> Result<(), OptionsError> {
        if self.poisson && self.connrate == 0 {
            return Err(OptionsError::new("--poisson needs a rate: add -R, or leave it out"));
        }
        if self.planned_end() != PlannedEnd::Never && self.reconnect == 0 {
            return Err(OptionsError::new(
                "--lifetime and --drop-at need --reconnect: say how often the clients come again",
            ));
        }
        Ok(())
    }

    /// `-i`: the pause between the connections of two clients.
    pub(in crate::bench) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval.into())
    }
}
