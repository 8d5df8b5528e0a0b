//! Health probes of the front.

use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;

use crate::answer;
use crate::state::HealthState;

/// Paths of the probes. Those without `/health/` are of the health endpoint, and of EMQX.
pub(super) const PATHS: [&str; 7] =
    ["/health/live", "/health/ready", "/health", "/live", "/ready", "/status", "/api/v5/status"];

pub(super) async fn answer(request: Request, state: HealthState) -> Response<Body> {
    let response = answer::answer(&request, &state);
    if response.status().is_client_error() {
        let detail = "use GET or HEAD";
        let mut refused = crate::problem::problem(response.status(), detail);
        let allow = axum::http::header::ALLOW;
        refused.headers_mut().extend(response.headers().get(&allow).map(|value| (allow, value.clone())));
        return refused;
    }
    response.map(Body::new)
}
