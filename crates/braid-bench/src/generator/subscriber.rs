//! Receiving side of one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use braid_proto::connection::Token;
use braid_proto::message::Message;
use braid_proto::packet::{SubscribeEntry, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::{Priority, StreamKey};
use braid_proto::topic::TopicFilter;
use tokio::time::Instant;

use super::client_identity::ClientIdentity;
use super::plan::{SubscribePlan, SubscribedFilter};
use super::shared::{MOST_TRACKED, Shared};
use super::statistics::{RouteId, RouteKey};
use super::{ClientTurn, TimestampField};
use crate::connection::{Connection, ConnectionEvent};
use crate::emqtt::{Counter, CounterOrder, CounterTrack, DurationHistogram, PayloadHeaders, failure_line};
use crate::failure::Failure;
use crate::summary::{HeadersSummary, Step};

/// User Property with the wanted priority of deliveries. [BQ-52]
const PRIORITY_PROPERTY: &str = "braid-priority";
/// Most events taken in one turn.
const EVENTS_PER_TURN: usize = 1024;

/// A client that subscribes.
#[derive(Debug)]
pub(super) struct Subscriber {
    shared: Arc<Shared>,
    filters: Vec<(TopicFilter, SubscribedFilter)>,
    headers: PayloadHeaders,
    timestamp: Option<TimestampField>,
    streams: Vec<Stream>,
    is_pipelined: bool,
    /// Filters requested on this connection, and those answered.
    asked: usize,
    answered: usize,
    refused: Option<ReasonCode>,
    /// Start of the connection attempt.
    since: Instant,
    /// True once its subscriptions were counted.
    is_counted: bool,
    /// Headers of all its messages.
    seen: HeadersSummary,
    has_complained: bool,
}

/// A stream of deliveries.
#[derive(Debug)]
struct Stream {
    number: u32,
    priority: Option<u16>,
    /// `None` while it is not open.
    key: Option<StreamKey>,
    topics: HashMap<Box<str>, TopicTrack>,
}

/// State of one topic of a stream.
#[derive(Debug)]
struct TopicTrack {
    route: RouteId,
    counters: CounterTrack,
    /// Receipt of its last message.
    last: Instant,
}

/// Place of a message among the others of its topic.
struct Routed {
    route: RouteId,
    /// Relation of its counter to the one before; `None` without a counter, and for a topic that is not tracked.
    order: Option<CounterOrder>,
    /// Time since the one before.
    gap: Option<Duration>,
}

impl Subscriber {
    /// Subscriber of a client. A filter that the client cannot subscribe to is left out.
    pub(super) fn new(shared: &Arc<Shared>, plan: &SubscribePlan, identity: &mut ClientIdentity) -> Self {
        let mut filters = Vec::with_capacity(plan.filters.len());
        for wanted in &plan.filters {
            let text = identity.fill(&wanted.template, shared.next_in_sequence());
            match TopicFilter::parse(&text) {
                Ok(filter) => filters.push((filter, wanted.clone())),
                Err(error) => {
                    let cause = format!("filter {text:?}: {error}");
                    shared.statistics.add_event(failure_line(identity.number, "subscribe", &cause));
                }
            }
        }
        Self {
            shared: Arc::clone(shared),
            filters,
            headers: plan.headers.clone(),
            timestamp: plan.timestamp.clone(),
            streams: Vec::new(),
            is_pipelined: plan.is_pipelined,
            asked: 0,
            answered: 0,
            refused: None,
            since: Instant::now(),
            is_counted: false,
            seen: HeadersSummary::default(),
            has_complained: false,
        }
    }

    /// Records the start of the attempt of the current connection.
    pub(super) fn set_start(&mut self, start: Instant) {
        self.since = start;
    }

    /// Subscriptions to send behind CONNECT.
    pub(super) fn early(&self) -> Vec<(SubscribeEntry, UserProperties)> {
        let all = self.filters.iter().filter(|_| self.is_pipelined);
        all.map(|(filter, wanted)| (SubscribeEntry::new(filter.clone(), wanted.qos), user_properties(wanted)))
            .collect()
    }

    /// Resets the state for a new connection, on which every filter is requested again.
    pub(super) fn begin(&mut self, connection: &Connection) {
        // Those that left behind CONNECT are answered as the others.
        let asked = if self.is_pipelined { self.filters.len() } else { 0 };
        (self.asked, self.answered, self.refused) = (asked, 0, None);
        self.streams.iter_mut().for_each(|stream| stream.key = None);
        for (_, wanted) in &mut self.filters {
            if !connection.is_multi() {
                wanted.stream = 0;
            }
            let (number, priority) = (wanted.stream, wanted.priority);
            match self.streams.iter_mut().find(|stream| stream.number == number) {
                // The highest of several priorities for one stream counts.
                Some(stream) => stream.priority = stream.priority.max(priority),
                None => self.streams.push(Stream { number, priority, key: None, topics: HashMap::new() }),
            }
        }
        for stream in &mut self.streams {
            if stream.number == 0 {
                stream.key = Some(StreamKey::CONTROL);
            }
        }
    }

    /// Number that the user gave a stream.
    pub(super) fn number(&self, key: StreamKey) -> u32 {
        self.streams.iter().find(|stream| stream.key == Some(key)).map_or(0, |stream| stream.number)
    }

    /// Sends missing SUBSCRIBE packets and takes events. Returns true if there may be more.
    pub(super) fn turn(&mut self, on: &mut ClientTurn<'_, '_>) -> Result<bool, Failure> {
        self.ask(on)?;
        let mut last: Option<Token> = None;
        for _ in 0..EVENTS_PER_TURN {
            let (from, event) = match on.connection.poll_next_from(on.cx)? {
                Poll::Ready(happened) => happened,
                Poll::Pending => {
                    let Some(token) = last.take() else { return Ok(false) };
                    // Acknowledges every earlier one too; the next turn writes that.
                    on.connection.acknowledge(token);
                    continue;
                }
            };
            match event {
                ConnectionEvent::Message(incoming) => {
                    self.receive(from, &incoming.message, on);
                    last = incoming.token.or(last);
                }
                ConnectionEvent::Subscribed(reason) => self.answer(1, reason, on),
                ConnectionEvent::StreamEnded(key, unanswered) => {
                    // Its subscriptions move to the control stream.
                    if let Some(stream) = self.streams.iter_mut().find(|stream| stream.key == Some(key)) {
                        stream.key = None;
                    }
                    self.answer(unanswered, ReasonCode::UnspecifiedError, on);
                }
                ConnectionEvent::Published(..) | ConnectionEvent::Unsubscribed => {}
            }
        }
        if let Some(token) = last {
            on.connection.acknowledge(token);
        }
        Ok(true)
    }

    /// Sends a SUBSCRIBE for each filter, in their order; one whose stream cannot be opened yet waits with those
    /// behind it.
    fn ask(&mut self, on: &mut ClientTurn<'_, '_>) -> Result<(), Failure> {
        while let Some((filter, wanted)) = self.filters.get(self.asked) {
            let place = self.streams.iter_mut().find(|stream| stream.number == wanted.stream);
            let Some(stream) = place else { return Ok(()) };
            let key = match stream.key {
                Some(key) => key,
                None => {
                    let priority = stream.priority.map_or(Priority::DEFAULT, Priority::new);
                    let Poll::Ready(opened) = on.connection.poll_open(priority, on.cx) else { return Ok(()) };
                    *stream.key.insert(opened?)
                }
            };
            let asked =
                on.connection.subscribe_with(key, filter.clone(), wanted.qos, user_properties(wanted));
            self.asked += 1;
            if let Err(failure) = asked {
                self.shared.statistics.add_event(failure_line(
                    on.identity.number,
                    "subscribe",
                    &failure.to_string(),
                ));
                self.answer(1, ReasonCode::UnspecifiedError, on);
            }
        }
        Ok(())
    }

    /// Counts the answers to filters.
    fn answer(&mut self, filters: usize, reason: ReasonCode, on: &mut ClientTurn<'_, '_>) {
        if filters == 0 {
            return;
        }
        self.answered += filters;
        if reason.is_error() {
            self.refused.get_or_insert(reason);
            self.shared.statistics.add_event(failure_line(
                on.identity.number,
                "subscribe",
                &reason.to_string(),
            ));
        }
        // Answers beyond the last one are those of streams that have ended.
        if self.answered < self.filters.len() || self.answered - filters >= self.filters.len() {
            return;
        }
        if self.refused.is_none() {
            let step = if self.is_counted { Step::Resubscribed } else { Step::Subscribed };
            on.shard.stepped(step, self.shared.statistics.second(Instant::now()), self.since.elapsed());
        }
        if !self.is_counted {
            self.is_counted = true;
            let counter = if self.refused.is_some() { Counter::SubFail } else { Counter::Sub };
            on.shard.count(counter, 1);
            let took = self.since.elapsed();
            on.shard.observe(DurationHistogram::Subscribe, took);
        }
    }

    fn receive(&mut self, from: StreamKey, message: &Message, on: &mut ClientTurn<'_, '_>) {
        let now = Instant::now();
        let second = self.shared.statistics.second(now);
        let headers = if is_json(&message.payload) {
            PayloadHeaders::default().read(&message.payload)
        } else {
            self.headers.read(&message.payload)
        };
        let (counter, stamped) = headers.as_ref().map_or((None, None), |read| (read.counter, read.sent));
        let sent = match (&self.timestamp, &headers) {
            (Some(field), Ok(headers)) => field.read(headers.body).or(stamped),
            _ => stamped,
        };
        let Routed { route, order, gap } = self.route(from, message.topic.as_str(), counter, now);
        on.shard.count(Counter::Recv, 1);
        let route = on.shard.route(route);
        if let Some(gap) = gap {
            route.gap(gap);
        }
        route.received(second, message.payload.len() as u64);
        match sent.map(|sent| self.shared.statistics.clock().unix(now).checked_sub(sent)) {
            Some(Some(latency)) => {
                route.latencies.record(latency);
                route
                    .was_due(self.shared.statistics.clock().unix(now).saturating_sub(latency), Some(latency));
                let millis = u64::try_from(latency.as_millis()).unwrap_or(u64::MAX);
                on.shard.count(Counter::PublishLatency, millis);
                on.shard.histograms.observe(DurationHistogram::EndToEnd, latency);
            }
            Some(None) => {
                self.seen.skewed += 1;
                on.shard.headers.skewed += 1;
            }
            None => {}
        }
        for headers in [&mut on.shard.headers, &mut self.seen] {
            match (order, counter) {
                (Some(order), _) => headers.follow(order),
                (None, Some(_)) => headers.skip_check(),
                (None, None) => {}
            }
        }
        if let (Err(error), false) = (headers, self.has_complained) {
            self.has_complained = true;
            self.shared.statistics.add_event(failure_line(on.identity.number, "payload", &error.to_string()));
        }
    }

    fn route(&mut self, from: StreamKey, topic: &str, counter: Option<u64>, now: Instant) -> Routed {
        // Messages of a stream whose end was reported belong to the first one.
        let at = self.streams.iter().position(|stream| stream.key == Some(from)).unwrap_or_default();
        let Some(stream) = self.streams.get_mut(at) else {
            let key = RouteKey { topic: topic.to_owned(), stream: 0, priority: None };
            return Routed { route: self.shared.statistics.route(key), order: None, gap: None };
        };
        if let Some(track) = stream.topics.get_mut(topic) {
            let gap = now.saturating_duration_since(track.last);
            track.last = now;
            let order = counter.map(|counter| track.counters.observe(counter));
            return Routed { route: track.route, order, gap: Some(gap) };
        }
        let key =
            RouteKey { topic: topic.to_owned(), stream: stream.number.into(), priority: stream.priority };
        let route = self.shared.statistics.route(key);
        if !self.shared.track_topic() {
            return Routed { route, order: None, gap: None };
        }
        let mut counters = CounterTrack::default();
        let order = counter.map(|counter| counters.observe(counter));
        stream.topics.insert(topic.into(), TopicTrack { route, counters, last: now });
        Routed { route, order, gap: None }
    }

    /// Records at the end what the headers showed of order and of the clocks.
    pub(super) fn report_order(&self, identity: &ClientIdentity) {
        let HeadersSummary { skipped, not_above, skewed, unchecked, .. } = self.seen;
        let number = identity.number;
        if skewed > 0 {
            let what = format!(
                "client({number}): {skewed} messages came before they were sent: set the clocks alike"
            );
            self.shared.statistics.add_event(what);
        }
        if unchecked > 0 {
            let what = format!(
                "client({number}): {unchecked} messages of topics beyond the first {MOST_TRACKED} of the run: their \
                 cnt64 was not checked"
            );
            self.shared.statistics.add_event(what);
        }
        if skipped > 0 || not_above > 0 {
            let what =
                format!("client({number}): cnt64 skipped {skipped} and did not rise {not_above} times");
            self.shared.statistics.add_event(what);
        }
    }
}

fn user_properties(wanted: &SubscribedFilter) -> UserProperties {
    let priority = wanted.priority.map(|priority| priority.to_string());
    priority.into_iter().map(|value| (PRIORITY_PROPERTY, value)).collect()
}

/// True for JSON of a topics file, which has no headers. No counter and no time begins like this before it has 63 bits.
fn is_json(payload: &[u8]) -> bool {
    payload.first() == Some(&b'{')
}
