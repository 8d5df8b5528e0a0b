//! Pages inside the binary: the dashboard, the page at `/api/`, and the OpenAPI document.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderMap, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{Method, Response, StatusCode};
use axum::routing::{any, get};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::document;
use crate::fields::if_none_match;
use crate::problem::problem;

/// Policy of pages: nothing from elsewhere, no inline scripts, and connections to this origin only, that of the MQTT
/// console included.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// File of a page.
struct Page {
    path: &'static str,
    kind: &'static str,
    plain: Content,
    /// With gzip. The files are public, so that their compressed length tells nothing.
    packed: Content,
}

/// Content in one encoding, with the tag of it.
struct Content {
    bytes: Bytes,
    etag: HeaderValue,
}

impl Content {
    fn new(bytes: Bytes) -> Self {
        // Keys of this hasher are constant: the tag is that of the content.
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let etag = HeaderValue::try_from(format!("\"{:016x}\"", hasher.finish()));
        Self { bytes, etag: etag.unwrap_or(HeaderValue::from_static("\"\"")) }
    }
}

fn gzip(content: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    // Writing to memory cannot fail.
    let _ = encoder.write_all(content);
    encoder.finish().unwrap_or_default().into()
}

/// Tests whether the client names gzip in `Accept-Encoding`, with a weight other than 0 (RFC 9110, 12.5.3).
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|field| field.to_str().ok());
    fields.flat_map(|field| field.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|weight| weight > 0.0)
    })
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
        Self { path, kind, packed: Content::new(gzip(&content)), plain: Content::new(content) }
    }

    fn respond(&self, request: &Request) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let is_packed = accepts_gzip(request.headers());
        let content = if is_packed { &self.packed } else { &self.plain };
        let mut response = if if_none_match(request.headers(), &content.etag) == Some(true) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            let mut response = Response::new(Body::from(content.bytes.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
            if is_packed {
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, content.etag.clone());
        for (name, value) in [
            // Asked for again each time: a new broker has new pages.
            (CACHE_CONTROL, "no-cache"),
            (VARY, "accept-encoding"),
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
    use std::io::Read;

    use axum::http::header::IF_NONE_MATCH;
    use flate2::read::GzDecoder;

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
        let size = |pages: &[Page]| -> usize {
            let pages = pages.iter().filter(|page| page.kind != "application/json");
            pages.map(|page| page.packed.bytes.len()).sum()
        };
        assert!(size(&ABOUT) < 5_000, "the page at /api/ has {} bytes", size(&ABOUT));
        // The bar is 100,000 with heads and answers of the API.
        assert!(size(&DASHBOARD) < 60_000, "the dashboard has {} bytes", size(&DASHBOARD));
    }

    #[test]
    fn content_is_packed_for_clients_that_take_gzip() {
        for (fields, expected) in [
            (&["gzip, deflate, br"][..], true),
            (&["deflate", "br;q=1.0, GZIP;q=0.5"], true),
            (&["gzip;q=0"], false),
            (&["gzip;q=0.000, *"], false),
            (&["gzip;level=9"], false),
            (&["deflate, br"], false),
            (&[], false),
        ] {
            let mut request = Request::new(Body::empty());
            for field in fields {
                request.headers_mut().append(ACCEPT_ENCODING, field.parse().unwrap());
            }
            let page = DASHBOARD.iter().find(|page| page.path == "/app.js").unwrap();
            let response = page.respond(&request);
            let encoding = response.headers().get(CONTENT_ENCODING).map(|value| value.to_str().unwrap());
            assert_eq!(encoding, expected.then_some("gzip"), "{fields:?}");
            assert_eq!(response.headers()[VARY], "accept-encoding");
            // Each encoding has a tag of its own.
            for (content, is_known) in [(&page.packed, expected), (&page.plain, !expected)] {
                request.headers_mut().insert(IF_NONE_MATCH, content.etag.clone());
                let status = page.respond(&request).status();
                assert_eq!(status == StatusCode::NOT_MODIFIED, is_known, "{fields:?}");
            }
        }
        let page = DASHBOARD.iter().find(|page| page.path == "/").unwrap();
        let mut text = String::new();
        GzDecoder::new(&page.packed.bytes[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text.as_bytes(), page.plain.bytes);
    }
}
