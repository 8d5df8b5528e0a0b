//! Content types by the ends of names.

/// Content type of the file `name`; bytes if it is not known.
pub(super) fn content_type(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map_or("", |(_, end)| end);
    let known = TYPES.iter().find(|(ends, _)| ends.split(' ').any(|known| known.eq_ignore_ascii_case(end)));
    known.map_or("application/octet-stream", |(_, kind)| kind)
}

const TYPES: [(&str, &str); 24] = [
    ("html htm", "text/html; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("js mjs", "text/javascript; charset=utf-8"),
    ("json map", "application/json"),
    ("txt log", "text/plain; charset=utf-8"),
    ("md", "text/markdown; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("xml", "application/xml"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpg jpeg", "image/jpeg"),
    ("gif", "image/gif"),
    ("webp", "image/webp"),
    ("avif", "image/avif"),
    ("ico", "image/x-icon"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("ttf", "font/ttf"),
    ("wasm", "application/wasm"),
    ("pdf", "application/pdf"),
    ("mp4", "video/mp4"),
    ("webm", "video/webm"),
    ("mp3", "audio/mpeg"),
    ("gz tgz", "application/gzip"),
];
