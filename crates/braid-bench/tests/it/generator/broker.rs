//! A broker to put load on, and plans as `braidmq bench` makes them.

use std::time::Duration;

use braid_bench::emqtt::{ClientIds, MessageTemplate, TopicsFile};
use braid_bench::generator::{
    Clients, Clock, Dialer, Ended, Ending, Plan, PublishPlan, PublishedTopic, RunStatistics, SubscribePlan,
    SubscribedFilter, TimerService, Work, run,
};
use braid_bench::summary::{Role, RunSummary, TopicSummary};
use braid_broker::{BrokerConfig, Handle};
use braid_proto::packet::QoS;
use braid_transport::sim::Host;
use tokio::task::JoinHandle;

use crate::rig::Rig;

/// A broker for runs of the generator.
pub(super) struct Target {
    pub(super) broker: Handle,
    pub(super) device: Host,
    /// Clock of the statistics of all runs, as the programs of one machine have one.
    pub(super) clock: Clock,
    rig: Rig,
}

/// A run that goes on.
pub(super) struct Going {
    pub(super) statistics: RunStatistics,
    running: JoinHandle<Ended>,
}

impl Target {
    pub(super) fn start() -> Self {
        Self::with(BrokerConfig::default())
    }

    pub(super) fn with(config: BrokerConfig) -> Self {
        let rig = Rig::with(config);
        Self { broker: rig.broker.clone(), device: rig.device.clone(), clock: Clock::now(), rig }
    }

    pub(super) fn near(&self) -> Dialer {
        Dialer::from(self.rig.near.clone())
    }

    pub(super) fn far(&self) -> Dialer {
        Dialer::from(self.rig.far.clone())
    }

    /// Over QUIC, with early data for clients that come again.
    pub(super) fn far_early(&self) -> Dialer {
        Dialer::from(self.rig.far.clone().zero_rtt(true))
    }

    /// Starts a run; the task ends when the run does.
    pub(super) fn go(&self, plan: Plan, dialer: Dialer) -> Going {
        let statistics = RunStatistics::new(self.clock);
        let running = tokio::spawn(run(
            plan,
            dialer,
            TimerService::coarse(),
            statistics.clone(),
            std::future::pending(),
        ));
        Going { statistics, running }
    }

    /// Waits until the broker has no connection any more.
    pub(super) async fn broker_is_left(&self) {
        while self.broker.statistics().connections() > 0 {
            wait(Duration::from_millis(1)).await;
        }
    }
}

impl Going {
    pub(super) async fn ended(self) -> (Ended, RunStatistics) {
        (self.running.await.expect("a run does not panic"), self.statistics)
    }
}

pub(super) fn clients(role: Role, count: u64) -> Clients {
    let ids = ClientIds { role, prefix: Some("test".to_owned()), short: false, host: String::new() };
    Clients { keep_alive: 300, ..Clients::plain(count, ids) }
}

pub(super) fn plan(clients: Clients, work: Work, after: Duration) -> Plan {
    Plan { clients, work, ending: Ending { after: Some(after), keep_connected: false } }
}

/// One topic with 64 bytes, so often.
pub(super) fn one_topic(name: &str, interval: Duration, qos: QoS) -> PublishPlan {
    let topic = PublishedTopic::new(name, false, interval, MessageTemplate::of_size(64), 64);
    let topic = PublishedTopic { qos, ..topic.expect("a topic") };
    PublishPlan { inflight: 100, ..PublishPlan::of(vec![topic]).expect("one topic") }
}

pub(super) fn topics_file(text: &str) -> PublishPlan {
    let file = TopicsFile::parse("topics.json", text).expect("a topics file");
    PublishPlan { inflight: 1000, ..PublishPlan::of_file(&file, false).expect("topics") }
}

/// Everything below a filter, with QoS 2 at most.
pub(super) fn one_filter(filter: &str) -> SubscribePlan {
    let filter = SubscribedFilter::new(filter, false, QoS::ExactlyOnce).expect("a filter");
    SubscribePlan { filters: vec![filter], ..SubscribePlan::default() }
}

/// Lets the subscribers of a run get ready.
pub(super) async fn until_subscribed(going: &Going, clients: u64) {
    use braid_bench::emqtt::Counter;
    while going.statistics.counters()[Counter::Sub] < clients {
        wait(Duration::from_millis(1)).await;
    }
}

/// Waits on the paused clock, which moves only when all tasks are idle.
pub(super) async fn wait(duration: Duration) {
    tokio::time::advance(Duration::ZERO).await; // Panics if the clock is a real one.
    let until = tokio::time::Instant::now() + duration;
    tokio::time::sleep_until(until).await;
}

/// A number of every topic, added up.
pub(super) fn summed(summary: &RunSummary, number: impl Fn(&TopicSummary) -> u64) -> u64 {
    summary.topics.iter().map(number).sum()
}
