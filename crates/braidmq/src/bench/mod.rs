//! `braidmq bench`: puts load on an MQTT or HTTP server and measures it.

mod device;
mod failure;
mod http;
mod options;
mod output;
mod plan;
mod reply;
mod request;
mod run;
mod self_measure;
mod settings;

use std::process::ExitCode;

use clap::Subcommand;

use failure::Failure;
use http::HttpOptions;
use options::{ConnOptions, PubOptions, SubOptions};

/// Put load on an MQTT server and measure it, with the options of emqtt_bench; or on an HTTP server, with those of
/// h2load.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    load: Load,
}

#[derive(Debug, Subcommand)]
enum Load {
    Pub(Box<PubOptions>),
    Sub(Box<SubOptions>),
    Conn(Box<ConnOptions>),
    Device(Box<device::Args>),
    Request(request::Args),
    Reply(reply::Args),
    Http(Box<HttpOptions>),
    #[command(name = "self")]
    SelfMeasure(self_measure::Args),
}

/// Runs `braidmq bench`.
pub(crate) fn run(args: &Args) -> ExitCode {
    let ended = match &args.load {
        Load::Pub(options) => plan::publish(options).and_then(run::run),
        Load::Sub(options) => plan::subscribe(options).and_then(run::run),
        Load::Conn(options) => plan::connect(options).and_then(run::run),
        Load::Device(args) => device::run(args),
        Load::Request(args) => request::run(args),
        Load::Reply(args) => reply::run(args),
        Load::Http(options) => http::run(options),
        Load::SelfMeasure(args) => self_measure::run(args),
    };
    ended.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}
