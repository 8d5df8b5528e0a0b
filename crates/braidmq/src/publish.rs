//! `braidmq pub`: publishes messages.

use std::collections::VecDeque;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use braid_client::{
    Acknowledgement, Builder, Client, Error, Priority, ProtocolVersion, Publication, QoS, ReasonCode,
    Reconnect, StreamPolicy, TopicName,
};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use crate::client::{self, ClientOptions, Connection, Failure, QUIC, parse_priority, parse_qos};
use crate::output::replace_line;

/// The most unacknowledged lines; further lines are read after that.
const MAX_UNACKNOWLEDGED: usize = 1000;
/// Duration from which on progress is shown.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  braidmq pub -t sensors/7/temperature -m 21.5
  braidmq pub --url quic://broker.example --cafile ca.pem -t firmware/7 -f image.bin -q 1
  braidmq pub --url quic://broker.example --cafile ca.pem -t alarms/7 -m fire --stream 1 --priority 200
  tail -f log.txt | braidmq pub -h broker.example -t log -l
  BRAIDMQ_PASSWORD=secret braidmq pub -L mqtts://user@broker.example/door -m open -q 2 -r";

/// Publish messages to an MQTT server, with the options of mosquitto_pub.
///
/// Connects, publishes one message (-m, -f, -s, -n) or one per line (-l) to a topic, waits until they are acknowledged
/// (QoS 1 and 2) or sent (QoS 0), and disconnects.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{}", client::exit_codes("")))]
#[command(group = clap::ArgGroup::new("what").required(true).args(["message", "file", "stdin_line", "stdin_file", "null_message"]))]
pub(crate) struct Args {
    /// The topic to publish to. May stand in the URL instead.
    #[arg(short, long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Publish this payload.
    #[arg(short, long, value_name = "PAYLOAD", allow_hyphen_values = true)]
    message: Option<String>,
    /// Publish the content of a file.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Publish each line of standard input as a message.
    #[arg(short = 'l', long)]
    stdin_line: bool,
    /// Publish all of standard input as one message.
    #[arg(short = 's', long)]
    stdin_file: bool,
    /// Publish an empty message; with -r it clears the retained one.
    #[arg(short, long)]
    null_message: bool,
    /// The QoS: 0 at most once, 1 at least once, 2 exactly once.
    #[arg(short, long, value_name = "QOS", value_parser = parse_qos, default_value = "0")]
    qos: QoS,
    /// Let the server keep the message for later subscribers.
    #[arg(short, long)]
    retain: bool,
    /// Publish the message so many times (not with -l).
    #[arg(long, value_name = "COUNT", default_value_t = 1, conflicts_with = "stdin_line")]
    repeat: u32,
    /// The pause between the messages of --repeat, in seconds, such as 0.5.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    repeat_delay: Duration,
    /// Send on the data stream with this number: losses and delays on other streams do not hold it up. 0 is the
    /// control stream.
    #[arg(long, value_name = "NUMBER", help_heading = QUIC)]
    stream: Option<u32>,
    /// Priority of the messages, 0 to 65535: higher is sent first, 100 is the default. Used by this program only, not
    /// sent to the server.
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority, help_heading = QUIC)]
    priority: Option<Priority>,
    /// Send in datagrams of QUIC, once: a lost message delays nothing. Needs -q 0 and -V 5, which it sets, and a server
    /// that permits it (quic.datagrams of braidmq); otherwise, and if it does not fit into a packet, the message is
    /// sent as any other.
    #[arg(long, conflicts_with = "retain", help_heading = QUIC)]
    unreliable: bool,
    /// Log on standard error how the client is connected, as --events does.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// Runs `braidmq pub`.
#[expect(clippy::needless_pass_by_value, reason = "the arguments of a subcommand are its own")]
pub(crate) fn run(args: Args) -> ExitCode {
    client::run(&args.client, args.verbose, publish(&args))
}

async fn publish(args: &Args) -> Result<(), Failure> {
    let Connection { builder, properties, version, topic } =
        args.client.connection(args.unreliable.then_some("--unreliable"))?;
    let topic = match (&args.topic, topic) {
        (Some(_), Some(_)) => return Err(Failure::usage("Error: the topic is in the URL: leave -t out.")),
        (Some(topic), None) => topic.clone(),
        (None, Some(topic)) => topic,
        (None, None) => return Err(Failure::usage("Error: give a topic to publish to with -t.")),
    };
    let topic = TopicName::parse(&topic)
        .map_err(|error| Failure::usage(format!("Error: cannot publish to {topic:?}: {error}.")))?;
    let template = args.placed(Publication::new(topic, Bytes::new()))?;
    let template = template.qos(args.qos).retain(args.retain).properties(properties.publish.clone());
    let payload = if args.stdin_line { None } else { Some(args.payload()?) };
    // A single message is not worth waiting for a server that is unreachable.
    let reconnect = if args.stdin_line { Reconnect::default() } else { Reconnect::Never };
    let connected = args.with_streams(builder).reconnect(reconnect).connect().await;
    let (client, messages) = connected.map_err(|error| Failure::of(&error, version))?;
    drop(messages);

    let mut outcome = Outcome { awaited: VecDeque::new(), version, quiet: args.client.quiet, number: 0 };
    match payload {
        Some(payload) => args.publish_payload(&client, &template, payload, &mut outcome).await?,
        None => publish_lines(&client, &template, &mut outcome).await?,
    }
    outcome.settle(0).await?;
    client.disconnect().await.map_err(|error| Failure::of(&error, version))
}

impl Args {
    /// Sets stream and priority of the messages.
    fn placed(&self, mut publication: Publication) -> Result<Publication, Failure> {
        if let Some(number) = self.stream {
            self.client.needs_quic("--stream")?;
            publication = publication.stream(number);
        }
        if self.unreliable {
            self.client.needs_quic("--unreliable")?;
            if self.qos != QoS::AtMostOnce {
                return Err(Failure::usage("Error: --unreliable is for QoS 0: leave -q out."));
            }
            publication = publication.unreliable();
        }
        if let Some(priority) = self.priority {
            publication = publication.priority(priority);
        }
        Ok(publication)
    }

    /// Leaves everything on the control stream without --priority: messages of equal priority need no other.
    fn with_streams(&self, builder: Builder) -> Builder {
        let builder = if self.unreliable { builder.datagrams(true) } else { builder };
        if self.priority.is_some() { builder } else { builder.stream_policy(StreamPolicy::control()) }
    }

    fn payload(&self) -> Result<Bytes, Failure> {
        if let Some(message) = &self.message {
            return Ok(message.clone().into());
        }
        if let Some(path) = &self.file {
            return read_file(path);
        }
        let mut all = Vec::new();
        if self.stdin_file {
            std::io::stdin()
                .read_to_end(&mut all)
                .map_err(|error| Failure::usage(format!("Error: cannot read standard input: {error}.")))?;
        }
        check_size(all.len() as u64, "standard input")?;
        Ok(all.into())
    }

    async fn publish_payload(
        &self,
        client: &Client,
        template: &Publication,
        payload: Bytes,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        for round in 0..self.repeat {
            if round > 0 && !self.repeat_delay.is_zero() {
                sleep(self.repeat_delay).await;
            }
            let publication = template.clone().payload(payload.clone());
            outcome.enqueue(client, publication).await?;
            if !self.client.quiet && std::io::stderr().is_terminal() {
                let mut progress = Progress { size: payload.len(), is_shown: false };
                tokio::select! {
                    result = outcome.settle(0) => result?,
                    () = progress.show(client) => {}
                }
            }
        }
        Ok(())
    }
}

fn read_file(path: &Path) -> Result<Bytes, Failure> {
    let cannot = |error| Failure::usage(format!("Error: cannot read {}: {error}.", path.display()));
    let size = std::fs::metadata(path).map_err(cannot)?.len();
    check_size(size, &path.display().to_string())?;
    std::fs::read(path).map(Bytes::from).map_err(cannot)
}

/// Refuses a payload above the largest Remaining Length of a packet, before it is read.
fn check_size(bytes: u64, source: &str) -> Result<(), Failure> {
    if bytes > 268_435_455 {
        return Err(Failure::usage(format!(
            "Error: {source} is larger than an MQTT message can be (256 MiB)."
        )));
    }
    Ok(())
}

/// Publishes each line without its line feed; the last one may have none.
async fn publish_lines(
    client: &Client,
    template: &Publication,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut lines = BufReader::new(tokio::io::stdin());
    loop {
        let mut line = Vec::new();
        let len = lines
            .read_until(b'\n', &mut line)
            .await
            .map_err(|error| Failure::usage(format!("Error: cannot read standard input: {error}.")))?;
        if len == 0 {
            return Ok(());
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        outcome.enqueue(client, template.clone().payload(line)).await?;
        outcome.settle(MAX_UNACKNOWLEDGED).await?;
    }
}

/// Progress of a large message, on a line of the terminal that is cleared at the end.
struct Progress {
    /// Size in bytes.
    size: usize,
    is_shown: bool,
}

impl Progress {
    /// Shows it until it is dropped.
    async fn show(&mut self, client: &Client) {
        let mut ticks = interval_at(Instant::now() + PROGRESS_AFTER, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let sent = self.size.saturating_sub(client.unwritten());
            let percent = sent * 100 / self.size.max(1);
            self.is_shown = true;
            // The terminal may be closed.
            let _ = write!(std::io::stderr(), "\r{:.1} of {:.1} MB ({percent} %) ", mb(sent), mb(self.size));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            replace_line("");
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the result is rounded to a tenth")]
fn mb(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

/// Unacknowledged messages, and the report of their outcome.
struct Outcome {
    awaited: VecDeque<(u64, Acknowledgement)>,
    version: ProtocolVersion,
    quiet: bool,
    /// Number of messages so far, for warnings.
    number: u64,
}

impl Outcome {
    async fn enqueue(&mut self, client: &Client, publication: Publication) -> Result<(), Failure> {
        self.number += 1;
        let acknowledgement =
            client.enqueue(publication).await.map_err(|error| Failure::of(&error, self.version))?;
        self.awaited.push_back((self.number, acknowledgement));
        Ok(())
    }

    /// Waits until at most `rest` messages are unacknowledged. A refused message is a warning, as in `mosquitto_pub`;
    /// any other error ends the program.
    async fn settle(&mut self, rest: usize) -> Result<(), Failure> {
        while self.awaited.len() > rest
            && let Some((number, acknowledgement)) = self.awaited.front_mut()
        {
            let result = acknowledgement.await;
            let number = *number;
            self.awaited.pop_front();
            match result {
                Ok(ReasonCode::NoMatchingSubscribers) | Ok(_) => {}
                Err(Error::PublishRefused(reason)) => {
                    if !self.quiet {
                        eprintln!("Warning: Publish {number} failed: {reason}.");
                    }
                }
                Err(error) => return Err(Failure::of(&error, self.version)),
            }
        }
        Ok(())
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "use seconds, such as 2 or 0.5".to_owned();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}
