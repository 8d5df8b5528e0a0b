//! Parameters of a run with the defaults of options that were not given: a part of its summary.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_bench::emqtt::{Identity, Pages, PayloadHeaders};
use braid_bench::generator::{
    Clients, Payload, Plan, PublishPlan, PublishedTopic, Start, SubscribedFilter, Work,
};
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{Target, Transport};
use serde::Serialize;

use super::options::CommonOptions;

/// Where the kernel says who decides how fast TCP sends, unless a program asks for another.
const TCP_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The field `settings` of `--json`. No secrets.
#[derive(Debug, Serialize)]
pub(super) struct Settings {
    /// URLs; the clients take them in turn.
    servers: Vec<String>,
    transport: String,
    /// Congestion control of the clients. `None`: unknown.
    congestion_control: Option<String>,
    /// Whether bulk is kept back where the path limits (QUIC).
    gate: Option<bool>,
    /// Bytes per second of each client (QUIC).
    link_rate: Option<u64>,
    /// Local addresses, taken in turn; empty leaves the choice to the system.
    local_addresses: Vec<String>,
    /// As `-V` has it: 3, 4 or 5.
    mqtt_version: u8,
    clean_start: bool,
    keep_alive_s: u16,
    session_expiry_s: u32,
    clients: u64,
    /// Between two clients; `None`: the rate below holds.
    connect_interval_ms: Option<u64>,
    connect_per_second: Option<u32>,
    num_retry_connect: u32,
    reconnect: u32,
    duration_s: Option<f64>,
    /// `pub`: what follows is its own.
    #[serde(flatten)]
    publishing: Option<Publishing>,
    payload_hdrs: String,
    topics: Vec<TopicSettings>,
}

/// Parameters of publishers.
#[derive(Debug, Serialize)]
struct Publishing {
    /// Messages of all clients together; 0 is no limit.
    limit: u64,
    /// Messages of QoS 1 and 2 of a client that may be on their way; 0 is no limit.
    inflight: u32,
    wait_before_publishing: bool,
    /// The least and the most.
    random_wait_ms: [u64; 2],
    keep_connected: bool,
}

/// One `-t`, or one topic of a file.
#[derive(Debug, Serialize)]
struct TopicSettings {
    topic: String,
    qos: u8,
    stream: u32,
    priority: Option<u16>,
    #[serde(flatten)]
    messages: Option<Messages>,
}

/// Parameters of published topics.
#[derive(Debug, Serialize)]
struct Messages {
    /// Between two messages of a client; 0 is as fast as it goes.
    interval_ms: u64,
    retain: bool,
    /// With headers, of the first client. `None`: it differs from message to message.
    payload_bytes: Option<usize>,
}

impl Settings {
    pub(super) fn of(options: &CommonOptions, plan: &Plan, targets: &[Target]) -> Self {
        let transport = targets.first().map_or(Transport::Tcp, |target| target.transport);
        let clients = &plan.clients;
        let (interval, rate) = match clients.start {
            Start::Every(interval) => (Some(millis(interval)), None),
            Start::PerSecond(rate) => (None, Some(rate)),
        };
        let (headers, topics) = match &plan.work {
            Work::Publish(publish) => (publish.headers.to_string(), published(publish, clients)),
            Work::Subscribe(subscribe) => {
                (subscribe.headers.to_string(), subscribe.filters.iter().map(subscribed).collect())
            }
            Work::Connect => (String::new(), Vec::new()),
        };
        Self {
            servers: targets.iter().map(url).collect(),
            transport: transport.to_string(),
            congestion_control: congestion_control(options, transport),
            gate: (transport == Transport::Quic).then_some(!options.quic.no_gate),
            link_rate: options.quic.link_rate,
            local_addresses: options.connection.local().iter().map(ToString::to_string).collect(),
            mqtt_version: clients.version.level(),
            clean_start: clients.clean_start,
            keep_alive_s: clients.keep_alive,
            session_expiry_s: clients.session_expiry.unwrap_or(0),
            clients: clients.count,
            connect_interval_ms: interval,
            connect_per_second: rate,
            num_retry_connect: clients.retries.connect,
            reconnect: clients.retries.reconnect,
            duration_s: plan.ending.after.map(|after| after.as_secs_f64()),
            publishing: match &plan.work {
                Work::Publish(publish) => Some(publishing(publish, plan.ending.keep_connected)),
                Work::Subscribe(_) | Work::Connect => None,
            },
            payload_hdrs: headers,
            topics,
        }
    }
}

fn publishing(plan: &PublishPlan, keep_connected: bool) -> Publishing {
    let (least, most) = plan.random_wait;
    Publishing {
        limit: plan.limit,
        inflight: plan.inflight,
        wait_before_publishing: plan.wait_for_all,
        random_wait_ms: [millis(least), millis(most)],
        keep_connected,
    }
}

fn published(plan: &PublishPlan, clients: &Clients) -> Vec<TopicSettings> {
    let number = clients.start_number.saturating_add(1);
    let client_id = clients.ids.client_id(number, 1);
    let username = clients.credentials.as_ref().map(|credentials| credentials.username.as_str());
    let first = Identity { number, client_id: &client_id, username };
    let mut pages = Pages::default();
    let topics = plan.topics.iter().map(|topic| TopicSettings {
        topic: topic.name.clone(),
        qos: topic.qos.bits(),
        stream: topic.stream,
        priority: topic.priority,
        messages: Some(Messages {
            interval_ms: millis(topic.interval),
            retain: topic.retain,
            payload_bytes: payload_bytes(topic, &plan.headers, first, &mut pages),
        }),
    });
    topics.collect()
}

fn subscribed(filter: &SubscribedFilter) -> TopicSettings {
    TopicSettings {
        topic: filter.template.to_string(),
        qos: filter.qos.bits(),
        stream: filter.stream,
        priority: filter.priority,
        messages: None,
    }
}

fn payload_bytes(
    topic: &PublishedTopic,
    headers: &PayloadHeaders,
    first: Identity<'_>,
    pages: &mut Pages,
) -> Option<usize> {
    match &topic.payload {
        Payload::Message(message, _) => message.constant().map(|constant| constant.len() + headers.len()),
        Payload::Spec(spec) => {
            let template = spec.payload(first, pages);
            let headers = if template.takes_headers() { headers.len() } else { 0 };
            // A time in text has as many digits as today's.
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            Some(template.segments(&[], now).len() + headers)
        }
    }
}

fn congestion_control(options: &CommonOptions, transport: Transport) -> Option<String> {
    if transport == Transport::Quic {
        let congestion = options.quic.quic_cc.unwrap_or(QuicOptions::client().congestion);
        return Some(name(congestion).to_owned());
    }
    let usual = || fs::read_to_string(TCP_CONGESTION).ok().map(|name| name.trim().to_owned());
    options.connection.tcp_cc.clone().or_else(usual)
}

/// As `--quic-cc` has it.
fn name(congestion: Congestion) -> &'static str {
    match congestion {
        Congestion::Bbr3 => "bbr3",
        Congestion::Cubic => "cubic",
        Congestion::NewReno => "newreno",
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// URL of the server.
pub(super) fn url(target: &Target) -> String {
    let Target { transport, host, port, path } = target;
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    format!("{}://{host}:{port}{path}", transport.scheme())
}
