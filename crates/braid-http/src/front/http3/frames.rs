//! Frames of a response, encoded here: the encoder of `h3` takes a quarter of the time of a small response, for the
//! Huffman code of each value.

use axum::http::StatusCode;
use axum::http::header::{
    ACCEPT_RANGES, ALT_SVC, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG,
    HeaderMap, HeaderName, LAST_MODIFIED, LOCATION, VARY, X_CONTENT_TYPE_OPTIONS,
};
use bytes::{BufMut, BytesMut};

/// Frame types of RFC 9114, 7.2.
const DATA: u8 = 0x00;
const HEADERS: u8 = 0x01;

/// Largest field section that is encoded here. `h3` compares larger ones with the limit of the client.
const SECTION: usize = 4096;

/// Overhead of a field line in the size of a section (RFC 9114, 4.2.2).
const FIELD_LINE: usize = 32;

/// Whole field lines of the static table of QPACK (RFC 9204, Appendix A).
const LINES: [(HeaderName, &str, u8); 6] = [
    (ACCEPT_RANGES, "bytes", 32),
    (CACHE_CONTROL, "no-cache", 39),
    (CACHE_CONTROL, "no-store", 40),
    (CONTENT_TYPE, "application/json", 46),
    (CONTENT_TYPE, "text/html; charset=utf-8", 52),
    (X_CONTENT_TYPE_OPTIONS, "nosniff", 61),
];

/// Names of the static table.
const NAMES: [(HeaderName, u8); 11] = [
    (CONTENT_LENGTH, 4),
    (DATE, 6),
    (ETAG, 7),
    (LAST_MODIFIED, 10),
    (LOCATION, 12),
    (ACCEPT_RANGES, 32),
    (CACHE_CONTROL, 36),
    (CONTENT_ENCODING, 42),
    (CONTENT_TYPE, 44),
    (VARY, 59),
    (ALT_SVC, 83),
];

/// Status codes of the static table.
const STATUS: [(u16, u8); 14] = [
    (103, 24),
    (200, 25),
    (304, 26),
    (404, 27),
    (503, 28),
    (100, 63),
    (204, 64),
    (206, 65),
    (302, 66),
    (400, 67),
    (403, 68),
    (421, 69),
    (425, 70),
    (500, 71),
];

/// Appends a HEADERS frame without use of a dynamic table and of the Huffman code; false, and nothing is appended, if
/// the section is large.
pub(super) fn put_headers(frames: &mut BytesMut, status: StatusCode, headers: &HeaderMap) -> bool {
    let sizes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_LINE);
    if sizes.sum::<usize>() > SECTION {
        return false;
    }
    frames.put_u8(HEADERS);
    // The length is known afterwards: two bytes are enough for a section of this size.
    let length_at = frames.len();
    frames.put_u16(0);
    // Required Insert Count and Base.
    frames.put_slice(&[0, 0]);
    match STATUS.iter().find(|(code, _)| *code == status.as_u16()) {
        Some((_, index)) => put_integer(frames, 0xc0, 6, usize::from(*index)),
        None => {
            put_integer(frames, 0x50, 4, usize::from(STATUS[0].1));
            put_value(frames, status.as_str().as_bytes());
        }
    }
    for (name, value) in headers {
        if let Some((.., index)) = LINES.iter().find(|(of, line, _)| of == name && value == line) {
            put_integer(frames, 0xc0, 6, usize::from(*index));
            continue;
        }
        match NAMES.iter().find(|(of, _)| of == name) {
            Some((_, index)) => put_integer(frames, 0x50, 4, usize::from(*index)),
            None => {
                put_integer(frames, 0x20, 3, name.as_str().len());
                frames.put_slice(name.as_str().as_bytes());
            }
        }
        put_value(frames, value.as_bytes());
    }
    let length = frames.len() - length_at - 2;
    let length = u16::try_from(length).unwrap_or_default() | 0x4000;
    frames[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    true
}

/// Appends the header of a DATA frame.
pub(super) fn put_data_header(frames: &mut BytesMut, length: usize) {
    frames.put_u8(DATA);
    // Integers of RFC 9000, section 16.
    match u64::try_from(length).unwrap_or_default() {
        length @ 0..0x4000 => frames.put_u16(0x4000 | u16::try_from(length).unwrap_or_default()),
        length => frames.put_u64(0xc000_0000_0000_0000 | length),
    }
}

/// String literal without Huffman code, whose length has a prefix of 7 bits.
fn put_value(frames: &mut BytesMut, value: &[u8]) {
    put_integer(frames, 0, 7, value.len());
    frames.put_slice(value);
}

/// Integer whose prefix has this number of bits, behind the bits of `first`. RFC 7541, 5.1
fn put_integer(frames: &mut BytesMut, first: u8, bits: u8, value: usize) {
    let most = (1_usize << bits) - 1;
    let low = |value: usize| u8::try_from(value & 0xff).unwrap_or_default();
    if value < most {
        return frames.put_u8(first | low(value));
    }
    frames.put_u8(first | low(most));
    let mut rest = value - most;
    while rest >= 0x80 {
        frames.put_u8(0x80 | low(rest & 0x7f));
        rest >>= 7;
    }
    frames.put_u8(low(rest));
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn integer(bytes: &mut &[u8], bits: u8) -> usize {
        let most = (1 << bits) - 1;
        let mut value = usize::from(bytes[0]) & most;
        let mut shift = 0;
        let mut goes_on = value == most;
        *bytes = &bytes[1..];
        while goes_on {
            value += (usize::from(bytes[0]) & 0x7f) << shift;
            goes_on = bytes[0] & 0x80 != 0;
            shift += 7;
            *bytes = &bytes[1..];
        }
        value
    }

    fn string(bytes: &mut &[u8], bits: u8) -> Vec<u8> {
        assert_eq!(bytes[0] >> bits & 1, 0, "no Huffman code");
        let length = integer(bytes, bits);
        let (text, rest) = bytes.split_at(length);
        *bytes = rest;
        text.to_vec()
    }

    /// Field lines of one HEADERS frame, by the formats of RFC 9204, 4.5.
    fn decoded(frames: &[u8]) -> Vec<(String, Vec<u8>)> {
        let name_at = |index: usize| {
            let (name, _) = NAMES.iter().find(|(_, at)| usize::from(*at) == index).expect("a known name");
            name.as_str().to_owned()
        };
        assert_eq!(frames[0], 1);
        let length = usize::from(u16::from_be_bytes([frames[1], frames[2]]) & 0x3fff);
        assert_eq!(&frames[3..5], [0, 0]);
        let mut rest = &frames[5..];
        assert_eq!(length, rest.len() + 2);
        let mut lines = Vec::new();
        while !rest.is_empty() {
            lines.push(match rest[0] {
                0xc0.. => match integer(&mut rest, 6) {
                    index if STATUS.iter().any(|(_, at)| usize::from(*at) == index) => {
                        let (code, _) = STATUS.iter().find(|(_, at)| usize::from(*at) == index).unwrap();
                        (":status".to_owned(), code.to_string().into_bytes())
                    }
                    index => {
                        let line = LINES.iter().find(|(.., at)| usize::from(*at) == index).unwrap();
                        (line.0.as_str().to_owned(), line.1.as_bytes().to_vec())
                    }
                },
                0x50..0x60 => match integer(&mut rest, 4) {
                    24 => (":status".to_owned(), string(&mut rest, 7)),
                    index => (name_at(index), string(&mut rest, 7)),
                },
                0x20..0x30 => {
                    let name = string(&mut rest, 3);
                    (String::from_utf8(name).unwrap(), string(&mut rest, 7))
                }
                other => panic!("{other:#x}"),
            });
        }
        lines
    }

    #[test]
    fn random_heads_are_decoded_as_they_were() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..500 {
            let status = StatusCode::from_u16(rng.u16(100..1000)).unwrap();
            let mut headers = HeaderMap::new();
            for _ in 0..rng.usize(..12) {
                let name = match rng.u8(..3) {
                    0 => NAMES[rng.usize(..NAMES.len())].0.clone(),
                    1 => HeaderName::try_from(format!("x-{}", "n".repeat(rng.usize(1..200)))).unwrap(),
                    _ => {
                        let (name, value, _) = LINES[rng.usize(..LINES.len())].clone();
                        headers.append(name, HeaderValue::from_static(value));
                        continue;
                    }
                };
                let value: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(b' '..=b'~')).collect();
                headers.append(name, HeaderValue::from_bytes(&value).unwrap());
            }
            let mut frames = BytesMut::new();
            let line = |(name, value): (&HeaderName, &HeaderValue)| {
                (name.as_str().to_owned(), value.as_bytes().to_vec())
            };
            let lines: Vec<_> = headers.iter().map(line).collect();
            let size: usize = lines.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
            if !put_headers(&mut frames, status, &headers) {
                assert!(size > SECTION && frames.is_empty());
                continue;
            }
            assert!(size <= SECTION);
            let expected = [(":status".to_owned(), status.as_str().as_bytes().to_vec())];
            assert_eq!(decoded(&frames), [&expected[..], &lines].concat());
        }
    }

    /// Bytes of RFC 9204, Appendix A and B.1, and of RFC 9000, A.1.
    #[test]
    fn frames_have_the_bytes_of_the_standards() {
        let mut frames = BytesMut::new();
        let headers = [(CACHE_CONTROL, "no-cache"), (LOCATION, "/a"), (ALT_SVC, "clear")];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        assert!(put_headers(&mut frames, StatusCode::OK, &headers.into_iter().collect()));
        let expected = b"\x01\x40\x10\x00\x00\xd9\xe7\x5c\x02/a\x5f\x44\x05clear";
        assert_eq!(frames[..], expected[..]);
        for (length, expected) in [
            (0, &b"\0\x40\0"[..]),
            (612, b"\0\x42\x64"),
            (0x3fff, b"\0\x7f\xff"),
            (0x4000, b"\0\xc0\0\0\0\0\0\x40\0"),
        ] {
            let mut frames = BytesMut::new();
            put_data_header(&mut frames, length);
            assert_eq!(frames[..], expected[..], "{length}");
        }
    }
}
