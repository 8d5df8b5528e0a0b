//! `braidmq pub`: publishes messages.

mod transfer;

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use braid_client::{
    Acknowledgement, Builder, Client, Error, Priority, ProtocolVersion, Publication, QoS, ReasonCode,
    Reconnect, StreamPolicy, TopicName,
};
use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::sleep;

use self::transfer::Transfer;
use crate::client::{self, ClientOptions, Connection, Failure, QUIC, parse_priority, parse_qos};

/// The most unacknowledged lines; further lines are read after that.
const MAX_UNACKNOWLEDGED: usize = 1000;
/// Bytes of a payload from which on it goes on after the connection was lost, unless an option says otherwise:
/// servers of braidmq keep the first part of such messages.
const LARGE: usize = 1 << 20;
/// Time for which a new connection is waited for then.
const RESUME: Duration = Duration::from_secs(600);
/// Pauses between attempts to connect again.
const RECONNECT: Reconnect =
    Reconnect::Backoff { initial: Duration::from_secs(1), maximum: Duration::from_secs(10) };

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
    /// Go on with the message on another connection when one is lost, and wait so many seconds for it; 0 ends with code
    /// 7 then. 600 for messages of 1 MiB and more with QoS 1 or 2, which also sets -V 5 and keeps the session for that
    /// time unless -V or -x says otherwise: a server of braidmq then has what it received, and other servers get the
    /// message from its beginning, at most three times in a row.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "stdin_line")]
    resume: Option<Duration>,
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
    if args.client.password_stdin && (args.stdin_file || args.stdin_line) {
        return Err(Failure::usage(
            "Error: --password-stdin and -s or -l read the same input: give the password by BRAIDMQ_PASSWORD.",
        ));
    }
    let payload = if args.stdin_line { None } else { Some(args.payload()?) };
    let resume = args.resume(payload.as_ref().map_or(0, Bytes::len))?;
    let Connection { builder, properties, version, topic } = args.client.connection(args.needs_v5(resume))?;
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
    let builder = args.with_streams(builder);
    let builder = match resume {
        Some(patience) => args.client.keep_session(builder, &properties, patience).reconnect(RECONNECT),
        None if args.stdin_line => builder,
        // A single message is not worth waiting for a server that is unreachable.
        None => builder.reconnect(Reconnect::Never),
    };
    let connected = builder.connect().await;
    let (client, messages) = connected.map_err(|error| Failure::of(&error, version))?;
    drop(messages);

    let mut outcome = Outcome { awaited: VecDeque::new(), version, quiet: args.client.quiet, number: 0 };
    match payload {
        Some(payload) => {
            let mut transfer = Transfer::new(payload.len(), args.client.quiet, resume);
            let publication = template.payload(payload);
            args.publish_one(&client, &publication, &mut transfer, &mut outcome).await?;
        }
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

    /// Time for which another connection is waited for when one is lost; `None`: it ends the program.
    fn resume(&self, size: usize) -> Result<Option<Duration>, Failure> {
        let is_possible = self.qos != QoS::AtMostOnce && self.client.may_keep_session();
        match self.resume {
            Some(Duration::ZERO) => Ok(None),
            Some(_) if self.qos == QoS::AtMostOnce => {
                Err(Failure::usage("Error: --resume is for QoS 1 and 2: give one with -q."))
            }
            Some(_) if !is_possible => {
                Err(Failure::usage("Error: --resume needs MQTT 5 and a session: leave -V and -x 0 out."))
            }
            Some(patience) => Ok(Some(patience)),
            None => Ok((is_possible && size >= LARGE).then_some(RESUME)),
        }
    }

    /// Option that needs MQTT 5.
    fn needs_v5(&self, resume: Option<Duration>) -> Option<&'static str> {
        match (self.unreliable, resume) {
            (true, _) => Some("--unreliable"),
            (false, Some(_)) => Some("--resume"),
            (false, None) => None,
        }
    }

    /// Publishes the message as often as --repeat says.
    async fn publish_one(
        &self,
        client: &Client,
        publication: &Publication,
        transfer: &mut Transfer,
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        for round in 0..self.repeat {
            if round > 0 && !self.repeat_delay.is_zero() {
                sleep(self.repeat_delay).await;
            }
            outcome.enqueue(client, publication.clone()).await?;
            if transfer.is_followed() {
                tokio::select! {
                    result = outcome.settle(0) => result?,
                    failure = transfer.follow(client) => return Err(failure),
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
