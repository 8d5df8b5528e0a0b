//! Retained messages.

use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_broker::view::{RetainedQuery, RetainedRow};
use braid_proto::topic::{TopicFilter, TopicName};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::budget::{ENTRIES, Query};
use super::extract::{
    Answer, Json, List, NoParams, Params, Refused, Segment, decode_cursor, encode_cursor, rows,
};
use super::{Api, metrics};

/// Largest payload that is sent whole, in bytes.
const MAX_PAYLOAD: usize = 1 << 20;

/// Retained message.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RetainedItem {
    topic: String,
    qos: u8,
    size_bytes: usize,
    /// Null if it was retained before the broker began.
    age_secs: Option<f64>,
    /// Null if it does not expire.
    expires_secs: Option<f64>,
    /// Client Identifier of its publisher; null where the broker does not keep it, as without permissions.
    publisher: Option<String>,
}

/// Retained message with its payload.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RetainedDetail {
    #[serde(flatten)]
    item: RetainedItem,
    /// Payload in base64; null if it is larger than 1 MiB.
    payload: Option<String>,
    /// Payload, if it is UTF-8 and not larger than 1 MiB.
    payload_text: Option<String>,
}

impl From<&RetainedRow> for RetainedItem {
    fn from(row: &RetainedRow) -> Self {
        let now = Instant::now();
        Self {
            topic: row.topic.as_str().to_owned(),
            qos: row.qos.bits(),
            size_bytes: row.payload_len,
            age_secs: row.since.map(|since| now.saturating_duration_since(since).as_secs_f64()),
            expires_secs: row.expires_at.map(|end| end.saturating_duration_since(now).as_secs_f64()),
            publisher: row.publisher.as_ref().map(|name| name.client_id().to_owned()),
        }
    }
}

/// Conditions on retained messages.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RetainedParams {
    /// Topic Filter; `#` by default, which matches no topics that begin with `$`.
    filter: Option<String>,
    /// Items of the page, 1 to 1000; 100 by default.
    limit: Option<usize>,
    /// `cursor` of the page before.
    cursor: Option<String>,
}

#[utoipa::path(
    get, path = "/api/v1/retained", tag = "retained", params(RetainedParams),
    description = "Lists retained messages without their payloads, in the order of their topics.",
    responses((status = 200, description = "Success", body = List<RetainedItem>)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Params(params): Params<RetainedParams>,
    budget: Query,
) -> Answer<List<RetainedItem>> {
    let (handle, limit) = (api.handle()?, rows(params.limit)?);
    let text = params.filter.as_deref().unwrap_or("#");
    let filter = TopicFilter::parse(text).map_err(|error| Refused::bad(format!("filter: {error}")))?;
    let cursor: Option<String> = decode_cursor(params.cursor.as_deref())?;
    let after = cursor.as_deref().map(topic).transpose()?;
    let is_first = after.is_none();
    let page = handle.retained(&RetainedQuery { filter, with_payload: false }, after, limit).await;
    budget.charge(page.visited, ENTRIES);
    let items: Vec<_> = page.rows.iter().map(RetainedItem::from).collect();
    let total = if is_first && page.next.is_none() {
        Some(items.len() as u64)
    } else {
        (text == "#").then(|| metrics::value(&handle, "retained messages/count")).flatten()
    };
    let cursor = page.next.and_then(|next| encode_cursor(&next.as_str()));
    Ok(Json(List { items, cursor, total }))
}

#[utoipa::path(
    get, path = "/api/v1/retained/{topic}", tag = "retained",
    description = "Shows a retained message with its payload.",
    params(("topic" = String, Path, description = "Topic, with each slash as %2F")),
    responses((status = 200, description = "Success", body = RetainedDetail), (status = 404, description = "There is none")),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Segment(text): Segment,
    Params(NoParams {}): Params<NoParams>,
) -> Answer<RetainedDetail> {
    let topic = topic(&text)?;
    let filter =
        TopicFilter::parse(topic.as_str()).map_err(|error| Refused::bad(format!("topic: {error}")))?;
    let page = api.handle()?.retained(&RetainedQuery { filter, with_payload: true }, None, 1).await;
    let row = page.rows.into_iter().next().ok_or_else(absent)?;
    let payload = row.payload.as_ref().filter(|payload| payload.len() <= MAX_PAYLOAD);
    Ok(Json(RetainedDetail {
        item: RetainedItem::from(&row),
        payload: payload.map(|payload| STANDARD.encode(payload)),
        payload_text: payload.and_then(|payload| String::from_utf8(payload.to_vec()).ok()),
    }))
}

#[utoipa::path(
    delete, path = "/api/v1/retained/{topic}", tag = "retained",
    description = "Deletes a retained message. Subscribers are not told.",
    params(("topic" = String, Path, description = "Topic, with each slash as %2F")),
    responses((status = 204, description = "Done"), (status = 404, description = "There is none")),
)]
pub(super) async fn remove(
    State(api): State<Api>,
    Segment(text): Segment,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Refused> {
    let is_removed = api.handle()?.delete_retained(&topic(&text)?).await?;
    is_removed.then_some(StatusCode::NO_CONTENT).ok_or_else(absent)
}

fn topic(text: &str) -> Result<TopicName, Refused> {
    TopicName::parse(text).map_err(|error| Refused::bad(format!("topic: {error}")))
}

fn absent() -> Refused {
    Refused::not_found("nothing is retained for this topic")
}
