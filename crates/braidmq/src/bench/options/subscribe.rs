//! Options of `bench sub` and `bench conn`.

use braid_bench::emqtt::PayloadHeaders;
use braid_bench::generator::TimestampField;
use braid_client::{Priority, QoS};
use braid_transport::Transport;
use clap::{ArgAction, Args};

use super::words::switch;
use super::{CLIENTS, CommonOptions, LOAD, OptionsError, QUIC, first_counts, help_end};
use crate::client::{parse_priority, parse_qos};

const SUB_EXAMPLES: &str = "\
Examples:
  braidmq bench sub -t bench/%i -c 50
      50 clients count messages, each from a topic of its own.
  braidmq bench sub -t bench/+ -c 1 --payload-hdrs cnt64,ts
      with losses and latency, from publishers with the same option.
  braidmq bench sub -c 1 -t Topic1 -t Topic2 -q 1 --timestamp-field timestamp=ms --json result.json
      with latency from a field of JSON or eterm payloads, as a topics file injects it.
  braidmq bench sub --quic -c 1 -t Topic1 --stream 1 --priority 200 -t Topic2 --stream 2 --priority 8
      each subscription on a stream of its own; the first one's messages go first.";

const CONN_EXAMPLES: &str = "\
Examples:
  braidmq bench conn -c 50000 -R 1000
      50,000 connections, a thousand a second, held until Ctrl-C.
  braidmq bench conn --quic -c 1000 -i 0 --duration 60s --json result.json
      how long a thousand handshakes at once take.";

/// Subscribe with many clients and measure the messages that arrive, with the options of emqtt_bench sub.
///
/// Latency needs the time in the payload: --payload-hdrs ts or --timestamp-field. Ends with --duration, Ctrl-C or the
/// last connection's end.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, disable_version_flag = true, after_long_help = help_end(SUB_EXAMPLES),
    mut_args = first_counts)]
pub(in crate::bench) struct SubOptions {
    /// The Topic Filter; may be given more than once. A level may be %u (user name), %c (Client Identifier) or %i
    /// (client's number).
    #[arg(short, long, value_name = "FILTER", required = true, help_heading = LOAD)]
    topic: Vec<String>,
    /// Maximum QoS of the messages.
    #[arg(short, long, value_name = "QOS", value_parser = parse_qos, default_value = "0", help_heading = LOAD)]
    pub(in crate::bench) qos: QoS,
    /// Read the headers that the publishers' --payload-hdrs wrote: cnt64 finds losses, ts measures latency.
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, help_heading = LOAD)]
    pub(in crate::bench) payload_hdrs: PayloadHeaders,
    /// Measure latency from the time in this field at the top of JSON or eterm payloads: its name and its unit (s, ms,
    /// us or ns), such as timestamp=ms.
    #[arg(long, value_name = "NAME=UNIT", help_heading = LOAD)]
    pub(in crate::bench) timestamp_field: Option<TimestampField>,
    /// Send SUBSCRIBE with CONNECT, without waiting for CONNACK: one round trip less. Not together with --stream.
    #[arg(long, conflicts_with = "stream", help_heading = LOAD)]
    pub(in crate::bench) pipeline: bool,
    #[command(flatten)]
    pub(in crate::bench) common: CommonOptions,
    /// Let the messages come on a stream of their own, named by this number; 0 is the stream of everything else. Once
    /// for all -t, or once for each.
    #[arg(long, value_name = "NUMBER", help_heading = QUIC)]
    stream: Vec<u32>,
    /// Priority of the messages among all that the server sends to a client, 0 to 65535: higher comes first, 100 is the
    /// default (MQTT 5; only braidmq supports it). Once for all -t, or once for each.
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority, help_heading = QUIC)]
    priority: Vec<Priority>,
    /// Client Identifiers are the client's number alone, behind --prefix if there is one.
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = CLIENTS)]
    pub(in crate::bench) shortids: bool,
}

/// Connect many clients and measure how long it takes, with the options of emqtt_bench conn.
///
/// The connections stay. Ends with --duration, Ctrl-C or the last connection's end.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, disable_version_flag = true, after_long_help = help_end(CONN_EXAMPLES),
    mut_args = first_counts)]
pub(in crate::bench) struct ConnOptions {
    #[command(flatten)]
    pub(in crate::bench) common: CommonOptions,
    /// Client Identifiers are the client's number alone, behind --prefix if there is one.
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = CLIENTS)]
    pub(in crate::bench) shortids: bool,
}

/// One `-t` with its stream and priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) struct Subscription<'a> {
    /// With placeholders.
    pub(in crate::bench) filter: &'a str,
    pub(in crate::bench) stream: Option<u32>,
    pub(in crate::bench) priority: Option<Priority>,
}

impl SubOptions {
    /// The transport, if all options go together.
    ///
    /// # Errors
    /// The first option that cannot be used, or the first two that do not go together.
    pub(in crate::bench) fn transport(&self) -> Result<Transport, OptionsError> {
        let transport = self.common.transport()?;
        if !transport.is_quic() && self.stream.iter().any(|&stream| stream != 0) {
            return Err(OptionsError::new(
                "--stream needs QUIC, other transports have one stream: add --quic",
            ));
        }
        if !self.priority.is_empty() && !self.common.session.version.is_v5() {
            return Err(OptionsError::new("--priority needs MQTT 5: leave -V out, or leave --priority out"));
        }
        self.subscriptions()?;
        Ok(transport)
    }

    /// Subscriptions.
    ///
    /// # Errors
    /// There are several of `--stream` or `--priority`, and not one for each `-t`.
    pub(in crate::bench) fn subscriptions(&self) -> Result<Vec<Subscription<'_>>, OptionsError> {
        let filters = self.topic.len();
        for (name, count) in [("--stream", self.stream.len()), ("--priority", self.priority.len())] {
            if count > 1 && count != filters {
                return Err(OptionsError::new(format!(
                    "{count} of {name} and {filters} of -t: give one for all, or one for each"
                )));
            }
        }
        let all = self.topic.iter().enumerate().map(|(at, filter)| Subscription {
            filter,
            stream: of(&self.stream, at),
            priority: of(&self.priority, at),
        });
        Ok(all.collect())
    }
}

/// Value of the filter with this index: its own, or the only one, which is for all.
fn of<T: Copy>(given: &[T], at: usize) -> Option<T> {
    match given {
        [only] => Some(*only),
        each => each.get(at).copied(),
    }
}
