//! Floods on HTTP/2 and 3, written by hand: the connection ends, and the server answers the next client.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use braid_http::{FrontCounters, Limits};
use bytes::Bytes;
use h3::error::Code;
use h3::quic::{RecvStream, SendStreamUnframed};

use super::support::{Ask, Front, Upstream, block_on, open_bidi, status};

// === HTTP/2 by hand ===

/// Types of frames, the same on HTTP/2 and 3.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;

pub(super) const RST_STREAM: u8 = 3;
pub(super) const GOAWAY: u8 = 7;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = &(payload.len() as u32).to_be_bytes()[1..];
    [length, &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Field block of `GET /live` at localhost.
const GET: &[u8] = b"\x82\x86\x04\x05/live\x41\x09localhost";

/// Sends frames, and returns those of the server as type, stream and payload until GOAWAY, or one whose type and flags
/// `is_last` knows.
pub(super) fn http2(
    front: &Front,
    frames: &[u8],
    is_last: impl Fn(u8, u8) -> bool,
) -> Vec<(u8, u32, Vec<u8>)> {
    let mut stream = TcpStream::connect(front.address).unwrap();
    let mut writing = stream.try_clone().unwrap();
    let bytes = [PREFACE, frames].concat();
    // The server reads and writes at the same time, and may close before it has read all.
    let writer = std::thread::spawn(move || drop(writing.write_all(&bytes)));
    let mut received = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).is_err() {
            break;
        }
        let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let (kind, is_end) = (head[3], head[3] == GOAWAY || is_last(head[3], head[4]));
        received.push((kind, id, payload));
        if is_end {
            break;
        }
    }
    drop(stream);
    writer.join().unwrap();
    received
}

/// Error code of GOAWAY.
fn goaway(received: &[(u8, u32, Vec<u8>)]) -> Option<u32> {
    let (_, _, payload) = received.iter().find(|(kind, ..)| *kind == 7)?;
    Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()))
}

/// Requests that are reset at once.
fn rapid_reset() -> Vec<u8> {
    let one =
        |n: u32| [frame(HEADERS, 5, 2 * n + 1, GET), frame(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8])].concat();
    (0..2000).flat_map(one).collect()
}

/// A head that never ends.
fn continuations() -> Vec<u8> {
    let field = [&b"\x40\x01a\x7f\x87\x01"[..], &[b'b'; 262]].concat();
    [frame(HEADERS, 1, 1, GET), frame(9, 0, 1, &field).repeat(5000)].concat()
}

/// Frames of streams that are not open, and of none.
fn strays() -> Vec<u8> {
    [frame(9, 4, 1, GET), frame(RST_STREAM, 0, 3, &[0, 0, 0, 8])].concat().repeat(1000)
}

#[test]
fn floods_on_http2_end_the_connection() {
    let mut counters = FrontCounters::default();
    let front = Front::with(Limits::default(), None, |options| {
        (options.tls, options.http3, counters) = (None, false, options.counters.clone());
    });
    let received = http2(&front, &rapid_reset(), |_, _| false);
    assert_eq!(goaway(&received), Some(11), "ENHANCE_YOUR_CALM: {received:?}");

    let received = http2(&front, &continuations(), |_, _| false);
    assert!(goaway(&received).is_some_and(|code| code != 0), "{received:?}");
    // The connections end before the server has stopped.
    front.server.stop();
    assert!(counters.values().any(|(reason, count)| reason == "resets" && count > 0), "{counters:?}");
}

#[test]
fn a_server_answers_after_floods() {
    let front = Front::plain(Limits::default(), None);
    for (name, flood) in [("resets", rapid_reset()), ("continuations", continuations()), ("strays", strays())]
    {
        // A client that was open before the flood is served behind it.
        let mut other = TcpStream::connect(front.address).unwrap();
        other.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n").unwrap();
        for _ in 0..3 {
            let received = http2(&front, &flood, |_, _| false);
            assert!(goaway(&received).is_some_and(|code| code != 0), "{name}: {received:?}");
        }
        other.write_all(b"Connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        other.read_to_string(&mut answer).unwrap();
        assert_eq!(status(&answer), 200, "{name}");
        let received =
            http2(&front, &frame(HEADERS, 5, 1, GET), |kind, flags| kind == DATA && flags & 1 == 1);
        assert!(received.iter().any(|(kind, _, block)| *kind == HEADERS && block[0] == OK), "{received:?}");
    }
}

/// 200 as HPACK has it.
pub(super) const OK: u8 = 0x88;

/// 431 as HPACK has it.
const TOO_LARGE: [u8; 5] = [0x48, 0x83, 0x69, 0x90, 0xff];

#[test]
fn frames_on_http2_that_cost_much_are_refused() {
    let upstream = Upstream::start(|_| Vec::new());
    let front = Front::plain(Limits { streams: 3, ..Limits::default() }, Some(upstream.address));
    let repeat = |count: u32, one: &dyn Fn(u32) -> Vec<u8>| (0..count).flat_map(one).collect::<Vec<u8>>();
    let goes_away = |_: u8, _: u8| false;

    // Errors of a stream, for each of which the server resets it (CVE-2025-8671).
    let resets = repeat(300, &|n| {
        [frame(HEADERS, 4, 2 * n + 1, GET), frame(8, 0, 2 * n + 1, &[0x7f, 255, 255, 255])].concat()
    });
    assert_eq!(goaway(&http2(&front, &resets, goes_away)), Some(11));

    // One field of 4,000 bytes that is named 10,000 times, and ten times.
    let mut bomb = [GET, b"\x40\x01a\x7f\xa1\x1e", &[b'b'; 4000]].concat();
    bomb.extend([0xbe; 10_000]);
    assert_eq!(goaway(&http2(&front, &frame(HEADERS, 5, 1, &bomb), goes_away)), Some(11));
    bomb.truncate(bomb.len() - 9_990);
    let received = http2(&front, &frame(HEADERS, 5, 1, &bomb), |kind, _| kind == HEADERS);
    let is_refused =
        |(kind, _, block): &(u8, u32, Vec<u8>)| *kind == HEADERS && block.starts_with(&TOO_LARGE);
    assert!(received.iter().any(is_refused), "{received:?}");

    // More requests at once than are permitted: REFUSED_STREAM.
    let open = [0x83, 0x86, 0x04, 4, b'/', b'a', b'p', b'p', 0x41, 9];
    let open = [&open[..], b"localhost"].concat();
    let many = repeat(4, &|n| frame(HEADERS, 4, 2 * n + 1, &open));
    let received = http2(&front, &many, |kind, _| kind == RST_STREAM);
    assert!(received.contains(&(RST_STREAM, 7, vec![0, 0, 0, 7])), "{received:?}");

    // Each is answered, and a request behind them too.
    for (name, one) in [
        ("PING", frame(6, 0, 0, &[1; 8])),
        ("SETTINGS", frame(4, 0, 0, &[])),
        ("PRIORITY", frame(2, 0, 1, &[0, 0, 0, 0, 1])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("unknown", frame(0xfe, 0, 0, b"unknown")),
    ] {
        let flood = [one.repeat(20_000), frame(HEADERS, 5, 1, GET)].concat();
        let received = http2(&front, &flood, |kind, flags| kind == DATA && flags & 1 == 1);
        assert!(received.iter().any(|(kind, id, _)| (*kind, *id) == (DATA, 1)), "{name}");
    }
    // Frames that are too large: FRAME_SIZE_ERROR; of a wrong length or on a wrong stream: PROTOCOL_ERROR.
    for (bytes, code) in [
        (frame(6, 0, 0, &[0; 7]), 1),
        (frame(0, 0, 1, &[0; 20_000]), 6),
        (frame(4, 0, 1, &[]), 1),
        (frame(HEADERS, 5, 2, GET), 1),
        (frame(9, 4, 1, GET), 1),
        (frame(5, 4, 1, GET), 1),
    ] {
        assert_eq!(goaway(&http2(&front, &bytes, goes_away)), Some(code), "{:?}", &bytes[..9]);
    }
}

#[test]
fn a_client_of_http2_that_reads_no_answers_is_closed() {
    let limits = Limits { idle_timeout: Duration::from_millis(200), ..Limits::default() };
    let front = Front::plain(limits, None);
    let mut stream = TcpStream::connect(front.address).unwrap();
    stream.write_all(PREFACE).unwrap();
    let pings = frame(6, 0, 0, &[1; 8]).repeat(1000);
    // The server stops to read, instead of keeping its answers, and closes then.
    while stream.write_all(&pings).is_ok() {}
    assert_eq!(
        status(&front.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")),
        200
    );
}

// === HTTP/3 by hand ===

/// Sends the bytes of a request stream, and returns those of the response, or the error that broke stream or connection
/// off.
pub(super) async fn http3(front: &Front, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let connection = front.quic().await;
    let mut opener = h3::quic::Connection::<Bytes>::opener(&connection);
    let mut stream = open_bidi(&mut opener).await;
    let mut bytes = Bytes::copy_from_slice(bytes);
    // The server may answer and stop the request before it has all of it.
    while !bytes.is_empty() && poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.is_ok() {}
    let _ = poll_fn(|cx| h3::quic::SendStream::<Bytes>::poll_finish(&mut stream, cx)).await;
    let mut answer = Vec::new();
    while let Some(data) = poll_fn(|cx| stream.poll_data(cx)).await.map_err(|error| format!("{error:?}"))? {
        answer.extend_from_slice(&data);
    }
    Ok(answer)
}

#[test]
fn large_and_wrong_field_sections_on_http3_are_refused() {
    let front = Front::start(Limits::default(), None);
    block_on(async {
        // Before SETTINGS arrive the client knows no limit. The second frame is too long for `h3`.
        for size in [40_000, 100_000] {
            let (mut driver, mut send) = h3::client::new(front.quic().await).await.unwrap();
            let ask = Ask::get("/live").header("a", &"b".repeat(size));
            let sent = send.send_request(ask.request("h3", ())).await;
            tokio::spawn(async move { driver.wait_idle().await });
            match sent {
                Ok(mut stream) => assert_eq!(stream.recv_response().await.unwrap().status(), 431, "{size}"),
                // The server has answered before all was sent, and stopped the rest.
                Err(error) => assert!(error.to_string().contains("H3_NO_ERROR"), "{size}: {error}"),
            }
            let mut again = send.send_request(Ask::get("/live").request("h3", ())).await.unwrap();
            again.finish().await.unwrap();
            assert_eq!(again.recv_response().await.unwrap().status(), 200);
        }
        // A field of the dynamic table, which has no entry: Required Insert Count 1.
        for block in [&b"\x02\x00\x80"[..], b"\x00\x00\x80", b"\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let mut connection = front.quic().await;
            let mut opener = h3::quic::Connection::<Bytes>::opener(&connection);
            let mut stream = open_bidi(&mut opener).await;
            let mut bytes = Bytes::from([&[1, block.len() as u8], block].concat());
            poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.unwrap();
            // The stream ends with the connection or before it.
            drop(poll_fn(|cx| stream.poll_data(cx)).await);
            let closed = loop {
                let accepted: Result<braid_transport::http::Http3Recv, _> =
                    poll_fn(|cx| h3::quic::Connection::<Bytes>::poll_accept_recv(&mut connection, cx)).await;
                if let Err(error) = accepted {
                    break format!("{error:?}");
                }
            };
            assert!(closed.contains("QPACK_DECOMPRESSION_FAILED"), "{block:?} {closed}");
        }
    });
}

#[test]
fn rapid_reset_on_http3_ends_the_connection() {
    let mut counters = FrontCounters::default();
    let front = Front::with(Limits::default(), None, |options| counters = options.counters.clone());
    block_on(async {
        let (mut driver, mut send) = h3::client::new(front.quic().await).await.unwrap();
        let closed = tokio::spawn(async move { driver.wait_idle().await.to_string() });
        let mut open = Vec::new();
        while let Ok(mut stream) = send.send_request(Ask::get("/live").request("h3", ())).await {
            stream.stop_sending(Code::H3_REQUEST_CANCELLED);
            stream.stop_stream(Code::H3_REQUEST_CANCELLED);
            open.push(stream);
        }
        let closed = closed.await.unwrap();
        assert!(closed.contains("H3_EXCESSIVE_LOAD"), "{closed}");
        assert!(counters.values().any(|count| count == ("resets", 1)), "{counters:?}");
        assert_eq!(front.send("h3", &Ask::get("/live")).await.unwrap().status, 200);
    });
}

/// Sends bytes on unidirectional streams, and returns the error that ends the connection; `None` if a request after
/// them `is_answered`.
async fn http3_uni(front: &Front, streams: &[&[u8]], is_answered: bool) -> Option<String> {
    let mut connection = front.quic().await;
    let mut opener = h3::quic::Connection::<Bytes>::opener(&connection);
    let mut open = Vec::new();
    for bytes in streams {
        let opened = poll_fn(|cx| h3::quic::OpenStreams::<Bytes>::poll_open_send(&mut opener, cx)).await;
        let Ok(mut stream) = opened else { break };
        let mut bytes = Bytes::copy_from_slice(bytes);
        while !bytes.is_empty() && poll_fn(|cx| stream.poll_send(cx, &mut bytes)).await.is_ok() {}
        // Streams of unknown types end, so that there is credit for more of them.
        if bytes.is_empty() && streams.len() > 2 {
            let _ = poll_fn(|cx| h3::quic::SendStream::<Bytes>::poll_finish(&mut stream, cx)).await;
        }
        open.push(stream);
    }
    if is_answered {
        let mut request = open_bidi(&mut opener).await;
        let mut bytes = Bytes::from_static(b"\x01\x16\0\0\xd1\xd7\x51\x05/live\x50\x09localhost");
        if poll_fn(|cx| request.poll_send(cx, &mut bytes)).await.is_ok()
            && poll_fn(|cx| h3::quic::SendStream::<Bytes>::poll_finish(&mut request, cx)).await.is_ok()
            && poll_fn(|cx| request.poll_data(cx)).await.is_ok_and(|data| data.is_some())
        {
            return None;
        }
    }
    loop {
        let accepted: Result<braid_transport::http::Http3Recv, _> =
            poll_fn(|cx| h3::quic::Connection::<Bytes>::poll_accept_recv(&mut connection, cx)).await;
        if let Err(error) = accepted {
            return Some(format!("{error:?}"));
        }
    }
}

#[test]
fn floods_on_http3_end_the_connection_or_change_nothing() {
    let front = Front::start(Limits::default(), None);
    let control = [&b"\0\x04\0"[..], &[0x21, 3, 1, 2, 3].repeat(100_000)].concat();
    let push = [&b"\0\x04\0"[..], &[0x0d, 1, 0].repeat(50_000)].concat();
    // Size of the dynamic table, and entries for it.
    let encoder = [&[2, 0x3f, 0xe1, 0x1f][..], &[0x41, b'a', 1, b'b'].repeat(20_000)].concat();
    let decoder = [&[3][..], &[0x80].repeat(50_000)].concat();
    block_on(async {
        for (streams, expected) in [
            (&[&control[..]][..], None),
            (&[&push], None),
            // Never read: flow control stops them.
            (&[&encoder], None),
            (&[&decoder], None),
            (&[b"\x02", b"\x02"], Some("H3_STREAM_CREATION_ERROR")),
            (&[b"\0\x04\0\x04\0"], Some("H3_FRAME_UNEXPECTED")),
            (&[b"\0\x07\x01\0"], Some("H3_MISSING_SETTINGS")),
            (&[b"\0\x04\0\x01\x01\0"], Some("H3_FRAME_UNEXPECTED")),
            (&[b"\0\x04\0", b"\0\x04\0"], Some("H3_STREAM_CREATION_ERROR")),
            (&[&[0x21][..]; 200], None),
        ] {
            let closed = http3_uni(&front, streams, expected.is_none()).await;
            let is_expected = match (&closed, expected) {
                (None, None) => true,
                (Some(closed), Some(expected)) => closed.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{:?} {} {closed:?}", &streams[0][..5.min(streams[0].len())], streams.len());
        }
        // Frames before, in place of and behind those of a request.
        let head = b"\x01\x16\0\0\xd1\xd7\x51\x05/live\x50\x09localhost";
        let unknown = [0x21, 3, 1, 2, 3].repeat(50_000);
        let empty = [0, 0].repeat(50_000);
        for (bytes, is_answered) in [
            ([&unknown, &head[..]].concat(), true),
            ([&head[..], &unknown].concat(), true),
            ([&head[..], &empty].concat(), true),
            ([&b"\0\x02ok"[..], head].concat(), false),
            ([&b"\x04\0"[..], head].concat(), false),
            ([&b"\x05\x01\0"[..], head].concat(), false),
            (b"\x01\x7f\xff".to_vec(), false),
        ] {
            let answer = http3(&front, &bytes).await.unwrap_or_default();
            assert_eq!(!answer.is_empty(), is_answered, "{:?}", &bytes[..3]);
        }
        assert_eq!(front.send("h3", &Ask::get("/live")).await.unwrap().status, 200);
    });
}
