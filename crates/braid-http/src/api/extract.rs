//! Parts of requests, and the forms of responses. Every refusal is `application/problem+json`.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_broker::command::CommandError;
use braid_broker::view::ViewError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::control::{ControlError, ControlErrorKind};
use crate::problem::problem;

/// Rows of a page without `limit`.
const ROWS: usize = 100;

/// The most rows of a page.
const MAX_ROWS: usize = 1000;

/// Largest body of a request; the front has a lower limit by default.
const MAX_BODY: usize = 300 << 20;

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    status: StatusCode,
    detail: String,
    retry_after: Option<Duration>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// Refusal of a client that asks too often.
    pub(super) fn too_many(wait: Duration) -> Self {
        let detail = "too many requests come from this address";
        Self { retry_after: Some(wait), ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    #[must_use]
    pub(super) fn retry_after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = problem(self.status, &self.detail);
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, wait.as_secs().saturating_add(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let basic = "Basic realm=\"braidmq\", charset=\"UTF-8\"";
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(basic));
            headers.append(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"braidmq\""));
        }
        response
    }
}

impl From<ControlError> for Refused {
    fn from(error: ControlError) -> Self {
        let status = match error.kind {
            ControlErrorKind::NotFound => StatusCode::NOT_FOUND,
            ControlErrorKind::Conflict => StatusCode::CONFLICT,
            ControlErrorKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            ControlErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            ControlErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.detail)
    }
}

impl From<ViewError> for Refused {
    fn from(error: ViewError) -> Self {
        let status = match error {
            ViewError::NotFound => StatusCode::NOT_FOUND,
            ViewError::NotConnected | ViewError::Vanished => StatusCode::CONFLICT,
            ViewError::NoAnswer | ViewError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self::new(status, error.to_string())
    }
}

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Self {
        let status = match error {
            CommandError::Stopping | CommandError::Overloaded | CommandError::Busy => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            CommandError::Refused(_) => StatusCode::BAD_REQUEST,
            CommandError::NotRetained { .. } => StatusCode::INSUFFICIENT_STORAGE,
            CommandError::NotDurable { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            // The reason names files of the host.
            CommandError::Store(_) => {
                return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "the store of the broker failed");
            }
        };
        Self::new(status, error.to_string())
    }
}

/// Response with JSON.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let Ok(body) = serde_json::to_vec(&self.0) else {
            return Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the answer is no JSON").into_response();
        };
        let mut response = Response::new(Body::from(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// Result of a request that is answered with JSON.
pub(super) type Answer<T> = Result<Json<T>, Refused>;

/// Body with JSON.
#[derive(Debug)]
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refused> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim).unwrap_or_default();
        if !kind.eq_ignore_ascii_case("application/json") {
            let detail = "the body must have Content-Type: application/json";
            return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
        }
        let body = to_bytes(request.into_body(), MAX_BODY).await;
        let body = body.map_err(|_| Refused::bad("the body is not complete, or too large"))?;
        let parsed = serde_json::from_slice(&body);
        parsed.map(Self).map_err(|error| Refused::bad(format!("the body is not valid: {error}")))
    }
}

/// Query of a URI. Names that `T` does not have are refused.
#[derive(Debug)]
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        let parsed = Query::try_from_uri(&parts.uri);
        let Query(parsed) = parsed.map_err(|error| Refused::bad(query_problem(&error.body_text())))?;
        Ok(Self(parsed))
    }
}

/// Problem of a query in plain words, from the text of the library that reads it.
fn query_problem(text: &str) -> String {
    let text = text.rsplit_once("query string: ").map_or(text, |(_, problem)| problem);
    let behind = |word| text.split_once(word).map(|(_, rest)| rest);
    if let Some(rest) = behind("unknown field ") {
        let (name, others) = rest.split_once(", ").unwrap_or((rest, ""));
        let others = others.trim_start_matches("expected ").trim_start_matches("one of ");
        return match others {
            "" | "there are no fields" => format!("there is no parameter {name}: this path has none"),
            others => format!("there is no parameter {name}: this path has {others}"),
        };
    }
    if let Some(name) = behind("duplicate field ") {
        return format!("the parameter {name} is there twice: leave one out");
    }
    if let Some(name) = behind("missing field ") {
        return format!("the parameter {name} is missing: add it");
    }
    let Some((name, problem)) = text.split_once(": ") else {
        return "the query has a value that is not valid".to_owned();
    };
    let remedy = match problem {
        "provided string was not `true` or `false`" => "write true or false",
        "number too large to fit in target type" => "the number is too large",
        "invalid digit found in string" | "cannot parse integer from empty string" => "write a whole number",
        _ => "the value is not valid",
    };
    format!("{name}: {remedy}")
}

/// Query of a route that has no parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParams {}

/// Variable segment of a path, percent-decoded.
#[derive(Debug)]
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let segment = Path::<String>::from_request_parts(parts, state).await;
        segment
            .map(|Path(text)| Self(text))
            .map_err(|_| Refused::bad("the path is not percent-encoded UTF-8"))
    }
}

/// Name space of a client.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClientParams {
    /// Mountpoint of the client, if it has one.
    pub(super) mountpoint: Option<String>,
}

/// Part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct List<T> {
    /// Items of this page.
    pub(super) items: Vec<T>,
    /// Value of `cursor` for the next page; null at the end.
    pub(super) cursor: Option<String>,
    /// Number of all items that match; null where only a walk through all of them would tell.
    pub(super) total: Option<u64>,
}

/// Page of a list without conditions.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParams {
    /// Items of the page, 1 to 1000; 100 by default.
    pub(super) limit: Option<usize>,
    /// `cursor` of the page before.
    pub(super) cursor: Option<String>,
}

impl<T> List<T> {
    /// Page of a list that is in memory as a whole, in the order of keys, which no two items share. The cursor is the
    /// key of the last item, so that items that come and go between two pages hide and repeat no others.
    ///
    /// # Errors
    /// `limit` or `cursor` is not valid.
    pub(super) fn page<K>(params: &PageParams, mut all: Vec<(K, T)>) -> Result<Self, Refused>
    where
        K: Ord + Serialize + DeserializeOwned,
    {
        let (limit, after) = (rows(params.limit)?, decode_cursor::<K>(params.cursor.as_deref())?);
        let total = Some(all.len() as u64);
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let start = after.map_or(0, |after| all.partition_point(|(key, _)| *key <= after));
        let mut page = all.split_off(start);
        let is_last = page.len() <= limit;
        page.truncate(limit);
        let cursor = page.last().filter(|_| !is_last).and_then(|(key, _)| encode_cursor(key));
        Ok(Self { items: page.into_iter().map(|(_, item)| item).collect(), cursor, total })
    }

    /// Page of a list whose order does not change while the broker runs.
    ///
    /// # Errors
    /// `limit` or `cursor` is not valid.
    pub(super) fn page_in_order(
        params: &PageParams,
        all: impl IntoIterator<Item = T>,
    ) -> Result<Self, Refused> {
        Self::page(params, all.into_iter().enumerate().collect())
    }
}

/// Rows that a page has.
///
/// # Errors
/// `limit` is out of range.
pub(super) fn rows(limit: Option<usize>) -> Result<usize, Refused> {
    match limit.unwrap_or(ROWS) {
        limit @ 1..=MAX_ROWS => Ok(limit),
        other => Err(Refused::bad(format!("limit: {other} is out of range; it may be 1 to {MAX_ROWS}"))),
    }
}

/// Cursor as clients see it.
pub(super) fn encode_cursor<T: Serialize>(position: &T) -> Option<String> {
    serde_json::to_vec(position).ok().map(|text| URL_SAFE_NO_PAD.encode(text))
}

/// Position of a cursor.
///
/// # Errors
/// The text is of no page of this list.
pub(super) fn decode_cursor<T: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<T>, Refused> {
    let Some(cursor) = cursor else { return Ok(None) };
    let text = URL_SAFE_NO_PAD.decode(cursor).ok();
    let position = text.and_then(|text| serde_json::from_slice(&text).ok());
    position
        .map(Some)
        .ok_or_else(|| Refused::bad("cursor: take the value of the page before, or leave it out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only parsed")]
    struct Example {
        id: String,
        limit: Option<usize>,
        small: Option<u8>,
        connected: Option<bool>,
    }

    #[tokio::test]
    async fn problems_of_a_query_are_told_in_plain_words() {
        async fn problem<T: DeserializeOwned + std::fmt::Debug>(query: &str) -> String {
            let request = Request::builder().uri(format!("/?{query}")).body(()).unwrap();
            Params::<T>::from_request_parts(&mut request.into_parts().0, &()).await.unwrap_err().detail
        }
        for (query, expected) in [
            ("id=a&limit=x", "limit: write a whole number"),
            ("id=a&limit=", "limit: write a whole number"),
            ("id=a&limit=-1", "limit: write a whole number"),
            ("id=a&small=256", "small: the number is too large"),
            ("id=a&connected=yes", "connected: write true or false"),
            ("id=a&id=b", "the parameter `id` is there twice: leave one out"),
            ("limit=1", "the parameter `id` is missing: add it"),
            ("id=a&x=1", "there is no parameter `x`: this path has `id`, `limit`, `small`, `connected`"),
        ] {
            assert_eq!(problem::<Example>(query).await, expected, "{query}");
        }
        assert_eq!(problem::<NoParams>("x=1").await, "there is no parameter `x`: this path has none");
    }
}
