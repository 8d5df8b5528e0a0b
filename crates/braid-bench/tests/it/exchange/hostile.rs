//! Peers that do not keep to the protocol.

use std::future::poll_fn;
use std::io::IoSlice;

use braid_bench::exchange::{RequestLoad, Service};
use braid_proto::stream::StreamKey;
use braid_transport::{Link, Read, mem};
use tokio::io::ReadBuf;

use super::rig::{counters, in_memory, measure};

/// Sends bytes to a server, which then has to end the connection.
async fn send(link: &mut Link, bytes: &[u8]) {
    poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(bytes)])).await.expect("write");
    let mut room = [0; 64];
    let mut buffer = ReadBuf::new(&mut room);
    let read = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await.expect("read");
    assert_eq!(read, Read::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_server_ends_connections_that_speak_something_else() {
    let (responder, connector) = in_memory(Service::default());
    let http = b"GET / HTTP/1.1\r\nHost: x\r\n".repeat(20);
    send(&mut connector.connect().await.expect("connect"), &http).await;
    let huge = [&b"BXQ1"[..], &[0; 8], &u64::MAX.to_be_bytes(), &[b' '; 220]].concat();
    send(&mut connector.connect().await.expect("connect"), &huge).await;
    let summary = responder.summary();
    assert_eq!((summary.counters["failed"], summary.counters["requests"]), (2, 0));
    assert!(summary.events[0].what.contains("does not speak this protocol"), "{:?}", summary.events);
    assert!(summary.events[1].what.contains("more than the 1073741824"), "{:?}", summary.events);
}

/// A server that answers each connection with these bytes.
fn answer(bytes: Vec<u8>) -> mem::Connector {
    let (mut listener, connector) = mem::listener();
    tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let mut link =
                listener.accept().await.expect("the connector exists").handshake().await.expect("in memory");
            let slices = [IoSlice::new(&bytes)];
            let _ = poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &slices)).await;
            open.push(link);
        }
    });
    connector
}

#[tokio::test(start_paused = true)]
async fn responses_to_something_else_are_failures() {
    let head = |id: u64, size: u64| [&b"BXR1"[..], &id.to_be_bytes(), &size.to_be_bytes()].concat();
    let cases = [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5".to_vec(), "does not speak this protocol"),
        (head(7, 80_000), "answered request 7 with 80000 bytes, which is not what was asked for next"),
        (head(0, 80_001), "answered request 0 with 80001 bytes"),
        (head(0, u64::MAX), "more than the 1073741824"),
    ];
    for (bytes, expected) in cases {
        let summary =
            measure(&RequestLoad { requests: Some(1), ..RequestLoad::default() }, answer(bytes)).await;
        assert_eq!(counters(&summary), [1, 0, 1, 0, 1]);
        assert!(summary.events[0].what.contains(expected), "{:?}", summary.events);
    }
}

#[tokio::test(start_paused = true)]
async fn pipelined_responses_must_come_in_order() {
    let answer_of = |ids: [u64; 2]| {
        let responses = ids.map(|id| [&b"BXR1"[..], &id.to_be_bytes(), &0_u64.to_be_bytes()].concat());
        answer(responses.concat())
    };
    let load = RequestLoad { streams: 2, sizes: vec![0], requests: Some(2), ..RequestLoad::default() };
    assert_eq!(counters(&measure(&load, answer_of([0, 1])).await), [2, 2, 0, 0, 1]);
    let swapped = measure(&load, answer_of([1, 0])).await;
    assert!(swapped.events[0].what.contains("answered request 1"), "{:?}", swapped.events);
}
