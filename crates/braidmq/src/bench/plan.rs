//! Translation of options: clients, their work, and the way to the server.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use braid_bench::emqtt::{ClientIds, Identity, MessageTemplate, StartLine, TopicTemplate, TopicsFile};
use braid_bench::generator::{
    Clients, Credentials, Dialer, Ending, Plan, PlanError, PublishPlan, PublishedTopic, Retries, Start,
    SubscribePlan, SubscribedFilter, Work,
};
use braid_bench::summary::Role;
use braid_client::{Priority, TopicFilter, TopicName};
use braid_transport::quic::QuicOptions;
use braid_transport::{ClientTls, ConnectOptions, Target, TcpOptions, Transport};
use bytes::Bytes;
use serde_json::Value;

use super::failure::Failure;
use super::options::{
    CommonOptions, ConnOptions, OutputOptions, PayloadSource, PubOptions, SubOptions, Subject,
};
use super::settings::{servers, settings};
use crate::client::default_path;

/// Pause before another attempt of a client.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A run that is ready to begin.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) role: Role,
    pub(super) plan: Plan,
    pub(super) targets: Vec<Target>,
    /// URLs of the targets.
    pub(super) servers: Vec<String>,
    pub(super) dialer: Dialer,
    pub(super) start_line: StartLine,
    /// Lines about options that have no effect.
    pub(super) notes: Vec<String>,
    pub(super) output: OutputOptions,
    /// For the JSON, if there will be one.
    pub(super) settings: Option<Value>,
}

/// Job of `bench pub`.
pub(super) fn publish(options: &PubOptions) -> Result<Job, Failure> {
    let transport = options.transport()?;
    let mut notes = options.notes(transport);
    let has_username = options.common.session.username.is_some();
    let plan = match options.subject()? {
        Subject::Topic(name) => PublishPlan::of(vec![topic(name, options, has_username)?])?,
        Subject::File(path) => {
            let file = TopicsFile::parse(&path.display().to_string(), &read_text(path)?)?;
            if file.wants_streams() && !transport.is_quic() {
                notes.push(format!(
                    "the streams in {} have no effect: only QUIC (--quic) has more than one",
                    path.display()
                ));
            }
            PublishPlan::of_file(&file, has_username)?
        }
    };
    for topic in &plan.topics {
        TopicName::parse(&filled(&topic.template))
            .map_err(|error| PlanError::Topic { topic: topic.name.clone(), error })?;
    }
    let work = Work::Publish(PublishPlan {
        headers: options.payload_hdrs.clone(),
        inflight: options.inflight,
        limit: options.limit,
        wait_for_all: options.wait_before_publishing,
        workers: start_line(&options.common).workers,
        random_wait: options.first_wait(),
        resumes: options.resume,
        ..plan
    });
    let ending = Ending { keep_connected: options.keep_connected, ..ending(&options.common) };
    job(&options.common(), transport, work, options.shortids, ending, notes)
}

/// Job of `bench sub`.
pub(super) fn subscribe(options: &SubOptions) -> Result<Job, Failure> {
    let transport = options.transport()?;
    let has_username = options.common.session.username.is_some();
    let filters = options.subscriptions()?.into_iter().map(|subscription| {
        let mut filter = SubscribedFilter::new(subscription.filter, has_username, options.qos)?;
        TopicFilter::parse(&filled(&filter.template))
            .map_err(|error| PlanError::Topic { topic: subscription.filter.to_owned(), error })?;
        filter.stream = subscription.stream.unwrap_or(0);
        filter.priority = subscription.priority.map(Priority::value);
        Ok(filter)
    });
    let work = Work::Subscribe(SubscribePlan {
        filters: filters.collect::<Result<_, Failure>>()?,
        headers: options.payload_hdrs.clone(),
        timestamp: options.timestamp_field.clone(),
        is_pipelined: options.pipeline,
    });
    let (common, notes) = (&options.common, options.common.notes(transport));
    job(common, transport, work, options.shortids, ending(common), notes)
}

/// Job of `bench conn`.
pub(super) fn connect(options: &ConnOptions) -> Result<Job, Failure> {
    let transport = options.common.transport()?;
    let notes = options.common.notes(transport);
    job(&options.common, transport, Work::Connect, options.shortids, ending(&options.common), notes)
}

fn job(
    options: &CommonOptions,
    transport: Transport,
    work: Work,
    shortids: bool,
    ending: Ending,
    notes: Vec<String>,
) -> Result<Job, Failure> {
    let role = match &work {
        Work::Publish(_) => Role::Pub,
        Work::Subscribe(_) => Role::Sub,
        Work::Connect => Role::Conn,
    };
    let targets = targets(options, transport)?;
    let plan = Plan { clients: clients(options, role, shortids), work, ending };
    let servers = servers(options, &targets)?;
    let settings = options.output.json.is_some().then(|| settings(options, &plan, &targets, &servers));
    Ok(Job {
        role,
        settings,
        plan,
        dialer: dialer(options, targets.clone())?,
        targets,
        servers,
        start_line: start_line(options),
        notes,
        output: options.output.clone(),
    })
}

fn ending(options: &CommonOptions) -> Ending {
    Ending { after: options.clients.duration, keep_connected: false }
}

fn to_bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn clients(options: &CommonOptions, role: Role, shortids: bool) -> Clients {
    let CommonOptions { clients, session, connection, .. } = options;
    let host = connection.local().first().map_or_else(host_name, ToString::to_string);
    let credentials = session
        .username
        .clone()
        .map(|username| Credentials { username, password: session.password.as_deref().map(to_bytes) });
    Clients {
        count: clients.count.into(),
        start_number: clients.startnumber,
        ids: ClientIds { role, prefix: clients.prefix.clone(), short: shortids, host },
        start: match clients.connrate {
            0 => Start::Every(clients.interval()),
            rate if clients.poisson => Start::Poisson(rate),
            rate => Start::PerSecond(rate),
        },
        retries: Retries {
            connect: clients.num_retry_connect,
            reconnect: clients.reconnect,
            pause: RETRY_PAUSE,
            planned: clients.planned_end(),
        },
        version: session.version,
        clean_start: session.clean,
        keep_alive: session.keepalive,
        ping: session.ping,
        session_expiry: Some(session.session_expiry).filter(|_| session.session_expiry > 0),
        credentials,
        maximum_packet_size: None,
    }
}

fn targets(options: &CommonOptions, transport: Transport) -> Result<Vec<Target>, Failure> {
    if let Some(address) = options.connection.address()? {
        return Ok(vec![address.target]);
    }
    let port = options.connection.port(transport);
    let path = default_path(transport);
    let target = |host: &str| Target { transport, host: host.to_owned(), port, path: path.to_owned() };
    Ok(options.connection.hosts().map(target).collect())
}

fn dialer(options: &CommonOptions, targets: Vec<Target>) -> Result<Dialer, Failure> {
    let CommonOptions { connection, quic, tls, .. } = options;
    let tls = ClientTls::new(tls.client());
    if targets.iter().any(|target| target.transport.is_encrypted()) {
        tls.check()?;
    }
    if let Some(path) = &quic.qlog_dir {
        std::fs::create_dir_all(path).map_err(|source| Failure::Directory { path: path.clone(), source })?;
    }
    if let Some(path) = &quic.gate_log {
        // The file of an earlier run is replaced.
        File::create(path).map_err(|source| Failure::GateLog { path: path.clone(), source })?;
    }
    let base = QuicOptions::client();
    let connect = ConnectOptions {
        quic: QuicOptions {
            congestion: quic.quic_cc.unwrap_or(base.congestion),
            gate: !quic.no_gate,
            gate_log: quic.gate_log.clone(),
            link_rate: quic.link_rate,
            zero_rtt: quic.zero_rtt,
            datagrams: quic.datagrams,
            multipath: quic.multipath(),
            qlog_dir: quic.qlog_dir.clone(),
            ..base
        },
        tcp: TcpOptions { congestion: connection.tcp_cc.as_deref().map(Into::into) },
        ..ConnectOptions::default()
    };
    let dialer = Dialer::new(targets, tls, connect, connection.local().to_vec())?;
    Ok(match connection.address()?.and_then(|address| address.tls) {
        Some(tls) => dialer.with_alternative(&tls),
        None => dialer,
    })
}

fn topic(name: &str, options: &PubOptions, has_username: bool) -> Result<PublishedTopic, Failure> {
    let message = match options.payload() {
        PayloadSource::Size(size) => MessageTemplate::of_size(size as usize),
        PayloadSource::Text(text) => MessageTemplate::literal(Bytes::from(text.to_owned())),
        PayloadSource::Template(path) => MessageTemplate::file(read(path)?.into()),
    };
    let size = options.size as usize;
    let topic = PublishedTopic::new(name, has_username, options.interval(), message, size)?;
    Ok(PublishedTopic {
        qos: options.qos,
        retain: options.retain,
        stream: options.stream.unwrap_or(0),
        priority: options.priority.map(Priority::value),
        ..topic
    })
}

/// The topic of an example client, to check that it is valid.
fn filled(template: &TopicTemplate) -> String {
    let identity = Identity { number: 1, client_id: "c", username: Some("u") };
    template.fill(identity, 1, |_| 1)
}

fn start_line(options: &CommonOptions) -> StartLine {
    let CommonOptions { clients, connection, .. } = options;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (count, rate) = (clients.count.into(), clients.connrate.into());
    let interval = u64::try_from(clients.interval().as_millis()).unwrap_or(u64::MAX);
    StartLine::new(cores, count, rate, interval, connection.local().len().max(1))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|source| Failure::Read { path: path.to_owned(), source })
}

fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::Read { path: path.to_owned(), source })
}

/// The machine's name, for Client Identifiers.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Some(name.trim()).filter(|name| !name.is_empty()).unwrap_or("localhost").to_owned()
}
