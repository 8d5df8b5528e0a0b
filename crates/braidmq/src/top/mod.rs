//! `braidmq top`: overview and clients of a running broker, or the streams of one client, in a terminal.

mod page;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_access::http::{Endpoint, HttpClient, HttpOptions, SecretHeader};
use braid_access::read_file;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use self::page::{Overview, Streams, clients_page, streams_page};
use self::terminal::Screen;
use crate::output;

/// Exit code when the broker does not answer as it should.
const FAILED: u8 = 1;

/// Largest response, in bytes.
const MAX_RESPONSE: usize = 16 << 20;

/// Longest file with a password or token, in bytes.
const MAX_SECRET: usize = 16 << 10;

/// Show a running broker: rates, memory, health and clients, or the streams of one client
///
/// Reads the REST API of `braidmq serve --http` once a second until `q` is pressed. Clients are in the order of what
/// waits for them. With --client, each stream of its connection is a line: priority, rates, what waits and for what.
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Address of the broker's HTTP front
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18083")]
    url: String,
    /// Log in as this user, with --password-file
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// File whose first line is a JSON Web Token
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities that the broker's certificate is checked against [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show the streams of this client
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Mountpoint of the client
    #[arg(long, value_name = "PREFIX", requires = "client")]
    mountpoint: Option<String>,
    /// Print one table and exit, for scripts
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(show(args)),
        Err(error) => Err(format!("the system refuses an event queue: {error}")),
    };
    let Err(message) = outcome else { return ExitCode::SUCCESS };
    eprintln!("braidmq: {}", crate::printable::printable(&message));
    ExitCode::from(FAILED)
}

/// Source of the page, which is read again and again.
enum View {
    Clients { overview: Box<HttpClient>, clients: HttpClient },
    Streams { streams: HttpClient, before: Option<Streams> },
}

async fn show(args: &Args) -> Result<(), String> {
    let mut view = View::new(args)?;
    if args.once {
        let text = lines_of(&view.look().await?);
        return output::print(&text).map_err(|error| format!("cannot write standard output: {error}"));
    }
    let mut screen = Screen::open().map_err(|error| format!("there is no terminal ({error}): use --once"))?;
    let mut ticks = interval(Duration::from_secs(args.interval));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = screen.quit() => return Ok(()),
        }
        let lines = match view.look().await {
            Ok(lines) => lines,
            // A broker may be restarted: the next look may succeed.
            Err(message) => vec![crate::printable::printable(&message).into_owned()],
        };
        screen.draw(&lines).map_err(|error| format!("cannot write to the terminal: {error}"))?;
    }
}

fn lines_of(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

impl View {
    fn new(args: &Args) -> Result<Self, String> {
        let client = |path: &str| client(args, path);
        Ok(match &args.client {
            None => Self::Clients {
                overview: Box::new(client("overview")?),
                clients: client("clients?limit=1000")?,
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
            Self::Clients { overview, clients } => {
                let overview: Overview = get(overview).await?;
                Ok(clients_page(&overview, &get(clients).await?))
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

fn client(args: &Args, path: &str) -> Result<HttpClient, String> {
    let url = format!("{}/api/v1/{path}", args.url.trim_end_matches('/'));
    let endpoint = Endpoint::parse(&url, false).map_err(|error| format!("--url: {error}"))?;
    let mut options = HttpOptions::new(endpoint);
    options.max_body = MAX_RESPONSE;
    options.tls.ca_files = args.ca.iter().cloned().collect();
    let value = match (&args.user, &args.password_file, &args.token_file) {
        (Some(user), Some(file), _) => {
            Some(format!("Basic {}", STANDARD.encode(format!("{user}:{}", first_line(file)?))))
        }
        (_, _, Some(file)) => Some(format!("Bearer {}", first_line(file)?)),
        _ => None,
    };
    options.headers.extend(value.map(|value| SecretHeader { name: "Authorization".to_owned(), value }));
    HttpClient::new(options).map_err(|error| error.to_string())
}

fn first_line(path: &Path) -> Result<String, String> {
    let text = read_file(path, MAX_SECRET).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|_| format!("{}: is not UTF-8", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

async fn get<T: DeserializeOwned>(client: &HttpClient) -> Result<T, String> {
    let response = client.get().await.map_err(|error| error.to_string())?;
    if response.status == 200 {
        return serde_json::from_slice(&response.body)
            .map_err(|error| format!("the response is not of this API: {error}"));
    }
    let problem: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or("no detail");
    Err(format!("the broker answers {}: {detail}", response.status))
}
