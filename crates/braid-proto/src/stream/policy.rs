//! Policy that chooses stream and priority of a packet.

use std::num::NonZeroU32;

use crate::types::{Priority, QoS, TopicName};

/// Bytes of payload above which a message gets a stream of its own, unless a policy sets another limit.
const LARGE_PAYLOAD: usize = 256 * 1024;

/// Stream in a sender's plan, before the transport gives it a [`StreamKey`](super::StreamKey). It is opened by the
/// first packet on it, and again under another key after a reconnect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LogicalStream {
    /// The control stream.
    #[default]
    Control,
    /// Data stream with a number of the application.
    Numbered(NonZeroU32),
    /// Data stream of one lane: its number in the policy, and its priority.
    Lane(u16, Priority),
    /// Data stream for one message, which ends with its exchange.
    Own,
}

impl LogicalStream {
    /// Stream `number` of the application; 0 is the control stream.
    pub const fn numbered(number: u32) -> Self {
        match NonZeroU32::new(number) {
            Some(number) => Self::Numbered(number),
            None => Self::Control,
        }
    }
}

/// Packet to place on a stream. Acknowledgements are not placed: they go to the stream of their request. [BQ-14]
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// Any packet except PUBLISH: CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, AUTH, DISCONNECT.
    Session,
    /// PUBLISH.
    Message {
        /// Topic Name.
        topic: &'a TopicName,
        /// QoS.
        qos: QoS,
        /// Bytes.
        payload_len: usize,
    },
}

/// Decision of the application for one packet, which overrides the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Number of a stream, 0 for the control stream.
    pub stream: Option<u32>,
    /// Priority.
    pub priority: Option<Priority>,
}

/// Stream and priority of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Placement {
    /// Stream.
    pub stream: LogicalStream,
    /// Priority.
    pub priority: Priority,
}

/// Distribution of a client's packets over streams.
///
/// Under every policy, packets of the session go on the control stream; so does everything on a link without data
/// streams, where priorities still order the queue.
///
/// # Messages without a priority
///
/// The default policy has one data stream for each priority in use, including that of messages without one. On the
/// control stream such messages would delay urgent ones: it goes before all data streams [BQ-50]. They cannot leave it
/// when the first urgent message is sent either: the control stream would be full before it, and a topic that changes
/// its stream would lose its order. [`StreamPolicy::control`], which opens no data stream, is for clients without
/// urgent messages.
///
/// # Order
///
/// Messages of one topic keep their order if they have the same priority, the same QoS class (policy of QoS), and are
/// all large or all small: then they share a lane, or their own streams follow each other. A large message may be
/// overtaken by smaller ones of its topic that were published after it. [`StreamPolicy::without_own_streams`] prevents
/// that, and so does a stream that the application chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPolicy {
    spread: Spread,
    /// Bytes; `None`: no message gets a stream of its own.
    own_above: Option<usize>,
    default_priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spread {
    Control,
    Topics(u16),
    Priorities,
    Qos,
}

impl StreamPolicy {
    /// All packets on the control stream, as an ordinary MQTT client.
    pub const fn control() -> Self {
        Self { own_above: None, ..Self::of(Spread::Control) }
    }

    /// Each topic on one of `lanes` streams (at least 1), always the same: packet loss of one topic does not delay the
    /// others.
    pub const fn topics(lanes: u16) -> Self {
        Self::of(Spread::Topics(if lanes == 0 { 1 } else { lanes }))
    }

    /// One stream for each priority in use: the default.
    pub const fn priorities() -> Self {
        Self::of(Spread::Priorities)
    }

    /// QoS 1 and 2 on one stream, QoS 0 on another with a lower priority.
    pub const fn qos() -> Self {
        Self::of(Spread::Qos)
    }

    const fn of(spread: Spread) -> Self {
        Self { spread, own_above: Some(LARGE_PAYLOAD), default_priority: Priority::DEFAULT }
    }

    /// Gives each message with a payload of more than `bytes` a stream of its own, one step below its priority, so that
    /// small messages go first. 256 KiB by default.
    #[must_use]
    pub const fn own_stream_above(self, bytes: usize) -> Self {
        Self { own_above: Some(bytes), ..self }
    }

    /// Gives no message a stream of its own.
    #[must_use]
    pub const fn without_own_streams(self) -> Self {
        Self { own_above: None, ..self }
    }

    /// Sets the priority of messages without one.
    #[must_use]
    pub const fn default_priority(self, priority: Priority) -> Self {
        Self { default_priority: priority, ..self }
    }

    /// Stream and priority of a packet, a pure function of its arguments.
    pub fn place(&self, subject: Subject<'_>, choice: Choice) -> Placement {
        let chosen = choice.stream.map(LogicalStream::numbered);
        let Subject::Message { topic, qos, payload_len } = subject else {
            return Placement { stream: chosen.unwrap_or_default(), priority: Priority::HIGHEST };
        };
        let mut priority = choice.priority.unwrap_or(self.default_priority);
        if let Some(stream) = chosen {
            return Placement { stream, priority };
        }
        let yields = self.spread == Spread::Qos && qos == QoS::AtMostOnce;
        if yields && choice.priority.is_none() {
            priority = below(priority);
        }
        if self.own_above.is_some_and(|most| payload_len > most) {
            return Placement { stream: LogicalStream::Own, priority: below(priority) };
        }
        let stream = match self.spread {
            Spread::Control => LogicalStream::Control,
            Spread::Topics(lanes) => LogicalStream::Lane(lane_of(topic.as_str(), lanes), priority),
            Spread::Priorities => LogicalStream::Lane(0, priority),
            Spread::Qos => LogicalStream::Lane(u16::from(yields), priority),
        };
        Placement { stream, priority }
    }
}

impl Default for StreamPolicy {
    /// [`StreamPolicy::priorities`].
    fn default() -> Self {
        Self::priorities()
    }
}

const fn below(priority: Priority) -> Priority {
    Priority::new(priority.value().saturating_sub(1))
}

/// FNV-1a: the same on every machine and in every version.
fn lane_of(topic: &str, lanes: u16) -> u16 {
    let hash =
        topic.bytes().fold(0x811C_9DC5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    u16::try_from(hash % u32::from(lanes)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: usize = 100;
    const LARGE: usize = LARGE_PAYLOAD + 1;

    fn message(policy: StreamPolicy, topic: &str, qos: QoS, payload_len: usize, choice: Choice) -> Placement {
        let topic = TopicName::parse(topic).expect("a topic");
        policy.place(Subject::Message { topic: &topic, qos, payload_len }, choice)
    }

    fn plain(policy: StreamPolicy, payload_len: usize) -> Placement {
        message(policy, "t", QoS::AtLeastOnce, payload_len, Choice::default())
    }

    fn with_priority(priority: u16) -> Choice {
        Choice { priority: Some(Priority::new(priority)), ..Choice::default() }
    }

    fn placement(stream: LogicalStream, priority: u16) -> Placement {
        Placement { stream, priority: Priority::new(priority) }
    }

    const DEFAULT: u16 = Priority::DEFAULT.value();

    #[test]
    fn packets_of_the_session_stay_on_the_control_stream() {
        for policy in [StreamPolicy::control(), StreamPolicy::topics(8), StreamPolicy::default()] {
            let session = policy.place(Subject::Session, Choice::default());
            assert_eq!(session, placement(LogicalStream::Control, u16::MAX));
            let chosen = policy.place(Subject::Session, Choice { stream: Some(3), priority: None });
            assert_eq!(chosen, placement(LogicalStream::numbered(3), u16::MAX));
        }
    }

    /// [BQ-51]
    #[test]
    fn the_default_is_a_stream_for_each_priority_and_for_each_large_message() {
        let policy = StreamPolicy::default();
        assert_eq!(plain(policy, SMALL), placement(LogicalStream::Lane(0, Priority::DEFAULT), DEFAULT));
        let alarm = message(policy, "t", QoS::AtMostOnce, SMALL, with_priority(60_000));
        assert_eq!(alarm, placement(LogicalStream::Lane(0, Priority::new(60_000)), 60_000));
        assert_eq!(plain(policy, LARGE), placement(LogicalStream::Own, DEFAULT - 1));
        assert_eq!(plain(policy, LARGE_PAYLOAD).priority, Priority::DEFAULT);
        let lowest = message(policy, "t", QoS::AtMostOnce, LARGE, with_priority(0));
        assert_eq!(lowest, placement(LogicalStream::Own, 0));
    }

    #[test]
    fn the_choice_of_the_application_overrides_every_policy() {
        for policy in [StreamPolicy::control(), StreamPolicy::qos(), StreamPolicy::default()] {
            let choice = Choice { stream: Some(7), priority: Some(Priority::new(9)) };
            let chosen = message(policy, "t", QoS::AtMostOnce, LARGE, choice);
            assert_eq!(chosen, placement(LogicalStream::numbered(7), 9), "whatever its size");
            let on_control = Choice { stream: Some(0), priority: None };
            let chosen = message(policy, "t", QoS::AtMostOnce, SMALL, on_control);
            assert_eq!(chosen, placement(LogicalStream::Control, DEFAULT));
        }
    }

    #[test]
    fn a_topic_keeps_its_lane_in_every_version_of_this_program() {
        let lane = |topic: &str| {
            let placed = message(StreamPolicy::topics(8), topic, QoS::AtMostOnce, SMALL, Choice::default());
            let LogicalStream::Lane(lane, _) = placed.stream else { panic!("no lane, but {placed:?}") };
            lane
        };
        assert_eq!(["a", "b", "sensors/7/temperature", "door"].map(lane), [4, 5, 7, 1]);
        let used: std::collections::BTreeSet<_> = (0..100).map(|n| lane(&n.to_string())).collect();
        assert_eq!(used.len(), 8, "every lane is used");
        assert_eq!(StreamPolicy::topics(0), StreamPolicy::topics(1));
    }

    #[test]
    fn qos_0_yields_unless_its_priority_was_chosen() {
        let place = |qos, choice| message(StreamPolicy::qos(), "t", qos, SMALL, choice);
        let reliable = place(QoS::AtLeastOnce, Choice::default());
        assert_eq!(reliable, place(QoS::ExactlyOnce, Choice::default()));
        let lossy = place(QoS::AtMostOnce, Choice::default());
        assert!(lossy.priority < reliable.priority && lossy.stream != reliable.stream);
        assert_eq!(place(QoS::AtMostOnce, with_priority(9)).priority, Priority::new(9));
    }

    #[test]
    fn own_streams_and_the_default_priority_can_be_set() {
        let policy = StreamPolicy::default().default_priority(Priority::new(5));
        assert_eq!(plain(policy, SMALL).priority, Priority::new(5));
        assert_eq!(plain(policy.own_stream_above(10), 11), placement(LogicalStream::Own, 4));
        assert_eq!(plain(policy.without_own_streams(), LARGE), plain(policy, SMALL));
        assert_eq!(plain(StreamPolicy::control(), LARGE), placement(LogicalStream::Control, DEFAULT));
    }
}
