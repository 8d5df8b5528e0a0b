//! `braidmq sub`: prints the messages of subscriptions.

use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use braid_client::{
    Client, Messages, Priority, Publication, QoS, Received, RetainHandling, Subscribe, TopicFilter,
};
use bytes::Bytes;
use jiff::Zoned;
use tokio::time::sleep;

use crate::client::{self, ClientOptions, Connection, Failure, QUIC, parse_priority, parse_qos, stopped};
use crate::format::Format;

const EXAMPLES: &str = "\
Examples:
  braidmq sub -t 'sensors/#' -v
  braidmq sub -L quic://broker.example --cafile ca.pem -t firmware/7 -C 1 -N > image.bin
  braidmq sub -L quic://broker.example --cafile ca.pem -t 'alarms/#' --stream 1 --priority 200
  braidmq sub -t 'sensors/+/temperature' -F '%I %t %p' -W 60
  BRAIDMQ_PASSWORD=secret braidmq sub -u jane --auth-method SCRAM-SHA-256 -t 'home/jane/#'
  braidmq sub -i logger -c -q 1 -t 'log/#' -F '%j' -V mqttv5

Formats of -F:
  %t topic  %p payload  %x %X payload in hexadecimal  %l payload's length  %q QoS  %r retained (0, 1)
  %m packet identifier  %C content type  %D correlation data  %E message expiry  %F payload format
  %P user properties  %R response topic  %S subscription identifier  %A topic alias
  %I date and time of ISO 8601  %U seconds since 1970  @X conversion %X of strftime  @N nanoseconds
  %j JSON with the payload as text  %J JSON with the payload as JSON
  %% @@ \\\\ the character itself  \\0 \\a \\e \\n \\r \\t \\v as in C
  Between % and the letter: 0 (fill with zeros), - (align left), a width, and .MAXIMUM for text: %-20.20t";

/// Print the messages that match topic filters, with the options of mosquitto_sub.
///
/// Connects, subscribes, and prints each message: payload and a line feed unless -v, -F or -N say otherwise. Reconnects
/// when the connection is lost. Ends with -C, -W, -E or when it is interrupted.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{}", client::exit_codes("  27   the time of -W has passed\n")))]
pub(crate) struct Args {
    /// A topic filter to subscribe to; may be repeated. + matches one level, # all that follow.
    #[arg(short, long, value_name = "FILTER")]
    topic: Vec<String>,
    /// Unsubscribe from a filter that the session has; may be repeated.
    #[arg(short = 'U', long, value_name = "FILTER")]
    unsubscribe: Vec<String>,
    /// Do not print messages on topics that match this filter; may be repeated.
    #[arg(short = 'T', long, value_name = "FILTER")]
    filter_out: Vec<String>,
    /// Maximum QoS of the messages.
    #[arg(short, long, value_name = "QOS", value_parser = parse_qos, default_value = "0")]
    qos: QoS,
    /// End after so many messages.
    #[arg(short = 'C', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after so many seconds, with exit code 27.
    #[arg(short = 'W', value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// End as soon as the server has answered the subscriptions.
    #[arg(short = 'E')]
    exit_after_subscribe: bool,
    /// Print the topic before the payload.
    #[arg(short, long)]
    verbose: bool,
    /// Print messages in this format; see the end of this page.
    #[arg(short = 'F', value_name = "FORMAT", value_parser = Format::parse, allow_hyphen_values = true)]
    format: Option<Format>,
    /// Print no line feed after a message.
    #[arg(short = 'N')]
    no_line_feed: bool,
    /// Do not print retained messages.
    #[arg(short = 'R', conflicts_with = "retained_only")]
    no_retained: bool,
    /// Print retained messages only, and end with the first one that is not.
    #[arg(long)]
    retained_only: bool,
    /// Clear each retained message that arrives, except those that -T matches.
    #[arg(long)]
    remove_retained: bool,
    /// Condition for retained messages: always, new (only for a new subscription) or never (MQTT 5).
    #[arg(long, value_name = "WHEN", value_parser = parse_retain_handling, default_value = "always")]
    retain_handling: RetainHandling,
    /// Do not print messages that this client published itself (MQTT 5).
    #[arg(long)]
    no_local: bool,
    /// Print the retain flag as the publisher set it (MQTT 5).
    #[arg(long)]
    retain_as_published: bool,
    /// Receive on the data stream with this number: losses and delays on other streams do not hold the messages up. 0
    /// is the control stream.
    #[arg(long, value_name = "NUMBER", help_heading = QUIC)]
    stream: Option<u32>,
    /// Request this priority among all messages for this client, 0 to 65535: higher is sent first, 100 is the default
    /// (MQTT 5; servers other than braidmq ignore it). The server's rules decide by default.
    #[arg(long, value_name = "PRIORITY", value_parser = parse_priority, help_heading = QUIC)]
    priority: Option<Priority>,
    /// Receive messages of QoS 0 in datagrams of QUIC, which are sent once: a lost message delays none behind it. Needs
    /// MQTT 5 and a server that permits it (quic.datagrams of braidmq).
    #[arg(long, help_heading = QUIC)]
    datagrams: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// Runs `braidmq sub`.
#[expect(clippy::needless_pass_by_value, reason = "the arguments of a subcommand are its own")]
pub(crate) fn run(args: Args) -> ExitCode {
    client::run(&args.client, false, subscribe(&args))
}

impl Args {
    /// Option that needs MQTT 5.
    fn needs_v5(&self) -> Option<&'static str> {
        let given = [
            ("--priority", self.priority.is_some()),
            ("--datagrams", self.datagrams),
            ("--no-local", self.no_local),
            ("--retain-as-published", self.retain_as_published),
            ("--retain-handling", self.retain_handling != RetainHandling::SendAlways),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}

async fn subscribe(args: &Args) -> Result<(), Failure> {
    let timeout = args.timeout.map(Duration::from_secs);
    let timed_out = async {
        match timeout {
            Some(timeout) => sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let connection = args.client.connection(args.needs_v5())?;
    let version = connection.version;
    let plan = Plan::new(args, &connection)?;
    tokio::pin!(timed_out);
    let connected = tokio::select! {
        connected = connection.builder.datagrams(args.datagrams).connect() => connected,
        () = &mut timed_out => return Err(Failure::timed_out()),
    };
    let (client, messages) = connected.map_err(|error| Failure::of(&error, version))?;
    let result = tokio::select! {
        result = plan.run(args, &client, messages) => result,
        () = &mut timed_out => Err(Failure::timed_out()),
        () = stopped() => Ok(()),
        result = client.closed() => result.map_err(|error| Failure::of(&error, version)),
    };
    // The messages are printed, however the connection ends.
    let _ = client.disconnect().await;
    result
}

/// Validated options.
struct Plan {
    version: braid_client::ProtocolVersion,
    subscribe: Option<Subscribe>,
    filter_out: Vec<TopicFilter>,
    format: Format,
}

impl Plan {
    fn new(args: &Args, connection: &Connection) -> Result<Self, Failure> {
        let topics: Vec<&str> =
            args.topic.iter().map(String::as_str).chain(connection.topic.as_deref()).collect();
        if topics.is_empty() && args.unsubscribe.is_empty() {
            return Err(Failure::usage("Error: give a topic filter to subscribe to with -t."));
        }
        filters(args.unsubscribe.iter().map(String::as_str))?;
        let properties = &connection.properties;
        let mut subscribe = Subscribe::new(filters(topics)?)
            .qos(args.qos)
            .no_local(args.no_local)
            .retain_as_published(args.retain_as_published)
            .retain_handling(args.retain_handling);
        if let Some(number) = args.stream {
            args.client.needs_quic("--stream")?;
            subscribe = subscribe.stream(number);
        }
        if let Some(priority) = args.priority {
            subscribe = subscribe.priority(priority);
        }
        if let Some(id) = properties.subscription_id {
            subscribe = subscribe.id(id);
        }
        for (name, value) in properties.subscribe_user.iter() {
            subscribe = subscribe.user_property(name, value);
        }
        Ok(Self {
            version: connection.version,
            subscribe: Some(subscribe).filter(|subscribe| !subscribe.is_empty()),
            filter_out: filters(args.filter_out.iter().map(String::as_str))?,
            format: args.format.clone().unwrap_or_else(Format::payload),
        })
    }

    async fn run(&self, args: &Args, client: &Client, mut messages: Messages) -> Result<(), Failure> {
        let fail = |error| Failure::of(&error, self.version);
        if let Some(subscribe) = &self.subscribe {
            let codes = client.subscribe(subscribe.clone()).await.map_err(fail)?;
            for (filter, code) in subscribe.filters().zip(codes) {
                if code.is_error() && !args.client.quiet {
                    eprintln!("Warning: no subscription to {filter}: {code}.");
                }
            }
        }
        client.unsubscribe(args.unsubscribe.iter().map(String::as_str)).await.map_err(fail)?;
        if args.exit_after_subscribe {
            return Ok(());
        }
        let mut printed = 0;
        while let Some(message) = messages.recv().await {
            let mut next = Some(message);
            // One write for all queued messages.
            let mut out = BufWriter::new(io::stdout().lock());
            while let Some(message) = next {
                let Some(is_printed) = self.handle(args, client, &message, &mut out)? else {
                    return flush(&mut out).map(drop);
                };
                printed += u64::from(is_printed);
                if Some(printed) == args.count {
                    return flush(&mut out).map(drop);
                }
                next = messages.try_recv();
            }
            if !flush(&mut out)? {
                return Ok(());
            }
        }
        // The messages end before the client: its end says why.
        client.closed().await.map_err(fail)
    }

    /// Prints a message unless an option excludes it. `None`: the program has to end.
    fn handle(
        &self,
        args: &Args,
        client: &Client,
        message: &Received,
        out: &mut impl Write,
    ) -> Result<Option<bool>, Failure> {
        if args.retained_only && !message.retain {
            return Ok(None);
        }
        let is_unwanted = self.filter_out.iter().any(|filter| filter.matches(&message.topic));
        if is_unwanted || (args.no_retained && message.retain) {
            return Ok(Some(false));
        }
        if args.remove_retained && message.retain {
            let nothing = Publication::new(message.topic.clone(), Bytes::new()).retain(true);
            // With a full queue the message stays retained, and the next run gets it.
            if let Err(error) = client.try_publish(nothing) {
                eprintln!("Warning: the retained message on {} stays: {error}.", message.topic);
            }
        }
        match self.print(args, message, out) {
            Ok(printed) => Ok(Some(printed)),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(None), // The reader has closed the pipe.
            Err(error) => Err(Failure::usage(format!("Error: cannot write the message: {error}."))),
        }
    }

    fn print(&self, args: &Args, message: &Received, out: &mut impl Write) -> io::Result<bool> {
        if args.verbose && args.format.is_none() {
            let (topic, nothing) = (&message.topic, message.payload.is_empty());
            write!(out, "{topic} {}", if nothing { "(null)" } else { "" })?;
        }
        if !self.format.write(message, &Zoned::now(), out)? {
            if !args.client.quiet {
                eprintln!("Error: Message payload is not valid JSON on topic {}.", message.topic);
            }
            return Ok(false);
        }
        if !args.no_line_feed {
            out.write_all(b"\n")?;
        }
        Ok(true)
    }
}

/// False: the reader has closed the pipe.
fn flush(out: &mut impl Write) -> Result<bool, Failure> {
    match out.flush() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::usage(format!("Error: cannot write: {error}."))),
    }
}

fn filters<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Vec<TopicFilter>, Failure> {
    let parse = |text: &'a str| {
        TopicFilter::parse(text)
            .map_err(|error| Failure::usage(format!("Error: {text:?} is no topic filter: {error}.")))
    };
    texts.into_iter().map(parse).collect()
}

fn parse_retain_handling(text: &str) -> Result<RetainHandling, String> {
    match text {
        "always" => Ok(RetainHandling::SendAlways),
        "new" => Ok(RetainHandling::SendIfNew),
        "never" => Ok(RetainHandling::DoNotSend),
        _ => Err("use always, new or never".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use braid_transport::{Link, mem};
    use clap::Parser;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn options_of_subscriptions_need_mqtt_5() {
        let needs = |line: &str| Cli::parse_from(line.split(' ')).args.needs_v5();
        for option in ["--no-local", "--retain-as-published", "--retain-handling never", "--priority 1"] {
            assert_eq!(needs(&format!("sub -t a {option}")), option.split(' ').next());
        }
        assert_eq!(needs("sub -t a --retain-handling always -R"), None);
    }

    /// A server that answers CONNECT and SUBSCRIBE, then sends `last` and closes the link.
    async fn serve(mut listener: braid_transport::Listener, last: &[u8]) {
        let incoming = listener.accept().await.expect("a client");
        let Ok(Link::Single(mut link)) = incoming.handshake().await else { panic!("one stream") };
        for answer in [&[0x20, 3, 0, 0, 0][..], &[0x90, 4, 0, 1, 0, 0]] {
            assert!(link.io.read(&mut [0; 1024]).await.expect("a packet") > 0);
            link.io.write_all(answer).await.expect("open");
        }
        link.io.write_all(last).await.expect("open");
    }

    /// The end of the messages is not the end of the command: the select! of [`subscribe`] may see either first.
    #[tokio::test]
    async fn an_end_by_the_server_is_a_failure_however_it_is_noticed() {
        for _ in 0..20 {
            let args = Cli::parse_from(["sub", "-t", "a", "-V", "5"]).args;
            let connection = args.client.connection(None).expect("valid options");
            let plan = Plan::new(&args, &connection).expect("valid options");
            let (listener, connector) = mem::listener();
            let server = tokio::spawn(serve(listener, &[0xe0, 2, 0x87, 0]));
            let (client, messages) =
                connection.builder.in_memory(connector).connect().await.expect("connected");
            let ended = plan.run(&args, &client, messages).await.expect_err("not the user's wish");
            assert_eq!(ended.code(), 7, "{ended}");
            server.await.expect("served");
        }
    }
}
