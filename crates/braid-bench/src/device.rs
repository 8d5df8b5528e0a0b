//! Load of a device: alarms at a rate, and recordings one after the other, of one client that is `braid-client` with
//! all it does when the network changes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::time::Duration;

use braid_client::{Builder, Client, ConnectionEvent, Error, Priority, Publication, QoS, Reconnect};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock::Clock;
use crate::failure::{Failure, topic_name};
use crate::pace::Pace;
use crate::summary::{ConnectionsSummary, Event, Role, RunSummary, Trace};
use crate::tally::Tally;
use crate::timer::TimerService;

/// Priority of alarms.
const URGENT: Priority = Priority::new(200);
/// Time beyond the patience in which the client closes.
const CLOSE: Duration = Duration::from_secs(5);
/// Most events that are kept.
const EVENTS: usize = 1000;

/// Messages that are published.
#[derive(Clone, Debug)]
pub struct DeviceLoad {
    /// Topic of alarms.
    pub topic: String,
    /// Alarms per second, above 0.
    pub rate: f64,
    /// Bytes of a recording; `None`: there are none.
    pub recording: Option<usize>,
    /// Recordings after which the run ends; `None`: it lasts for its duration.
    pub recordings: Option<u64>,
    /// Duration of the run.
    pub duration: Duration,
    /// Time after it in which what was published may still be acknowledged.
    pub patience: Duration,
    /// Time between two changes of the transport that the client is asked for; `None`: it chooses alone.
    pub change_every: Option<Duration>,
    /// Whether the times of single alarms are kept.
    pub trace: bool,
}

/// Events of the client, counted.
#[derive(Debug, Default)]
struct Connections {
    counters: BTreeMap<String, u64>,
    events: Vec<Event>,
}

/// Outcome of an alarm.
#[derive(Debug)]
struct Answer {
    due: Instant,
    is_acknowledged: bool,
    /// Time of the acknowledgement, or of the failure.
    at: Instant,
}

/// Runs the load. Alarms have QoS 1 and a payload `{"timestamp": MICROSECONDS, "number": N}`; their latency is that
/// from the due time to PUBACK. Recordings have QoS 1 and the topic of alarms with `/recording` behind it; their
/// latency is that from their beginning, whatever happens to connections in between. `tell` gets each event at once.
///
/// The run ends early when `stop` completes. An alarm for which the send queue has no room until the end has failed, as
/// have those that were due behind it.
///
/// # Errors
/// The options of the client are invalid, or it is closed by an error that no reconnect cures; or there was no
/// connection, and no alarm was due.
pub async fn run(
    load: &DeviceLoad,
    builder: Builder,
    stop: impl Future<Output = ()>,
    mut tell: impl FnMut(&Event),
) -> Result<RunSummary, Failure> {
    topic_name(&load.topic)?;
    let clock = Clock::now();
    // The first attempt is repeated as all others: a device is switched on where there is no network, too.
    let reconnect =
        Reconnect::Backoff { initial: Duration::from_millis(200), maximum: Duration::from_secs(5) };
    let (client, messages) = builder.reconnect(reconnect).start()?;
    drop(messages);
    let end = clock.start() + load.duration;
    let mut tally = Tally::default();
    tally.counts.trace = load.trace.then(Trace::default);
    let mut connections = Connections::default();
    let (acknowledged, mut answers) = mpsc::unbounded_channel::<Answer>();
    let device = &client;
    let (over, is_over) = watch::channel(false);
    let stopped_at = Cell::new(None);
    let stopping = async {
        stop.await;
        stopped_at.set(Some(Instant::now()));
        over.send_replace(true);
        pending().await
    };
    let recorder_over = over_at(end, is_over.clone());
    let recordings = async {
        let recorded = publish_recordings(device, load, &clock, recorder_over).await;
        if load.recordings.is_some() {
            over.send_replace(true);
        }
        recorded
    };
    let alarms = publish_alarms(device, load, &clock, end, is_over, acknowledged);
    let collect = async {
        let mut last = clock.start();
        let mut longest = Duration::ZERO;
        let mut unacknowledged = Vec::new();
        while let Some(Answer { due, is_acknowledged, at }) = answers.recv().await {
            if !is_acknowledged {
                tally.counts.failed += 1;
                unacknowledged.push(due);
                continue;
            }
            tally.acknowledged(clock.second(at), 1, 0);
            tally.latencies.record(at.saturating_duration_since(due));
            tally.was_due(clock.unix(due), Some(at.saturating_duration_since(due)));
            longest = longest.max(at.saturating_duration_since(last));
            last = at;
        }
        // Behind those with a duration, as the places of durations are those of due times.
        unacknowledged.into_iter().for_each(|due| tally.was_due(clock.unix(due), None));
        let end = stopped_at.get().map_or(end, |stopped| end.min(stopped));
        longest.max(end.min(Instant::now()).saturating_duration_since(last))
    };
    let publish = async {
        let (sent, recorded) = tokio::join!(alarms, recordings);
        // The client's own limit comes first, and fails what is not acknowledged by then.
        let closed = timeout(load.patience + CLOSE, device.disconnect()).await.unwrap_or(Ok(()));
        Ok::<_, Failure>((sent?, recorded?, closed))
    };
    let run = async { tokio::join!(publish, collect) };
    let (published, longest) = tokio::select! {
        ended = run => ended,
        () = connections.follow(&client, &clock, &mut tell) => return Err(Error::Closed.into()),
        () = change_transport(device, load.change_every) => return Err(Error::Closed.into()),
        () = stopping => return Err(Error::Closed.into()),
    };
    if let Some(at) = stopped_at.get() {
        connections.note(&clock, at, "stopped before the end".to_owned(), &mut tell);
    }
    let (sent, recorded, closed) = published?;
    match closed {
        // Alarms that were not acknowledged are a result.
        Err(error) if sent > 0 => {
            let what = format!("without a connection at the end: {error}");
            connections.note(&clock, Instant::now(), what, &mut tell);
        }
        closed => closed?,
    }
    tally.counts.sent = sent;
    tally.latencies.record_missing(sent.saturating_sub(tally.latencies.arrived()));
    let mut counters = connections.counters;
    counters.insert("recordings".to_owned(), recorded.as_ref().map_or(0, |tally| tally.counts.acked));
    counters.insert("longest_gap_ms".to_owned(), u64::try_from(longest.as_millis()).unwrap_or(u64::MAX));
    let established = counters.get("connected").copied().unwrap_or_default();
    Ok(RunSummary {
        counters,
        connections: ConnectionsSummary { wanted: 1, established, ..ConnectionsSummary::default() },
        topics: std::iter::once(tally.summary(load.topic.clone(), 0, None))
            .chain(recorded.map(|tally| tally.summary(recording_topic(load), 0, None)))
            .collect(),
        events: connections.events,
        ..RunSummary::new(Role::Pub, &clock, clock.start().elapsed().as_secs_f64())
    })
}

/// Completes at `end`, or when the run is over before.
async fn over_at(end: Instant, mut is_over: watch::Receiver<bool>) {
    tokio::select! {
        () = sleep_until(end) => {}
        // The sender is there for as long as the run.
        _ = is_over.wait_for(|is_over| *is_over) => {}
    }
}

/// Changes the transport again and again, if that is wanted. Never ready.
async fn change_transport(client: &Client, every: Option<Duration>) {
    let Some(every) = every else { return pending().await };
    loop {
        sleep(every).await;
        // Without a connection there is nothing to move.
        let _ = client.change_transport().await;
    }
}

/// Publishes alarms when they are due, until `end` or until the run is over; returns the number of those that were due.
/// `answers` gets one answer for each.
async fn publish_alarms(
    client: &Client,
    load: &DeviceLoad,
    clock: &Clock,
    end: Instant,
    is_over: watch::Receiver<bool>,
    answers: mpsc::UnboundedSender<Answer>,
) -> Result<u64, Failure> {
    let topic = topic_name(&load.topic)?;
    let alarm = Publication::new(topic, Bytes::new()).qos(QoS::AtLeastOnce).priority(URGENT);
    let mut pace = Pace::new(clock.start(), load.rate, &TimerService::coarse());
    let mut number = 0_u64;
    let mut over = pin!(over_at(end, is_over));
    // The receiver of `answers` is there for as long as the run.
    let fail = |due| drop(answers.send(Answer { due, is_acknowledged: false, at: Instant::now() }));
    loop {
        let due = tokio::select! {
            due = poll_fn(|cx| pace.poll_step(cx)) => due,
            () = &mut over => break,
        };
        if due >= end {
            break;
        }
        number += 1;
        let micros = clock.unix(due).as_micros();
        let payload = format!("{{\"timestamp\": {micros}, \"number\": {number}}}");
        let queued = tokio::select! {
            queued = client.enqueue(alarm.clone().payload(payload)) => queued?,
            () = &mut over => {
                fail(due);
                break;
            }
        };
        let answers = answers.clone();
        tokio::spawn(async move {
            let is_acknowledged = queued.await.is_ok();
            let _ = answers.send(Answer { due, is_acknowledged, at: Instant::now() });
        });
    }
    for due in pace.overdue(end.min(Instant::now())) {
        number += 1;
        fail(due);
    }
    Ok(number)
}

/// Publishes recordings one after the other, until `over` completes, or as many as the load has.
async fn publish_recordings(
    client: &Client,
    load: &DeviceLoad,
    clock: &Clock,
    over: impl Future<Output = ()>,
) -> Result<Option<Tally>, Failure> {
    let Some(size) = load.recording else { return Ok(None) };
    let topic = topic_name(&recording_topic(load))?;
    let recording = Publication::new(topic, vec![0xB5; size]).qos(QoS::AtLeastOnce);
    let mut tally = Tally::default();
    let mut over = pin!(over);
    while load.recordings.is_none_or(|most| tally.counts.acked < most) {
        let begun = Instant::now();
        tally.counts.sent += 1;
        tokio::select! {
            () = &mut over => {
                tally.latencies.record_missing(1);
                break;
            }
            outcome = client.publish(recording.clone()) => {
                outcome?;
                tally.acknowledged(clock.second(Instant::now()), 1, size as u64);
                tally.latencies.record(begun.elapsed());
            }
        }
    }
    Ok(Some(tally))
}

fn recording_topic(load: &DeviceLoad) -> String {
    format!("{}/recording", load.topic)
}

impl Connections {
    /// Counts events, and tells them, until the client is closed by itself.
    async fn follow(&mut self, client: &Client, clock: &Clock, tell: &mut impl FnMut(&Event)) {
        let mut events = client.events();
        while let Some(event) = events.recv().await {
            let (name, what) = match event {
                ConnectionEvent::Connected { transport, session_present, .. } => {
                    *self.counters.entry(format!("over_{transport}")).or_default() += 1;
                    ("connected", format!("connected over {transport}, session present: {session_present}"))
                }
                ConnectionEvent::Continued { topic, offset, size } => {
                    ("continued", format!("the message to {topic} goes on at byte {offset} of {size}"))
                }
                ConnectionEvent::Moving { to, reason } => ("moves", format!("moving to {to}: {reason}")),
                ConnectionEvent::Disconnected { error, .. } => {
                    ("disconnects", format!("disconnected: {error}"))
                }
                _ => continue,
            };
            *self.counters.entry(name.to_owned()).or_default() += 1;
            self.note(clock, Instant::now(), what, tell);
        }
        // The end of a run that goes on elsewhere.
        pending().await
    }

    /// Tells an event, and keeps it unless there are many.
    fn note(&mut self, clock: &Clock, at: Instant, what: String, tell: &mut impl FnMut(&Event)) {
        let event = Event { at: at.saturating_duration_since(clock.start()).as_secs_f64(), what };
        tell(&event);
        if self.events.len() < EVENTS {
            self.events.push(event);
        }
    }
}
