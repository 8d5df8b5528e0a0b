//! `braidmq serve`: builds a broker from its configuration and runs it until a signal.

mod access;
mod banner;
mod bans;
mod bind;
mod control;
mod http;
mod logging;
mod node;
mod progress;
mod store;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use braid_access::AccessControl;
use braid_broker::health::HealthMonitor;
use braid_broker::{Handle, Recovery};
use braid_cluster::Risk;
use braid_http::{HealthServer, HealthState};
use braid_measure::process::Resident;
use braid_store::spool::{Exposed, exposed};
use braid_store::{OpenError, StoreError};
use thiserror::Error;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::bans::FileBans;
use self::bind::Certificate;
use self::control::{ProcessControl, Reload};
use self::http::Front;
use self::store::{Built, ProcessStore};
use crate::config::{Config, ConfigError, Layers, ListenersConfig, environment, merge};

/// Polls of tasks after which a busy thread asks for events of sockets; the default is 61. A client that keeps its task
/// busy for a millisecond at a time, and others of its kind, would otherwise delay the input of all clients by 61
/// milliseconds.
const EVENT_INTERVAL: u32 = 4;

/// Exit code for errors that the user must correct before the broker can start.
const REFUSED: u8 = 2;

/// Exit code for a store that failed while the broker ran: `EX_IOERR` of sysexits.h.
const STORE_FAILED: u8 = 74;

/// Run the broker.
///
/// Without arguments it listens on this machine only, with every transport: TCP 1883, TLS 8883,
/// WebSocket 8083, secure WebSocket 8084 (both at /mqtt) and QUIC 14567/udp. A self-signed certificate
/// is made in the data directory at the first start.
///
/// Sessions that outlive their connections, their queued messages and retained messages are kept in the data
/// directory too, and acknowledged once they are on the disk; --set store.durability=async or memory changes that.
///
/// Exit codes: 0 after a signal, 2 for errors to correct before it can start, 74 when the store failed.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Read this TOML file
    #[arg(long, value_name = "FILE", env = "BRAIDMQ_CONFIG")]
    config: Option<PathBuf>,
    /// Listen for MQTT on TCP; repeatable; naming any listener replaces [listeners] of the configuration; [[listener]]
    /// tables stay
    #[arg(long, value_name = "HOST:PORT")]
    tcp: Vec<String>,
    /// Listen for MQTT on TLS
    #[arg(long, value_name = "HOST:PORT")]
    tls: Vec<String>,
    /// Listen for MQTT on WebSocket
    #[arg(long, value_name = "HOST:PORT")]
    ws: Vec<String>,
    /// Listen for MQTT on secure WebSocket
    #[arg(long, value_name = "HOST:PORT")]
    wss: Vec<String>,
    /// Listen for MQTT on QUIC
    #[arg(long, value_name = "HOST:PORT")]
    quic: Vec<String>,
    /// Answer GET /health over HTTP here: 200 while this broker accepts clients, else 503; repeatable
    #[arg(long, value_name = "HOST:PORT")]
    health: Vec<String>,
    /// Serve HTTP here: dashboard, REST API, metrics, health, and the routes of the configuration; repeatable. With
    /// http.api.listen the first three are there
    #[arg(long, value_name = "HOST:PORT")]
    http: Vec<String>,
    /// Keep certificates and messages in this directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Write a qlog of each QUIC connection into this directory
    #[arg(long, value_name = "DIR")]
    qlog_dir: Option<PathBuf>,
    /// Turn the congestion gate off: bulk is then not limited in favour of urgent messages
    #[arg(long)]
    no_gate: bool,
    /// Write the gate's model of the path of each connection to this file: JSON lines, five times a second
    #[arg(long, value_name = "FILE", conflicts_with = "no_gate")]
    gate_log: Option<PathBuf>,
    /// Let clients without credentials connect from other hosts too
    #[arg(long)]
    allow_anonymous: bool,
    /// Start although the NATS servers of the cluster may lose messages, by this risk: unsynced, replicas, version or
    /// unchecked; repeatable
    #[arg(long, value_name = "RISK")]
    accept_cluster_risk: Vec<Risk>,
    /// Set any key of the configuration, for example --set log.level=debug; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print the configuration that would be used, as TOML, and exit
    #[arg(long)]
    print_config: bool,
}

/// End of the broker other than by a signal: one line.
#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(
        "another process has the name of this node, and the broker stopped: give each node a name of its own in cluster.node"
    )]
    NameLost,
    #[error(
        "the store in {directory} failed ({reason}) and the broker stopped: free space or repair the device, then start \
         again",
        directory = .directory.display()
    )]
    Store { directory: PathBuf, reason: String },
}

/// Failure of the start: one line.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Cluster(#[from] braid_cluster::ClusterError),
    #[error(transparent)]
    Access(#[from] access::AccessError),
    #[error("{option} {given}: {problem}")]
    Address { option: &'static str, given: String, problem: String },
    #[error(transparent)]
    Certificate(#[from] braid_transport::CertificateError),
    #[error(transparent)]
    Bind(#[from] braid_transport::BindError),
    #[error(transparent)]
    Health(#[from] braid_http::ServerError),
    #[error(transparent)]
    Http(#[from] braid_http::StartError),
    #[error("http.route: {0}")]
    Route(#[from] braid_http::RouteError),
    #[error("log.level {level:?}: {problem}; write for example info, or warn,braid_broker=debug")]
    LogLevel { level: String, problem: String },
    #[error("no listener is configured: name one with --tcp, --tls, --ws, --wss or --quic")]
    NoListener,
    #[error("the system refuses {what}: {source}")]
    System { what: &'static str, source: std::io::Error },
    #[error(transparent)]
    Open(OpenError),
    #[error(transparent)]
    Store(StoreError),
    #[error("spool.directory: {0}")]
    Spool(#[from] braid_store::spool::SpoolOpenError),
    #[error("{error}; `braidmq store check --data-dir {directory}` says what is wrong with it", directory = .directory.display())]
    Damaged { error: String, directory: PathBuf },
    #[error("tls.{missing} is missing: give certificate and key, or neither")]
    HalfPair { missing: &'static str },
    #[error("tls.client_ca is missing: client certificates need an authority to be checked against")]
    NoClientCa,
    #[error("quic.gate_log {path}: the file cannot be written: {source}", path = .path.display())]
    GateLog { path: PathBuf, source: std::io::Error },
    #[error("the start broke off: {0}")]
    Broken(String),
    #[error("quic.qlog_dir {path}: the directory cannot be made: {source}", path = .path.display())]
    QlogDir { path: PathBuf, source: std::io::Error },
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let Err(failure) = try_run(args) else { return ExitCode::SUCCESS };
    eprintln!("braidmq: {failure}");
    ExitCode::from(match failure {
        Failure::Start(_) | Failure::NameLost => REFUSED,
        Failure::Store { .. } => STORE_FAILED,
    })
}

fn try_run(args: &Args) -> Result<(), Failure> {
    let config = configure(args)?;
    if args.print_config {
        let text = toml::to_string_pretty(&config).unwrap_or_default();
        banner::write(&text).map_err(|source| StartError::System { what: "the output", source })?;
        return Ok(());
    }
    let reload_level = logging::start(&config.log)?;
    let health = HealthState::default();
    // Started first and stopped last, so that probes are answered during the whole life of the process.
    let bind = &config.health.bind;
    let server = (!bind.is_empty()).then(|| HealthServer::start(bind, health.clone()));
    let server = server.transpose().map_err(StartError::from)?;
    // Ten thousand clients need as many descriptors; the usual soft limit is 1024.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build()
        .map_err(|source| StartError::System { what: "to start threads", source })?;
    let status = Status { health, addresses: server.as_ref().map_or(&[], HealthServer::addresses) };
    let served = runtime.block_on(serve(args, &config, &reload_level, &status));
    let Some(Ended { served, store, monitor, front, is_name_lost }) = served? else {
        // Opening the store may be interrupted, as by a crash.
        runtime.shutdown_background();
        return Ok(());
    };
    // Connections that did not end in time still commit the end of their sessions.
    drop(runtime);
    let closed = store.close();
    if let Err(error) = &closed {
        // The broker is dropped; the probe reports this error until the process ends.
        status.health.serving(monitor.unclosed(error.clone()));
    }
    front.stop();
    served.and(closed).map_err(|error| Failure::of_store(config.data_dir, error))?;
    if is_name_lost { Err(Failure::NameLost) } else { Ok(()) }
}

impl Failure {
    fn of_store(directory: PathBuf, error: StoreError) -> Self {
        let reason = match error {
            StoreError::Failed { reason } => reason.to_string(),
            error => error.to_string(),
        };
        Self::Store { directory, reason }
    }
}

/// Merges all sources of the configuration.
fn configure(args: &Args) -> Result<Config, StartError> {
    let layers =
        Layers { file: args.config.clone(), environment: environment()?, settings: args.set.clone() };
    let mut config = merge(&layers)?;
    let named = ListenersConfig {
        tcp: bind::addresses("--tcp", &args.tcp)?,
        tls: bind::addresses("--tls", &args.tls)?,
        ws: bind::addresses("--ws", &args.ws)?,
        wss: bind::addresses("--wss", &args.wss)?,
        quic: bind::addresses("--quic", &args.quic)?,
    };
    if !named.is_empty() {
        config.listeners = named;
    }
    if config.addresses().next().is_none() {
        return Err(StartError::NoListener);
    }
    if !args.health.is_empty() {
        config.health.bind = bind::addresses("--health", &args.health)?;
    }
    if !args.http.is_empty() {
        config.http.listen = bind::addresses("--http", &args.http)?;
    }
    if let Some(data_dir) = &args.data_dir {
        config.data_dir.clone_from(data_dir);
    }
    if args.qlog_dir.is_some() {
        config.quic.qlog_dir.clone_from(&args.qlog_dir);
    }
    config.quic.gate &= !args.no_gate;
    if args.gate_log.is_some() {
        config.quic.gate_log.clone_from(&args.gate_log);
    }
    config.allow_anonymous |= args.allow_anonymous;
    config.cluster.accept_risks.extend(&args.accept_cluster_risk);
    config.check().map_err(|error| error.in_file(args.config.as_deref()))?;
    Ok(config)
}

/// Signals that end the broker.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> Result<Self, StartError> {
        let [terminate, interrupt] = [SignalKind::terminate(), SignalKind::interrupt()].map(listen);
        Ok(Self { terminate: terminate?, interrupt: interrupt? })
    }

    async fn recv(&mut self) {
        tokio::select! { _ = self.terminate.recv() => {}, _ = self.interrupt.recv() => {} }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, StartError> {
    signal(kind).map_err(|source| StartError::System { what: "signal handlers", source })
}

/// Runs a blocking step of the start; `None` when a signal comes first.
async fn unless_ended<T: Send + 'static>(
    signals: &mut EndSignals,
    step: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<Option<T>, StartError> {
    tokio::select! {
        done = tokio::task::spawn_blocking(step) => {
            done.map_err(|error| StartError::Broken(error.to_string()))?.map(Some)
        }
        () = signals.recv() => Ok(None),
    }
}

/// Health of the process, and the addresses of its HTTP server.
struct Status<'a> {
    health: HealthState,
    addresses: &'a [SocketAddr],
}

/// Outcome of the broker.
struct Ended {
    served: Result<(), StoreError>,
    /// To be closed.
    store: ProcessStore,
    monitor: HealthMonitor,
    /// To be stopped.
    front: Front,
    /// Another process has the name of this node of a cluster.
    is_name_lost: bool,
}

/// Serves until a signal or a failure of the store; `None` when a signal came before it began.
async fn serve(
    args: &Args,
    config: &Config,
    reload_level: &logging::Reload,
    status: &Status<'_>,
) -> Result<Option<Ended>, StartError> {
    let (mut signals, mut hang_up) = (EndSignals::new()?, listen(SignalKind::hangup())?);
    if let Some(path) = &config.quic.qlog_dir {
        std::fs::create_dir_all(path).map_err(|source| StartError::QlogDir { path: path.clone(), source })?;
    }
    if let Some(path) = &config.quic.gate_log {
        File::create(path).map_err(|source| StartError::GateLog { path: path.clone(), source })?;
    }
    // Before a certificate or key is made: nothing is written into a directory that the store refuses.
    let mut opened = None;
    if bind::makes_certificate(config) || access::makes_key(config) {
        let (config, health) = (config.clone(), status.health.clone());
        opened = unless_ended(&mut signals, move || store::open(&config, health)).await?;
        if opened.is_none() {
            return Ok(None);
        }
    }
    let control = tokio::select! {
        opened = access::open(config) => opened?,
        () = signals.recv() => return Ok(None),
    };
    let mut bans = FileBans::new(config.bans.file.clone());
    let banned = bans.read()?;
    let certificate = bind::certificate(config)?;
    // Before the store is read, so that a port in use is reported at once. Clients that connect meanwhile wait.
    let mut listeners = bind::listeners(config, certificate.as_ref())?;
    let mqtt = bind::upgrades(config, &mut listeners);
    let (reloads, mut wanted) = mpsc::channel::<Reload>(1);
    let process = Arc::new(ProcessControl::new(config.clone(), reloads));
    let front = Front::start(config, certificate.as_ref(), &status.health, mqtt, &control, process)?;
    let addresses = banner::Addresses::of(&listeners, status.addresses, front.addresses());
    let node = tokio::select! {
        joined = node::join(config) => joined?,
        () = signals.recv() => return Ok(None),
    };
    let (of_node, health) = (node::Shared::of(config, node.as_ref()), status.health.clone());
    let control_of_broker = control.clone();
    let build = move || store::build(opened, of_node, health, &control_of_broker, listeners);
    let Some(Built { broker, store, took }) = unless_ended(&mut signals, build).await? else {
        return Ok(None);
    };
    let handle = broker.handle();
    let mut member = node::Member::start(node, &handle.node_handle());
    // No client is connected, and a file has no more bans than there may be.
    let _ = bans.apply(banned, &handle);
    // Before the banner, so that a probe that follows it finds the broker serving.
    let monitor = handle.health_monitor();
    status.health.serving(monitor.clone());
    front.serving(&handle);
    banner::print(config, &addresses, certificate.as_ref());
    warn_of_exposed_files(config);
    log_recovery(broker.recovery(), took);
    let running = broker.run(Duration::from_secs(config.drain_secs));
    let failed = async {
        handle.fail(&store.failed().await);
        std::future::pending().await
    };
    let mut key_changes = control.key_changes();
    tokio::pin!(running, failed);
    let served = loop {
        tokio::select! {
            served = &mut running => break served,
            () = &mut failed => {}
            () = member.lost() => handle.stop(),
            () = signals.recv() => {
                // A second signal ends the broker at once.
                if handle.is_stopping() {
                    break Ok(());
                }
                member.find_successors().await;
                handle.stop();
            }
            () = key_changes.changed() => {
                tracing::info!("other keys of tokens were fetched: clients are checked again");
                recheck(&front, &handle).await;
            }
            wanted = next_reload(&mut hang_up, &mut wanted) => {
                let certificate = certificate.as_ref();
                let files = ReloadedFiles { certificate, front: &front, control: &control, bans: &mut bans };
                let reloaded = reload(args, reload_level, files, &handle).await;
                log_reload(&reloaded);
                if let Some(answer) = wanted {
                    // The client of the API may have gone.
                    let _ = answer.send(reloaded);
                }
            }
        }
    };
    drop(wanted);
    let is_name_lost = member.is_lost;
    member.leave().await;
    front.ended().await;
    Ok(Some(Ended { served, store: store.clone(), monitor, front, is_name_lost }))
}

fn log_reload(reloaded: &Result<(), String>) {
    match reloaded {
        Ok(()) => tracing::info!("users, rules, bans, certificates and log level reloaded"),
        Err(error) => tracing::error!(%error, "nothing reloaded, all stays as it is"),
    }
}

fn log_recovery(recovery: Recovery, took: Duration) {
    if recovery != Recovery::default() {
        let Recovery { sessions, queued, retained } = recovery;
        let memory_mib = Resident::of(std::process::id()).ok().map(|resident| resident.anonymous >> 20);
        tracing::info!(sessions, queued, retained, ?took, memory_mib, "recovered from the store");
    }
}

/// Waits for SIGHUP, or for a request of the API, which gets an answer.
async fn next_reload(hang_up: &mut Signal, wanted: &mut mpsc::Receiver<Reload>) -> Option<Reload> {
    tokio::select! {
        _ = hang_up.recv() => None,
        // Without a front there is no sender.
        Some(answer) = wanted.recv() => Some(answer),
    }
}

/// Warns of files with messages or keys that other users of the machine can reach. The broker creates none: an earlier
/// version did, or a user copied them. Their mode is left as it is, since a backup may depend on it.
fn warn_of_exposed_files(config: &Config) {
    let spool = config.spool().map(|(directory, _)| directory);
    for directory in std::iter::once(&config.data_dir).chain(&spool) {
        for Exposed { path, mode, wanted } in exposed(directory) {
            tracing::warn!(
                "other users can reach {path} (mode {mode:03o}): run `chmod {wanted:o} {path}`",
                path = path.display()
            );
        }
    }
}

/// Owners of what is read again by a reload.
struct ReloadedFiles<'a> {
    certificate: Option<&'a Certificate>,
    front: &'a Front,
    control: &'a AccessControl,
    bans: &'a mut FileBans,
}

/// Reads users, keys, rules, bans, certificates and log level again: all of them, or none if one is not valid.
async fn reload(
    args: &Args,
    reload_level: &logging::Reload,
    ReloadedFiles { certificate, front, control, bans }: ReloadedFiles<'_>,
    handle: &Handle,
) -> Result<(), String> {
    let reading = control.clone();
    let read = tokio::task::spawn_blocking(move || reading.read()).await;
    let read = read.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let banned = bans.read().map_err(|error| error.to_string())?;
    let level = configure(args).map_err(|error| error.to_string())?.log.level;
    let certificates = certificate.map(Certificate::begin_reload).transpose();
    let certificates = certificates.map_err(|error| error.to_string())?;
    let of_front = front.begin_reload().map_err(|error| error.to_string())?;
    let set_level = reload_level.begin_set(&level).map_err(|error| error.to_string())?;
    // Operators may have set bans that leave no room for those of the file.
    bans.apply(banned, handle).map_err(|error| format!("bans.file: {error}"))?;
    // All is valid: from here on it is put in force.
    set_level();
    if let Some(put_in_force) = certificates {
        put_in_force();
    }
    of_front();
    let applying = control.clone();
    // Former users and rules are freed there.
    let applied = tokio::task::spawn_blocking(move || applying.apply(read)).await;
    applied.map_err(|error| format!("users and rules could not be put in force: {error}"))?;
    recheck(front, handle).await;
    Ok(())
}

/// Authenticates users of the front again, and asks again whether clients may stay, after users, keys or rules have
/// changed.
async fn recheck(front: &Front, handle: &Handle) {
    front.forget_logins();
    handle.recheck_clients().await;
}
