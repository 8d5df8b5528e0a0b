//! Relay between MQTT over TCP and MQTT over QUIC by msquic, the library under emqtt, emqtt_bench, NanoSDK and EMQX.
//!
//! As a client, each TCP connection becomes a QUIC connection. With `--streams one` its bytes go over the control
//! stream as they are; with `--streams topic` the PUBLISH packets of each topic have a stream of their own, as emqtt's
//! `publish_via` has them. A line `move N` on standard input continues every connection from another port, once N
//! bytes have been acknowledged, none is on its way and nothing has come for a moment: msquic loses a connection that
//! receives while it moves.
//!
//! As a server, it is QUIC as EMQX speaks it, before any broker.

use clap::Parser;

mod client;
mod library;
mod packets;
mod server;

#[derive(Parser)]
#[command(about = "Relay between MQTT over TCP and MQTT over QUIC by msquic")]
enum Role {
    /// Take TCP connections, and connect to a broker over QUIC.
    Client(client::Args),
    /// Take QUIC connections, and connect to a broker over TCP.
    Server(server::Args),
}

fn main() {
    let ended = match Role::parse() {
        Role::Client(args) => client::run(&args),
        Role::Server(args) => server::run(&args),
    };
    if let Err(error) = ended {
        eprintln!("msquic-relay: {error}");
        std::process::exit(1);
    }
}
