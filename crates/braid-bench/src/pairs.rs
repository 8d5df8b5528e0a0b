//! Cost of streams: publishers and subscribers in pairs, small messages spread over topics and streams.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::message::{Delivery, Message, SharedMessage};
use braid_proto::packet::QoS;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicName;
use bytes::{Buf, BufMut, BytesMut};
use tokio::time::{Instant, timeout_at};

use crate::connection::{Connection, ConnectionEvent};
use crate::failure::{Failure, topic_filter, topic_name};
use crate::pace::Pace;
use crate::timer::TimerService;
use braid_measure::Latencies;

/// Topics of each pair for any number of streams, so that only the streams differ.
pub const TOPICS: u16 = 64;

/// Time after the measured period in which its last messages arrive; those that are later are missing.
const DRAIN: Duration = Duration::from_secs(2);

/// PairLoad of each pair.
#[derive(Clone, Copy, Debug)]
pub struct PairLoad {
    /// Streams of each connection, 1 to [`TOPICS`]; with 1 only the control stream. Links without data streams use the
    /// control stream for all.
    pub streams: u16,
    /// QoS of the messages and of the subscriptions.
    pub qos: QoS,
    /// Bytes of each payload, at least 16.
    pub size: usize,
    /// Schedule of the messages.
    pub drive: Drive,
}

/// Schedule of the messages.
#[derive(Clone, Copy, Debug)]
pub enum Drive {
    /// As many messages as keep this number of a pair inflight: closed loop.
    Saturated(u32),
    /// Messages per second and pair, independent of the answers: open loop.
    Paced(f64),
}

/// Measured period.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Start of publishing.
    pub start: Instant,
    /// Start of the measured period.
    pub from: Instant,
    /// End of the measured period and of publishing.
    pub to: Instant,
}

impl Window {
    /// Window of `warm_up` and then `measured`, from now.
    #[must_use]
    pub fn from_now(warm_up: Duration, measured: Duration) -> Self {
        let start = Instant::now();
        Self { start, from: start + warm_up, to: start + warm_up + measured }
    }

    fn holds(&self, at: Instant) -> bool {
        self.from <= at && at < self.to
    }
}

/// Measurements of one pair.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Latencies from publishing to arrival, of the messages that were published in the measured period; those that did
    /// not arrive or could not be queued are missing ones.
    pub latencies: Latencies,
    /// Messages that arrived in the measured period.
    pub delivered: u64,
    /// Delays of publishing, which are those of the generator. Paced only.
    pub lateness: Latencies,
}

impl Measured {
    /// Adds the measurements of another pair.
    pub fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        self.delivered += other.delivered;
        self.lateness.add(&other.lateness);
    }
}

/// One publisher and one subscriber with their subscriptions.
pub struct Pair {
    publisher: Connection,
    subscriber: Connection,
    load: PairLoad,
    topics: Vec<(TopicName, StreamKey)>,
    /// Measured period, of which [`Pair::run`] knows.
    window: Window,
    /// Schedule of an open loop.
    pace: Option<Pace>,
    sent: u64,
    arrived: u64,
    /// Messages of the measured period, those that could not be queued among them.
    due: u64,
    measured: Measured,
}

impl Pair {
    /// Opens the streams of two fresh connections and subscribes. `number` tells the
    /// pair from others of the same broker.
    ///
    /// # Errors
    /// A connection ended, or the server refuses the load.
    pub async fn set_up(
        mut publisher: Connection,
        mut subscriber: Connection,
        number: u32,
        load: PairLoad,
    ) -> Result<Self, Failure> {
        let streams = load.streams.clamp(1, TOPICS);
        let to_publish = open(&mut publisher, streams).await?;
        let to_subscribe = open(&mut subscriber, streams).await?;
        let mut topics = Vec::new();
        for (topic, place) in (0..TOPICS).zip((0..usize::from(streams)).cycle()) {
            let text = format!("bench/{number}/{topic}");
            subscriber.subscribe(to_subscribe[place], topic_filter(&text)?, load.qos)?;
            topics.push((topic_name(&text)?, to_publish[place]));
        }
        for (topic, _) in &topics {
            match subscriber.next().await? {
                ConnectionEvent::Subscribed(reason) if reason.is_error() => {
                    return Err(Failure::Refused { filter: topic.as_str().into(), reason });
                }
                ConnectionEvent::Subscribed(_) => {}
                _ => return Err(Failure::Stray(topic.as_str().into())),
            }
        }
        let (window, measured) = (Window::from_now(Duration::ZERO, Duration::ZERO), Measured::default());
        let (sent, arrived, due) = (0, 0, 0);
        Ok(Self { publisher, subscriber, load, topics, window, pace: None, sent, arrived, due, measured })
    }

    /// Publishes and receives until the window is over, and receives what is on its way.
    ///
    /// # Errors
    /// A connection ended, or a message is not one of this pair.
    pub async fn run(mut self, window: Window) -> Result<Measured, Failure> {
        self.window = window;
        if let Drive::Paced(rate) = self.load.drive {
            self.pace = Some(Pace::new(window.start, rate, &TimerService::coarse()));
        }
        let published = timeout_at(window.to, poll_fn(|cx| self.poll(cx))).await;
        published.unwrap_or(Ok(()))?;
        let drained = timeout_at(window.to + DRAIN, poll_fn(|cx| self.drain(cx))).await;
        drained.unwrap_or(Ok(()))?;
        let missing = self.due - self.measured.latencies.arrived();
        self.measured.latencies.record_missing(missing);
        Ok(self.measured)
    }

    /// Receives until every message has arrived.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            self.write(cx)?;
            let has_received = self.receive(cx)?;
            if self.arrived >= self.sent {
                return Poll::Ready(Ok(()));
            }
            if !has_received {
                return Poll::Pending;
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        loop {
            let has_published = self.publish_due(cx)?;
            let has_received = self.receive(cx)?;
            if Instant::now() >= self.window.to {
                return Poll::Ready(Ok(()));
            }
            if !(has_published || has_received) {
                return Poll::Pending;
            }
        }
    }

    fn publish_due(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let before = self.sent;
        while let Some(pace) = &mut self.pace
            && let Poll::Ready(due) = pace.poll_step(cx)
        {
            let now = Instant::now();
            if self.window.holds(now) {
                self.measured.lateness.record(now - due);
            }
            if !self.publish()? && self.window.holds(now) {
                self.due += 1;
            }
        }
        if let Drive::Saturated(most) = self.load.drive {
            let on_their_way = self.sent.saturating_sub(self.arrived);
            // Refilled when a quarter is free, at once, as a busy publisher would.
            let free =
                if on_their_way <= u64::from(most) * 3 / 4 { on_their_way..u64::from(most) } else { 0..0 };
            for _ in free {
                if !self.publish()? {
                    break;
                }
            }
        }
        self.write(cx)?;
        Ok(self.sent > before)
    }

    /// Takes acknowledgements, and writes the queued messages.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Failure> {
        while let Poll::Ready(event) = self.publisher.poll_next(cx) {
            drop(event?);
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<bool, Failure> {
        let place = usize::try_from(self.sent % u64::from(TOPICS)).unwrap_or_default();
        let (topic, stream) = &self.topics[place];
        let since = u64::try_from(self.window.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Number and time, then filling.
        let size = self.load.size.max(HEAD);
        let mut payload = BytesMut::with_capacity(size);
        payload.put_u64(self.sent);
        payload.put_u64(since);
        payload.resize(size, 0x5A);
        let message = SharedMessage::new(Message::new(topic.clone(), payload.freeze(), self.load.qos, false));
        let is_out = self.publisher.publish(Delivery { stream: *stream, ..Delivery::of(message) })?;
        self.sent += u64::from(is_out);
        self.due += u64::from(is_out && self.window.holds(self.window.start + Duration::from_nanos(since)));
        Ok(is_out)
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let before = self.arrived;
        // Pending also writes the acknowledgements of received messages.
        while let Poll::Ready(event) = self.subscriber.poll_next(cx) {
            let ConnectionEvent::Message(incoming) = event? else { continue };
            if let Some(token) = incoming.token {
                self.subscriber.acknowledge(token);
            }
            self.take(&incoming.message)?;
        }
        Ok(self.arrived > before)
    }

    fn take(&mut self, message: &Message) -> Result<(), Failure> {
        let mut payload = &message.payload[..];
        if payload.len() != self.load.size.max(HEAD) {
            return Err(Failure::Stray(message.topic.as_str().into()));
        }
        let (_number, since) = (payload.get_u64(), payload.get_u64());
        self.arrived += 1;
        let now = Instant::now();
        self.measured.delivered += u64::from(self.window.holds(now));
        let published = self.window.start + Duration::from_nanos(since);
        if self.window.holds(published) {
            self.measured.latencies.record(now.saturating_duration_since(published));
        }
        Ok(())
    }
}

/// The control stream, or this number of data streams.
async fn open(connection: &mut Connection, streams: u16) -> Result<Vec<StreamKey>, Failure> {
    if streams == 1 {
        return Ok(vec![StreamKey::CONTROL]);
    }
    let mut opened = Vec::new();
    for _ in 0..streams {
        opened.push(connection.open(Priority::DEFAULT).await?);
    }
    Ok(opened)
}

/// Bytes of number and time at the beginning of a payload.
const HEAD: usize = 16;
