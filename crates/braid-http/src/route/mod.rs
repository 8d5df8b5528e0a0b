//! Routes of the front: health, files of a directory, and reverse proxies.

mod files;
mod health;
mod mqtt;
mod proxy;

use std::fmt;
use std::io;
use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::any;
use thiserror::Error;
use tower_service::Service;

pub use self::mqtt::MqttRoute;
pub use self::proxy::{Upstream, UpstreamError};

use self::files::Files;
use self::proxy::Proxy;
use crate::api::Api;
use crate::counters::FrontCounters;
use crate::limits::Limits;
use crate::problem::problem;
use crate::quota::Quota;
use crate::request::{method_not_allowed, not_found};
use crate::state::HealthState;

/// A path, and what is served there and below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Path, from its first slash; a slash at its end is ignored.
    pub path: String,
    /// Source of the responses.
    pub target: RouteTarget,
    /// Whether pages of other origins may write there.
    pub cross_origin: bool,
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
    /// A route that pages of other origins may not write to.
    #[must_use]
    pub fn new(path: impl Into<String>, target: RouteTarget) -> Self {
        Self { path: path.into(), target, cross_origin: false }
    }

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
        if is_reserved(path) {
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
    /// Counters of the server.
    pub counters: FrontCounters,
}

/// Routes of a server: those of the configuration, and an [`axum::Router`] for all other paths.
#[derive(Clone)]
pub struct Routes {
    /// By prefix, the longest first.
    mounted: Vec<Mounted>,
    other: Router,
    /// The API is at the same origin.
    has_api: bool,
}

#[derive(Clone)]
struct Mounted {
    prefix: String,
    target: Target,
    is_cross_origin: bool,
}

#[derive(Clone)]
enum Target {
    Files(Files),
    Proxy(Box<Proxy>),
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes = self.mounted.iter().map(|one| &one.prefix).collect::<Vec<_>>();
        f.debug_struct("Routes").field("prefixes", &prefixes).finish_non_exhaustive()
    }
}

impl From<Router> for Routes {
    fn from(other: Router) -> Self {
        Self { mounted: Vec::new(), other, has_api: false }
    }
}

impl Routes {
    /// Response that is there without waiting: a file that was read a moment ago.
    pub(crate) fn answer_at_once(&self, request: &Parts) -> Option<Response<Body>> {
        match &self.find(request.uri.path())?.target {
            _ if self.is_refused(request.uri.path(), &request.headers) => None,
            Target::Files(files) => files.answer_at_once(request),
            Target::Proxy(_) => None,
        }
    }

    /// Answers a request.
    pub(crate) fn answer(
        &self,
        request: Request<Body>,
    ) -> impl Future<Output = Response<Body>> + Send + use<> {
        let target = self.find(request.uri().path()).map(|one| one.target.clone());
        let is_refused = target.is_some() && self.is_refused(request.uri().path(), request.headers());
        let mut other = self.other.clone();
        async move {
            match target {
                Some(_) if is_refused => {
                    let detail = "a service worker at the root would intercept the API: set http.api.listen";
                    problem(StatusCode::FORBIDDEN, detail)
                }
                Some(Target::Files(files)) => files.answer(request).await,
                Some(Target::Proxy(proxy)) => proxy.answer(request).await,
                None => match other.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                },
            }
        }
    }

    /// Tests for the script of a service worker that would control all paths of the origin, those of the API too: its
    /// scope is the directory of the script, and browsers mark requests for it.
    fn is_refused(&self, path: &str, headers: &HeaderMap) -> bool {
        self.has_api && headers.contains_key("service-worker") && path.rfind('/') == Some(0)
    }

    /// Tests whether pages of other origins may write to a path: if its own route says so, whatever a shorter one says.
    pub(crate) fn is_cross_origin(&self, path: &str) -> bool {
        self.find(path).is_some_and(|one| one.is_cross_origin)
    }

    /// Route of the configuration with the longest prefix.
    fn find(&self, path: &str) -> Option<&Mounted> {
        let found = self.mounted.iter().find(|one| is_within(path, &one.prefix));
        // Only the prefix of all paths holds them.
        found.filter(|_| !is_reserved(path))
    }
}

fn is_within(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_reserved(path: &str) -> bool {
    RESERVED.into_iter().any(|reserved| is_within(path, reserved))
}

/// Fallback of a server without the API.
async fn without_api(request: Request<Body>) -> Response<Body> {
    let path = request.uri().path();
    if is_within(path, "/api") || is_within(path, "/metrics") {
        return problem(StatusCode::NOT_FOUND, "the API is at the addresses of http.api.listen");
    }
    not_found().await
}

/// The routes of the broker itself, and `routes`.
///
/// # Errors
/// A directory cannot be opened, a path cannot be routed to, or two routes have the same path.
pub fn router(
    Services { health, api, mqtt, counters }: Services,
    routes: &[Route],
    limits: &Limits,
) -> Result<Routes, RouteError> {
    let mut router = api.as_ref().map_or_else(Router::new, Api::router);
    if let Some(mqtt) = mqtt {
        router = router.route("/mqtt", axum::routing::get(move |request| mqtt::upgrade(request, mqtt)));
    }
    for path in health::PATHS {
        let health = health.clone();
        router = router.route(path, any(move |request| health::answer(request, health)));
    }
    let has_api = api.is_some();
    // The dashboard is at paths that no route of the configuration takes.
    router = if has_api { router.fallback(crate::api::fallback) } else { router.fallback(without_api) };
    router = router.method_not_allowed_fallback(method_not_allowed);
    let mut mounted = Vec::with_capacity(routes.len());
    let places = Quota::new(limits.connections, limits.connections_per_address);
    for (index, route) in routes.iter().enumerate() {
        route.check()?;
        let prefix = route.prefix();
        if routes[..index].iter().any(|other| other.prefix() == prefix) {
            return Err(RouteError::Path { path: route.path.clone(), problem: "is there twice: remove one" });
        }
        let target = match &route.target {
            RouteTarget::Directory(directory) => {
                let files = Files::open(directory, prefix).map_err(|source| RouteError::Directory {
                    path: route.path.clone(),
                    directory: directory.clone(),
                    source,
                })?;
                Target::Files(files)
            }
            RouteTarget::Upstream(upstream) => {
                let client = Proxy::new(upstream.clone(), limits, places.clone(), counters.clone());
                Target::Proxy(Box::new(client))
            }
        };
        mounted.push(Mounted { prefix: prefix.to_owned(), target, is_cross_origin: route.cross_origin });
    }
    mounted.sort_by_key(|one| std::cmp::Reverse(one.prefix.len()));
    Ok(Routes { mounted, other: router, has_api })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_routes_are_checked() {
        let check = |path: &str| {
            let target = RouteTarget::Directory(PathBuf::from("/"));
            Route::new(path, target).check().err().map(|error| error.to_string())
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
    fn the_longest_prefix_has_the_path_and_the_broker_its_own() {
        let home = tempfile::tempdir().unwrap();
        let target = || RouteTarget::Directory(home.path().to_owned());
        let route = |path| Route { cross_origin: path != "/a", ..Route::new(path, target()) };
        let routes = ["/", "/a", "/a/b/"].map(route);
        let routes = router(Services::default(), &routes, &Limits::default()).unwrap();
        for (path, expected) in [
            ("/", Some("")),
            ("/ab", Some("")),
            ("/a", Some("/a")),
            ("/a/", Some("/a")),
            ("/a/bc", Some("/a")),
            ("/a/b", Some("/a/b")),
            ("/a/b/c/d", Some("/a/b")),
            ("/apis", Some("")),
            ("/api", None),
            ("/api/v1/nothing", None),
            ("/mqtt", None),
            ("*", None),
        ] {
            let found = routes.find(path).map(|one| match &one.target {
                Target::Files(files) => files.prefix(),
                Target::Proxy(_) => "a proxy",
            });
            assert_eq!(found, expected, "{path}");
            let is_cross_origin = expected.is_some_and(|prefix| prefix != "/a");
            assert_eq!(routes.is_cross_origin(path), is_cross_origin, "{path}");
        }
    }
}
