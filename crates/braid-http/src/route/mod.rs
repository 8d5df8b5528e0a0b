//! Routes of the front: health, files of a directory, and reverse proxies.

mod files;
mod health;
mod mqtt;
mod proxy;

use std::io;
use std::path::PathBuf;

use axum::Router;
use axum::http::header::{
    CONNECTION, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use axum::routing::{MethodRouter, any};
use thiserror::Error;

pub use self::mqtt::MqttRoute;
pub use self::proxy::{Upstream, UpstreamError};

use self::files::Files;
use self::proxy::Proxy;
use crate::api::Api;
use crate::front::{Limits, method_not_allowed, not_found};
use crate::state::HealthState;

/// A path, and what is served there and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Path, from its first slash; a slash at its end is ignored.
    pub path: String,
    /// Source of the responses.
    pub target: RouteTarget,
}

/// Source of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// Files of this directory and those below.
    Directory(PathBuf),
    /// Another HTTP server.
    Upstream(Upstream),
}

/// Route that cannot be served.
#[derive(Debug, Error)]
pub enum RouteError {
    /// The directory cannot be opened.
    #[error("the directory {} of the route {path} cannot be opened: {source}", directory.display())]
    Directory {
        /// Path of the route.
        path: String,
        /// The directory.
        directory: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The path is no path, or cannot be routed to.
    #[error("the route {path:?} {problem}")]
    Path {
        /// Path of the route.
        path: String,
        /// Problem of the path.
        problem: &'static str,
    },
}

/// Paths that routes must not have, with all below them.
const RESERVED: [&str; 7] = ["/health", "/live", "/ready", "/status", "/api", "/metrics", "/mqtt"];

impl Route {
    /// Checks the path.
    ///
    /// # Errors
    /// The path is reserved, or contains what a path cannot.
    pub fn check(&self) -> Result<(), RouteError> {
        let path = self.prefix();
        let refused = |problem| Err(RouteError::Path { path: self.path.clone(), problem });
        if !self.path.starts_with('/') {
            return refused("does not begin with a slash");
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
        let has_odd_segment = || path.split('/').skip(1).any(|part| matches!(part, "" | "." | ".."));
        if !path.chars().all(is_plain) || (!path.is_empty() && has_odd_segment()) {
            return refused(
                "has characters other than letters, digits and -._~, or an empty segment or dots",
            );
        }
        let is_within = |reserved: &str| {
            path.strip_prefix(reserved).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if RESERVED.into_iter().any(is_within) {
            return refused("is a path of the broker's own: choose another one");
        }
        Ok(())
    }

    /// The path without a slash at its end; empty for all paths.
    fn prefix(&self) -> &str {
        self.path.trim_end_matches('/')
    }
}

/// Services of the broker itself.
#[derive(Clone, Default)]
pub struct Services {
    /// Health of the process.
    pub health: HealthState,
    /// REST API, with the dashboard.
    pub api: Option<Api>,
    /// MQTT over WebSocket, at `/mqtt`.
    pub mqtt: Option<MqttRoute>,
}

/// Router with the routes of the broker itself and `routes`.
///
/// # Errors
/// A directory cannot be opened, a path cannot be routed to, or two routes have the same path.
pub fn router(
    Services { health, api, mqtt }: Services,
    routes: &[Route],
    limits: &Limits,
) -> Result<Router, RouteError> {
    let mut router = api.as_ref().map_or_else(Router::new, Api::router);
    if let Some(mqtt) = mqtt {
        router = router.route("/mqtt", axum::routing::get(move |request| mqtt::upgrade(request, mqtt)));
    }
    for path in health::PATHS {
        let health = health.clone();
        router = router.route(path, any(move |request| health::answer(request, health)));
    }
    // The dashboard is at paths that no route of the configuration takes.
    router = match api {
        Some(_) => router.fallback(crate::api::fallback),
        None => router.fallback(not_found),
    };
    router = router.method_not_allowed_fallback(method_not_allowed);
    for (index, route) in routes.iter().enumerate() {
        route.check()?;
        let prefix = route.prefix();
        if routes[..index].iter().any(|other| other.prefix() == prefix) {
            return Err(RouteError::Path { path: route.path.clone(), problem: "is there twice: remove one" });
        }
        router = match &route.target {
            RouteTarget::Directory(directory) => {
                let files = Files::open(directory, prefix).map_err(|source| RouteError::Directory {
                    path: route.path.clone(),
                    directory: directory.clone(),
                    source,
                })?;
                mount(router, prefix, any(move |request| files.clone().answer(request)))
            }
            RouteTarget::Upstream(upstream) => {
                let proxy = Proxy::new(upstream.clone(), limits);
                mount(router, prefix, any(move |request| proxy.clone().answer(request)))
            }
        };
    }
    Ok(router)
}

/// Routes a path and all below it. The service sees the whole path.
fn mount(router: Router, prefix: &str, service: MethodRouter) -> Router {
    if prefix.is_empty() {
        return router.fallback_service(service);
    }
    router
        .route(prefix, service.clone())
        .route(&format!("{prefix}/"), service.clone())
        .route(&format!("{prefix}/{{*rest}}"), service)
}

/// Removes the fields that concern one connection only. RFC 9110, 7.6.1
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let keep_alive = HeaderName::from_static("keep-alive");
    let proxy_connection = HeaderName::from_static("proxy-connection");
    let known = [
        CONNECTION,
        keep_alive,
        proxy_connection,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in named.into_iter().chain(known) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_routes_are_checked() {
        let check = |path: &str| {
            let target = RouteTarget::Directory(PathBuf::from("/"));
            Route { path: path.to_owned(), target }.check().err().map(|error| error.to_string())
        };
        for path in ["/", "/files", "/a/b-c_d.e~f/", "/healthy", "/apis"] {
            assert_eq!(check(path), None, "{path}");
        }
        for (path, problem) in [
            ("files", "does not begin with a slash"),
            ("/a b", "has characters"),
            ("/{a}", "has characters"),
            ("/a//b", "an empty segment"),
            ("/a/../b", "dots"),
            ("/api/v1", "is a path of the broker's own"),
            ("/health/", "is a path of the broker's own"),
        ] {
            assert!(check(path).is_some_and(|error| error.contains(problem)), "{path}: {:?}", check(path));
        }
    }

    #[test]
    fn fields_of_one_connection_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic"),
            ("x-kept", "3"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }
}
