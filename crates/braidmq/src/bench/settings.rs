//! Parameters of a run with the defaults of options that were not given: a part of its summary.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use braid_bench::emqtt::{Identity, Pages, PayloadHeaders};
use braid_bench::generator::{
    Clients, Payload, Plan, PlannedEnd, PublishPlan, PublishedTopic, Start, SubscribedFilter, Work,
};
use braid_client::Address;
use braid_transport::quic::{Congestion, QuicOptions};
use braid_transport::{Target, Transport};
use serde_json::{Value, json};

use super::options::{CommonOptions, OptionsError};

/// File with the kernel's default congestion control of TCP.
const TCP_CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// The field `settings` of `--json`. No secrets.
pub(super) fn settings(
    options: &CommonOptions,
    plan: &Plan,
    targets: &[Target],
    servers: &[String],
) -> Value {
    let transport = targets.first().map_or(Transport::Tcp, |target| target.transport);
    let Plan { clients, work, ending } = plan;
    let (interval, rate) = match clients.start {
        Start::Every(interval) => (Some(millis(interval)), None),
        Start::PerSecond(rate) | Start::Poisson(rate) => (None, Some(rate)),
    };
    let (lifetime, drop_at) = match clients.retries.planned {
        PlannedEnd::After(lifetime) => (Some(lifetime.as_secs_f64()), None),
        PlannedEnd::At(time) => (None, Some(time.as_secs_f64())),
        PlannedEnd::Never => (None, None),
    };
    let mut settings = json!({
        // URLs; the clients take them in turn.
        "servers": servers,
        // auto: the counters over_quic and over_tls tell the transports of connections.
        "transport": if options.connection.is_auto() { "auto".to_owned() } else { transport.to_string() },
        // Congestion control of the clients. Null: unknown.
        "congestion_control": congestion_control(options, transport),
        // True with the congestion gate; null without QUIC.
        "gate": transport.is_quic().then_some(!options.quic.no_gate),
        // True if messages of QoS 0 may be in datagrams (QUIC).
        "datagrams": options.quic.datagrams,
        // Bytes per second of each client (QUIC).
        "link_rate": options.quic.link_rate,
        "paths": (!options.quic.path.is_empty()).then_some(&options.quic.path),
        // Local addresses, taken in turn; empty leaves the choice to the system.
        "local_addresses": options.connection.local(),
        // As `-V` has it: 3, 4 or 5.
        "mqtt_version": clients.version.level(),
        "clean_start": clients.clean_start,
        "keep_alive_s": clients.keep_alive,
        "session_expiry_s": clients.session_expiry.unwrap_or(0),
        "clients": clients.count,
        // Between two clients; null: the rate below holds.
        "connect_interval_ms": interval,
        "connect_per_second": rate,
        "num_retry_connect": clients.retries.connect,
        // True: at random times with this mean rate.
        "poisson": matches!(clients.start, Start::Poisson(_)),
        "reconnect": clients.retries.reconnect,
        // Until the client disconnects; null: it does not.
        "lifetime_s": lifetime,
        // Time of the run at which all connections are closed; null: none.
        "drop_at_s": drop_at,
        "duration_s": ending.after.map(|after| after.as_secs_f64()),
    });
    if let Work::Publish(publish) = work {
        // Messages of all clients together; 0 is no limit.
        settings["limit"] = publish.limit.into();
        // Messages of QoS 1 and 2 of a client that may be on their way; 0 is no limit.
        settings["inflight"] = publish.inflight.into();
        settings["wait_before_publishing"] = publish.wait_for_all.into();
        // The least and the most.
        settings["random_wait_ms"] = json!([millis(publish.random_wait.0), millis(publish.random_wait.1)]);
        settings["resume"] = publish.resumes.into();
        settings["keep_connected"] = ending.keep_connected.into();
    }
    if let Work::Subscribe(subscribe) = work {
        // True: SUBSCRIBE follows CONNECT at once.
        settings["pipeline"] = subscribe.is_pipelined.into();
    }
    let (headers, topics) = match work {
        Work::Publish(publish) => (publish.headers.to_string(), published(publish, clients)),
        Work::Subscribe(subscribe) => {
            (subscribe.headers.to_string(), subscribe.filters.iter().map(subscribed).collect())
        }
        Work::Connect => (String::new(), Vec::new()),
    };
    settings["payload_hdrs"] = headers.into();
    settings["topics"] = topics.into();
    settings
}

fn published(plan: &PublishPlan, clients: &Clients) -> Vec<Value> {
    let number = clients.start_number.saturating_add(1);
    let client_id = clients.ids.client_id(number, 1);
    let username = clients.credentials.as_ref().map(|credentials| credentials.username.as_str());
    let first = Identity { number, client_id: &client_id, username };
    let mut pages = Pages::default();
    let topics = plan.topics.iter().map(|topic| {
        json!({
            "topic": topic.name,
            "qos": topic.qos.bits(),
            "stream": topic.stream,
            "priority": topic.priority,
            // Between two messages of a client; 0 is as fast as it goes.
            "interval_ms": millis(topic.interval),
            "retain": topic.retain,
            // With headers, of the first client. Null: it differs from message to message.
            "payload_bytes": payload_bytes(topic, &plan.headers, first, &mut pages),
        })
    });
    topics.collect()
}

fn subscribed(filter: &SubscribedFilter) -> Value {
    json!({
        "topic": filter.template.to_string(),
        "qos": filter.qos.bits(),
        "stream": filter.stream,
        "priority": filter.priority,
    })
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
            Some(template.segments(&[], now).iter().map(|part| part.len()).sum::<usize>() + headers)
        }
    }
}

fn congestion_control(options: &CommonOptions, transport: Transport) -> Option<String> {
    match transport {
        Transport::Quic => {
            let congestion = options.quic.quic_cc.unwrap_or(QuicOptions::client().congestion);
            Some(name(congestion).to_owned())
        }
        Transport::Tcp | Transport::Tls | Transport::Ws | Transport::Wss => {
            let usual = || fs::read_to_string(TCP_CONGESTION).ok().map(|name| name.trim().to_owned());
            options.connection.tcp_cc.clone().or_else(usual)
        }
        Transport::Mem => None,
    }
}

/// Name of the algorithm in `--quic-cc`.
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

/// URLs of the servers.
pub(super) fn servers(options: &CommonOptions, targets: &[Target]) -> Result<Vec<String>, OptionsError> {
    if let Some(Address { target, tls: Some(tls), .. }) = options.connection.address()? {
        let (host, port) = (url_host(&target), target.port);
        return Ok(vec![format!("auto://{host}?quic={port}&tls={}", tls.port)]);
    }
    Ok(targets.iter().map(url).collect())
}

fn url(target: &Target) -> String {
    let Target { transport, port, path, .. } = target;
    format!("{}://{}:{port}{path}", transport.scheme(), url_host(target))
}

/// The host as URLs have it: an IPv6 address in brackets.
fn url_host(Target { host, .. }: &Target) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.clone() }
}

#[cfg(test)]
mod tests {
    use braid_bench::emqtt::TopicsFile;

    use super::*;

    #[test]
    fn payloads_of_files_are_measured_in_bytes() {
        let text = r#"{"topics": [{"name": "video", "interval_ms": "5000", "QoS": 1, "payload_encoding": "eterm",
            "payload": {"Data": "%p3"}, "render": "Data"}]}"#;
        let file = TopicsFile::parse("topics.json", text).expect("a topics file");
        let plan = PublishPlan::of_file(&file, false).expect("topics");
        let first = Identity { number: 1, client_id: "a", username: None };
        let headers = "cnt64,ts".parse().expect("headers");
        let bytes = payload_bytes(&plan.topics[0], &headers, first, &mut Pages::default());
        assert!(bytes.is_some_and(|bytes| (3 * 4096..3 * 4096 + 64).contains(&bytes)), "{bytes:?}");
    }
}
