//! `braidmq explain`: order in which streams were sent, from a qlog file, as numbers and as a chart.

mod burst;
mod picture;
mod qlog;
mod repair;
mod summary;
mod trace;
mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use askama::Template;
use clap::ValueEnum;

use qlog::BadRecord;
use summary::Summary;
use trace::{Missing, Reading, Trace};
use view::{View, Window};

use crate::output;

/// Exit code for input that must be corrected, as of `braidmq serve`.
const REFUSED: u8 = 2;

const MEASURES: &str = "\
How it is measured:
  Priorities are not on the wire, so --urgent names the urgent streams; all others are bulk. A log says when bytes \
left, not when they were written, so all counts from the first packet that carried them.

  Burst: urgent bytes that waited together. It begins with the first urgent byte after the urgent streams were empty, \
and ends when they are empty again. A sender fills packets as long as it has bytes, so they are empty when bulk \
follows fresh urgent bytes in a packet, when a packet with stream bytes has room left (it is shorter than packets \
near it that end with bulk), or when nothing urgent follows for a second.

  Bulk ahead: bulk bytes that left, in the order of bytes, between the beginning of the packet with the burst's first \
byte (a packet is put together at one moment, so both had data) and the burst's last byte.

  Urgent first: the urgent bytes of all bursts, as a share of these and the bulk ahead of them. All of it \
(100 %) means that no bulk byte left while urgent bytes of the same burst were still to be sent.

  After a loss: the same for urgent bytes whose packet was declared lost, from then until they were sent again.

  Sent again: bytes that had been sent before, at the same offset of the same stream.

  With --side received the order is that of arrival, and losses are not known.

Examples:
  braidmq explain client.qlog
  braidmq explain client.qlog --urgent 0,4 --from 1000 --to 1500 -o second.svg
  braidmq explain client.qlog --json";

/// Explain from a qlog file which stream was sent first, and draw the stream bytes of each packet.
///
/// Reads the logs of any QUIC stack that follows the qlog drafts, as JSON text sequence or as JSON. Prints each
/// stream's bytes, packets and repetitions, the connection's losses, and how much bulk left ahead of urgent bytes;
/// writes a chart (SVG) beside the log.
#[derive(clap::Args, Debug)]
#[command(after_long_help = MEASURES)]
pub(crate) struct Args {
    /// The qlog file of one connection
    file: PathBuf,
    /// The urgent streams by stream id [default: 0, and of several data streams the one with the fewest bytes]
    #[arg(long, value_name = "ID,..", value_delimiter = ',')]
    urgent: Vec<u64>,
    /// Packets sent or received by the endpoint that wrote the log
    #[arg(long, value_enum, default_value = "sent")]
    side: Side,
    /// Omit packets before this time, in milliseconds of the log
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    from: Option<f64>,
    /// Omit packets after this time, in milliseconds of the log
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    to: Option<f64>,
    /// Path of the chart [default: beside the log, with the ending .svg]
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// Print the numbers as JSON
    #[arg(long)]
    json: bool,
}

/// Direction of packets in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    Sent,
    Received,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Sent => Self::Received,
            Self::Received => Self::Sent,
        }
    }
}

/// Runs `braidmq explain`. Exit code 0, or 2 when the input or the arguments must change.
pub(crate) fn run(args: &Args) -> ExitCode {
    match try_run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("braidmq: {error}");
            ExitCode::from(REFUSED)
        }
    }
}

fn try_run(args: &Args) -> Result<(), String> {
    let picture = args.output.clone().unwrap_or_else(|| args.file.with_extension("svg"));
    let bytes =
        std::fs::read(&args.file).map_err(|error| format!("cannot read {}: {error}", args.file.display()))?;
    // Compared by canonical path: another name, or a link, may be the same file.
    let same = |path: &Path| path.canonicalize().ok();
    if same(&picture).is_some_and(|picture| same(&args.file) == Some(picture)) {
        return Err("the picture would overwrite the log: name another file with -o".to_owned());
    }
    let log = read(args, &bytes)?;
    drop(bytes);
    let view = View::new(&log, &args.urgent, Window::of(args.from, args.to))?;
    let summary = Summary::of(&view, args, &picture);
    std::fs::write(&picture, picture::draw(&view, &summary))
        .map_err(|error| format!("cannot write {}: {error}", picture.display()))?;
    // Neither fails: no key is no string, and strings can be written to.
    let text = if args.json {
        serde_json::to_string_pretty(&summary).map(|json| json + "\n").unwrap_or_default()
    } else {
        summary.render().unwrap_or_default()
    };
    output::print(&text).map_err(|error| format!("cannot write the output: {error}"))
}

/// First trace of the file that has stream bytes on this side.
fn read(args: &Args, bytes: &[u8]) -> Result<Trace, String> {
    let file = args.file.display();
    let not_qlog = |problem| format!("{file} is not qlog: {problem}");
    let mut reading = Reading::new(args.side);
    let mut cut_off = false;
    for record in qlog::records(bytes) {
        match record {
            Ok(record) => reading.handle_record(record).map_err(not_qlog)?,
            Err(BadRecord::NotJson { line, problem }) => {
                return Err(format!("{file}:{line}: not JSON: {problem}"));
            }
            Err(BadRecord::CutOff) => cut_off = true,
        }
    }
    reading.finish(cut_off).map_err(|missing| match missing {
        Missing::Everything => not_qlog("the file is empty or has no trace"),
        Missing::StreamFrames { other_side } => {
            let other = format!("; --side {} has some", args.side.other().name());
            let hint = if other_side { &other } else { "" };
            format!("{file}: no packet {} carries a STREAM frame{hint}", args.side.name())
        }
    })
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let refused = || format!("{text} is no time in milliseconds; write for example 1500 or 0.25");
    let value: f64 = text.parse().map_err(|_| refused())?;
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(refused()) }
}
