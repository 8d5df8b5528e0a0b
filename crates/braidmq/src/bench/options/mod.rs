//! The options of `bench pub`, `bench sub` and `bench conn`: those of emqtt_bench 0.6 and ours.
//!
//! Options of emqtt_bench that this program does not support are refused with the alternative. Options that have no
//! effect here are named in a note. None is ignored silently.

mod clients;
mod connection;
mod foreign;
mod output;
mod publish;
mod quic;
mod session;
mod subscribe;
#[cfg(test)]
mod tests;
mod tls;
mod words;

use braid_transport::Transport;
use clap::{Arg, ArgAction, Args};

use clients::ClientsOptions;
use connection::ConnectionOptions;
use foreign::ForeignOptions;
pub(super) use output::{LogTo, OutputOptions};
pub(super) use publish::{PayloadSource, PubOptions, Subject};
use quic::QuicOptions;
use session::SessionOptions;
#[cfg(test)]
use subscribe::Subscription;
pub(super) use subscribe::{ConnOptions, SubOptions};
use tls::TlsOptions;
pub(super) use words::{duration, switch, time};

const CONNECTION: &str = "Connection";
const CLIENTS: &str = "Clients";
const MQTT: &str = "MQTT";
const LOAD: &str = "Load";
const TLS: &str = "TLS";
const QUIC: &str = "QUIC";
const OUTPUT: &str = "Output";

/// Makes the first of several equal options count, as in emqtt_bench; the parser would refuse them.
///
/// Options of which all count, such as `-t` of `sub`, are unchanged.
fn first_counts(option: Arg) -> Arg {
    match option.get_action() {
        // All are collected, and the first one is read.
        ArgAction::Set => option.action(ArgAction::Append),
        ArgAction::SetTrue => {
            let itself = option.get_id().clone();
            option.overrides_with(itself)
        }
        _ => option,
    }
}

/// The exit codes, for the help texts.
const EXIT_CODES: &str = "\
Exit codes:
  0  the run ended as requested
  1  no client could connect
  2  wrong options, or a file that cannot be read or written
  7  every connection was lost before the end";

/// Text below the options of each command.
fn help_end(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_CODES}")
}

/// Refusal of the options: one line with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct OptionsError(String);

impl OptionsError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// The options that pub, sub and conn share.
#[derive(Debug, Clone, Args)]
pub(super) struct CommonOptions {
    #[command(flatten)]
    pub(super) connection: ConnectionOptions,
    #[command(flatten)]
    pub(super) clients: ClientsOptions,
    #[command(flatten)]
    pub(super) session: SessionOptions,
    #[command(flatten)]
    pub(super) tls: TlsOptions,
    #[command(flatten)]
    pub(super) quic: QuicOptions,
    #[command(flatten)]
    pub(super) output: OutputOptions,
    #[command(flatten)]
    foreign: ForeignOptions,
}

impl CommonOptions {
    /// The transport, if all options go together.
    ///
    /// # Errors
    /// The first option that cannot be used, or the first two that do not go together.
    pub(super) fn transport(&self) -> Result<Transport, OptionsError> {
        self.foreign.refuse()?;
        let transport = self.connection.transport(self.tls.is_wanted())?;
        self.connection.check(transport)?;
        self.clients.check()?;
        self.quic.check(transport)?;
        if self.connection.is_auto() && self.quic.zero_rtt {
            return Err(OptionsError::new(
                "--zero-rtt sends before an answer, and auto:// waits for one to choose: use --url quic://HOST",
            ));
        }
        self.tls.check(transport)?;
        Ok(transport)
    }

    /// Notes on options that have no effect, or not the expected one.
    pub(super) fn notes(&self, transport: Transport) -> Vec<String> {
        let mut notes = self.foreign.notes();
        notes.extend(self.session.notes());
        notes.extend(self.tls.notes(transport));
        notes.extend(self.output.notes());
        notes
    }
}
