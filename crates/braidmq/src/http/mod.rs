//! `braidmq http`: questions to the HTTP front of a running broker.

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;

use crate::api::{self, ApiArgs, get};
use crate::output;
use crate::printable::printable;

/// Ask the HTTP front of a running broker
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Explain(ExplainArgs),
}

/// Show why clients of a network are offered HTTP/3, or are not
///
/// The protocol that is chosen, since when and until when at least, the paths as TCP and QUIC measured them, and the
/// costs over both; for each address of the front that clients of the network use. Then the changes of the network
/// among the latest 256 of all networks. The front has to have TLS, so the URL begins with https.
#[derive(clap::Args, Debug)]
#[command(after_help = EXPLAIN_HELP)]
struct ExplainArgs {
    /// IP address of a client; its network is the IPv4 /24 or the IPv6 /48
    address: IpAddr,
    #[command(flatten)]
    api: ApiArgs,
}

const EXPLAIN_HELP: &str = "\
Examples:
  braidmq http explain 192.0.2.7 --url https://broker.example:18083
  braidmq http explain 127.0.0.1 --url https://localhost:18083 --ca cert.pem --user alice --password-file secret

Exit codes: 0 done, 1 nothing is known of the network, or the broker does not answer as it should, 2 a wrong option";

pub(crate) fn run(args: &Args) -> ExitCode {
    let Command::Explain(args) = &args.command;
    api::run(explain(args))
}

#[derive(Deserialize)]
struct Network {
    network: String,
    listeners: Vec<Listener>,
}

#[derive(Deserialize)]
struct Listener {
    text: String,
}

#[derive(Deserialize)]
struct State {
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    at: f64,
    network: String,
    listener: String,
    from: String,
    to: String,
    text: String,
}

async fn explain(args: &ExplainArgs) -> Result<(), String> {
    let known: Network = get(&args.api.client(&format!("autoquic/{}", args.address))?).await?;
    let state: State = get(&args.api.client("autoquic")?).await?;
    let mut text = String::new();
    for listener in &known.listeners {
        for line in listener.text.lines() {
            text += &format!("{}\n", printable(line));
        }
    }
    for change in state.changes.iter().filter(|change| change.network == known.network) {
        let Change { at, listener, from, to, text: reason, .. } = change;
        let line = format!("{} {listener}: {from} to {to}: {reason}", time(*at));
        text += &format!("{}\n", printable(&line));
    }
    output::print(&text).map_err(|error| format!("cannot write standard output: {error}"))
}

/// Time in UTC; the number itself if there is no such time.
fn time(at: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "saturating")]
    let second = jiff::Timestamp::from_second(at as i64);
    second.map_or_else(|_| at.to_string(), |time| time.to_string())
}
