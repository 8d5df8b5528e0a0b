//! Bans of clients, users and addresses.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use braid_broker::bans::{Ban, BanError, BanTarget};
use braid_broker::view::ClientName;

use braid_proto::packet::ClientId;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::extract::{Answer, Json, JsonBody, List, NoParams, PageParams, Params, Refused};
use super::time::unix_now;

/// Longest ban that has an end, in seconds: a century.
const MAX_SECS: u64 = 100 * 366 * 86_400;

/// Target of a ban: the fields that it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub(super) struct BanTargetItem {
    client: Option<String>,
    /// Mountpoint of the client.
    mountpoint: Option<String>,
    user: Option<String>,
    /// Network, such as `192.0.2.0/24`.
    addresses: Option<String>,
}

/// Ban that is in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BanItem {
    #[serde(flatten)]
    target: BanTargetItem,
    /// Null if it ends with the broker.
    expires_at: Option<f64>,
    reason: String,
    /// The broker set it by itself because the client connected too often.
    flapping: bool,
}

/// Ban to set: exactly one of `client`, `user` and `addresses`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BanRequest {
    /// Client Identifier.
    client: Option<String>,
    /// Mountpoint of the client, if it has one.
    mountpoint: Option<String>,
    /// User name.
    user: Option<String>,
    /// IP address or network.
    addresses: Option<String>,
    /// Time of the ban; until the broker ends by default.
    secs: Option<u64>,
    /// Reason for the record; clients do not see it.
    #[serde(default)]
    reason: String,
}

/// Ban to lift: as it is listed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BanParams {
    /// Client Identifier.
    client: Option<String>,
    /// Mountpoint of the client, if it has one.
    mountpoint: Option<String>,
    /// User name.
    user: Option<String>,
    /// IP address or network.
    addresses: Option<String>,
}

impl From<Ban> for BanItem {
    fn from(ban: Ban) -> Self {
        let name = |id: &ClientId| {
            let name = ClientName::from(id);
            (Some(name.client_id().to_owned()), name.mountpoint().map(str::to_owned))
        };
        let (client, mountpoint) = match &ban.target {
            BanTarget::Client(id) | BanTarget::ClientAt(id, ..) => name(id),
            BanTarget::User(_) | BanTarget::Addresses(_) => (None, None),
        };
        let user = match &ban.target {
            BanTarget::User(user) | BanTarget::ClientAt(_, Some(user), _) => Some(user.to_string()),
            _ => None,
        };
        let addresses = match &ban.target {
            BanTarget::Addresses(network) | BanTarget::ClientAt(_, _, network) => Some(network.to_string()),
            _ => None,
        };
        Self {
            target: BanTargetItem { client, mountpoint, user, addresses },
            expires_at: ban.remaining.map(|left| unix_now() + left.as_secs_f64()),
            reason: ban.reason.to_string(),
            flapping: ban.is_flapping,
        }
    }
}

impl From<BanError> for Refused {
    fn from(error: BanError) -> Self {
        let status = match error {
            BanError::TooMany => StatusCode::CONFLICT,
            BanError::ReasonTooLong => StatusCode::BAD_REQUEST,
        };
        Self::new(status, error.to_string())
    }
}

fn network(text: &str) -> Result<IpNet, Refused> {
    crate::network::parse(text).map_err(|remedy| Refused::bad(format!("addresses: {remedy}")))
}

impl BanParams {
    /// Target with a client, a user or addresses alone.
    fn single(&self) -> Result<BanTarget, Refused> {
        match (&self.client, &self.user, &self.addresses) {
            (Some(client), None, None) if !client.is_empty() => {
                Ok(BanTarget::Client(self.session_id(client)))
            }
            (None, Some(user), None) if !user.is_empty() && self.mountpoint.is_none() => {
                Ok(BanTarget::User(user.as_str().into()))
            }
            (None, None, Some(addresses)) if self.mountpoint.is_none() => {
                Ok(BanTarget::Addresses(network(addresses)?))
            }
            _ => Err(Refused::bad(
                "name one of client (with its mountpoint, if it has one), user and addresses",
            )),
        }
    }

    /// Any target that is listed.
    fn listed(&self) -> Result<BanTarget, Refused> {
        match (&self.client, &self.addresses) {
            (Some(client), Some(addresses)) => {
                let user = self.user.as_deref().map(Into::into);
                Ok(BanTarget::ClientAt(self.session_id(client), user, network(addresses)?))
            }
            _ => self.single(),
        }
    }

    fn session_id(&self, client: &str) -> ClientId {
        ClientName::new(self.mountpoint.as_deref(), client).session_id().clone()
    }
}

#[utoipa::path(
    get, path = "/api/v1/bans", tag = "bans", params(PageParams),
    description = "Lists the bans that are in force.",
    responses((status = 200, description = "Success", body = List<BanItem>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Params(params): Params<PageParams>,
) -> Answer<List<BanItem>> {
    let bans = api.handle()?.bans().into_iter().map(BanItem::from);
    Ok(Json(List::page(&params, bans.map(|ban| (ban.target.clone(), ban)).collect())?))
}

#[utoipa::path(
    post, path = "/api/v1/bans", tag = "bans", request_body = BanRequest,
    description = "Bans a client, a user or addresses, and disconnects those who are connected.",
    responses((status = 201, description = "Done", body = BanItem), (status = 409, description = "There are too many bans")),
)]
pub(super) async fn set(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
    JsonBody(request): JsonBody<BanRequest>,
) -> Result<Response, Refused> {
    let BanRequest { client, mountpoint, user, addresses, secs, reason } = request;
    if secs.is_some_and(|secs| !(1..=MAX_SECS).contains(&secs)) {
        return Err(Refused::bad(format!(
            "secs: it may be 1 to {MAX_SECS}; leave it out for a ban without an end"
        )));
    }
    let target = BanParams { client, mountpoint, user, addresses }.single()?;
    let remaining = secs.map(Duration::from_secs);
    api.handle()?.ban(target.clone(), remaining, &reason).await?;
    let ban = Ban { target, remaining, reason: reason.into(), is_flapping: false };
    Ok((StatusCode::CREATED, Json(BanItem::from(ban))).into_response())
}

#[utoipa::path(
    delete, path = "/api/v1/bans", tag = "bans", params(BanParams),
    description = "Lifts the ban of exactly this target. Those of the ban file come back at a reload.",
    responses((status = 204, description = "Done"), (status = 404, description = "There is none")),
)]
pub(super) async fn lift(
    State(api): State<Api>,
    Params(params): Params<BanParams>,
) -> Result<StatusCode, Refused> {
    let target = params.listed()?;
    let is_lifted = api.handle()?.unban(target);
    is_lifted.then_some(StatusCode::NO_CONTENT).ok_or_else(|| Refused::not_found("there is no such ban"))
}
