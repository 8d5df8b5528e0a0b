//! Routes of the API, and the OpenAPI document about them.

use axum::Router;
use axum::routing::MethodRouter;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, ContentBuilder, PathItem, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi, ToSchema};

use super::{
    Api, autoquic, bans, clients, events, publish, retained, rules, streams, subscriptions, system, topics,
    users,
};

/// Makes the router, and a list of its paths and methods.
macro_rules! routes {
    ($($path:literal => $($method:ident $module:ident :: $handler:ident),+;)+) => {
        /// Routes below `/api/v1`.
        pub(super) fn routes() -> Router<Api> {
            Router::new()$(.route($path, MethodRouter::new()$(.$method($module::$handler))+))+
        }

        /// Paths and methods of the routes.
        #[cfg(test)]
        const ROUTES: &[(&str, &[&str])] = &[$(($path, &[$(stringify!($method)),+])),+];

        #[derive(OpenApi)]
        #[openapi(
            info(
                title = "BraidMQ",
                description = "REST API of the MQTT broker BraidMQ. Times are seconds since the Unix epoch. Refusals are \
                               `application/problem+json`; unknown fields and parameters are refused.",
            ),
            paths($($($module::$handler),+),+),
            modifiers(&SharedParts),
        )]
        struct Document;
    };
}

routes! {
    "/api/v1/overview" => get system::overview;
    "/api/v1/clients" => get clients::list;
    "/api/v1/clients/{id}" => get clients::show, delete clients::disconnect;
    "/api/v1/clients/{id}/streams" => get streams::show;
    "/api/v1/clients/{id}/streams/live" => get streams::live;
    "/api/v1/subscriptions" => get subscriptions::list;
    "/api/v1/retained" => get retained::list;
    "/api/v1/retained/{topic}" => get retained::show, delete retained::remove;
    "/api/v1/topics" => get topics::list;
    "/api/v1/publish" => post publish::publish;
    "/api/v1/bans" => get bans::list, post bans::set, delete bans::lift;
    "/api/v1/users" => get users::list;
    "/api/v1/users/{name}" => put users::set, delete users::remove;
    "/api/v1/rules" => get rules::show, put rules::replace;
    "/api/v1/rules/test" => post rules::test;
    "/api/v1/priorities" => get system::priorities;
    "/api/v1/listeners" => get system::listeners;
    "/api/v1/config" => get system::config;
    "/api/v1/reload" => post system::reload;
    "/api/v1/autoquic" => get autoquic::show;
    "/api/v1/autoquic/networks" => get autoquic::networks;
    "/api/v1/autoquic/{address}" => get autoquic::explain;
    "/api/v1/events" => get events::live;
}

/// Refusal of a request (RFC 9457).
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "only its schema is used")]
struct ProblemSchema {
    /// `about:blank`.
    r#type: String,
    title: String,
    status: u16,
    /// Cause and remedy.
    detail: String,
}

/// Refusals of every operation.
const OF_ALL: [(&str, &str); 6] = [
    ("400", "The request is not valid"),
    ("401", "Credentials are missing or wrong"),
    ("403", "The role of the user does not permit it"),
    ("429", "Too many requests, or wrong credentials, come from the address"),
    ("500", "A file or the store of the broker failed"),
    ("503", "The broker starts, stops or is overloaded"),
];

/// Refusals of operations whose request has a body.
const OF_BODIES: [(&str, &str); 2] = [
    ("413", "The body is larger than the broker accepts"),
    ("415", "The body is not declared as application/json"),
];

/// Parts that all operations have in common.
struct SharedParts;

impl Modify for SharedParts {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Components::new);
        let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
        components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic));
        components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
        components
            .schemas
            .insert(ProblemSchema::name().into_owned(), <ProblemSchema as utoipa::PartialSchema>::schema());
        let none: [&str; 0] = [];
        document.security =
            Some(vec![SecurityRequirement::new("basic", none), SecurityRequirement::new("bearer", none)]);
        for (path, item) in &mut document.paths.paths {
            let PathItem { get, put, post, delete, .. } = item;
            let operations = [("get", get), ("put", put), ("post", post), ("delete", delete)];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                operation.operation_id = Some(operation_id(method, path));
                let of_bodies: &[_] = if operation.request_body.is_some() { &OF_BODIES } else { &[] };
                for (status, text) in OF_ALL.iter().chain(of_bodies) {
                    let refusal = RefOr::T(Response::new(*text));
                    operation.responses.responses.entry((*status).to_owned()).or_insert(refusal);
                }
                for (status, response) in &mut operation.responses.responses {
                    if status.starts_with(['4', '5'])
                        && let RefOr::T(response) = response
                    {
                        *response = with_problem(response);
                    }
                }
            }
        }
    }
}

/// Unique name, such as `get_clients_id_streams`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(['/', '{', '}']).filter(|word| !matches!(*word, "" | "api" | "v1"));
    words.fold(method.to_owned(), |id, word| id + "_" + word)
}

/// Response with a problem as its body.
fn with_problem(response: &Response) -> Response {
    let text = if response.description.is_empty() { "The request is refused" } else { &response.description };
    let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    ResponseBuilder::new().description(text).content("application/problem+json", problem).build()
}

/// OpenAPI document as JSON.
pub(super) fn json() -> String {
    let mut document = Document::openapi();
    env!("CARGO_PKG_VERSION").clone_into(&mut document.info.version);
    document.info.license = None;
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Files of users and rules may be absent, or malformed by hand.
    #[test]
    fn the_document_has_the_refusals_of_files() {
        let document: serde_json::Value = serde_json::from_str(&json()).unwrap();
        for path in ["/api/v1/users", "/api/v1/users/{name}", "/api/v1/rules", "/api/v1/rules/test"] {
            for (method, operation) in document["paths"][path].as_object().unwrap() {
                for status in ["404", "422"] {
                    assert!(operation["responses"][status].is_object(), "{method} {path} {status}");
                }
            }
        }
    }

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(&json()).unwrap();
        let pair = |path: &str, method: &str| format!("{method} {path}");
        let routed: BTreeSet<_> = ROUTES
            .iter()
            .flat_map(|(path, methods)| methods.iter().map(move |method| pair(path, method)))
            .collect();
        let paths = document["paths"].as_object().unwrap().iter();
        let documented: BTreeSet<_> = paths
            .flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |method| pair(path, method)))
            .collect();
        assert_eq!(documented, routed);
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                assert!(operation["description"].is_string(), "{method} {path}");
                assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path}");
                let responses = operation["responses"].as_object().unwrap();
                assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
                assert!(responses.contains_key("401") && responses.contains_key("500"), "{method} {path}");
                for status in ["413", "415"] {
                    let has_body = operation["requestBody"].is_object();
                    assert_eq!(responses.contains_key(status), has_body, "{method} {path} {status}");
                }
            }
        }
    }
}
