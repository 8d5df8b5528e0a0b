//! Files of a directory, with validators and ranges.

mod content_type;
mod range;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use futures_util::stream::try_unfold;
use http_body_util::StreamBody;
use hyper::body::Frame;
use lru::LruCache;
use percent_encoding::percent_decode_str;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use tokio::task::spawn_blocking;

use self::content_type::content_type;
use self::range::{Selection, select};
use crate::problem::problem;

/// Bytes of a file up to which it is read at once and cached.
const SMALL: u64 = 64 << 10;

/// Small files that are cached.
const CACHED: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// Age up to which a cached file is not looked at again.
const FRESH: Duration = Duration::from_secs(1);

/// Tries of an open that a rename disturbs.
const TRIES: usize = 4;

/// Directory that is served.
#[derive(Clone)]
pub(super) struct Files(Arc<Shared>);

struct Shared {
    directory: OwnedFd,
    /// Path of the route, without a slash at its end.
    prefix: String,
    /// A std lock: nothing is awaited while it is held.
    cache: Mutex<LruCache<String, (Instant, Found)>>,
}

/// Regular file, open or read.
#[derive(Clone)]
struct Found {
    content: Content,
    size: u64,
    modified: SystemTime,
    etag: String,
}

#[derive(Clone)]
enum Content {
    Small(Bytes),
    Large(Arc<File>),
}

/// Result of a lookup.
enum Lookup {
    File(Found),
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

    pub(super) async fn answer(self, request: Request<Body>) -> Response<Body> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, "use GET or HEAD");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let missing = || problem(StatusCode::NOT_FOUND, "there is no such file");
        let path = request.uri().path();
        let Some(name) = path.strip_prefix(&self.0.prefix).and_then(file_name) else { return missing() };
        match self.find(name.clone()).await {
            Ok(Lookup::File(found)) => found.answer(&name, &request),
            Ok(Lookup::Directory) => redirect(path),
            Ok(Lookup::Missing) => missing(),
            Err(error) => {
                tracing::warn!(%error, name, "a file cannot be served over HTTP");
                problem(StatusCode::INTERNAL_SERVER_ERROR, "the file cannot be read")
            }
        }
    }

    async fn find(&self, name: String) -> io::Result<Lookup> {
        let cached = lock(&self.0.cache).get(&name).filter(|(read, _)| read.elapsed() < FRESH).cloned();
        if let Some((_, found)) = cached {
            return Ok(Lookup::File(found));
        }
        let shared = Arc::clone(&self.0);
        let look = move || {
            let lookup = look(&shared.directory, &name)?;
            if let Lookup::File(found @ Found { content: Content::Small(_), .. }) = &lookup {
                lock(&shared.cache).put(name, (Instant::now(), found.clone()));
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
fn file_name(path: &str) -> Option<String> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let relative = decoded.strip_prefix('/').unwrap_or(&decoded);
    let mut segments: Vec<&str> = relative.split('/').collect();
    // The kernel refuses to leave the directory; this refuses other spellings of one file.
    let is_odd = |segment: &&str| matches!(*segment, "" | "." | "..") || segment.contains(['\0', '\\']);
    match segments.pop() {
        // A path that is the prefix itself, without a slash, is that of the directory.
        Some("") if path.is_empty() => segments.push("."),
        Some("") => segments.push("index.html"),
        Some(last) if is_odd(&last) => return None,
        Some(last) => segments.push(last),
        None => return None,
    }
    let last = segments.len() - 1;
    if segments[..last].iter().any(is_odd) { None } else { Some(segments.join("/")) }
}

/// Opens a file below the directory, whatever symbolic links are in its path.
fn look(directory: &OwnedFd, name: &str) -> io::Result<Lookup> {
    // A named pipe without a writer must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut tries = TRIES;
    let file = loop {
        tries -= 1;
        match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
            Ok(file) => break File::from(file),
            Err(rustix::io::Errno::AGAIN) if tries > 0 => {}
            Err(
                rustix::io::Errno::NOENT
                | rustix::io::Errno::NOTDIR
                | rustix::io::Errno::ACCESS
                | rustix::io::Errno::XDEV
                | rustix::io::Errno::LOOP
                | rustix::io::Errno::NAMETOOLONG
                | rustix::io::Errno::NXIO,
            ) => return Ok(Lookup::Missing),
            Err(error) => return Err(error.into()),
        }
    };
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
    Ok(Lookup::File(Found { content, size, modified: metadata.modified()?, etag }))
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
    fn answer(self, name: &str, request: &Request<Body>) -> Response<Body> {
        let headers = request.headers();
        let mut response = if self.is_current(headers) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            self.content(headers, request.method() == Method::HEAD)
        };
        let is_file = response.status() != StatusCode::RANGE_NOT_SATISFIABLE;
        let fields = response.headers_mut();
        let mut put = |name: HeaderName, value: &str| {
            if let Ok(value) = HeaderValue::try_from(value) {
                fields.insert(name, value);
            }
        };
        if is_file {
            put(header::CONTENT_TYPE, content_type(name));
            put(header::ETAG, &self.etag);
            put(header::LAST_MODIFIED, &httpdate::fmt_http_date(self.modified));
            put(header::CACHE_CONTROL, "no-cache");
            put(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        }
        put(header::ACCEPT_RANGES, "bytes");
        response
    }

    /// Tests whether the client has this version of the file. RFC 9110, 13.2.2
    fn is_current(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(header::IF_NONE_MATCH) {
            let tags = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
            return tags
                .flat_map(|tags| tags.split(','))
                .map(|tag| tag.trim().trim_start_matches("W/"))
                .any(|tag| tag == "*" || tag == self.etag);
        }
        let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|since| since.to_str().ok());
        since.and_then(|since| httpdate::parse_http_date(since).ok()).is_some_and(|since| {
            // The date has seconds only.
            self.modified < since + Duration::from_secs(1)
        })
    }

    fn content(&self, headers: &HeaderMap, is_head: bool) -> Response<Body> {
        let if_range = headers.get(header::IF_RANGE);
        let is_wanted = if_range.is_none_or(|tag| tag.as_bytes() == self.etag.as_bytes());
        let range = headers.get(header::RANGE).filter(|_| is_wanted && !is_head);
        let (status, from, to) = match select(range.and_then(|range| range.to_str().ok()), self.size) {
            Selection::All => (StatusCode::OK, 0, self.size),
            Selection::Part { from, to } => (StatusCode::PARTIAL_CONTENT, from, to),
            Selection::Unsatisfiable => {
                let mut refused =
                    problem(StatusCode::RANGE_NOT_SATISFIABLE, "the range is outside of the file");
                if let Ok(value) = HeaderValue::try_from(format!("bytes */{}", self.size)) {
                    refused.headers_mut().insert(header::CONTENT_RANGE, value);
                }
                return refused;
            }
        };
        let mut response = Response::new(if is_head { Body::empty() } else { self.body(from, to) });
        *response.status_mut() = status;
        let fields = response.headers_mut();
        fields.insert(header::CONTENT_LENGTH, (to - from).into());
        if status == StatusCode::PARTIAL_CONTENT
            && let Ok(value) = HeaderValue::try_from(format!("bytes {from}-{}/{}", to - 1, self.size))
        {
            fields.insert(header::CONTENT_RANGE, value);
        }
        response
    }

    /// The bytes `from..to`.
    fn body(&self, from: u64, to: u64) -> Body {
        let file = match &self.content {
            Content::Small(bytes) => {
                return Body::from(bytes.slice(small(from)..small(to)));
            }
            Content::Large(file) => Arc::clone(file),
        };
        Body::new(StreamBody::new(try_unfold((file, from), move |(file, from)| async move {
            if from == to {
                return Ok::<_, io::Error>(None);
            }
            let read = spawn_blocking(move || {
                let mut bytes = vec![0; small((to - from).min(SMALL))];
                // A file that became shorter breaks the response off.
                file.read_exact_at(&mut bytes, from)?;
                Ok::<_, io::Error>((file, bytes))
            });
            let (file, bytes) = read.await.map_err(io::Error::other)??;
            let next = from + bytes.len() as u64;
            Ok(Some((Frame::data(Bytes::from(bytes)), (file, next))))
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
