//! Options of `bench pub`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_bench::emqtt::{MessageTemplate, PayloadHeaders};
use braid_client::{Priority, QoS};
use braid_transport::Transport;
use clap::{ArgAction, Args};

use super::words::switch;
use super::{CLIENTS, CommonOptions, LOAD, OptionsError, QUIC, first_counts, help_end};
use crate::client::{parse_priority, parse_qos};

const EXAMPLES: &str = "\
Examples:
  braidmq bench pub -t bench/%i -c 50 -I 100 -q 1
      50 clients publish 256 bytes every 100 ms each, QoS 1.
  braidmq bench pub -h broker.example --quic -c 1 --topics-payload topics.json -F 1000 -k 60
      one client publishes the topics of a file, each on its stream of QUIC, with its priority.
  braidmq bench pub -t bench -c 10 -I 0 -L 1000000 --json result.json
      a million messages as fast as they go.
  braidmq bench pub -t bench/%i -c 100 --payload-hdrs cnt64,ts --duration 60s
      with a counter and the time in each payload, for the same option of bench sub.";

/// Publish with many clients and measure it, with the options of emqtt_bench pub.
///
/// Each client publishes its messages at their times, whether the server keeps up or not; latency counts from the
/// time a message was due to its acknowledgement. Ends with -L, --duration, Ctrl-C or the last connection's end.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, disable_version_flag = true, after_long_help = help_end(EXAMPLES),
    mut_args = first_counts)]
pub(in crate::bench) struct PubOptions {
    /// The topic. A level may be %u (user name), %c (Client Identifier), %i (client's number), %s (number of the
    /// message) or %rand_N (a number from 1 to N).
    #[arg(short, long, value_name = "TOPIC", help_heading = LOAD)]
    topic: Option<String>,
    /// A JSON file of topics with payloads, intervals, streams and priorities of their own.
    #[arg(long, value_name = "FILE", help_heading = LOAD)]
    topics_payload: Option<PathBuf>,
    /// The pause between two messages of a client, in milliseconds; 0 is as fast as it goes.
    #[arg(short = 'I', long = "interval_of_msg", value_name = "MS", default_value_t = 1000, help_heading = LOAD)]
    interval_of_msg: u32,
    /// Begin payloads with headers: cnt64 (a counter), ts (the time of sending).
    #[arg(long, value_name = "LIST", default_value = "", hide_default_value = true, help_heading = LOAD)]
    pub(in crate::bench) payload_hdrs: PayloadHeaders,
    /// The length of the payload in bytes.
    #[arg(short, long, value_name = "BYTES", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(..=268_435_455), help_heading = LOAD)]
    pub(in crate::bench) size: u32,
    /// The payload, or template://FILE for a file with %TIMESTAMP%, %TIMESTAMPMS%, %TIMESTAMPUS%, %TIMESTAMPNS%,
    /// %UNIQUE% or %RANDOM% in it.
    #[arg(short, long, value_name = "PAYLOAD", allow_hyphen_values = true, help_heading = LOAD)]
    message: Option<String>,
    /// The QoS: 0 at most once, 1 at least once, 2 exactly once.
    #[arg(short, long, value_name = "QOS", value_parser = parse_qos, default_value = "0", help_heading = LOAD)]
    pub(in crate::bench) qos: QoS,
    /// Publish retained messages.
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = LOAD)]
    pub(in crate::bench) retain: bool,
    /// Stop after so many messages of all clients together; 0 never stops.
    #[arg(short = 'L', long, value_name = "COUNT", default_value_t = 0, help_heading = LOAD)]
    pub(in crate::bench) limit: u64,
    /// Stay connected after -L.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = LOAD)]
    pub(in crate::bench) keep_connected: bool,
    /// The most messages of QoS 1 and 2 of a client that wait for acknowledgements; 0 is no limit.
    #[arg(short = 'F', long, value_name = "COUNT", default_value_t = 1, help_heading = LOAD)]
    pub(in crate::bench) inflight: u32,
    /// Publish when all clients have tried to connect, not before.
    #[arg(short = 'w', long, value_name = "BOOL", num_args = 0..=1, default_value = "false",
        default_missing_value = "true", hide_default_value = true, value_parser = switch, action = ArgAction::Set,
        help_heading = LOAD)]
    pub(in crate::bench) wait_before_publishing: bool,
    /// Each client waits at random up to so many milliseconds before its first message.
    #[arg(long, value_name = "MS", default_value_t = 0, help_heading = LOAD)]
    max_random_wait: u32,
    /// Each client waits at least so many milliseconds before its first message.
    #[arg(long, value_name = "MS", default_value_t = 0, help_heading = LOAD)]
    min_random_wait: u32,
    /// Send again what is not acknowledged after so many seconds; 0 never does. MQTT 5 forbids that while
    /// connected, so there it has no effect.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = LOAD)]
    retry_interval: u32,
    /// Go on with a large message on the next connection where the server has its first part. Needs -q 1 or 2, a
    /// session (-C false -x SECONDS) and --reconnect.
    #[arg(long, help_heading = LOAD)]
    pub(in crate::bench) resume: bool,
    #[command(flatten)]
    pub(in crate::bench) common: CommonOptions,
    /// Publish -t on a stream of its own, named by this number: 0 is the stream of everything else.
    #[arg(long, value_name = "NUMBER", help_heading = QUIC)]
    pub(in crate::bench) stream: Option<u32>,
    /// Priority of the messages of -t, 0 to 65535: higher goes first, 100 is ordinary.
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority, help_heading = QUIC)]
    pub(in crate::bench) priority: Option<Priority>,
    /// Publish in datagrams of QUIC, as --datagrams. Needs -q 0, without -r.
    #[arg(long, help_heading = QUIC)]
    unreliable: bool,
    /// Client Identifiers are the client's number alone, behind --prefix if there is one.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "false", default_missing_value = "true",
        hide_default_value = true, value_parser = switch, action = ArgAction::Set, help_heading = CLIENTS)]
    pub(in crate::bench) shortids: bool,
}

/// Messages of `bench pub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum Subject<'a> {
    /// `-t`: one topic.
    Topic(&'a str),
    /// `--topics-payload`: a file of topics.
    File(&'a Path),
}

/// Source of the payload of `-t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::bench) enum PayloadSource<'a> {
    /// `-s`.
    Size(u32),
    /// `-m`.
    Text(&'a str),
    /// `-m template://FILE`.
    Template(&'a Path),
}

impl PubOptions {
    /// The transport, if all options go together.
    ///
    /// # Errors
    /// The first option that cannot be used, or the first two that do not go together.
    pub(in crate::bench) fn transport(&self) -> Result<Transport, OptionsError> {
        let transport = self.common.transport()?;
        let subject = self.subject()?;
        if !transport.is_quic() && self.stream.is_some_and(|stream| stream != 0) {
            return Err(OptionsError::new(
                "--stream needs QUIC, other transports have one stream: add --quic",
            ));
        }
        if matches!(subject, Subject::File(_)) && (self.stream.is_some() || self.priority.is_some()) {
            return Err(OptionsError::new(
                "--stream and --priority are for -t: a file of --topics-payload names those of each topic",
            ));
        }
        if self.unreliable && !transport.is_quic() {
            return Err(OptionsError::new("--unreliable needs QUIC: add --quic, or leave it out"));
        }
        if self.unreliable && (self.qos != QoS::AtMostOnce || self.retain) {
            return Err(OptionsError::new("--unreliable is for messages of QoS 0: leave -q and -r out"));
        }
        let session = &self.common.session;
        let keeps_session = session.version.is_v5() && !session.clean && session.session_expiry > 0;
        if self.resume && !(keeps_session && self.common.clients.reconnect > 0) {
            return Err(OptionsError::new(
                "--resume needs MQTT 5, a session and more than one connection: add -C false, -x and --reconnect",
            ));
        }
        if self.keep_connected && self.limit == 0 {
            return Err(OptionsError::new(
                "--keep-connected is for what comes after -L: add -L, or leave it out",
            ));
        }
        if self.retry_interval > 0 && !self.common.session.version.is_v5() {
            return Err(OptionsError::new(
                "--retry-interval is not possible here: only a new connection sends again; leave it out",
            ));
        }
        Ok(transport)
    }

    /// Messages to publish. A file precedes a topic.
    ///
    /// # Errors
    /// There is neither, or the topic has a wildcard.
    pub(in crate::bench) fn subject(&self) -> Result<Subject<'_>, OptionsError> {
        match (&self.topics_payload, &self.topic) {
            (Some(file), _) => Ok(Subject::File(file)),
            (None, Some(topic)) if topic.is_empty() || topic.contains(['+', '#']) => {
                Err(OptionsError::new(format!(
                    "-t {topic:?} is not a Topic Name: write one or more characters, none of them + or #"
                )))
            }
            (None, Some(topic)) => Ok(Subject::Topic(topic)),
            (None, None) => {
                Err(OptionsError::new("nothing to publish: give -t TOPIC, or --topics-payload FILE"))
            }
        }
    }

    /// Source of the payload of `-t`.
    pub(in crate::bench) fn payload(&self) -> PayloadSource<'_> {
        match self.message.as_deref() {
            None => PayloadSource::Size(self.size),
            Some(text) => match text.strip_prefix(MessageTemplate::FILE_PREFIX) {
                None => PayloadSource::Text(text),
                Some(file) => PayloadSource::Template(Path::new(file)),
            },
        }
    }

    /// Options of the connections.
    pub(in crate::bench) fn common(&self) -> CommonOptions {
        let mut common = self.common.clone();
        common.quic.datagrams |= self.unreliable;
        common
    }

    /// The pause between two messages of a client; zero is none.
    pub(in crate::bench) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_of_msg.into())
    }

    /// The least and the most that a client waits before its first message.
    pub(in crate::bench) fn first_wait(&self) -> (Duration, Duration) {
        let [least, most] = [self.min_random_wait, self.max_random_wait.max(self.min_random_wait)];
        (Duration::from_millis(least.into()), Duration::from_millis(most.into()))
    }

    /// Notes on options that have no effect, or not the expected one.
    pub(in crate::bench) fn notes(&self, transport: Transport) -> Vec<String> {
        let mut notes = self.common.notes(transport);
        if self.retry_interval > 0 {
            notes.push(
                "--retry-interval has no effect with -V 5: MQTT 5 forbids to send again while connected"
                    .to_owned(),
            );
        }
        if self.topics_payload.is_some() && self.topic.is_some() {
            notes.push("-t has no effect with --topics-payload: the file names the topics".to_owned());
        }
        notes
    }
}
