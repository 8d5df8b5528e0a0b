//! Automatic upgrade between TCP and QUIC: its changes, and its numbers about one network.

use std::net::IpAddr;

use axum::extract::State;
use axum::http::StatusCode;
use braid_select::explain::Measured;
use braid_select::{Cost, Explanation};
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::extract::{Answer, Json, List, NoParams, PageParams, Params, Refused, Segment};
use super::time::{millis, rounded};
use crate::autoquic::{AutoQuic, Change, name};

/// Automatic upgrade.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AutoQuicState {
    /// `auto`, `always`, `never` or `autoquic-compat`; `off` without HTTP/3.
    mode: String,
    /// Client networks with measurements, on each listener.
    known: usize,
    /// Latest changes of the protocol, newest first.
    changes: Vec<ChangeRow>,
}

/// Change of the protocol that a client network is offered.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeRow {
    pub(super) at: f64,
    /// Network of the client.
    pub(super) network: String,
    /// Address that it is connected to.
    pub(super) listener: String,
    /// `tcp` or `quic`.
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// Name of the reason, as in `/metrics`.
    pub(super) reason: &'static str,
    /// Reason with its numbers.
    pub(super) text: String,
}

impl From<&Change> for ChangeRow {
    fn from(change: &Change) -> Self {
        let decision = &change.decision;
        Self {
            at: rounded(change.at),
            network: decision.key.network.to_string(),
            listener: decision.key.origin.to_string(),
            from: name(decision.from),
            to: name(decision.to),
            reason: decision.reason.name(),
            text: decision.reason.to_string(),
        }
    }
}

/// Numbers about one network.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NetworkState {
    network: String,
    /// One for each listener that its clients are connected to.
    listeners: Vec<OfferState>,
}

/// Numbers about one network on one listener.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OfferState {
    /// Network of clients.
    network: String,
    /// Address that they are connected to.
    listener: String,
    /// Protocol that is offered: `tcp` or `quic`.
    chosen: &'static str,
    /// Time since the latest change; null if there was none.
    changed_secs: Option<f64>,
    /// Time until costs may change it again.
    dwell_secs: Option<f64>,
    /// Changes to TCP, one less for each hour without one.
    flaps: u32,
    /// Failures of QUIC since it worked last.
    failures: u32,
    /// Time until QUIC may be offered again after a failure.
    broken_secs: Option<f64>,
    /// Path as TCP measured it; null if it has not.
    tcp: Option<PathState>,
    /// Path as QUIC measured it; null if it has not.
    quic: Option<PathState>,
    /// Cost over TCP: urgent latency, completion time of a large response and processor time; null while nothing is
    /// measured.
    cost_tcp_ms: Option<f64>,
    /// Cost over QUIC.
    cost_quic_ms: Option<f64>,
    /// All of it in lines.
    text: String,
}

/// Path as one protocol measured it.
#[derive(Debug, Serialize, ToSchema)]
struct PathState {
    /// Smoothed round-trip time.
    rtt_ms: f64,
    /// Lost part of the packets, 0 to 1.
    loss_ratio: f64,
    /// Rate that the path permits; null if it did not limit any response.
    bytes_per_sec: Option<f64>,
    /// Time since the latest packets.
    age_secs: f64,
}

impl PathState {
    fn of(measured: &Measured) -> Option<Self> {
        let path = measured.path?;
        Some(Self {
            rtt_ms: rounded(path.srtt * 1000.0),
            loss_ratio: path.loss,
            bytes_per_sec: path.rate.map(f64::round),
            age_secs: rounded(measured.age.as_secs_f64()),
        })
    }
}

impl From<&Explanation> for OfferState {
    fn from(explanation: &Explanation) -> Self {
        let secs = |time: Option<std::time::Duration>| time.map(|time| rounded(time.as_secs_f64()));
        let cost =
            |cost: Cost| millis(std::time::Duration::try_from_secs_f64(cost.total()).unwrap_or_default());
        Self {
            network: explanation.key.network.to_string(),
            listener: explanation.key.origin.to_string(),
            chosen: name(explanation.chosen),
            changed_secs: secs(explanation.changed),
            dwell_secs: secs(explanation.dwell),
            flaps: explanation.flaps,
            failures: explanation.failures,
            broken_secs: secs(explanation.broken_for),
            tcp: PathState::of(&explanation.tcp),
            quic: PathState::of(&explanation.quic),
            cost_tcp_ms: explanation.costs.map(|costs| cost(costs.tcp)),
            cost_quic_ms: explanation.costs.map(|costs| cost(costs.quic)),
            text: explanation.to_string(),
        }
    }
}

fn policy(api: &Api) -> Result<&AutoQuic, Refused> {
    api.0.autoquic.as_ref().ok_or_else(|| {
        Refused::new(
            StatusCode::CONFLICT,
            "there is no HTTP/3 to upgrade to: turn http.tls and http.http3 on",
        )
    })
}

#[utoipa::path(
    get, path = "/api/v1/autoquic", tag = "broker",
    description = "Shows the automatic upgrade to HTTP/3: its mode, and its latest 256 changes with their reasons.",
    responses((status = 200, description = "Success", body = AutoQuicState)),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<AutoQuicState> {
    let Some(policy) = &api.0.autoquic else {
        return Ok(Json(AutoQuicState { mode: "off".to_owned(), known: 0, changes: Vec::new() }));
    };
    Ok(Json(AutoQuicState {
        mode: policy.mode().to_string(),
        known: policy.len(),
        changes: policy.changes().iter().map(ChangeRow::from).collect(),
    }))
}

/// Page of the networks, in the order of their texts.
fn page(policy: Option<&AutoQuic>, params: &PageParams) -> Result<List<OfferState>, Refused> {
    let keys = policy.map(AutoQuic::keys).unwrap_or_default().into_iter();
    let keys = keys.map(|key| ((key.network.to_string(), key.origin.to_string()), key));
    let List { items, cursor, total } = List::page(params, keys.collect())?;
    let explanations = policy.map(|policy| policy.explain(&items)).unwrap_or_default();
    Ok(List { items: explanations.iter().map(OfferState::from).collect(), cursor, total })
}

#[utoipa::path(
    get, path = "/api/v1/autoquic/networks", tag = "broker", params(PageParams),
    description = "Lists the client networks that the automatic upgrade knows, on each listener, in the order of their names.",
    responses((status = 200, description = "Success", body = List<OfferState>)),
)]
pub(super) async fn networks(
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Answer<List<OfferState>> {
    page(api.0.autoquic.as_ref(), &params).map(Json)
}

#[utoipa::path(
    get, path = "/api/v1/autoquic/{address}", tag = "broker",
    description = "Shows what the automatic upgrade knows about the network of a client's address, and why it offers it \
                   TCP or QUIC.",
    params(("address" = String, Path, description = "IP address of a client")),
    responses((status = 200, description = "Success", body = NetworkState), (status = 404, description = "Nothing is known of the network"), (status = 409, description = "There is no HTTP/3")),
)]
pub(super) async fn explain(
    State(api): State<Api>,
    Segment(address): Segment,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<NetworkState> {
    let address: IpAddr =
        address.parse().map_err(|_| Refused::bad(format!("{address:?} is no IP address")))?;
    let known = policy(&api)?.explain_address(address);
    let Some(first) = known.first() else {
        return Err(Refused::not_found(format!("no client of the network of {address} has been seen")));
    };
    let network = first.key.network.to_string();
    Ok(Json(NetworkState { network, listeners: known.iter().map(OfferState::from).collect() }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_select::Mode;
    use braid_transport::http::PathStats;

    use super::*;
    use crate::upgrade::{Link, PathSample, Probe, Upgrade};

    /// Path of a QUIC connection that has sent 100 packets.
    #[derive(Debug)]
    struct Measured;

    impl Probe for Measured {
        fn sample(&self) -> Option<PathSample> {
            Some(PathSample::Quic(PathStats { sent_packets: 100, ..PathStats::default() }))
        }

        fn is_quic(&self) -> bool {
            true
        }
    }

    #[test]
    fn all_networks_are_on_one_page_each() {
        let policy = AutoQuic::new(Mode::Auto, None, 1);
        for third in 0..250_u8 {
            let client = ([192, 0, third, 7], 1000).into();
            let listener = ([198, 51, 100, 1], 18083).into();
            let link = Link { client, listener, is_encrypted: true, probe: Arc::new(Measured) };
            policy.connected(link).ended();
        }
        let (mut seen, mut cursor) = (Vec::new(), None);
        let mut sizes = Vec::new();
        loop {
            let params = PageParams { limit: None, cursor };
            let List { items, cursor: next, total } = page(Some(&policy), &params).unwrap();
            assert_eq!(total, Some(250));
            sizes.push(items.len());
            seen.extend(items.into_iter().map(|item| item.network));
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        let mut expected: Vec<_> = (0..250).map(|third| format!("192.0.{third}.0/24")).collect();
        expected.sort();
        assert_eq!((sizes, seen), (vec![100, 100, 50], expected));
    }
}
