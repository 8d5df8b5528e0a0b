//! Clients, connected or not.

use axum::extract::State;
use axum::http::StatusCode;
use braid_broker::view::{
    ClientCursor, ClientName, ClientQuery, ClientRow, ConnectionSummary, ViewError, WillSummary,
};
use braid_proto::packet::ProtocolVersion;
use braid_proto::reason::ReasonCode;
use braid_transport::Transport;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::budget::{ENTRIES, Query};
use super::extract::{
    Answer, ClientParams, Json, List, Params, Refused, Segment, decode_cursor, encode_cursor, rows,
};
use super::subscriptions::SubscriptionOptions;
use super::time::unix;
use super::{Api, address_text};

/// Clients that are visited to count those that match; beyond, the total is not told.
const MAX_COUNTED: usize = 100_000;

/// Rows of a page that is only counted.
const ROWS_TO_COUNT: usize = 1000;

/// Client and its session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Client {
    #[serde(flatten)]
    name: Name,
    /// User name; null for an anonymous client.
    user: Option<String>,
    #[serde(flatten)]
    connection: Connection,
    #[serde(flatten)]
    session: Session,
    /// Streams of the connection; null where only a question to the connection would tell.
    streams: Option<usize>,
}

/// Name of a client.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Name {
    /// Client Identifier, as the client knows it.
    client_id: String,
    /// Name space of the client.
    mountpoint: Option<String>,
}

/// Connection of a client. Fields about a connection are null while there is none.
#[derive(Debug, Default, Serialize, ToSchema)]
struct Connection {
    connected: bool,
    address: Option<String>,
    /// `tcp`, `tls`, `ws`, `wss` or `quic`.
    transport: Option<String>,
    /// `3.1`, `3.1.1` or `5.0`.
    version: Option<&'static str>,
    connected_at: Option<f64>,
    /// Null while connected, and if it was before the broker began.
    disconnected_at: Option<f64>,
    clean_start: Option<bool>,
    /// The connection began with early data (0-RTT) that was accepted.
    early: Option<bool>,
    /// 0 if it is turned off.
    keep_alive_secs: Option<u16>,
    /// Tag of the listener.
    listener: Option<String>,
}

/// Session of a client.
#[derive(Debug, Serialize, ToSchema)]
struct Session {
    /// Session Expiry Interval; null if the session never ends.
    expiry_secs: Option<u32>,
    subscriptions: u32,
    queued_messages: usize,
    queued_bytes: usize,
    /// Messages of QoS 1 and 2 to the client that are not completely acknowledged.
    inflight: u32,
    dropped: u64,
}

/// Client with its Will and subscriptions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClientDetail {
    #[serde(flatten)]
    client: Client,
    will: Option<Will>,
    /// Messages of QoS 2 from the client that are not released.
    inbound: usize,
    /// The first 256 subscriptions, in the order of their filters.
    filters: Vec<SubscriptionOptions>,
}

/// Message that is published if the connection is lost.
#[derive(Debug, Serialize, ToSchema)]
struct Will {
    topic: String,
    size_bytes: usize,
    qos: u8,
    retain: bool,
    delay_secs: u32,
}

/// Conditions on clients; all of them must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClientsParams {
    /// Beginning of the Client Identifier.
    prefix: Option<String>,
    /// User name.
    user: Option<String>,
    /// IP address or network of connected clients.
    address: Option<String>,
    /// Transport of connected clients: `tcp`, `tls`, `ws`, `wss` or `quic`.
    transport: Option<String>,
    /// Whether clients are connected.
    connected: Option<bool>,
    /// `queued`: the clients for which most bytes are queued, the most first, without further pages.
    sort: Option<String>,
    /// Items of the page, 1 to 1000; 100 by default.
    limit: Option<usize>,
    /// `cursor` of the page before.
    cursor: Option<String>,
}

/// Disconnecting a client.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DisconnectParams {
    /// Mountpoint of the client, if it has one.
    mountpoint: Option<String>,
    /// Whether the session is deleted too.
    #[serde(default)]
    session: bool,
}

/// Position behind a page: that of the broker, and the number of all clients that matched at the first page.
#[derive(Serialize, Deserialize)]
struct Cursor(u64, Option<u64>);

impl From<&ClientName> for Name {
    fn from(name: &ClientName) -> Self {
        Self { client_id: name.client_id().to_owned(), mountpoint: name.mountpoint().map(str::to_owned) }
    }
}

impl From<&ConnectionSummary> for Connection {
    fn from(summary: &ConnectionSummary) -> Self {
        Self {
            connected: true,
            address: summary.address.map(address_text),
            transport: Some(summary.transport.to_string()),
            version: Some(match summary.version {
                ProtocolVersion::V31 => "3.1",
                ProtocolVersion::V311 => "3.1.1",
                ProtocolVersion::V5 => "5.0",
            }),
            connected_at: Some(unix(summary.since)),
            disconnected_at: None,
            clean_start: Some(summary.clean_start),
            early: Some(summary.is_early),
            keep_alive_secs: Some(summary.keep_alive),
            listener: summary.listener.as_deref().map(str::to_owned),
        }
    }
}

impl From<&ClientRow> for Client {
    fn from(row: &ClientRow) -> Self {
        let disconnected_at = row.disconnected_since.map(unix);
        let streams = match &row.connection {
            None => Some(0),
            Some(connection) => (!connection.transport.is_quic()).then_some(1),
        };
        let expiry_secs = row.expiry.as_secs();
        Self {
            name: Name::from(&row.name),
            user: row.user.as_deref().map(str::to_owned),
            connection: match &row.connection {
                Some(connection) => Connection::from(&**connection),
                None => Connection { disconnected_at, ..Connection::default() },
            },
            session: Session {
                expiry_secs: (expiry_secs < u32::MAX).then_some(expiry_secs),
                subscriptions: row.subscriptions,
                queued_messages: row.queued_messages,
                queued_bytes: row.queued_bytes,
                inflight: row.inflight,
                dropped: row.dropped,
            },
            streams,
        }
    }
}

impl From<&WillSummary> for Will {
    fn from(will: &WillSummary) -> Self {
        Self {
            topic: will.topic.as_str().to_owned(),
            size_bytes: will.payload_len,
            qos: will.qos.bits(),
            retain: will.retain,
            delay_secs: will.delay,
        }
    }
}

impl ClientsParams {
    fn query(&self) -> Result<ClientQuery, Refused> {
        let network = |text: &String| {
            crate::network::parse(text).map_err(|remedy| Refused::bad(format!("address: {remedy}")))
        };
        let transport = |text: &String| {
            let named = Transport::ALL.into_iter().find(|one| one.to_string() == *text);
            named.ok_or_else(|| Refused::bad("transport: write tcp, tls, ws, wss or quic"))
        };
        Ok(ClientQuery {
            user: self.user.clone(),
            client_id_prefix: self.prefix.clone(),
            addresses: self.address.as_ref().map(network).transpose()?,
            transport: self.transport.as_ref().map(transport).transpose()?,
            is_connected: self.connected,
        })
    }
}

/// Tests whether a query has no condition.
fn is_all(query: &ClientQuery) -> bool {
    let ClientQuery { user, client_id_prefix, addresses, transport, is_connected } = query;
    user.is_none()
        && client_id_prefix.as_ref().is_none_or(String::is_empty)
        && addresses.is_none()
        && transport.is_none()
        && is_connected.is_none()
}

#[utoipa::path(
    get, path = "/api/v1/clients", tag = "clients", params(ClientsParams),
    description = "Lists clients and sessions, in the order in which they began or of what is queued for them.",
    responses((status = 200, description = "Success", body = List<Client>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Params(params): Params<ClientsParams>,
    budget: Query,
) -> Answer<List<Client>> {
    let (handle, limit, query) = (api.handle()?, rows(params.limit)?, params.query()?);
    match params.sort.as_deref() {
        None => {}
        Some("queued") if params.cursor.is_some() => {
            return Err(Refused::bad("cursor: the clients with most to get have no further pages"));
        }
        Some("queued") => {
            let page = handle.most_queued_clients(&query, limit).await;
            budget.charge(page.visited, ENTRIES);
            let items: Vec<_> = page.rows.iter().map(Client::from).collect();
            let total = if items.len() < limit {
                Some(items.len() as u64)
            } else {
                is_all(&query).then_some(page.visited as u64)
            };
            return Ok(Json(List { items, cursor: None, total }));
        }
        Some(_) => return Err(Refused::bad("sort: write queued, or leave it out")),
    }
    let cursor: Option<Cursor> = decode_cursor(params.cursor.as_deref())?;
    let start = cursor.as_ref().map(|Cursor(value, _)| ClientCursor::new(*value));
    let page = handle.clients(&query, start, limit).await;
    budget.charge(page.visited, ENTRIES);
    let (items, position) = (page.rows.iter().map(Client::from).collect::<Vec<_>>(), page.next);
    let total = match cursor {
        Some(Cursor(_, total)) => total,
        None if position.is_none() => Some(items.len() as u64),
        None if is_all(&query) => super::metrics::value(&handle, "clients/total"),
        None => {
            let (mut total, mut visited) = (items.len() as u64, page.visited);
            let mut behind = position;
            while behind.is_some() && visited < MAX_COUNTED {
                let page = handle.clients(&query, behind, ROWS_TO_COUNT).await;
                budget.charge(page.visited, ENTRIES);
                visited += page.visited;
                total += page.rows.len() as u64;
                behind = page.next;
            }
            behind.is_none().then_some(total)
        }
    };
    let cursor = position.and_then(|position| encode_cursor(&Cursor(position.value(), total)));
    Ok(Json(List { items, cursor, total }))
}

#[utoipa::path(
    get, path = "/api/v1/clients/{id}", tag = "clients",
    description = "Shows one client, connected or not.",
    params(("id" = String, Path, description = "Client Identifier"), ClientParams),
    responses((status = 200, description = "Success", body = ClientDetail), (status = 404, description = "There is none")),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Segment(id): Segment,
    Params(params): Params<ClientParams>,
) -> Answer<ClientDetail> {
    let (handle, name) = (api.handle()?, ClientName::new(params.mountpoint.as_deref(), &id));
    let detail = handle.client(&name).await?;
    let mut client = Client::from(&detail.row);
    if client.streams.is_none() {
        // None if it was disconnected meanwhile, or is busy.
        client.streams = handle.streams(&name).await.ok().map(|report| report.streams.len() + report.omitted);
    }
    Ok(Json(ClientDetail {
        client,
        will: detail.pending.will.as_ref().map(Will::from),
        inbound: detail.pending.inbound,
        filters: detail.subscriptions.iter().map(SubscriptionOptions::from).collect(),
    }))
}

#[utoipa::path(
    delete, path = "/api/v1/clients/{id}", tag = "clients",
    description = "Disconnects a client. With `session=true` its session is deleted too, connected or not.",
    params(("id" = String, Path, description = "Client Identifier"), DisconnectParams),
    responses((status = 204, description = "Done"), (status = 404, description = "There is none"), (status = 409, description = "It is not connected")),
)]
pub(super) async fn disconnect(
    State(api): State<Api>,
    Segment(id): Segment,
    Params(params): Params<DisconnectParams>,
) -> Result<StatusCode, Refused> {
    let (handle, name) = (api.handle()?, ClientName::new(params.mountpoint.as_deref(), &id));
    let is_done = if params.session {
        handle.delete_session(&name).await?
    } else {
        handle.disconnect(&name, ReasonCode::AdministrativeAction)
    };
    if is_done {
        return Ok(StatusCode::NO_CONTENT);
    }
    // An error if there is no such session.
    handle.client(&name).await?;
    Err(ViewError::NotConnected.into())
}
