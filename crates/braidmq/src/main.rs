//! The `braidmq` binary: MQTT broker and client in one.

mod config;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
    }
}
