//! Formats of emqtt_bench, so that scripts and files of its users run unchanged.
//!
//! Pure: file contents, times and random numbers come as arguments. Times of messages are [`Duration`]s since the
//! Unix epoch, times of a run are [`Duration`]s since its start.
//!
//! [`Duration`]: std::time::Duration

mod client_ids;
mod counters;
mod lines;
mod message;
mod payload;
mod payload_hdrs;
mod placeholders;
mod prometheus;
mod qoe;
mod term;
mod topics;

pub use client_ids::ClientIds;
pub use counters::{Counter, CounterLines, Counters};
pub use lines::{
    PUBLISH_COMPLETE, StartLine, closed_line, disconnected_line, elapsed, exit_line, failure_line, go_line,
    secrets_line,
};
pub use message::{MessageTemplate, Randomness};
pub use payload::{Encoding, Pages, PayloadTemplate, TimestampUnit};
pub use payload_hdrs::{CounterOrder, CounterTrack, HeaderValues, PayloadHeaders, TruncatedHeaders};
pub use placeholders::{Identity, PlaceholderError, TopicTemplate};
pub use prometheus::{DurationHistogram, Histogram, Histograms, exposition};
pub use qoe::Qoe;
pub(crate) use term::tag;
pub use term::{Eterm, Term};
pub use topics::{TopicSpec, TopicsFile, TopicsFileError};
