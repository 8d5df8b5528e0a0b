//! Access control list.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::control::{RulesAnswer, RulesQuestion, RulesText};
use super::extract::{Answer, Json, JsonBody, NoParams, Params, Refused};

/// Path of [`test`], which changes nothing: a viewer may read the rules, and so ask them.
pub(super) const TEST_PATH: &str = "/api/v1/rules/test";

/// New content of the access control list.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesRequest {
    text: String,
}

#[utoipa::path(
    get, path = "/api/v1/rules", tag = "rules",
    description = "Shows the access control list as it is in its file.",
    responses((status = 200, description = "Success", body = RulesText), (status = 404, description = "There is no list"), (status = 422, description = "A file or text is not valid")),
)]
pub(super) async fn show(State(api): State<Api>, Params(NoParams {}): Params<NoParams>) -> Answer<RulesText> {
    api.control(|control| control.rules()).await.map(Json)
}

#[utoipa::path(
    put, path = "/api/v1/rules", tag = "rules", request_body = RulesRequest,
    description = "Replaces the access control list and puts it in force. A list with an error changes nothing.",
    responses((status = 204, description = "Done"), (status = 404, description = "There is none"), (status = 422, description = "An error, with its line")),
)]
pub(super) async fn replace(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
    JsonBody(RulesRequest { text }): JsonBody<RulesRequest>,
) -> Result<StatusCode, Refused> {
    api.control(move |control| control.replace_rules(&text)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(
    post, path = "/api/v1/rules/test", tag = "rules", request_body = RulesQuestion,
    description = "Tests whether the list permits an action, and which line decides.",
    responses((status = 200, description = "Success", body = RulesAnswer), (status = 404, description = "There is none"), (status = 422, description = "A file or text is not valid")),
)]
pub(super) async fn test(
    State(api): State<Api>,
    Params(NoParams {}): Params<NoParams>,
    JsonBody(question): JsonBody<RulesQuestion>,
) -> Answer<RulesAnswer> {
    api.control(move |control| control.test_rules(&question)).await.map(Json)
}
