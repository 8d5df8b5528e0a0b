//! Measurements of one program: written by `braidmq bench ... --json FILE`, read by the laboratory.

use std::collections::BTreeMap;
use std::fmt;

use braid_measure::Quantiles;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::emqtt::CounterOrder;

/// Value of [`RunSummary::schema`]. A change that readers have to know of changes the number.
pub const SCHEMA: &str = "braidmq-bench/1";

/// Run of one program. Times are seconds since its start unless a name says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Value of [`SCHEMA`].
    pub schema: String,
    /// Role of the program.
    pub role: Role,
    /// Start, microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// Duration of the run.
    pub seconds: f64,
    /// Counters by their printed names.
    pub counters: BTreeMap<String, u64>,
    /// All connections together.
    pub connections: ConnectionsSummary,
    /// Time from the due time of a PINGREQ to PINGRESP, microseconds. `None` without any.
    #[serde(default)]
    pub pingresp_us: Option<Quantiles>,
    /// PINGREQ packets without a PINGRESP at the end of their connection. Those that had waited longer than any
    /// answered one of the connection are in `pingresp_us` with the time that they had waited.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pings_unanswered: u64,
    /// Single round trips in the order of answers, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pings: Option<Trace>,
    /// Delays of messages that waited for nothing but their time, microseconds: the error of the timer and of the
    /// machine, which is part of every latency. `None`: there were none, or they were not recorded.
    #[serde(default)]
    pub lateness_us: Option<Quantiles>,
    /// Headers of received messages.
    #[serde(default)]
    pub headers: HeadersSummary,
    /// Messages by topic and stream.
    pub topics: Vec<TopicSummary>,
    /// Bytes that the transport took from each stream, summed over the connections.
    pub streams: Vec<StreamSummary>,
    /// Other events, in the order of time.
    pub events: Vec<Event>,
}

/// Role of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Published.
    #[default]
    Pub,
    /// Subscribed.
    Sub,
    /// Connected and stayed.
    Conn,
    /// Requested objects.
    Request,
    /// Answered with objects.
    Reply,
}

/// As files and Client Identifiers have it.
impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Connections of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionsSummary {
    /// Number of wanted connections.
    pub wanted: u64,
    /// Number of established connections, repeated ones included.
    pub established: u64,
    /// Time from the first packet to CONNACK (MQTT) or to the transport's establishment (others), microseconds.
    pub connect_us: Option<Quantiles>,
    /// Steps of clients that connect, each from the opening of the socket; those that never happened are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepSummary>,
}

/// Step of clients that connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// CONNACK of the first connection of a client.
    Connected,
    /// Last SUBACK of the first connection of a client.
    Subscribed,
    /// CONNACK of a later connection.
    Reconnected,
    /// Last SUBACK of a later connection.
    Resubscribed,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Connected, Self::Subscribed, Self::Reconnected, Self::Resubscribed];
}

/// Number and durations of one step over all clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// The step.
    pub step: Step,
    /// Clients that took it, by whole seconds since the start.
    pub per_second: Vec<u64>,
    /// Time since the opening of the socket, microseconds.
    pub latency_us: Quantiles,
    /// Curve of these times, as [`TopicSummary::latency_cdf`].
    pub latency_cdf: Vec<(u64, f64)>,
}

/// Headers of received messages (`--payload-hdrs`), summed over the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadersSummary {
    /// Messages with a counter (`cnt64`), which counts those of one publisher to one topic.
    pub numbered: u64,
    /// Counters that were skipped: lost, or overtaken by the next.
    pub skipped: u64,
    /// Counters that were not above all earlier ones: repeated, late, or of a second publisher to the topic.
    pub not_above: u64,
    /// Messages that arrived before they were sent, by the two clocks: they have no latency.
    pub skewed: u64,
    /// Messages with a counter that was not compared with the one before: of topics beyond the first million.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unchecked: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// One topic on one stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TopicSummary {
    /// The topic, or the object of a request.
    pub topic: String,
    /// Number that the topics file or the option gave the stream; 0 is the control stream.
    pub stream: u64,
    /// Priority of the stream.
    pub priority: Option<u16>,
    /// Messages handed to the connection (requests sent).
    pub sent: u64,
    /// Messages acknowledged, or with QoS 0 taken by the transport (requests answered).
    pub acked: u64,
    /// Messages received.
    pub received: u64,
    /// Longest time between two messages of one topic to one subscriber, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_gap_us: Option<u64>,
    /// Messages that were due and never were sent or acknowledged, or requests that failed.
    pub failed: u64,
    /// Payload bytes of `acked` or `received`.
    pub bytes: u64,
    /// `acked` or `received` by whole seconds since the start.
    pub per_second: Vec<u64>,
    /// Latency from the time a message was due to its acknowledgement or receipt, microseconds. `None`: unknown,
    /// or there was no message.
    pub latency_us: Option<Quantiles>,
    /// Latency curve: microseconds, and the share (0 to 1) of arrived messages that took no longer.
    pub latency_cdf: Vec<(u64, f64)>,
    /// Single messages, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// Single messages or pings, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Due time of each, microseconds since the Unix epoch. A publisher lists all that were
    /// due, a subscriber those that it received with their due time.
    pub due_unix_us: Vec<u64>,
    /// Duration of each, microseconds; of subscribers, pings and alarms. Alarms without an answer are the last in
    /// `due_unix_us`, and have none.
    pub took_us: Vec<u64>,
}

/// One stream over all connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamSummary {
    /// Number as in [`TopicSummary::stream`].
    pub stream: u64,
    /// Bytes that the transport took from it (or gave to it, for receivers), by whole seconds since the start.
    pub bytes_per_second: Vec<u64>,
}

/// Event that is no number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time of the event.
    pub at: f64,
    /// Description: `client(1): disconnected with reason 141: keepalive_timeout`.
    pub what: String,
}

impl RunSummary {
    /// Run of `seconds` without connections and messages.
    pub(crate) fn new(role: Role, clock: &Clock, seconds: f64) -> Self {
        let (schema, started_unix_us) = (SCHEMA.to_owned(), clock.started_unix_us());
        Self { schema, role, started_unix_us, seconds, ..Self::default() }
    }
}

impl HeadersSummary {
    /// Counts a message whose counter has this relation to the one before.
    pub(crate) fn follow(&mut self, order: CounterOrder) {
        self.numbered += 1;
        match order {
            CounterOrder::First | CounterOrder::Next => {}
            CounterOrder::Skipped(messages) => self.skipped = self.skipped.saturating_add(messages),
            CounterOrder::NotAbove => self.not_above += 1,
        }
    }

    /// Counts a message whose counter is not compared.
    pub(crate) fn skip_check(&mut self) {
        self.numbered += 1;
        self.unchecked += 1;
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.unchecked += other.unchecked;
        self.numbered += other.numbered;
        self.skipped = self.skipped.saturating_add(other.skipped);
        self.not_above += other.not_above;
        self.skewed += other.skewed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_were_not_checked_are_told_apart() {
        let (mut all, mut one) = (HeadersSummary::default(), HeadersSummary::default());
        one.skip_check();
        one.follow(CounterOrder::First);
        all.add(one);
        assert_eq!((all.numbered, all.unchecked), (2, 1));
        let json = serde_json::to_string(&all).expect("JSON");
        assert_eq!(serde_json::from_str::<HeadersSummary>(&json).expect("the same"), all);
    }

    #[test]
    fn files_of_earlier_versions_are_read() {
        let text = r#"{"schema": "braidmq-bench/1", "role": "sub", "started_unix_us": 1, "seconds": 2.0,
            "counters": {}, "connections": {"wanted": 1, "established": 1, "connect_us": null},
            "topics": [], "streams": [], "events": []}"#;
        let read: RunSummary = serde_json::from_str(text).expect("a summary");
        assert_eq!((read.lateness_us, read.headers), (None, HeadersSummary::default()));
    }
}
