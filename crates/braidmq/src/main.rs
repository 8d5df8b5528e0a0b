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
mod publish;
mod secret;
mod serve;
mod store;
mod subscribe;
mod top;

use std::process::ExitCode;

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
            // The terminal may be closed.
            let _ = error.print();
            // mosquitto_pub and mosquitto_sub return 1 for a wrong option.
            let is_client =
                std::env::args_os().nth(1).is_some_and(|command| command == "pub" || command == "sub");
            let code = if is_client && error.exit_code() != 0 { 1 } else { error.exit_code() };
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
    }
}
