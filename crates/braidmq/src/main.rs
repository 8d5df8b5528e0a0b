//! The `braidmq` binary: MQTT broker and client in one.

mod acl;
mod api;
mod bench;
mod client;
mod cluster;
mod config;
mod explain;
mod format;
mod http;
mod lab;
mod output;
mod passwd;
mod printable;
mod progress;
mod publish;
mod secret;
mod serve;
mod store;
mod subscribe;
mod top;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Allocator of the program: a message allocates twice, and is often freed by another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// MQTT broker and client for QUIC, TCP, TLS and WebSocket.
#[derive(Parser)]
#[command(name = "braidmq", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::Args),
    Pub(publish::Args),
    Sub(subscribe::Args),
    Bench(bench::Args),
    Explain(explain::Args),
    Lab(lab::Args),
    Passwd(passwd::Args),
    Store(store::Args),
    Cluster(cluster::Args),
    Acl(acl::Args),
    Top(top::Args),
    Http(http::Args),
}

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(Cli { command: Command::Serve(args) }) => serve::run(&args),
        Ok(Cli { command: Command::Pub(args) }) => publish::run(args),
        Ok(Cli { command: Command::Sub(args) }) => subscribe::run(args),
        Ok(Cli { command: Command::Bench(args) }) => bench::run(&args),
        Ok(Cli { command: Command::Explain(args) }) => explain::run(&args),
        Ok(Cli { command: Command::Lab(args) }) => lab::run(&args),
        Ok(Cli { command: Command::Passwd(args) }) => passwd::run(&args),
        Ok(Cli { command: Command::Store(args) }) => store::run(&args),
        Ok(Cli { command: Command::Cluster(args) }) => cluster::run(&args),
        Ok(Cli { command: Command::Acl(args) }) => acl::run(&args),
        Ok(Cli { command: Command::Top(args) }) => top::run(&args),
        Ok(Cli { command: Command::Http(args) }) => http::run(&args),
        Err(error) => {
            let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            // The terminal may be closed.
            let _ = if error.use_stderr() && !is_help {
                writeln!(io::stderr(), "{}", one_line(&error))
            } else {
                error.print()
            };
            // mosquitto_pub and mosquitto_sub return 1 for a wrong option.
            let is_client =
                std::env::args_os().nth(1).is_some_and(|command| command == "pub" || command == "sub");
            let code = if is_client && error.exit_code() != 0 { 1 } else { error.exit_code() };
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
    }
}

/// Error of the options as one line, without the usage.
fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraphs = text.split("\n\n").map(str::trim).filter(|paragraph| {
        !paragraph.starts_with("Usage:") && !paragraph.starts_with("For more information")
    });
    let paragraphs = paragraphs.map(|lines| lines.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    format!("{} (--help says more)", paragraphs.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn errors_of_options_are_one_line() {
        for (line, expected) in [
            (
                "braidmq top --onc",
                "error: unexpected argument '--onc' found; tip: a similar argument exists: '--once' (--help says more)",
            ),
            (
                "braidmq http explain",
                "error: the following required arguments were not provided: <ADDRESS> (--help says more)",
            ),
            (
                "braidmq explain a.qlog --side both",
                "error: invalid value 'both' for '--side <SIDE>' [possible values: sent, received] (--help says more)",
            ),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).err().unwrap();
            assert_eq!(one_line(&error), expected);
        }
    }

    #[test]
    fn the_manual_page_names_each_command() {
        let page = include_str!("../../../packaging/braidmq.1");
        let (_, rest) = page.split_once(".SH COMMANDS\n").unwrap();
        let (commands, _) = rest.split_once(".SH ").unwrap();
        let headings = commands.split(".TP\n").filter_map(|entry| entry.lines().next());
        let named: Vec<_> = headings.flat_map(str::split_whitespace).collect();
        for command in Cli::command().get_subcommands() {
            assert!(named.contains(&command.get_name()), "{}", command.get_name());
        }
    }
}
