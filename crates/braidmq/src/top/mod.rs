//! `braidmq top`: overview and clients of a running broker, or the streams of one client, in a terminal.

mod page;
pub(crate) mod terminal;

use std::process::ExitCode;
use std::time::Duration;

use braid_access::http::HttpClient;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use self::page::{Overview, Streams, clients_page, streams_page};
use self::terminal::Screen;
use crate::api::{self, ApiArgs, get};
use crate::output;

/// Time between the two looks of `--once`.
const ONCE: Duration = Duration::from_secs(1);

/// Show a running broker: rates, memory, health and clients, or the streams of one client
///
/// Reads the REST API of `braidmq serve --http` once a second until `q` is pressed. Clients are in the order of what
/// waits for them, the 1,000 with most. With --client, each stream of its connection is a line: priority, rates, what
/// waits and for what.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    api: ApiArgs,
    /// Show the streams of this client
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Mountpoint of the client
    #[arg(long, value_name = "PREFIX", requires = "client")]
    mountpoint: Option<String>,
    /// Print one table after a second and exit, for scripts
    #[arg(long)]
    once: bool,
    /// Seconds between two looks
    #[arg(long, value_name = "SECS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

const HELP: &str = "\
Examples:
  braidmq top
  braidmq top --once --client sensor-7
  braidmq top --url https://broker.example:18083 --ca cert.pem --user alice --password-file secret

Keys: q or Ctrl-C quits.

Exit codes: 0 done, 1 the broker does not answer as it should, 2 a wrong option";

pub(crate) fn run(args: &Args) -> ExitCode {
    api::run(show(args))
}

/// Source of the page, which is read again and again.
enum View {
    Clients { overview: Box<HttpClient>, clients: HttpClient, before: Option<Box<Overview>> },
    Streams { streams: HttpClient, before: Option<Streams> },
}

async fn show(args: &Args) -> Result<(), String> {
    let mut view = View::new(args)?;
    // Before the screen is opened, which would hide the failure.
    let mut lines = view.look().await?;
    if args.once {
        // Rates are those between two looks.
        sleep(ONCE).await;
        let text = lines_of(&view.look().await?);
        return output::print(&text).map_err(|error| format!("cannot write standard output: {error}"));
    }
    let mut screen = Screen::open().map_err(|error| format!("there is no terminal ({error}): use --once"))?;
    let period = Duration::from_secs(args.interval);
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        screen.draw(&lines).map_err(|error| format!("cannot write to the terminal: {error}"))?;
        tokio::select! {
            _ = ticks.tick() => {}
            () = screen.quit() => return Ok(()),
        }
        lines = match view.look().await {
            Ok(lines) => lines,
            // A broker may be restarted: the next look may succeed.
            Err(message) => vec![crate::printable::printable(&message).into_owned()],
        };
    }
}

fn lines_of(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

impl View {
    fn new(args: &Args) -> Result<Self, String> {
        let client = |path: &str| args.api.client(path);
        Ok(match &args.client {
            None => Self::Clients {
                overview: Box::new(client("overview")?),
                clients: client("clients?limit=1000&sort=queued")?,
                before: None,
            },
            Some(id) => {
                let id = utf8_percent_encode(id, NON_ALPHANUMERIC);
                let mountpoint = args.mountpoint.as_ref().map_or_else(String::new, |mountpoint| {
                    format!("?mountpoint={}", utf8_percent_encode(mountpoint, NON_ALPHANUMERIC))
                });
                Self::Streams { streams: client(&format!("clients/{id}/streams{mountpoint}"))?, before: None }
            }
        })
    }

    /// Lines about the present state.
    async fn look(&mut self) -> Result<Vec<String>, String> {
        match self {
            Self::Clients { overview, clients, before } => {
                let now: Box<Overview> = get(overview).await?;
                let lines = clients_page(&now, before.as_deref(), &get(clients).await?);
                *before = Some(now);
                Ok(lines)
            }
            Self::Streams { streams, before } => {
                let now: Streams = get(streams).await?;
                let lines = streams_page(&now, before.as_ref());
                *before = Some(now);
                Ok(lines)
            }
        }
    }
}
