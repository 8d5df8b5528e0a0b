//! Streams of a connection, once or live.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use braid_broker::view::{ClientName, ConnectionReport, Held, StreamView};
use braid_proto::stream::StreamKey;
use braid_transport::quic::{GateLevel, GateState, PathClass, PathReport, PathRole, PathState};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::time::{Interval, MissedTickBehavior, interval};
use utoipa::{IntoParams, ToSchema};

use super::caller::Admitted;
use super::extract::{Answer, ClientParams, Json, Params, Refused, Segment};
use super::sse::{Source, event, respond};
use super::time::{millis, unix_now};
use super::{Api, address_text};

/// Interval of the live view in milliseconds: default, least, most.
const INTERVAL_MS: (u64, u64, u64) = (1000, 250, 10_000);

/// Connection and its streams.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Streams {
    client_id: String,
    mountpoint: Option<String>,
    /// Time of the report.
    at: f64,
    /// Path of a QUIC connection; null on other transports.
    path: Option<Path>,
    /// All paths of a QUIC connection: several if the client has opened them on its interfaces.
    paths: Vec<OnePath>,
    /// Congestion gate of a QUIC connection; null on other transports.
    gate: Option<Gate>,
    /// The control stream first.
    streams: Vec<Stream>,
    /// Streams beyond the first 1,024.
    omitted: usize,
    /// Streams that the client opened faster than is allowed, and that wait for their turn.
    opening: usize,
    /// Messages to the client that count against its Receive Maximum.
    unacknowledged: usize,
}

/// Path of a QUIC connection, since the client moved to it.
#[derive(Debug, Serialize, ToSchema)]
struct Path {
    rtt_ms: f64,
    loss_ratio: f64,
    lost_packets: u64,
    sent_packets: u64,
    /// Congestion window. Where the gate limits the path it says nothing about it.
    cwnd_bytes: u64,
    mtu_bytes: u16,
    address: Option<String>,
    /// Times that the client moved to another address.
    moves: u32,
}

/// One path of a QUIC connection.
#[derive(Debug, Serialize, ToSchema)]
struct OnePath {
    /// Number of the path; 0 is that of the handshake.
    number: u32,
    /// `in_use`, `standby`, or `unavailable` if it is not validated or does not answer.
    state: &'static str,
    /// Address of the client on it.
    address: String,
    rtt_ms: f64,
    lost_packets: u64,
    sent_packets: u64,
    /// Bytes of packets that are acknowledged.
    sent_bytes: u64,
    received_bytes: u64,
    cwnd_bytes: u64,
}

/// Congestion gate: holds bulk back so that urgent messages do not wait behind it in the network.
#[derive(Debug, Serialize, ToSchema)]
struct Gate {
    /// `off`, `learning`, `open` or `holding`.
    state: &'static str,
    /// Bytes per second that the path is taken to pass.
    rate_per_sec: Option<f64>,
    /// Wait of a packet in the queue of the path.
    queue_ms: Option<f64>,
    /// Limit that the path is taken to have: `start`, `open`, `window`, `policed` or `queued`.
    class: Option<&'static str>,
}

/// Stream of a connection.
#[derive(Debug, Serialize, ToSchema)]
struct Stream {
    /// Number as QUIC counts (RFC 9000, 2.1); 0 is the control stream.
    stream: u64,
    /// `control` or `data`.
    kind: &'static str,
    /// `both`, or `in` for a stream that only the client writes.
    direction: &'static str,
    /// Priority of its most urgent bytes, 0 to 65535.
    priority: u16,
    #[serde(flatten)]
    traffic: Traffic,
    #[serde(flatten)]
    waiting: Waiting,
    /// The broker does not read the stream: its receivers cannot keep up, or a limit is reached.
    paused: bool,
    /// Messages that wait, by priority.
    lanes: Vec<Lane>,
}

/// Traffic of a stream.
#[derive(Debug, Serialize, ToSchema)]
struct Traffic {
    bytes_in: u64,
    bytes_out: u64,
    messages_in: u64,
    messages_out: u64,
}

/// Bytes and messages that wait for a stream.
#[derive(Debug, Serialize, ToSchema)]
struct Waiting {
    #[serde(rename = "backlog_messages")]
    queued_messages: usize,
    #[serde(rename = "backlog_bytes")]
    queued_bytes: usize,
    /// Time for which the oldest message has waited, at least; null if none waits.
    oldest_ms: Option<f64>,
    /// Bytes that the transport has not taken.
    unsent_bytes: usize,
    /// `path`, `gate`, `flow_control`, `socket`, `durability`, `receive_maximum`, `resends`, `outbox`, `lane`, or null.
    waits_for: Option<&'static str>,
    /// Stream of a higher priority that goes first.
    behind: Option<u64>,
}

/// Messages of one priority that wait.
#[derive(Debug, Serialize, ToSchema)]
struct Lane {
    priority: u16,
    messages: usize,
    oldest_ms: Option<f64>,
    waits_for: Option<&'static str>,
}

/// Live view of streams.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LiveParams {
    /// Mountpoint of the client, if it has one.
    mountpoint: Option<String>,
    /// Interval of events, 250 to 10000; 1000 by default.
    interval_ms: Option<u64>,
}

impl Path {
    fn new(state: &PathState, report: &ConnectionReport) -> Self {
        // Exact up to 2^53 packets.
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let loss_ratio = state.packets_lost as f64 / state.packets_sent.max(1) as f64;
        Self {
            rtt_ms: millis(state.rtt),
            loss_ratio,
            lost_packets: state.packets_lost,
            sent_packets: state.packets_sent,
            cwnd_bytes: state.congestion_window,
            mtu_bytes: state.mtu,
            address: report.connection.address.map(address_text),
            moves: report.connection.moves,
        }
    }
}

impl From<&PathReport> for OnePath {
    fn from(path: &PathReport) -> Self {
        Self {
            number: path.number,
            state: match path.role {
                PathRole::InUse => "in_use",
                PathRole::Standby => "standby",
                PathRole::Unavailable => "unavailable",
            },
            address: address_text(path.remote),
            rtt_ms: millis(path.state.rtt),
            lost_packets: path.state.packets_lost,
            sent_packets: path.state.packets_sent,
            sent_bytes: path.state.bytes_sent,
            received_bytes: path.bytes_received,
            cwnd_bytes: path.state.congestion_window,
        }
    }
}

impl Gate {
    const OFF: Self = Self { state: "off", rate_per_sec: None, queue_ms: None, class: None };
}

impl From<&GateState> for Gate {
    fn from(gate: &GateState) -> Self {
        Self {
            state: match gate.class {
                PathClass::Startup => "learning",
                PathClass::Passthrough => "open",
                PathClass::Windowed | PathClass::Policed | PathClass::Queued => "holding",
            },
            rate_per_sec: gate.bytes_per_second,
            queue_ms: match gate.level {
                Some(GateLevel::Queue { wait, .. }) => Some(millis(wait)),
                Some(GateLevel::Tokens { .. }) | None => None,
            },
            class: Some(gate.class.name()),
        }
    }
}

/// Number of a stream of the client. RFC 9000, 2.1
fn number(key: StreamKey) -> u64 {
    4 * u64::from(key.index()) + if key.is_uni() { 2 } else { 0 }
}

fn word(held: Held) -> &'static str {
    match held {
        Held::OtherStreams => "lane",
        held => held.name(),
    }
}

impl Stream {
    fn new(view: &StreamView, all: &[StreamView]) -> Self {
        let (report, key) = (&view.report, view.report.stream);
        let goes_first = |other: &&StreamView| {
            let is_other =
                other.report.stream != key && (other.report.unwritten > 0 || other.queued_messages > 0);
            is_other
                && !key.is_control()
                && (other.report.stream.is_control() || other.priority > view.priority)
        };
        let first = all
            .iter()
            .filter(goes_first)
            .max_by_key(|other| (other.report.stream.is_control(), other.priority));
        let lane = |lane: &braid_broker::view::LaneView| Lane {
            priority: lane.priority.value(),
            messages: lane.messages,
            oldest_ms: lane.oldest.map(millis),
            waits_for: lane.held.map(word),
        };
        Self {
            stream: number(key),
            kind: if key.is_control() { "control" } else { "data" },
            direction: if key.is_uni() { "in" } else { "both" },
            priority: view.priority.value(),
            traffic: Traffic {
                bytes_in: report.bytes_received,
                bytes_out: report.bytes_sent,
                messages_in: report.publishes_received,
                messages_out: report.publishes_sent,
            },
            waiting: Waiting {
                queued_messages: view.queued_messages,
                queued_bytes: view.queued_bytes,
                oldest_ms: view.oldest.map(millis),
                unsent_bytes: report.unwritten,
                waits_for: view.held.map(word),
                behind: view.held.and(first).map(|first| number(first.report.stream)),
            },
            paused: view.is_paused,
            lanes: view.lanes.iter().map(lane).collect(),
        }
    }
}

impl Streams {
    fn new(name: &ClientName, report: &ConnectionReport) -> Self {
        let is_quic = report.connection.transport.is_quic();
        Self {
            client_id: name.client_id().to_owned(),
            mountpoint: name.mountpoint().map(str::to_owned),
            at: unix_now(),
            path: report.path.as_ref().map(|path| Path::new(path, report)),
            paths: report.paths.iter().map(OnePath::from).collect(),
            gate: is_quic.then(|| report.gate.as_ref().map_or(Gate::OFF, Gate::from)),
            streams: report.streams.iter().map(|view| Stream::new(view, &report.streams)).collect(),
            omitted: report.omitted,
            opening: report.opening,
            unacknowledged: report.unacknowledged,
        }
    }
}

#[utoipa::path(
    get, path = "/api/v1/clients/{id}/streams", tag = "clients",
    description = "Shows the streams of a connected client. TCP, TLS and WebSocket have one, the control stream.",
    params(("id" = String, Path, description = "Client Identifier"), ClientParams),
    responses((status = 200, description = "Success", body = Streams), (status = 404, description = "There is none"), (status = 409, description = "It is not connected")),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Segment(id): Segment,
    Params(params): Params<ClientParams>,
) -> Answer<Streams> {
    let name = ClientName::new(params.mountpoint.as_deref(), &id);
    let report = api.handle()?.streams(&name).await?;
    Ok(Json(Streams::new(&name, &report)))
}

/// Source that asks a connection again and again.
struct Live {
    api: Api,
    name: ClientName,
    ticks: Interval,
}

impl Source for Live {
    async fn next(&mut self) -> Option<Bytes> {
        self.ticks.tick().await;
        let report = self.api.handle().ok()?.streams(&self.name).await.ok()?;
        Some(event("streams", &Streams::new(&self.name, &report)))
    }
}

#[utoipa::path(
    get, path = "/api/v1/clients/{id}/streams/live", tag = "clients",
    description = "Sends `streams` events (server-sent events) until the client is disconnected.",
    params(("id" = String, Path, description = "Client Identifier"), LiveParams),
    responses(
        (status = 200, description = "Events", content_type = "text/event-stream", body = Streams),
        (status = 404, description = "There is none"), (status = 409, description = "It is not connected"),
    ),
)]
pub(super) async fn live(
    State(api): State<Api>,
    Extension(admitted): Extension<Admitted>,
    Segment(id): Segment,
    Params(params): Params<LiveParams>,
) -> Result<Response, Refused> {
    let (default, least, most) = INTERVAL_MS;
    let interval_ms = params.interval_ms.unwrap_or(default);
    if !(least..=most).contains(&interval_ms) {
        return Err(Refused::bad(format!(
            "interval_ms: {interval_ms} is out of range; it may be {least} to {most}"
        )));
    }
    let name = ClientName::new(params.mountpoint.as_deref(), &id);
    // An absent client is told before the stream begins.
    api.handle()?.streams(&name).await?;
    let mut ticks = interval(Duration::from_millis(interval_ms));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    respond(&api.clone(), admitted, Live { api, name, ticks })
}
