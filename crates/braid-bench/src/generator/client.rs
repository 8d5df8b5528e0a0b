//! The life of one client: its connections one after the other, and what it does on them.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use braid_proto::connection::Cause;
use braid_proto::error::Violation;
use braid_proto::session::Session;
use braid_transport::ConnectTimes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Work;
use super::board::Tally;
use super::publisher::Publisher;
use super::shared::Shared;
use super::subscriber::Subscriber;
use super::who::Who;
use crate::alarm::Ring;
use crate::connection::Connection;
use crate::emqtt::{Counter, DurationHistogram, disconnected_line, exit_line, failure_line};
use crate::failure::Failure;

/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// Turns of one poll, before other clients of the thread have theirs.
const TURNS: usize = 16;

/// One client from its first connection to its last.
pub(super) struct Client {
    shared: Arc<Shared>,
    who: Who,
    worker: Worker,
    stop: watch::Receiver<bool>,
    /// Of the connection that ended.
    session: Option<Session>,
    /// Connections that were established.
    lives: u32,
    /// Of `--reconnect`, those that were begun.
    returns: u32,
    has_settled: bool,
}

enum Worker {
    Publisher(Box<Publisher>),
    Subscriber(Box<Subscriber>),
    Idle,
}

/// Why a connection is over.
enum End {
    /// The run is.
    Stopped,
    /// There is nothing to do any more.
    Done,
    Failed(Failure),
}

impl Client {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        let mut who = Who::new(&shared.plan.clients, number, shared.dialer.local(number));
        let worker = match &shared.plan.work {
            Work::Publish(plan) => Worker::Publisher(Box::new(Publisher::new(&shared, plan, &mut who))),
            Work::Subscribe(plan) => Worker::Subscriber(Box::new(Subscriber::new(&shared, plan, &mut who))),
            Work::Connect => Worker::Idle,
        };
        let stop = shared.stop.subscribe();
        Self { shared, who, worker, stop, session: None, lives: 0, returns: 0, has_settled: false }
    }

    /// Until the run is over, or there is nothing to do any more, or the client gives up.
    pub(super) async fn live(mut self) {
        let retries = self.shared.plan.clients.retries;
        loop {
            // In a box of its own: what connecting takes is not kept by thousands of connections.
            let connected = Box::pin(self.connect()).await;
            if self.lives == u32::from(connected.is_some()) {
                self.shared.arrived();
            }
            let Some(mut connection) = connected else {
                if self.lives > 0 {
                    self.settle();
                    let last_due = self.last_due(Instant::now()).await;
                    self.give_up(last_due);
                }
                break;
            };
            self.shared.board.client_came();
            let end = self.work(&mut connection).await;
            let ended_at = Instant::now();
            self.shared.board.client_left();
            let Some(connection) = self.conclude(connection, end, ended_at).await else {
                self.give_up(ended_at);
                self.settle();
                return;
            };
            self.keep_session(connection);
            if self.returns == retries.reconnect {
                self.settle();
                let last_due = self.last_due(ended_at).await;
                self.give_up(last_due);
                return;
            }
            self.returns += 1;
            if !self.pause(retries.pause).await {
                break;
            }
        }
        self.give_up(Instant::now());
        self.settle();
    }

    // -- Connecting --------------------------------------------------------------------------------

    /// `None`: the run is over, or no attempt came to anything.
    async fn connect(&mut self) -> Option<Connection> {
        let retries = self.shared.plan.clients.retries;
        let mut attempts = 0;
        loop {
            let start = Instant::now();
            let mut stop = self.stop.clone();
            let outcome = tokio::select! {
                biased;
                () = stopped(&mut stop) => return None,
                outcome = self.attempt() => outcome,
            };
            let cause = match outcome {
                Ok((connection, times)) => {
                    self.note_established(&connection, start, times);
                    return Some(connection);
                }
                Err(cause) => cause,
            };
            if attempts == retries.connect && self.lives > 0 && self.returns < retries.reconnect {
                (attempts, self.returns) = (0, self.returns + 1);
            } else if attempts < retries.connect {
                attempts += 1;
            } else {
                self.shared.board.tally().count(Counter::ConnectFail, 1);
                self.shared.board.tell(failure_line(self.who.number, "connect", &cause));
                return None;
            }
            self.shared.board.tally().count(Counter::ConnectRetried, 1);
            if !self.pause(retries.pause).await {
                return None;
            }
        }
    }

    /// The error is in words.
    async fn attempt(&mut self) -> Result<(Connection, ConnectTimes), String> {
        let Self { shared, who, session, .. } = self;
        let clients = &shared.plan.clients;
        let (link, times) = shared.dialer.dial(who.number).await.map_err(|error| {
            if let Some(counter) = error.quic_counter().filter(|_| shared.dialer.is_quic(who.number)) {
                shared.board.tally().count(counter, 1);
            }
            error.to_string()
        })?;
        if !clients.clean_start {
            // What the server has kept of an earlier run is gone on with.
            session.get_or_insert_default();
        }
        let connected = Connection::resume(link, who.connect(clients), session).await;
        Ok((connected.map_err(|failure| failure.to_string())?, times))
    }

    fn note_established(&mut self, connection: &Connection, start: Instant, times: ConnectTimes) {
        let mut tally = self.shared.board.tally();
        tally.established(start.elapsed());
        let counter = if self.lives == 0 { Counter::ConnectSucc } else { Counter::ReconnectSucc };
        tally.count(counter, 1);
        if let Some(tcp) = times.tcp {
            tally.histograms.observe(DurationHistogram::TcpHandshake, tcp);
        }
        if let Some(secured) = times.secured {
            tally.histograms.observe(DurationHistogram::Handshake, secured);
        }
        drop(tally);
        self.lives += 1;
        match &mut self.worker {
            Worker::Subscriber(subscriber) => subscriber.set_start(start),
            Worker::Publisher(publisher) if !connection.session_present() => {
                publisher.lose_flights(&mut self.shared.board.tally());
            }
            Worker::Publisher(_) | Worker::Idle => {}
        }
    }

    /// Until when messages are due of a client that has ended at `ended_at` and does not come back: a run with a
    /// duration asked for load until then.
    async fn last_due(&mut self, ended_at: Instant) -> Instant {
        if self.shared.plan.ending.after.is_none() {
            return ended_at;
        }
        stopped(&mut self.stop).await;
        Instant::now()
    }

    /// `false`: the run is over.
    async fn pause(&mut self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = stopped(&mut self.stop) => false,
            () = sleep(pause) => true,
        }
    }

    // -- Working -----------------------------------------------------------------------------------

    async fn work(&mut self, connection: &mut Connection) -> End {
        match &mut self.worker {
            Worker::Publisher(publisher) => publisher.resume(connection),
            Worker::Subscriber(subscriber) => subscriber.begin(connection),
            Worker::Idle => {}
        }
        let mut ring = None;
        let mut leave: Pin<Box<dyn Future<Output = ()> + Send>> = match &self.worker {
            Worker::Publisher(publisher) if !publisher.has_begun() => {
                let wait = match &self.shared.plan.work {
                    Work::Publish(plan) => self.who.between(plan.random_wait),
                    Work::Subscribe(_) | Work::Connect => Duration::ZERO,
                };
                Box::pin(may_begin(self.shared.gate.subscribe(), wait))
            }
            _ => Box::pin(pending()),
        };
        loop {
            let turns =
                poll_fn(|cx| turns(&self.shared, &mut self.worker, &mut self.who, connection, &mut ring, cx));
            let ended = tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return End::Stopped,
                () = &mut leave => None,
                ended = turns => Some(ended),
            };
            match ended {
                None => {
                    leave = Box::pin(pending());
                    if let Worker::Publisher(publisher) = &mut self.worker {
                        publisher.begin(connection);
                    }
                }
                Some(Err(failure)) => return End::Failed(failure),
                Some(Ok(())) => {
                    self.settle();
                    if !self.shared.plan.ending.keep_connected {
                        return End::Done;
                    }
                    self.worker = Worker::Idle;
                }
            }
        }
    }

    /// The client will publish nothing any more. Told once.
    fn settle(&mut self) {
        if !self.has_settled {
            self.has_settled = true;
            self.shared.settled();
        }
    }

    // -- The end -----------------------------------------------------------------------------------

    /// Says goodbye if it was us who ended it, or tells why it ended; then the connection is for its session only.
    async fn conclude(
        &mut self,
        mut connection: Connection,
        end: End,
        ended_at: Instant,
    ) -> Option<Connection> {
        let End::Failed(failure) = end else {
            connection.disconnect();
            let _ = timeout(GOODBYE, poll_fn(|cx| connection.poll_close(cx))).await;
            // What the goodbye has still written has left.
            self.count_written(&mut connection, ended_at);
            return None;
        };
        self.count_written(&mut connection, ended_at);
        let number = self.who.number;
        let board = &self.shared.board;
        board.tell(match &failure {
            Failure::Ended(Cause::Disconnected(reason)) => disconnected_line(number, reason.value()),
            Failure::Ended(Cause::Violation(Violation::PingrespTimeout)) => {
                exit_line(number, "keepalive_timeout")
            }
            Failure::Ended(Cause::Lost | Cause::Closed(_)) => exit_line(number, "closed"),
            Failure::Link(error) if connection.is_multi() && error.kind() == std::io::ErrorKind::TimedOut => {
                board.tally().count(Counter::ConnectionIdle, 1);
                exit_line(number, "connection_idle")
            }
            Failure::Link(_) => exit_line(number, "closed"),
            other => exit_line(number, &other.to_string()),
        });
        Some(connection)
    }

    /// Of a connection that ended at `ended_at`: what the link has not taken is lost.
    fn count_written(&mut self, connection: &mut Connection, ended_at: Instant) {
        let mut tally = self.shared.board.tally();
        if let Worker::Publisher(publisher) = &mut self.worker {
            publisher.lose_unwritten(connection, ended_at, &mut tally);
        }
        note_traffic(&self.worker, connection, self.shared.board.second(ended_at), &mut tally);
    }

    /// With a session that ends with its connection, all that is not acknowledged is lost.
    fn keep_session(&mut self, connection: Connection) {
        if !self.shared.plan.clients.clean_start {
            self.session = connection.into_session();
        }
        if self.session.is_none()
            && let Worker::Publisher(publisher) = &mut self.worker
        {
            publisher.lose_flights(&mut self.shared.board.tally());
        }
    }

    /// Counts what will never leave or arrive. Counts it once: then nothing of it is left.
    fn give_up(&mut self, at: Instant) {
        match &mut self.worker {
            Worker::Publisher(publisher) => {
                let mut tally = self.shared.board.tally();
                publisher.lose_flights(&mut tally);
                publisher.lose_overdue(at, &mut tally);
            }
            Worker::Subscriber(subscriber) => subscriber.tell_order(&self.who),
            Worker::Idle => {}
        }
        self.worker = Worker::Idle;
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The run is gone, and we are about to be.
        pending::<()>().await;
    }
}

/// Ready when publishing may begin.
async fn may_begin(mut gate: watch::Receiver<bool>, wait: Duration) {
    if gate.wait_for(|open| *open).await.is_err() {
        pending::<()>().await;
    }
    if !wait.is_zero() {
        sleep(wait).await;
    }
}

/// Turns of a worker until nothing moves. Ready when the connection has ended, or the worker has nothing to do any more.
fn turns(
    shared: &Shared,
    worker: &mut Worker,
    who: &mut Who,
    connection: &mut Connection,
    ring: &mut Option<Ring>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Failure>> {
    let mut tally = shared.board.tally();
    for _ in 0..TURNS {
        let (has_moved, next) = match worker {
            Worker::Publisher(publisher) => {
                let turn = publisher.turn(connection, who, &mut tally, cx)?;
                (turn.has_moved, turn.next)
            }
            Worker::Subscriber(subscriber) => (subscriber.turn(connection, who, &mut tally, cx)?, None),
            Worker::Idle => (connection.poll_next(cx)?.is_ready(), None),
        };
        if has_moved {
            continue;
        }
        note_traffic(worker, connection, shared.board.second(Instant::now()), &mut tally);
        if let Worker::Publisher(publisher) = worker
            && publisher.is_settled()
        {
            return Poll::Ready(Ok(()));
        }
        let Some(next) = next else { return Poll::Pending };
        let ring = ring.get_or_insert_with(|| shared.alarm.at(next));
        ring.set(next);
        if Pin::new(ring).poll(cx).is_pending() {
            return Poll::Pending;
        }
    }
    note_traffic(worker, connection, shared.board.second(Instant::now()), &mut tally);
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// What the link took from a publisher, what it brought to the others.
fn note_traffic(worker: &Worker, connection: &mut Connection, second: usize, tally: &mut Tally) {
    connection.take_traffic(|key, written, read| match worker {
        Worker::Publisher(publisher) => tally.moved(publisher.number(key).into(), second, written),
        Worker::Subscriber(subscriber) => tally.moved(subscriber.number(key).into(), second, read),
        Worker::Idle => tally.moved(0, second, written + read),
    });
}
