use std::fmt;
use std::time::Duration;

use braid_proto::packet::{ProtocolVersion, QoS};
use braid_proto::topic::TopicError;
use bytes::Bytes;

use super::TimestampField;
use crate::emqtt::{
    ClientIds, MessageTemplate, PayloadHeaders, PlaceholderError, TopicSpec, TopicTemplate, TopicsFile,
};

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Clients.
    pub clients: Clients,
    /// Work of the connected clients.
    pub work: Work,
    /// End of the run, besides the stop signal.
    pub ending: Ending,
}

/// Clients and their connections.
#[derive(Debug, Clone)]
pub struct Clients {
    /// `-c`: number of clients.
    pub count: u64,
    /// `-n`: number before that of the first client.
    pub start_number: u64,
    /// Scheme of their Client Identifiers.
    pub ids: ClientIds,
    /// Rate of new connections.
    pub start: Start,
    /// Reaction to a failed or ended connection.
    pub retries: Retries,
    /// `-V`.
    pub version: ProtocolVersion,
    /// `-C`: Clean Start.
    pub clean_start: bool,
    /// `-k`: Keep Alive in seconds, 0 for none.
    pub keep_alive: u16,
    /// `--ping`: period of PINGREQ packets besides those of Keep Alive.
    pub ping: Option<Duration>,
    /// `-x`: Session Expiry Interval in seconds (MQTT 5).
    pub session_expiry: Option<u32>,
    /// `-u` and `-P`.
    pub credentials: Option<Credentials>,
    /// Maximum Packet Size in each CONNECT, bytes (MQTT 5).
    pub maximum_packet_size: Option<u32>,
}

impl Clients {
    /// Clients of MQTT 5 that connect at once, with the defaults: no Keep Alive, no credentials, no
    /// second attempt.
    #[must_use]
    pub fn plain(count: u64, ids: ClientIds) -> Self {
        Self {
            count,
            start_number: 0,
            ids,
            start: Start::Every(Duration::ZERO),
            retries: Retries::default(),
            version: ProtocolVersion::V5,
            clean_start: true,
            keep_alive: 0,
            ping: None,
            session_expiry: None,
            credentials: None,
            maximum_packet_size: None,
        }
    }
}

/// User Name and Password. `Debug` hides the password.
#[derive(Clone)]
pub struct Credentials {
    /// `-u`
    pub username: String,
    /// `-P`
    pub password: Option<Bytes>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { username, password: _ } = self;
        f.debug_struct("Credentials").field("username", username).finish_non_exhaustive()
    }
}

/// Rate of new connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// `-i`: one client after each interval, all at once if it is zero.
    Every(Duration),
    /// `-R`: clients per second, at equal distances.
    PerSecond(u32),
    /// `-R` with `--poisson`: clients per second on average, each independent of the others.
    Poisson(u32),
}

/// Reaction to a failed or ended connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retries {
    /// `--num-retry-connect`: attempts after the first failed one.
    pub connect: u32,
    /// `--reconnect`: attempts after a connection ended, or after such an attempt failed.
    pub reconnect: u32,
    /// Pause before each attempt, but for the one after a planned end.
    pub pause: Duration,
    /// End of a connection that is not the last one of `reconnect`.
    pub planned: PlannedEnd,
}

/// End of a connection by its client, which connects again at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PlannedEnd {
    /// No planned end.
    #[default]
    Never,
    /// `--lifetime`: DISCONNECT this long after CONNACK.
    After(Duration),
    /// `--drop-at`: all connections are closed without DISCONNECT at this time of the run.
    At(Duration),
}

/// End of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ending {
    /// `--duration`: time from the start of the run.
    pub after: Option<Duration>,
    /// `--keep-connected`: clients stay connected after the last message of `-L`, and the run goes on.
    pub keep_connected: bool,
}

/// Work of the clients.
#[derive(Debug, Clone)]
pub enum Work {
    /// Clients publish.
    Publish(PublishPlan),
    /// Clients subscribe.
    Subscribe(SubscribePlan),
    /// Clients stay connected.
    Connect,
}

/// Messages of each publisher.
#[derive(Debug, Clone)]
pub struct PublishPlan {
    /// Topics, each with a schedule of its own.
    pub topics: Vec<PublishedTopic>,
    /// `--payload-hdrs`
    pub headers: PayloadHeaders,
    /// `-F`: most inflight messages of QoS 1 and 2 of a client; 0 leaves it to the server.
    pub inflight: u32,
    /// `-L`: messages of all clients together; 0 for no limit.
    pub limit: u64,
    /// `-w`: publishing begins when every client has connected, or failed to.
    pub wait_for_all: bool,
    /// Number of workers in the [`go_line`](crate::emqtt::go_line) at the end of that wait; 0 prints no line.
    pub workers: u64,
    /// `--min-random-wait` and `--max-random-wait`: range of each client's wait before its schedule begins.
    pub random_wait: (Duration, Duration),
    /// `--resume`: a large message goes on with the next connection where the server has its first part (MQTT 5, a
    /// session that outlives its connection).
    pub resumes: bool,
}

/// One topic with its schedule: message n (from 0) is due at `first` and n intervals after the client may publish.
#[derive(Debug, Clone)]
pub struct PublishedTopic {
    /// Topic as written, which is its name in the summary.
    pub name: String,
    /// Parsed topic.
    pub template: TopicTemplate,
    /// Due time of the first message, from when the client may publish: at once with `-t`, one interval later with
    /// `--topics-payload`.
    pub first: Duration,
    /// Time between two messages; zero is saturated.
    pub interval: Duration,
    /// QoS of each message.
    pub qos: QoS,
    /// RETAIN of each message.
    pub retain: bool,
    /// Payload of each message.
    pub payload: Payload,
    /// Data stream on QUIC; 0 is the control stream, the only one of other transports.
    pub stream: u32,
    /// Priority of that stream; `None` is the default.
    pub priority: Option<u16>,
}

/// Content of messages.
#[derive(Debug, Clone)]
pub enum Payload {
    /// Payload of a topics file.
    Spec(Box<TopicSpec>),
    /// Payload of `-m` or `-s`, and the value of `-s`.
    Message(MessageTemplate, usize),
}

/// Subscriptions of each subscriber.
#[derive(Debug, Clone, Default)]
pub struct SubscribePlan {
    /// `-t`, each with a SUBSCRIBE of its own.
    pub filters: Vec<SubscribedFilter>,
    /// `--payload-hdrs`
    pub headers: PayloadHeaders,
    /// `--timestamp-field`
    pub timestamp: Option<TimestampField>,
    /// `--pipeline`: SUBSCRIBE follows CONNECT without waiting for CONNACK.
    pub is_pipelined: bool,
}

/// A Topic Filter.
#[derive(Debug, Clone)]
pub struct SubscribedFilter {
    /// The filter, with placeholders.
    pub template: TopicTemplate,
    /// Highest QoS of its deliveries.
    pub qos: QoS,
    /// Data stream of its messages on QUIC; 0 is the control stream.
    pub stream: u32,
    /// Priority that the broker is asked for.
    pub priority: Option<u16>,
}

/// A plan that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A placeholder cannot be filled.
    #[error(transparent)]
    Placeholder(#[from] PlaceholderError),
    /// A topic is invalid even with its placeholders filled.
    #[error("topic {topic:?}: {error}")]
    Topic {
        /// Topic as written.
        topic: String,
        /// Rule that the topic breaks.
        error: TopicError,
    },
    /// No topics or no filters.
    #[error("no topic: give one with -t or --topics-payload")]
    NoTopic,
}

impl PublishPlan {
    /// Plan for the topics of a file, with no headers, `-F 1`, no limit and no wait. `has_username` tells whether `%u`
    /// can be filled.
    ///
    /// # Errors
    /// An invalid placeholder or topic, or no topic.
    pub fn of_file(file: &TopicsFile, has_username: bool) -> Result<Self, PlanError> {
        let topics = file.topics.iter().map(|spec| {
            Ok(PublishedTopic {
                first: spec.interval,
                interval: spec.interval,
                qos: spec.qos,
                retain: spec.retain,
                payload: Payload::Spec(Box::new(spec.clone())),
                stream: spec.stream,
                priority: spec.stream_priority,
                template: TopicTemplate::parse(&spec.name, has_username)?,
                name: spec.name.clone(),
            })
        });
        Self::of(topics.collect::<Result<_, PlanError>>()?)
    }

    /// Plan for these topics, with no headers, `-F 1`, no limit and no wait.
    ///
    /// # Errors
    /// No topic.
    pub fn of(topics: Vec<PublishedTopic>) -> Result<Self, PlanError> {
        if topics.is_empty() {
            return Err(PlanError::NoTopic);
        }
        Ok(Self {
            topics,
            headers: PayloadHeaders::default(),
            inflight: 1,
            limit: 0,
            wait_for_all: false,
            workers: 0,
            random_wait: (Duration::ZERO, Duration::ZERO),
            resumes: false,
        })
    }
}

impl PublishedTopic {
    /// Topic of `-t`, with a payload of `-m` or `-s`, QoS 0, on the control stream.
    ///
    /// # Errors
    /// A placeholder that cannot be filled.
    pub fn new(
        name: &str,
        has_username: bool,
        interval: Duration,
        message: MessageTemplate,
        size: usize,
    ) -> Result<Self, PlanError> {
        Ok(Self {
            template: TopicTemplate::parse(name, has_username)?,
            name: name.to_owned(),
            first: Duration::ZERO,
            interval,
            qos: QoS::AtMostOnce,
            retain: false,
            payload: Payload::Message(message, size),
            stream: 0,
            priority: None,
        })
    }
}

impl SubscribedFilter {
    /// Filter on the control stream, without a priority.
    ///
    /// # Errors
    /// A placeholder that cannot be filled.
    pub fn new(filter: &str, has_username: bool, qos: QoS) -> Result<Self, PlanError> {
        Ok(Self { template: TopicTemplate::parse(filter, has_username)?, qos, stream: 0, priority: None })
    }
}
