//! Options of emqtt_bench that depend on Erlang: refused, or noted as without effect.

use clap::{ArgAction, Args};

use super::OptionsError;
use super::words::switch;

/// Options that only an Erlang program can honour.
#[derive(Debug, Clone, Args)]
pub(in crate::bench) struct ForeignOptions {
    #[arg(short, long, num_args = 0..=1, default_missing_value = "true", value_parser = switch,
        action = ArgAction::Set, hide = true)]
    dist: Option<bool>,
    #[arg(short, long, num_args = 0..=1, default_missing_value = "true", value_parser = switch,
        action = ArgAction::Set, hide = true)]
    lowmem: Option<bool>,
    #[arg(long, hide = true)]
    force_major_gc_interval: Option<u64>,
    #[arg(long, hide = true)]
    qoelog: Option<String>,
    #[arg(long, hide = true)]
    load_qst: Option<String>,
    #[arg(long, hide = true)]
    ciphers: Option<String>,
    #[arg(long, hide = true)]
    signature_algs: Option<String>,
    #[arg(long, hide = true)]
    keyex_algs: Option<String>,
}

impl ForeignOptions {
    /// Refuses options that would change the measurement and are not supported.
    pub(super) fn refuse(&self) -> Result<(), OptionsError> {
        let algorithms = "cannot be chosen here: TLS agrees on the best that both ends have; leave it out";
        let given = [
            ("--qoelog", &self.qoelog, "is a log of Erlang's: use --json FILE for the figures"),
            ("--load-qst", &self.load_qst, "reads a file of Erlang's: use --zero-rtt with --reconnect"),
            ("--ciphers", &self.ciphers, algorithms),
            ("--signature-algs", &self.signature_algs, algorithms),
            ("--keyex-algs", &self.keyex_algs, algorithms),
        ];
        match given.iter().find(|(_, value, _)| value.as_ref().is_some_and(|value| !value.is_empty())) {
            Some((name, _, why)) => Err(OptionsError::new(format!("{name} {why}"))),
            None => Ok(()),
        }
    }

    /// Notes on options that have no effect.
    pub(super) fn notes(&self) -> Vec<String> {
        let given = [
            ("--dist", self.dist == Some(true)),
            ("--lowmem", self.lowmem == Some(true)),
            ("--force-major-gc-interval", self.force_major_gc_interval.is_some_and(|interval| interval > 0)),
        ];
        let given = given.into_iter().filter(|(_, given)| *given);
        given.map(|(name, _)| format!("{name} has no effect: it tunes Erlang")).collect()
    }
}
