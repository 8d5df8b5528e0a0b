//! Subscriptions of all sessions.

use axum::extract::State;
use braid_broker::view::{ClientName, SubscriptionCursor, SubscriptionQuery};
use braid_proto::session::Subscription;
use braid_proto::stream::StreamKey;
use braid_proto::topic::{TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::budget::{QUESTIONS, Query};
use super::extract::{Answer, Json, List, Params, Refused, decode_cursor, encode_cursor, rows};
use super::{Api, metrics};

/// Subscription of a client.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SubscriptionItem {
    client_id: String,
    mountpoint: Option<String>,
    #[serde(flatten)]
    options: SubscriptionOptions,
}

/// Topic Filter and options.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SubscriptionOptions {
    /// Topic Filter, with the mountpoint of the client in front.
    filter: String,
    qos: u8,
    no_local: bool,
    retain_as_published: bool,
    /// 0: retained messages are sent, 1: if the subscription is new, 2: not.
    retain_handling: u8,
    /// Subscription Identifier.
    identifier: Option<u32>,
    /// Priority that the client asked for.
    priority: Option<u16>,
}

impl From<&(TopicFilter, Subscription)> for SubscriptionOptions {
    fn from((filter, subscription): &(TopicFilter, Subscription)) -> Self {
        Self {
            filter: filter.as_str().to_owned(),
            qos: subscription.qos.bits(),
            no_local: subscription.no_local,
            retain_as_published: subscription.retain_as_published,
            retain_handling: subscription.retain_handling as u8,
            identifier: subscription.id.map(std::num::NonZeroU32::get),
            priority: subscription.priority.map(braid_proto::stream::Priority::value),
        }
    }
}

/// Conditions on subscriptions; all of them must hold.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SubscriptionsParams {
    /// Topic Filter, equal in every character.
    filter: Option<String>,
    /// Topic that the filter matches.
    topic: Option<String>,
    /// Share Name.
    share: Option<String>,
    /// Client Identifier.
    client: Option<String>,
    /// Mountpoint of the client, if it has one.
    mountpoint: Option<String>,
    /// Items of the page, 1 to 1000; 100 by default.
    limit: Option<usize>,
    /// `cursor` of the page before.
    cursor: Option<String>,
}

/// Position behind a page: session and, unless it is behind all of the session, filter, stream and whether that is
/// unidirectional.
#[derive(Serialize, Deserialize)]
struct Cursor(u64, Option<(String, u32, bool)>);

impl From<SubscriptionCursor> for Cursor {
    fn from(SubscriptionCursor { session, within }: SubscriptionCursor) -> Self {
        let within =
            within.map(|(filter, stream)| (filter.as_str().to_owned(), stream.index(), stream.is_uni()));
        Self(session, within)
    }
}

impl Cursor {
    fn position(self) -> Result<SubscriptionCursor, Refused> {
        let Self(session, within) = self;
        let Some((filter, index, is_uni)) = within else {
            return Ok(SubscriptionCursor { session, within: None });
        };
        let filter =
            TopicFilter::parse(&filter).map_err(|_| Refused::bad("cursor: its filter is not valid"))?;
        let stream = if is_uni { StreamKey::uni(index) } else { StreamKey::bidi(index) };
        Ok(SubscriptionCursor { session, within: Some((filter, stream)) })
    }
}

#[utoipa::path(
    get, path = "/api/v1/subscriptions", tag = "subscriptions", params(SubscriptionsParams),
    description = "Lists subscriptions. Connected clients are asked: with a topic or filter its subscribers, else all, \
                   1,024 for a page. A page may have few items or none, and a cursor.",
    responses((status = 200, description = "Success", body = List<SubscriptionItem>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Params(params): Params<SubscriptionsParams>,
    budget: Query,
) -> Answer<List<SubscriptionItem>> {
    let (handle, limit) = (api.handle()?, rows(params.limit)?);
    let filter =
        |text: &String| TopicFilter::parse(text).map_err(|error| Refused::bad(format!("filter: {error}")));
    let topic =
        |text: &String| TopicName::parse(text).map_err(|error| Refused::bad(format!("topic: {error}")));
    if params.mountpoint.is_some() && params.client.is_none() {
        return Err(Refused::bad("mountpoint: name the client too"));
    }
    let client = params.client.as_ref().map(|id| ClientName::new(params.mountpoint.as_deref(), id));
    let query = SubscriptionQuery {
        client,
        filter: params.filter.as_ref().map(filter).transpose()?,
        topic: params.topic.as_ref().map(topic).transpose()?,
        share_name: params.share.clone(),
    };
    let is_all = query.client.is_none()
        && query.filter.is_none()
        && query.topic.is_none()
        && query.share_name.is_none();
    let cursor: Option<Cursor> = decode_cursor(params.cursor.as_deref())?;
    let is_first = cursor.is_none();
    let page = handle.subscriptions(&query, cursor.map(Cursor::position).transpose()?, limit).await;
    budget.charge(page.visited, QUESTIONS);
    let items: Vec<_> = page
        .rows
        .into_iter()
        .map(|row| SubscriptionItem {
            client_id: row.client.client_id().to_owned(),
            mountpoint: row.client.mountpoint().map(str::to_owned),
            options: SubscriptionOptions::from(&(row.filter, row.subscription)),
        })
        .collect();
    let total = if is_first && page.next.is_none() {
        Some(items.len() as u64)
    } else {
        is_all.then(|| metrics::value(&handle, "subscriptions/count")).flatten()
    };
    let cursor = page.next.and_then(|next| encode_cursor(&Cursor::from(next)));
    Ok(Json(List { items, cursor, total }))
}
