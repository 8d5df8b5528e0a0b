//! Broker and process: overview, listeners, configuration, reload.

use std::sync::PoisonError;
use std::time::Instant;

use axum::extract::State;
use braid_broker::health::{Health, HealthStatus};
use braid_broker::view::{ListenerStatus, Metric};
use braid_transport::Transport;
use serde::Serialize;
use utoipa::ToSchema;

use super::control::Priority;
use super::extract::{Answer, Json, List, NoParams, PageParams, Params};
use super::{Api, address_text};
use crate::counters::FrontListener;

/// State of the broker at one moment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Overview {
    version: &'static str,
    uptime_secs: f64,
    /// `serving`, `refusing` (new connections), `stopping` or `failed`.
    status: &'static str,
    /// Causes of a limited service, in words.
    reasons: Vec<String>,
    rates: Rates,
    totals: Totals,
    connections: Connections,
    /// Sessions, connected or not.
    sessions: u64,
    subscriptions: u64,
    retained: Retained,
    memory: Memory,
    #[serde(flatten)]
    stores: Stores,
}

/// Rates over the last two seconds, or since the look at the overview before them, of any client. Null at the first
/// look: where none in the last minute was at least a second ago.
#[derive(Debug, Serialize, ToSchema)]
struct Rates {
    messages_in_per_sec: Option<f64>,
    messages_out_per_sec: Option<f64>,
    bytes_in_per_sec: Option<f64>,
    bytes_out_per_sec: Option<f64>,
    connects_per_sec: Option<f64>,
    refusals_per_sec: Option<f64>,
}

/// Counts since the start of the broker.
#[derive(Debug, Serialize, ToSchema)]
struct Totals {
    messages_in: u64,
    messages_out: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// Messages that were not delivered or not accepted.
    dropped: u64,
    /// Connections that were accepted.
    connects: u64,
    /// Connections that were refused.
    refused: u64,
}

/// Open connections by transport.
#[derive(Debug, Serialize, ToSchema)]
struct Connections {
    tcp: u64,
    tls: u64,
    ws: u64,
    wss: u64,
    quic: u64,
    total: u64,
}

/// Retained messages.
#[derive(Debug, Serialize, ToSchema)]
struct Retained {
    count: u64,
    /// Bytes of memory at most: messages that are queued for disconnected clients too are counted once in all.
    bytes: u64,
}

/// Memory of the broker for messages.
#[derive(Debug, Serialize, ToSchema)]
struct Memory {
    /// Bytes held for connected clients, and of incomplete packets.
    used_bytes: u64,
    /// Bytes queued for disconnected clients, or retained.
    resting_bytes: u64,
    /// Mark above which publishers are held back.
    low_bytes: u64,
    /// Mark above which new connections are refused.
    high_bytes: u64,
}

/// Files and endpoints.
#[derive(Debug, Serialize, ToSchema)]
struct Stores {
    store: Store,
    spool: Store,
    quic: Quic,
}

/// Store of sessions and messages, or spool of large messages.
#[derive(Debug, Serialize, ToSchema)]
struct Store {
    /// `ok`, or what is wrong.
    state: String,
    bytes: u64,
}

/// QUIC endpoints.
#[derive(Debug, Serialize, ToSchema)]
struct Quic {
    /// `ok`, or what is wrong.
    state: String,
    /// Connections accepted.
    handshakes: u64,
}

/// Listener of MQTT clients, or of the HTTP front.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Listener {
    /// Tag, or the kind where there is none.
    name: String,
    /// Transport, or `http`, `https` (HTTP/1.1 and 2) or `h3` of the HTTP front.
    transport: String,
    /// Null for MQTT at `/mqtt` of the HTTP front.
    address: Option<String>,
    /// Open connections; those at `/mqtt` of the front are counted for that listener.
    connections: u64,
    /// Connections accepted, those that have ended included.
    accepted: u64,
    /// False while its QUIC endpoint has failed and cannot restart.
    available: bool,
    restarts: u64,
}

/// Result of a reload.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reloaded {
    /// Names of what was read again.
    reloaded: Vec<String>,
}

impl From<ListenerStatus> for Listener {
    fn from(status: ListenerStatus) -> Self {
        let transport = status.transport.to_string();
        Self {
            name: status.tag.map_or_else(|| transport.clone(), Into::into),
            transport,
            address: status.address.map(address_text),
            connections: status.connections,
            accepted: status.accepted,
            available: status.is_available,
            restarts: status.restarts,
        }
    }
}

impl From<&FrontListener> for Listener {
    fn from(listener: &FrontListener) -> Self {
        let ((connections, accepted), health) = (listener.counts(), listener.health());
        Self {
            name: listener.kind.to_owned(),
            transport: listener.kind.to_owned(),
            address: Some(address_text(listener.address)),
            connections,
            accepted,
            available: health.is_available,
            restarts: health.restarts,
        }
    }
}

fn connections(listeners: &[ListenerStatus]) -> Connections {
    let of = |transport| {
        let of_it = listeners.iter().filter(|one| one.transport == transport);
        of_it.map(|one| one.connections).sum()
    };
    let [tcp, tls, ws, wss, quic] =
        [Transport::Tcp, Transport::Tls, Transport::Ws, Transport::Wss, Transport::Quic].map(of);
    Connections { tcp, tls, ws, wss, quic, total: listeners.iter().map(|one| one.connections).sum() }
}

fn reasons(health: &Health) -> Vec<String> {
    let states = [
        ("store", health.store.as_str()),
        ("memory", health.memory),
        ("spool", health.spool),
        ("QUIC", health.quic),
    ];
    let wrong = states.into_iter().filter(|(_, state)| *state != "ok");
    wrong.map(|(name, state)| format!("{name}: {state}")).collect()
}

#[utoipa::path(
    get, path = "/api/v1/overview", tag = "broker",
    description = "Shows rates, totals, connections, memory and health.",
    responses((status = 200, description = "Success", body = Overview)),
)]
pub(super) async fn overview(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<Overview> {
    let handle = api.handle()?;
    let (health, listeners, metrics) =
        (handle.health_monitor().health(), handle.listeners(), handle.metrics());
    let value =
        |topic: &str| metrics.iter().find(|one: &&Metric| one.topic == topic).map_or(0, |one| one.value);
    let totals = Totals {
        messages_in: value("messages/received"),
        messages_out: value("messages/sent"),
        bytes_in: value("bytes/received"),
        bytes_out: value("bytes/sent"),
        dropped: value("messages/dropped"),
        connects: value("connections/total"),
        refused: value("connections/refused"),
    };
    let Totals { messages_in, messages_out, bytes_in, bytes_out, dropped: _, connects, refused } = totals;
    let counters = [messages_in, messages_out, bytes_in, bytes_out, connects, refused];
    let rates = {
        // Poisoning is harmless: a sample is replaced whole.
        let mut sampler = api.0.rates.lock().unwrap_or_else(PoisonError::into_inner);
        sampler.rates(counters, Instant::now())
    };
    let rate = |index: usize| rates.map(|rates| rates[index]);
    let quic = listeners.iter().filter(|one| one.transport.is_quic());
    let (low_bytes, high_bytes) = api.0.memory_marks;
    let resting_bytes = value("memory/resting");
    Ok(Json(Overview {
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: api.0.began.elapsed().as_secs_f64(),
        status: match health.status {
            HealthStatus::Serving => "serving",
            other => other.as_str(),
        },
        reasons: reasons(&health),
        rates: Rates {
            messages_in_per_sec: rate(0),
            messages_out_per_sec: rate(1),
            bytes_in_per_sec: rate(2),
            bytes_out_per_sec: rate(3),
            connects_per_sec: rate(4),
            refusals_per_sec: rate(5),
        },
        totals,
        connections: connections(&listeners),
        sessions: value("clients/total"),
        subscriptions: value("subscriptions/count"),
        retained: Retained {
            count: value("retained messages/count"),
            bytes: resting_bytes.saturating_sub(value("memory/queued")),
        },
        memory: Memory { used_bytes: value("memory/used"), resting_bytes, low_bytes, high_bytes },
        stores: Stores {
            store: Store { state: health.store, bytes: value("store/bytes") },
            spool: Store { state: health.spool.to_owned(), bytes: value("spool/bytes") },
            quic: Quic { state: health.quic.to_owned(), handshakes: quic.map(|one| one.accepted).sum() },
        },
    }))
}

#[utoipa::path(
    get, path = "/api/v1/listeners", tag = "broker", params(PageParams),
    description = "Lists the listeners of MQTT clients, and those of the HTTP front.",
    responses((status = 200, description = "Success", body = List<Listener>)),
)]
pub(super) async fn listeners(
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Answer<List<Listener>> {
    let of_broker = api.handle()?.listeners().into_iter().map(Listener::from);
    let of_front = api.0.front.listeners();
    let all = of_broker.chain(of_front.iter().map(|one| Listener::from(&**one)));
    Ok(Json(List::page_in_order(&params, all)?))
}

#[utoipa::path(
    get, path = "/api/v1/config", tag = "broker",
    description = "Shows the configuration in force, defaults included and secrets masked.",
    responses((status = 200, description = "Success", body = serde_json::Value)),
)]
pub(super) async fn config(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<serde_json::Value> {
    api.control(|control| control.config()).await.map(Json)
}

#[utoipa::path(
    get, path = "/api/v1/priorities", tag = "broker", params(PageParams),
    description = "Lists the priorities of topics; the first that matches counts.",
    responses((status = 200, description = "Success", body = List<Priority>)),
)]
pub(super) async fn priorities(
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Answer<List<Priority>> {
    Ok(Json(List::page_in_order(&params, api.0.control.priorities())?))
}

#[utoipa::path(
    post, path = "/api/v1/reload", tag = "broker",
    description = "Reads users, keys, rules, bans, certificates and log level again: all of them, or none if one is not \
                   valid.",
    responses((status = 200, description = "Success", body = Reloaded), (status = 422, description = "A file is not valid")),
)]
pub(super) async fn reload(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<Reloaded> {
    let reloaded = api.change(|control| control.reload()).await?;
    Ok(Json(Reloaded { reloaded }))
}
