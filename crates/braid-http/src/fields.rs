//! Fields of heads that more than one part of the front looks at.

use axum::http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Fields about a connection of HTTP/1.1, which other versions refuse. RFC 9113, 8.2.2 and RFC 9114, 4.2
pub(crate) static CONNECTION_SPECIFIC: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes the fields that concern one connection only. `Host` is none of them, whatever the sender says. RFC 9110,
/// 7.6.1
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| name != HOST)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in CONNECTION_SPECIFIC.iter().chain(&[PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER]) {
        headers.remove(name);
    }
}

/// Tests whether `If-None-Match` has an entity tag, by the weak comparison; `None` without the field. RFC 9110, 13.1.2
pub(crate) fn if_none_match(headers: &HeaderMap, etag: &HeaderValue) -> Option<bool> {
    has_tag(headers, &IF_NONE_MATCH, |tag| tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes())
}

/// Tests whether `If-Match` has a strong entity tag, by the strong comparison; `None` without the field. RFC 9110,
/// 13.1.1
pub(crate) fn if_match(headers: &HeaderMap, etag: &HeaderValue) -> Option<bool> {
    has_tag(headers, &IF_MATCH, |tag| tag == etag.as_bytes())
}

fn has_tag(headers: &HeaderMap, name: &HeaderName, is_equal: impl Fn(&[u8]) -> bool) -> Option<bool> {
    let mut fields = headers.get_all(name).iter().peekable();
    fields.peek()?;
    let mut tags =
        fields.flat_map(|field| field.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    Some(tags.any(|tag| tag == b"*" || is_equal(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_one_connection_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Mine, Host"),
            ("host", "localhost"),
            ("connection", "x-other"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic"),
            ("proxy-connection", "close"),
            ("x-kept", "3"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept", "host"]);
    }

    #[test]
    fn entity_tags_are_compared_weakly_and_strongly() {
        let etag = HeaderValue::from_static("\"a\"");
        for (fields, weak, strong) in [
            (&[][..], None, None),
            (&["\"a\""], Some(true), Some(true)),
            (&["W/\"a\""], Some(true), Some(false)),
            (&["W/W/\"a\""], Some(false), Some(false)),
            (&["w/\"a\""], Some(false), Some(false)),
            (&["\"b\" , W/\"a\""], Some(true), Some(false)),
            (&["\"b\" , \"a\""], Some(true), Some(true)),
            (&["\"b\"", "*"], Some(true), Some(true)),
            (&["a"], Some(false), Some(false)),
            (&[""], Some(false), Some(false)),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(IF_NONE_MATCH, field.parse().unwrap());
                headers.append(IF_MATCH, field.parse().unwrap());
            }
            assert_eq!(if_none_match(&headers, &etag), weak, "{fields:?}");
            assert_eq!(if_match(&headers, &etag), strong, "{fields:?}");
        }
    }
}
