//! Tests of headers, each cut at every byte.

use super::*;

const V4: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C\xC0\0\x02\x07\xCB\0\x71\x01\xDC\x04\x07\x5B";

/// Version 2 with this command and family, and these bytes behind the length.
fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    [SIGNATURE, &[command, family], &length, rest].concat()
}

/// Parses every part of `bytes`: a result must be none before it is there, and then stay.
fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let whole = parse_proxy_header(bytes);
    for end in 0..bytes.len() {
        let part = parse_proxy_header(&bytes[..end]);
        if let Ok(Some(header)) = whole {
            assert_eq!(part, if end < header.length { Ok(None) } else { whole }, "{end} bytes");
        } else if part != Ok(None) {
            assert_eq!(part, whole, "{end} bytes");
        }
    }
    whole
}

#[test]
fn headers_name_the_client() {
    let v6 = [&[0x20, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7][..], &[0; 16], &[0xDC, 4, 7, 0x5B]]
        .concat();
    let longest = format!("PROXY TCP6 {0} {0} 65535 65535\r\n", ["ffff"; 8].join(":"));
    assert_eq!(longest.len(), 104);
    let cases: [(&[u8], &str); _] = [
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 56324 1883\r\n", "192.0.2.7:56324"),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 0 0\r\n", "192.0.2.7:0"),
        (b"PROXY TCP6 2001:db8::7 ::1 56324 1883\r\n", "[2001:db8::7]:56324"),
        (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 56324 1883\r\n", "[::ffff:192.0.2.7]:56324"),
        (longest.as_bytes(), "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535"),
        (V4, "192.0.2.7:56324"),
        (&binary(0x21, 0x21, &v6), "[2001:db8::7]:56324"),
        // An additional field of three bytes is skipped, whatever it says of its length.
        (&binary(0x21, 0x11, &[&V4[16..], &[4, 0, 3, 1, 2, 3]].concat()), "192.0.2.7:56324"),
        (&binary(0x21, 0x11, &[&V4[16..], &[4, 0xFF, 0xFF]].concat()), "192.0.2.7:56324"),
    ];
    for (header, client) in cases {
        let expected =
            ProxyHeader { length: header.len(), client: Some(client.parse().expect("an address")) };
        assert_eq!(parse(header), Ok(Some(expected)), "{client}");
        let followed = [header, b"\x10\x0C\0\x04MQTT"].concat();
        assert_eq!(parse(&followed), Ok(Some(expected)), "{client}, with bytes behind");
    }
}

#[test]
fn connections_without_a_client_have_none() {
    let unknown = format!("PROXY UNKNOWN{}\r\n", " ".repeat(MAX_LINE - 15));
    assert_eq!(unknown.len(), MAX_LINE);
    let largest = binary(0x20, 0, &vec![0; MAX_HEADER_BYTES - FIXED]);
    let cases: [&[u8]; _] = [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff:: 65535\r\n",
        unknown.as_bytes(),
        &binary(0x20, 0, &[]),
        // Addresses of a health check are ignored.
        &binary(0x20, 0x11, &V4[16..]),
        &binary(0x20, 0x31, &[1]),
        &binary(0x21, 0, &[]),
        &binary(0x21, 0, &[4, 0, 1, 0]),
        &largest,
    ];
    for header in cases {
        let expected = ProxyHeader { length: header.len(), client: None };
        assert_eq!(parse(header), Ok(Some(expected)), "{header:?}");
    }
}

#[test]
fn defects_are_named() {
    use ProxyHeaderError::{
        Address, Command, Family, LineByte, LineTooLong, Missing, Port, Protocol, TooLong, TooShort, Version,
    };

    let long = format!("PROXY UNKNOWN{}\r\n", " ".repeat(MAX_LINE - 14));
    let cases: [(&[u8], ProxyHeaderError); _] = [
        (b"\x10\x0C\0\x04MQTT", Missing),
        (b"\x16\x03\x01", Missing),
        (b"GET / HTTP/1.1\r\n", Missing),
        (b"proxy TCP4 192.0.2.7 203.0.113.1 1 2\r\n", Missing),
        (b"PROXY\r\n", Missing),
        (b" PROXY UNKNOWN\r\n", Missing),
        (b"\r\n\r\n\0\r\nQUIT\r", Missing),
        (long.as_bytes(), LineTooLong),
        (&[&b"PROXY "[..], &[b'A'; 200]].concat(), LineTooLong),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 2\n", LineByte),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 2\r \n", LineByte),
        (b"PROXY TCP4\t192.0.2.7 203.0.113.1 1 2\r\n", LineByte),
        (b"PROXY TCP4 192.0.2.7\0 203.0.113.1 1 2\r\n", LineByte),
        (b"PROXY TCP4 \xC3\xA4 203.0.113.1 1 2\r\n", LineByte),
        (b"PROXY \r\n", Protocol),
        (b"PROXY UDP4 192.0.2.7 203.0.113.1 1 2\r\n", Protocol),
        (b"PROXY UNKNOWNS\r\n", Protocol),
        (b"PROXY  TCP4 192.0.2.7 203.0.113.1 1 2\r\n", Protocol),
        (b"PROXY TCP4\r\n", Address),
        (b"PROXY TCP4 192.0.2.7\r\n", Address),
        (b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n", Address),
        (b"PROXY TCP6 192.0.2.7 203.0.113.1 1 2\r\n", Address),
        (b"PROXY TCP4 192.0.2.007 203.0.113.1 1 2\r\n", Address),
        (b"PROXY TCP4 192.0.2 203.0.113.1 1 2\r\n", Address),
        (b"PROXY TCP4 192.0.2.7 203.0.113.256 1 2\r\n", Address),
        (b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", Address),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 2 3\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 2 \r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 +1 2\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 01 2\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 65536 2\r\n", Port),
        (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 -2\r\n", Port),
        (&binary(0x11, 0x11, &V4[16..]), Version(1)),
        (&binary(0x31, 0x11, &V4[16..]), Version(3)),
        (&binary(0x22, 0x11, &V4[16..]), Command(2)),
        (&binary(0x2F, 0x11, &V4[16..]), Command(15)),
        (&binary(0x21, 0x12, &V4[16..]), Family(0x12)),
        (&binary(0x21, 0x10, &V4[16..]), Family(0x10)),
        (&binary(0x21, 0x01, &V4[16..]), Family(0x01)),
        (&binary(0x21, 0x31, &[0; 216]), Family(0x31)),
        (&binary(0x21, 0x11, &V4[17..]), TooShort(11)),
        (&binary(0x21, 0x21, &[0; 35]), TooShort(35)),
        (&binary(0x20, 0, &[0; 4081]), TooLong(4081)),
        (&binary(0x21, 0x11, &[0; 65535]), TooLong(65535)),
    ];
    for (header, error) in cases {
        assert_eq!(parse(header), Err(error), "{:?}", header.escape_ascii().to_string());
        assert!(!error.to_string().contains('\n'));
    }
}
