use std::time::Duration;

use braid_proto::packet::RESUME_PROPERTY;
use braid_transport::ConnectTimes;
use tokio::time::{Instant, sleep};

use super::{Client, Worker};
use crate::connection::Connection;
use crate::emqtt::{Counter, failure_line};
use crate::generator::shared::{Phase, reached};
use crate::generator::{PublishPlan, Work};
use crate::summary::Step;

impl Client {
    /// Connects. `None`: the run is over, or every attempt failed.
    pub(super) async fn connect(&mut self) -> Option<Connection> {
        let retries = self.shared.plan.clients.retries;
        let mut attempts = 0;
        let needless = self.needless();
        loop {
            let start = Instant::now();
            let mut phase = self.phase.clone();
            let outcome = tokio::select! {
                biased;
                _ = reached(&mut phase, needless) => return None,
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
                self.note_refused(&cause);
                return None;
            }
            self.shared.statistics.shard().count(Counter::ConnectRetried, 1);
            if !self.pause(retries.pause).await {
                return None;
            }
        }
    }

    /// Tries once; the error is a text.
    async fn attempt(&mut self) -> Result<(Connection, ConnectTimes), String> {
        match self.attempt_with(None).await {
            Err((_, true)) => self.attempt_with(Some(false)).await.map_err(|(cause, _)| cause),
            outcome => outcome.map_err(|(cause, _)| cause),
        }
    }

    /// Tries once, `early` as in [`Dialer::attempt`](crate::Dialer). The error says whether the server has refused the
    /// early data, so that nothing of the attempt has reached it.
    async fn attempt_with(
        &mut self,
        early: Option<bool>,
    ) -> Result<(Connection, ConnectTimes), (String, bool)> {
        let Self { shared, identity, session, own, worker, .. } = self;
        let clients = &shared.plan.clients;
        let link = shared.dialer.dial_resuming(identity.number, own.as_ref(), early).await;
        let (link, times) = link.map_err(|error| {
            let is_quic = shared.dialer.is_quic(identity.number);
            if let Some(counter) = error.quic_counter().filter(|_| is_quic) {
                shared.statistics.shard().count(counter, 1);
            }
            (error.to_string(), false)
        })?;
        if !clients.clean_start {
            // A session that the server kept from an earlier run is continued.
            session.get_or_insert_default();
        }
        let early = match worker {
            Worker::Subscriber(subscriber) => subscriber.early(),
            Worker::Publisher(_) | Worker::Idle => Vec::new(),
        };
        let mut connect = identity.connect(clients);
        if let Work::Publish(PublishPlan { resumes: true, .. }) = &shared.plan.work {
            connect.properties.user.push(RESUME_PROPERTY, "1"); // [BQ-95]
        }
        let connected = Connection::resume_subscribing(link, connect, session, early).await;
        let mut connection =
            connected.map_err(|failure| (failure.to_string(), failure.is_early_data_rejected()))?;
        if let Some(interval) = clients.ping {
            connection.ping_every(interval);
        }
        Ok((connection, times))
    }

    /// Phase of the run from which this client needs no connection.
    fn needless(&self) -> Phase {
        match &self.worker {
            Worker::Publisher(publisher)
                if publisher.has_nothing_pending() && !self.shared.plan.ending.keep_connected =>
            {
                Phase::Spent
            }
            _ => Phase::Over,
        }
    }

    /// Records that the client has given up.
    fn note_refused(&self, cause: &str) {
        let mut shard = self.shared.statistics.shard();
        shard.count(Counter::ConnectFail, 1);
        if self.lives == 0 && matches!(self.worker, Worker::Subscriber(_)) {
            shard.count(Counter::SubFail, 1);
        }
        drop(shard);
        self.shared.statistics.add_event(failure_line(self.identity.number, "connect", cause));
    }

    fn note_established(&mut self, connection: &Connection, start: Instant, times: ConnectTimes) {
        let mut shard = self.shared.statistics.shard();
        let after = start.elapsed();
        let transport = connection.transport();
        shard.connected(after, times, transport);
        if self.shared.dialer.has_alternative() {
            shard.chosen(transport);
        }
        let counter = if self.lives == 0 { Counter::ConnectSucc } else { Counter::ReconnectSucc };
        shard.count(counter, 1);
        let step = if self.lives == 0 { Step::Connected } else { Step::Reconnected };
        shard.stepped(step, self.shared.statistics.second(Instant::now()), after);
        drop(shard);
        self.lives += 1;
        match &mut self.worker {
            Worker::Subscriber(subscriber) => subscriber.set_start(start),
            Worker::Publisher(publisher) if !connection.session_present() => {
                publisher.lose_unacknowledged(&mut self.shared.statistics.shard());
            }
            Worker::Publisher(_) | Worker::Idle => {}
        }
    }

    /// End of the time in which messages of a client are due that has ended at `ended_at` for good: a run with a
    /// duration asked for load until then, or until `-L` is used up.
    pub(super) async fn last_due(&mut self, ended_at: Instant) -> Instant {
        if self.shared.plan.ending.after.is_none() {
            return ended_at;
        }
        reached(&mut self.phase, Phase::Spent).await;
        Instant::now()
    }

    /// Waits for half of `pause` to one and a half of it, at random: clients that were refused together do not come
    /// back together. `false`: there is nothing to come back for.
    pub(super) async fn pause(&mut self, pause: Duration) -> bool {
        let needless = self.needless();
        let pause = self.identity.between((pause / 2, pause * 3 / 2));
        tokio::select! {
            biased;
            _ = reached(&mut self.phase, needless) => false,
            () = sleep(pause) => true,
        }
    }
}
