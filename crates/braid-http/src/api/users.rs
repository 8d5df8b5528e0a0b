//! Users of the password file. Passwords are written and never read.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::control::User;
use super::extract::{Answer, Json, JsonBody, List, NoParams, PageParams, Params, Refused, Segment};

/// Password of a user.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PasswordRequest {
    #[schema(write_only)]
    password: String,
}

#[utoipa::path(
    get, path = "/api/v1/users", tag = "users", params(PageParams),
    description = "Lists the users of the first password file, without their hashes, in the order of their names.",
    responses((status = 200, description = "Success", body = List<User>), (status = 404, description = "There is no password file"), (status = 422, description = "A file or text is not valid")),
)]
pub(super) async fn list(State(api): State<Api>, Params(params): Params<PageParams>) -> Answer<List<User>> {
    let users = api.control(|control| control.users()).await?;
    Ok(Json(List::page(&params, users.into_iter().map(|user| (user.name.clone(), user)).collect())?))
}

#[utoipa::path(
    put, path = "/api/v1/users/{name}", tag = "users", request_body = PasswordRequest,
    description = "Adds a user, or replaces its password.",
    params(("name" = String, Path, description = "User name")),
    responses((status = 201, description = "Added"), (status = 204, description = "Replaced"), (status = 404, description = "There is no password file"), (status = 422, description = "A file or text is not valid")),
)]
pub(super) async fn set(
    State(api): State<Api>,
    Segment(name): Segment,
    Params(NoParams {}): Params<NoParams>,
    JsonBody(PasswordRequest { password }): JsonBody<PasswordRequest>,
) -> Result<StatusCode, Refused> {
    let is_replaced = api.change(move |control| control.set_user(&name, &password)).await?;
    Ok(if is_replaced { StatusCode::NO_CONTENT } else { StatusCode::CREATED })
}

#[utoipa::path(
    delete, path = "/api/v1/users/{name}", tag = "users",
    description = "Removes a user, and disconnects its clients.",
    params(("name" = String, Path, description = "User name")),
    responses((status = 204, description = "Done"), (status = 404, description = "There is none"), (status = 409, description = "It is the only user"), (status = 422, description = "A file or text is not valid")),
)]
pub(super) async fn remove(
    State(api): State<Api>,
    Segment(name): Segment,
    Params(NoParams {}): Params<NoParams>,
) -> Result<StatusCode, Refused> {
    api.change(move |control| control.remove_user(&name)).await?;
    Ok(StatusCode::NO_CONTENT)
}
