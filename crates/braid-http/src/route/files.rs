//! Files of a directory, with validators and ranges.

mod beneath;
mod content_type;
mod large;
mod range;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use lru::LruCache;
use percent_encoding::percent_decode_str;
use rustix::fs::{Mode, OFlags};
use tokio::task::spawn_blocking;

use self::content_type::content_type;
use self::range::{Selection, select};
use crate::fields::{if_match, if_none_match};
use crate::problem::problem;

/// Bytes of a file up to which it is read at once and cached.
const SMALL: u64 = 64 << 10;

/// Small files that are cached.
const CACHED: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// Age up to which a cached file is not looked at again.
const FRESH: Duration = Duration::from_secs(1);

/// The last second of the year 9999, since the Unix epoch.
const LAST_SECOND: u64 = 253_402_300_799;

/// Directory that is served.
#[derive(Clone)]
pub(super) struct Files(Arc<Shared>);

struct Shared {
    directory: OwnedFd,
    /// Path of the route, without a slash at its end.
    prefix: String,
    /// A std lock: nothing is awaited while it is held.
    cache: Mutex<LruCache<String, (Instant, Arc<Found>)>>,
}

/// Regular file, open or read.
struct Found {
    content: Content,
    size: u64,
    modified: SystemTime,
    etag: HeaderValue,
    /// Fields of a response with all of the file.
    fields: HeaderMap,
}

enum Content {
    Small(Bytes),
    Large(Arc<File>),
}

/// Result of a lookup.
enum Lookup {
    File(Arc<Found>),
    Directory,
    Missing,
}

impl Files {
    pub(super) fn open(directory: &Path, prefix: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(directory, flags, Mode::empty())?;
        let cache = Mutex::new(LruCache::new(CACHED));
        Ok(Self(Arc::new(Shared { directory, prefix: prefix.to_owned(), cache })))
    }

    /// Response from a file that was read a moment ago.
    pub(super) fn answer_at_once(&self, request: &Parts) -> Option<Response<Body>> {
        let is_read = matches!(request.method, Method::GET | Method::HEAD);
        let name = self.name(request.uri.path()).filter(|_| is_read)?;
        Some(self.cached(&name, Instant::now())?.answer(&request.method, &request.headers))
    }

    pub(super) async fn answer(self, request: Request<Body>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let missing = || problem(StatusCode::NOT_FOUND, "there is no such file");
        let path = request.uri().path();
        let Some(name) = self.name(path) else { return missing() };
        match self.look(name.clone().into_owned()).await {
            Ok(Lookup::File(found)) => found.answer(request.method(), request.headers()),
            Ok(Lookup::Directory) => redirect(path),
            Ok(Lookup::Missing) => missing(),
            Err(error) => {
                tracing::warn!(%error, %name, "a file cannot be served over HTTP");
                problem(StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be read")
            }
        }
    }

    /// Name of the file that a path is for.
    fn name<'a>(&self, path: &'a str) -> Option<Cow<'a, str>> {
        path.strip_prefix(&self.0.prefix).and_then(file_name)
    }

    #[cfg(test)]
    pub(super) fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// File that was read a moment ago.
    fn cached(&self, name: &str, now: Instant) -> Option<Arc<Found>> {
        let mut cache = lock(&self.0.cache);
        let (read, found) = cache.get(name)?;
        (now.saturating_duration_since(*read) < FRESH).then(|| Arc::clone(found))
    }

    async fn look(&self, name: String) -> io::Result<Lookup> {
        let shared = Arc::clone(&self.0);
        let look = move || {
            let lookup = look(&shared.directory, &name)?;
            if let Lookup::File(found) = &lookup
                && matches!(found.content, Content::Small(_))
            {
                lock(&shared.cache).put(name, (Instant::now(), Arc::clone(found)));
            }
            Ok(lookup)
        };
        spawn_blocking(look).await.map_err(io::Error::other)?
    }
}

fn lock<T>(cache: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Poisoning is harmless: an entry is there or not.
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Name of the file below the directory; `None` for what cannot be one.
fn file_name(path: &str) -> Option<Cow<'_, str>> {
    // A path that is the prefix itself, without a slash, is that of the directory.
    if path.is_empty() {
        return Some(".".into());
    }
    let relative = match percent_decode_str(path).decode_utf8().ok()? {
        Cow::Borrowed(decoded) => Cow::Borrowed(decoded.strip_prefix('/').unwrap_or(decoded)),
        Cow::Owned(decoded) => Cow::Owned(decoded.strip_prefix('/').map(str::to_owned).unwrap_or(decoded)),
    };
    let (directories, last) =
        relative.rsplit_once('/').map_or((None, &*relative), |(directories, last)| (Some(directories), last));
    // The kernel refuses to leave the directory; this refuses other spellings of one file, and hidden ones such as
    // `.htpasswd` and `.git`. RFC 8615
    let is_hidden = |segment: &str| segment.starts_with('.') && segment != ".well-known";
    let is_odd = |segment: &str| segment.is_empty() || is_hidden(segment) || segment.contains(['\0', '\\']);
    if directories.is_some_and(|directories| directories.split('/').any(is_odd)) {
        return None;
    }
    match last {
        "" => Some(relative + "index.html"),
        last if is_odd(last) => None,
        _ => Some(relative),
    }
}

/// Opens a file below the directory.
fn look(directory: &OwnedFd, name: &str) -> io::Result<Lookup> {
    let Some(file) = beneath::open(directory, name)? else { return Ok(Lookup::Missing) };
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(Lookup::Directory);
    }
    if !metadata.is_file() {
        return Ok(Lookup::Missing);
    }
    let (size, nanos) = (metadata.len(), metadata.mtime_nsec());
    let etag = format!("\"{:x}-{:x}-{:x}-{:x}\"", metadata.ino(), size, metadata.mtime(), nanos);
    let content = if size <= SMALL {
        let mut bytes = vec![0; small(size)];
        file.read_exact_at(&mut bytes, 0)?;
        Content::Small(bytes.into())
    } else {
        Content::Large(Arc::new(file))
    };
    let value = |text: &str| HeaderValue::try_from(text).map_err(io::Error::other);
    // The dates that HTTP can write.
    let modified = metadata.modified()?.clamp(UNIX_EPOCH, UNIX_EPOCH + Duration::from_secs(LAST_SECOND));
    let etag = value(&etag)?;
    let fields = [
        (header::CONTENT_LENGTH, size.into()),
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type(name))),
        (header::ETAG, etag.clone()),
        (header::LAST_MODIFIED, value(&httpdate::fmt_http_date(modified))?),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
    ];
    let fields = fields.into_iter().collect();
    Ok(Lookup::File(Arc::new(Found { content, size, modified, etag, fields })))
}

/// Date of a field, if it is there once and is one.
fn date(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    let mut fields = headers.get_all(name).iter();
    let field = fields.next().filter(|_| fields.next().is_none())?;
    httpdate::parse_http_date(field.to_str().ok()?).ok()
}

/// Number of bytes up to [`SMALL`].
fn small(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or_default()
}

/// Relative, so that no path can name another host.
fn redirect(path: &str) -> Response<Body> {
    let last = path.rsplit('/').next().unwrap_or_default();
    let mut response = problem(StatusCode::MOVED_PERMANENTLY, "a directory has a slash at its end");
    if let Ok(location) = HeaderValue::try_from(format!("./{last}/")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

impl Found {
    fn answer(&self, method: &Method, headers: &HeaderMap) -> Response<Body> {
        if self.is_other(headers) {
            return problem(
                StatusCode::PRECONDITION_FAILED,
                "the file is another version than the request asks for",
            );
        }
        if !self.is_current(headers) {
            return self.content(headers, method == Method::HEAD);
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.headers_mut() = self.fields.clone();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        response
    }

    /// Tests whether the client wants another version of the file only, such as the rest of one. RFC 9110, 13.2.2
    fn is_other(&self, headers: &HeaderMap) -> bool {
        match if_match(headers, &self.etag) {
            Some(is_match) => !is_match,
            None => {
                date(headers, header::IF_UNMODIFIED_SINCE).is_some_and(|since| !self.is_unmodified(since))
            }
        }
    }

    /// Tests whether the client has this version of the file. RFC 9110, 13.2.2
    fn is_current(&self, headers: &HeaderMap) -> bool {
        if let Some(is_current) = if_none_match(headers, &self.etag) {
            return is_current;
        }
        date(headers, header::IF_MODIFIED_SINCE).is_some_and(|since| self.is_unmodified(since))
    }

    fn is_unmodified(&self, since: SystemTime) -> bool {
        // The date has seconds only.
        self.modified < since + Duration::from_secs(1)
    }

    fn content(&self, headers: &HeaderMap, is_head: bool) -> Response<Body> {
        let if_range = headers.get(header::IF_RANGE);
        let is_wanted = if_range.is_none_or(|tag| *tag == self.etag);
        let range = headers.get(header::RANGE).filter(|_| is_wanted && !is_head);
        let (status, from, to) = match select(range.and_then(|range| range.to_str().ok()), self.size) {
            Selection::All => (StatusCode::OK, 0, self.size),
            Selection::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
            Selection::Unsatisfiable => {
                let mut refused =
                    problem(StatusCode::RANGE_NOT_SATISFIABLE, "the range is outside of the file");
                let fields = refused.headers_mut();
                if let Ok(value) = HeaderValue::try_from(format!("bytes */{}", self.size)) {
                    fields.insert(header::CONTENT_RANGE, value);
                }
                fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
                return refused;
            }
        };
        let mut response = Response::new(if is_head { Body::empty() } else { self.body(from, to) });
        *response.status_mut() = status;
        let fields = response.headers_mut();
        *fields = self.fields.clone();
        if status == StatusCode::PARTIAL_CONTENT {
            fields.insert(header::CONTENT_LENGTH, (to - from).into());
            if let Ok(value) = HeaderValue::try_from(format!("bytes {from}-{}/{}", to - 1, self.size)) {
                fields.insert(header::CONTENT_RANGE, value);
            }
        }
        response
    }

    /// The bytes `from..to`.
    fn body(&self, from: u64, to: u64) -> Body {
        match &self.content {
            Content::Small(bytes) => Body::from(bytes.slice(small(from)..small(to))),
            Content::Large(file) => large::body(Arc::clone(file), from, to),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use http_body_util::BodyExt;

    use super::*;

    async fn parts(response: Response<Body>) -> (StatusCode, HeaderMap, Bytes) {
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, body.collect().await.unwrap().to_bytes())
    }

    #[test]
    fn hidden_files_and_other_spellings_have_no_name() {
        for (path, expected) in [
            ("/a", Some("a")),
            ("/a/", Some("a/index.html")),
            ("/a.b/c.d", Some("a.b/c.d")),
            ("/.well-known/acme-challenge/x", Some(".well-known/acme-challenge/x")),
            ("/.htpasswd", None),
            ("/%2ehtpasswd", None),
            ("/.git/config", None),
            ("/a/.git/config", None),
            ("/a/.hidden/", None),
            ("/.well-known/.hidden", None),
            ("/.well-known-not/x", None),
            ("/a/../b", None),
            ("/..", None),
            ("/a//b", None),
        ] {
            assert_eq!(file_name(path).as_deref(), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn a_response_at_once_is_the_same_and_a_changed_file_is_read_again() {
        let home = tempfile::tempdir().unwrap();
        let files = Files::open(home.path(), "/f").unwrap();
        let request = |method: Method, name: &str, header: (&str, &str)| {
            let request = Request::builder().method(method).uri(format!("/f/{name}"));
            request.header(header.0, header.1).body(Body::empty()).unwrap()
        };
        let at_once = |request: Request<Body>| files.answer_at_once(&request.into_parts().0);
        let plain = || request(Method::GET, "a.html", ("accept", "*/*"));
        let write = |name: &str, content: &[u8]| fs::write(home.path().join(name), content).unwrap();
        write("a.html", b"first");
        write("large", &vec![b'x'; small(SMALL) + 1]);
        assert!(at_once(plain()).is_none(), "nothing was read");
        let (_, headers, body) = parts(files.clone().answer(plain()).await).await;
        assert_eq!(body, "first");
        let etag = headers[header::ETAG].to_str().unwrap().to_owned();
        for (method, header) in [
            (Method::GET, ("accept", "*/*")),
            (Method::HEAD, ("accept", "*/*")),
            (Method::GET, ("range", "bytes=1-2")),
            (Method::GET, ("range", "bytes=9-")),
            (Method::GET, ("if-none-match", etag.as_str())),
        ] {
            let request = || request(method.clone(), "a.html", header);
            let slow = parts(files.clone().answer(request()).await).await;
            let fast = parts(at_once(request()).expect("it was read")).await;
            assert_eq!(fast, slow, "{method} {header:?}");
        }
        assert!(at_once(request(Method::POST, "a.html", ("accept", "*/*"))).is_none());
        let large = || request(Method::GET, "large", ("accept", "*/*"));
        assert_eq!(files.clone().answer(large()).await.status(), StatusCode::OK);
        assert!(at_once(large()).is_none(), "large files are not kept");
        write("a.html", b"second");
        let now = Instant::now();
        assert!(files.cached("a.html", now).is_some());
        assert!(files.cached("a.html", now + FRESH).is_none(), "it may have changed");
        let (_, changed, body) = parts(files.clone().answer(plain()).await).await;
        assert_eq!(body, "second");
        assert_ne!(changed[header::ETAG], headers[header::ETAG]);
        assert_eq!(parts(at_once(plain()).expect("it was read")).await.2, "second");
    }

    #[tokio::test]
    async fn files_may_be_older_than_http_dates() {
        let home = tempfile::tempdir().unwrap();
        let file = File::create(home.path().join("old")).unwrap();
        file.set_modified(UNIX_EPOCH - Duration::from_secs(5)).unwrap();
        let files = Files::open(home.path(), "").unwrap();
        let request = Request::get("/old").body(Body::empty()).unwrap();
        let (status, headers, _) = parts(files.answer(request).await).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::LAST_MODIFIED], "Thu, 01 Jan 1970 00:00:00 GMT");
    }

    #[test]
    fn names_of_files_are_decoded_once_and_have_one_spelling() {
        for (path, expected) in [
            ("", Some(".")),
            ("/", Some("index.html")),
            ("/a/b.txt", Some("a/b.txt")),
            ("/a/", Some("a/index.html")),
            ("/%61%20%C3%A9", Some("a é")),
            ("/%252e%252e/a", Some("%2e%2e/a")),
            ("/..", None),
            ("/../a", None),
            ("/a/%2e%2e/b", None),
            ("/a/..%2fb", None),
            ("/./a", None),
            ("//a", None),
            ("/%2fa", None),
            ("/a%00", None),
            ("/a%5c..%5cb", None),
            ("/%ff", None),
        ] {
            assert_eq!(file_name(path).as_deref(), expected, "{path}");
        }
    }
}
