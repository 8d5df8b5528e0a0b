//! Servers and paths that die.

use std::future::poll_fn;
use std::io::IoSlice;
use std::time::Duration;

use braid_bench::exchange::{RequestLoad, Reuse, Service};
use braid_proto::stream::StreamKey;
use braid_transport::{Link, Read, mem};
use tokio::io::ReadBuf;

use super::rig::{Rig, counters, measure, object};

/// Accepts connections and hands each to `serve` with its number, counted from 0.
fn serve<F: Future<Output = ()> + Send>(
    serve: impl Fn(usize, Link) -> F + Send + Sync + 'static,
) -> mem::Connector {
    let (mut listener, connector) = mem::listener();
    tokio::spawn(async move {
        for number in 0.. {
            let link =
                listener.accept().await.expect("the connector exists").handshake().await.expect("in memory");
            serve(number, link).await;
        }
    });
    connector
}

/// Reads so many requests.
async fn read_requests(link: &mut Link, count: usize) -> Vec<u8> {
    let mut requests = Vec::new();
    while requests.len() < 240 * count {
        let mut room = [0; 4096];
        let mut buffer = ReadBuf::new(&mut room);
        let read = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await;
        assert_eq!(read.expect("a request"), Read::Bytes(StreamKey::CONTROL));
        requests.extend_from_slice(buffer.filled());
    }
    requests
}

/// A response to a request, with so many bytes of its body.
fn response(request: &[u8], body: usize) -> Vec<u8> {
    [b"BXR1", &request[4..20], &vec![0; body]].concat()
}

async fn write(link: &mut Link, bytes: &[u8]) {
    let mut written = 0;
    while written < bytes.len() {
        let slices = [IoSlice::new(&bytes[written..])];
        written += poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &slices)).await.expect("write");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_in_a_response_fails_what_is_under_way_and_the_run_goes_on() {
    let connector = serve(async |number, mut link| {
        if number == 0 {
            let requests = read_requests(&mut link, 3).await;
            write(&mut link, &response(&requests, 1000)).await;
            write(&mut link, &response(&requests[240..], 500)).await;
            return;
        }
        let requests = read_requests(&mut link, 2).await;
        write(&mut link, &response(&requests, 1000)).await;
        write(&mut link, &response(&requests[240..], 1000)).await;
    });
    let load = RequestLoad { streams: 3, requests: Some(6), sizes: vec![1000], ..RequestLoad::default() };
    let summary = measure(&load, connector).await;
    // The first response makes room for a fourth request, which fails with the second and the third.
    assert_eq!(counters(&summary), [6, 3, 3, 0, 2]);
    let told: Vec<_> = summary.events.iter().map(|event| &*event.what).collect();
    assert_eq!(told, ["the server ended the connection before it had answered"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_given_up_after_the_patience() {
    for reuse in [Reuse::Kept, Reuse::OneRequest] {
        let connector = serve(async |_, link| {
            tokio::spawn(async move {
                let _open = link;
                std::future::pending::<()>().await;
            });
        });
        let patience = Duration::from_secs(30);
        let load = RequestLoad { reuse, patience, requests: Some(2), ..RequestLoad::default() };
        let summary = measure(&load, connector).await;
        assert_eq!(counters(&summary), [2, 0, 2, 0, 2]);
        assert!((60.0..=60.1).contains(&summary.seconds), "{}", summary.seconds);
        assert_eq!((summary.events.len(), &*summary.events[0].what), (1, "no answer within 30 s"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_not_there_is_asked_less_and_less_often() {
    let (listener, connector) = mem::listener();
    drop(listener);
    let load = RequestLoad { duration: Some(Duration::from_secs(10)), ..RequestLoad::default() };
    let summary = measure(&load, connector).await;
    let [requests, responses, failed, ..] = counters(&summary);
    assert_eq!((requests, responses), (failed, 0));
    // 10 ms, 20 ms and so on to a second: seven in the first 1.3 s, then one a second.
    assert!((14..=17).contains(&failed), "{failed}");
    assert!(summary.events[0].what.contains("the in-memory listener is gone"), "{:?}", summary.events);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_breaks_over_quic_is_given_up_and_used_again_when_it_heals() {
    let rig = Rig::start(Service::default());
    let device = rig.device.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(5)).await;
        device.change(|link| link.cut = true);
        tokio::time::sleep(Duration::from_secs(20)).await;
        device.change(|link| link.cut = false);
    });
    let load = RequestLoad {
        streams: 2,
        patience: Duration::from_secs(3),
        duration: Some(Duration::from_secs(40)),
        sizes: vec![100],
        ..RequestLoad::default()
    };
    let summary = measure(&load, rig.connector.clone()).await;
    let per_second = &object(&summary).per_second;
    assert!(per_second[4] > 0 && per_second[10..24].iter().all(|count| *count == 0), "{per_second:?}");
    assert!(per_second[35] > 0, "{per_second:?}");
    let [_, _, failed, _, connections] = counters(&summary);
    // Both of the first connection; then one attempt after the other.
    assert!(failed >= 2 + 4 && connections >= 2, "{failed} failed, {connections} connections");
    assert_eq!(summary.events[0].what, "no answer within 3 s");
}
