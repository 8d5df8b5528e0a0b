//! Capacity of the generator by itself: it publishes to a sink that only reads, and acknowledges with QoS 1.

mod sink;

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::Duration;

use braid_proto::packet::QoS;
use braid_transport::{ClientTls, ConnectOptions, Target, Transport};
use rustix::time::{ClockId, clock_gettime};

use super::{
    Clients, Clock, Dialer, Ending, Plan, PublishPlan, PublishedTopic, RunStatistics, TimerService, Work, run,
};
use crate::emqtt::{ClientIds, Counter, MessageTemplate};
use crate::failure::Failure;
use crate::summary::Role;

/// Most unacknowledged messages of QoS 1 of a client: enough that none waits for the sink.
const INFLIGHT: u32 = 1000;

/// Load for measuring the generator itself.
#[derive(Debug, Clone, Copy)]
pub struct SelfMeasure {
    /// Publishers.
    pub clients: u64,
    /// Bytes of each payload.
    pub size: usize,
    /// Duration.
    pub time: Duration,
    /// 0 or 1; 2 is measured as 1.
    pub qos: QoS,
    /// Time between two messages of a client; zero is saturated.
    pub interval: Duration,
}

/// Capacity of the generator.
#[derive(Debug, Clone, Copy)]
pub struct SelfMeasured {
    /// Messages that left, those of QoS 1 acknowledged.
    pub messages: u64,
    /// Duration.
    pub elapsed: Duration,
    /// Processor time of the generating thread, system calls included.
    pub cpu: Duration,
}

impl Default for SelfMeasure {
    /// 8 publishers, 64 bytes, two seconds, QoS 0 as fast as it goes.
    fn default() -> Self {
        Self {
            clients: 8,
            size: 64,
            time: Duration::from_secs(2),
            qos: QoS::AtMostOnce,
            interval: Duration::ZERO,
        }
    }
}

impl SelfMeasured {
    /// Messages per second of processor time: the capacity of one core.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn per_cpu_second(&self) -> f64 {
        self.messages as f64 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// Messages per second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
    pub fn per_second(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Publishes on one thread and over TCP on the loopback interface, to a sink in this process that only reads, and
/// acknowledges. Blocks for a little longer than the wanted duration.
///
/// # Errors
/// No loopback interface or no thread.
pub fn measure_self(how: SelfMeasure) -> Result<SelfMeasured, Failure> {
    let sink = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = sink.local_addr()?.port();
    let clients = how.clients.max(1);
    let answers = how.qos > QoS::AtMostOnce;
    thread::Builder::new().name("sink".to_owned()).spawn(move || sink::serve(&sink, clients, answers))?;
    let generator = thread::Builder::new().name("generator".to_owned());
    let measured = generator.spawn(move || generate(SelfMeasure { clients, ..how }, port))?.join();
    measured.unwrap_or_else(|_| Err(Failure::Link(std::io::Error::other("the generating thread panicked"))))
}

fn generate(how: SelfMeasure, port: u16) -> Result<SelfMeasured, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let target =
            Target { transport: Transport::Tcp, host: "127.0.0.1".to_owned(), port, path: String::new() };
        let dialer = Dialer::new(vec![target], ClientTls::default(), ConnectOptions::default(), Vec::new());
        let failed = |error: &dyn std::fmt::Display| Failure::Link(std::io::Error::other(error.to_string()));
        let (dialer, plan) =
            (dialer.map_err(|error| failed(&error))?, plan(how).map_err(|error| failed(&error))?);
        let statistics = RunStatistics::new(Clock::now());
        let before = cpu_time();
        run(plan, dialer, TimerService::coarse(), statistics.clone(), std::future::pending()).await;
        let cpu = cpu_time().saturating_sub(before);
        let messages = statistics.topics().iter().map(|topic| topic.acked).sum();
        if statistics.counters()[Counter::ConnectSucc] < how.clients {
            let events = statistics.events(0);
            return Err(failed(&events.first().map_or("a client did not connect", |event| &event.what)));
        }
        Ok(SelfMeasured { messages, elapsed: statistics.elapsed(), cpu })
    })
}

fn plan(how: SelfMeasure) -> Result<Plan, super::PlanError> {
    let message = MessageTemplate::of_size(how.size);
    let topic = PublishedTopic::new("self/%i", false, how.interval, message, how.size)?;
    let topic = PublishedTopic { qos: how.qos.min(QoS::AtLeastOnce), ..topic };
    Ok(Plan {
        clients: Clients::plain(
            how.clients,
            ClientIds { role: Role::Pub, prefix: None, short: true, host: String::new() },
        ),
        work: Work::Publish(PublishPlan {
            wait_for_all: true,
            inflight: INFLIGHT,
            ..PublishPlan::of(vec![topic])?
        }),
        ending: Ending { after: Some(how.time), keep_connected: false },
    })
}

/// Processor time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
