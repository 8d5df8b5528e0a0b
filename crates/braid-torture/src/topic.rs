//! Topics of this program.

use braid_proto::topic::{TopicFilter, TopicName};

/// Parses a topic name of this program.
#[expect(clippy::expect_used, reason = "they are all written in this program")]
pub(crate) fn topic_name(text: &str) -> TopicName {
    TopicName::parse(text).expect("a topic without wildcards")
}

/// Parses a topic filter of this program.
#[expect(clippy::expect_used, reason = "they are all written in this program")]
pub(crate) fn topic_filter(text: &str) -> TopicFilter {
    TopicFilter::parse(text).expect("a filter with wildcards in their places")
}
