//! Pages inside the binary: the dashboard, the page at `/api/`, and the OpenAPI document.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, Response, StatusCode};
use axum::routing::{any, get};
use bytes::Bytes;

use super::document;
use crate::problem::problem;

/// Policy of pages: nothing from elsewhere, no inline scripts; connections to other ports of this host are those of the
/// MQTT console.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// File of a page.
struct Page {
    path: &'static str,
    kind: &'static str,
    content: Bytes,
    etag: HeaderValue,
}

impl Page {
    fn new(path: &'static str, content: Bytes) -> Self {
        let kind = match path.rsplit_once('.') {
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            Some((_, "json")) => "application/json",
            _ => "text/html; charset=utf-8",
        };
        // Keys of this hasher are constant: the tag is that of the content.
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let etag = HeaderValue::try_from(format!("\"{:016x}\"", hasher.finish()));
        Self { path, kind, content, etag: etag.unwrap_or(HeaderValue::from_static("\"\"")) }
    }

    fn respond(&self, request: &Request) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let is_known = request.headers().get_all(IF_NONE_MATCH).iter().any(|tags| {
            let tags = tags.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            tags.map(|tag| tag.strip_prefix(b"W/").unwrap_or(tag)).any(|tag| tag == self.etag.as_bytes())
        });
        let mut response = if is_known {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            let mut response = Response::new(Body::from(self.content.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
            response
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        for (name, value) in [
            // Asked for again each time: a new broker has new pages.
            (CACHE_CONTROL, "no-cache"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

macro_rules! pages {
    ($folder:literal: $($path:literal $file:literal)+) => {
        [$(Page::new($path, Bytes::from_static(include_bytes!(concat!("../../assets/", $folder, "/", $file))))),+]
    };
}

/// Files of the dashboard.
static DASHBOARD: LazyLock<Vec<Page>> = LazyLock::new(|| {
    pages!["dashboard":
        "/" "index.html"
        "/api.js" "api.js"
        "/app.js" "app.js"
        "/chart.js" "chart.js"
        "/client.js" "client.js"
        "/clients.js" "clients.js"
        "/console.js" "console.js"
        "/dom.js" "dom.js"
        "/events.js" "events.js"
        "/favicon.svg" "favicon.svg"
        "/format.js" "format.js"
        "/history.js" "history.js"
        "/lanes.js" "lanes.js"
        "/lists.js" "lists.js"
        "/mqtt.js" "mqtt.js"
        "/overview.js" "overview.js"
        "/style.css" "style.css"
        "/topics.js" "topics.js"
        "/virtual.js" "virtual.js"
    ]
    .into()
});

/// Files about the API.
static ABOUT: LazyLock<Vec<Page>> = LazyLock::new(|| {
    let mut pages = Vec::from(pages!["api":
        "/api/" "index.html"
        "/api/try.js" "try.js"
        "/api/try.css" "try.css"
    ]);
    pages.push(Page::new("/api/v1/openapi.json", document::json().into()));
    pages
});

/// Routes of the page at `/api/` and of the OpenAPI document, which need no login.
pub(super) fn router() -> Router {
    let mut router = Router::new();
    for page in ABOUT.iter() {
        router = router.route(page.path, any(async move |request: Request| page.respond(&request)));
    }
    router.route("/api", get(to_page))
}

async fn to_page() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(LOCATION, HeaderValue::from_static("/api/"));
    response
}

/// Fallback of the front: the dashboard where no route is.
pub(crate) async fn fallback(request: Request) -> Response<Body> {
    let path = request.uri().path();
    match DASHBOARD.iter().find(|page| page.path == path) {
        Some(page) => page.respond(&request),
        None => problem(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn every_file_of_the_folders_is_served() {
        for (folder, pages, prefix) in [("dashboard", &DASHBOARD, "/"), ("api", &ABOUT, "/api/")] {
            let path = format!("{}/assets/{folder}", env!("CARGO_MANIFEST_DIR"));
            let there: BTreeSet<_> = fs::read_dir(path)
                .unwrap()
                .map(|file| file.unwrap().file_name().into_string().unwrap())
                .collect();
            let name = |page: &Page| match page.path.strip_prefix(prefix).unwrap() {
                "" => "index.html".to_owned(),
                name => name.to_owned(),
            };
            let served: BTreeSet<_> = pages.iter().map(name).filter(|name| !name.contains('/')).collect();
            assert_eq!(served, there, "{folder}");
        }
        let bytes: usize =
            ABOUT.iter().filter(|page| page.kind != "application/json").map(|page| page.content.len()).sum();
        assert!(bytes < 15 << 10, "the page at /api/ has {bytes} bytes");
    }
}
