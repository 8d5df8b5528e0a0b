//! OpenAPI document, and pages.

use std::fs;

use braid_http::{Route, RouteTarget};
use serde_json::Value;

use super::support::{Setup, TestApi};

/// The document as it is checked in. `BRAIDMQ_WRITE_OPENAPI=1 cargo test -p braid-http` writes it.
#[test]
fn the_document_is_checked_in() {
    let api = TestApi::start();
    let answer = api.ask("GET", "/api/v1/openapi.json");
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    if std::env::var_os("BRAIDMQ_WRITE_OPENAPI").is_some() {
        fs::write(path, &answer.body).unwrap();
    }
    let stored = fs::read_to_string(path).unwrap_or_default();
    assert!(
        answer.body == stored,
        "docs/openapi.json is another one: run this test with BRAIDMQ_WRITE_OPENAPI=1"
    );
}

/// Every reference of the document leads to a schema, and every operation to a route.
#[test]
fn every_operation_is_answered() {
    let api = TestApi::start();
    let document = api.ask("GET", "/api/v1/openapi.json").json();
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20);
    for reference in references {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(document["components"]["schemas"].get(name).is_some(), "{reference}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            // An unknown parameter: nothing is done, and streams do not begin.
            let path = path.replace("{id}", "x").replace("{topic}", "x").replace("{name}", "x");
            let answer = api.ask(&method.to_uppercase(), &format!("{path}?no-such-parameter=1"));
            assert_eq!(answer.status, 400, "{method} {path}");
        }
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(reference) if name == "$ref" => references.push(reference.clone()),
                    value => collect(value, references),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

#[test]
fn pages_are_served_with_a_policy_and_validators() {
    let api = TestApi::start();
    for (path, kind, part) in [
        ("/", "text/html; charset=utf-8", "<title>BraidMQ</title>"),
        ("/app.js", "text/javascript; charset=utf-8", "import"),
        ("/style.css", "text/css; charset=utf-8", "{"),
        ("/favicon.svg", "image/svg+xml", "<svg"),
        ("/api/", "text/html; charset=utf-8", "BraidMQ API"),
        ("/api/try.js", "text/javascript; charset=utf-8", "openapi.json"),
    ] {
        let answer = api.ask("GET", path);
        assert_eq!((answer.status, answer.header("content-type")), (200, kind), "{path}");
        assert!(answer.body.contains(part), "{path}");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        let etag = answer.header("etag").to_owned();
        let known = api.send("GET", path, None, &[("If-None-Match", format!("\"other\", W/{etag}"))]);
        assert_eq!(
            (known.status, known.body.as_str(), known.header("etag")),
            (304, "", etag.as_str()),
            "{path}"
        );
        let other = api.send("GET", path, None, &[("If-None-Match", "\"other\"".to_owned())]);
        assert_eq!(other.status, 200);
        let head = api.ask("HEAD", path);
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        let refused = api.ask("POST", path);
        refused.refusal(405);
        assert_eq!(refused.header("allow"), "GET, HEAD");
    }
    let redirect = api.ask("GET", "/api");
    assert_eq!((redirect.status, redirect.header("location")), (308, "/api/"));
    api.ask("GET", "/no-such.js").refusal(404);
    api.ask("GET", "/api/no-such.js").refusal(404);
}

#[test]
fn routes_of_the_configuration_come_before_the_dashboard() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("index.html"), "mine").unwrap();
    let route = |path: &str| Route::new(path, RouteTarget::Directory(dir.path().to_owned()));
    let api = TestApi::with(Setup { routes: vec![route("/")], ..Setup::default() });
    assert_eq!(api.ask("GET", "/").body, "mine");
    assert_eq!(api.ask("GET", "/app.js").status, 404);
    assert_eq!(api.get("overview")["status"], "serving");
    let api = TestApi::with(Setup { routes: vec![route("/app.js")], ..Setup::default() });
    assert_eq!(api.ask("GET", "/app.js/").body, "mine");
    assert!(api.ask("GET", "/").body.contains("<title>BraidMQ</title>"));
}
