//! Over the sockets of this machine.

use std::future::pending;
use std::net::SocketAddr;

use braid_bench::exchange::{
    ALPN, DialError, Dialer, RequestLoad, Responder, Reuse, Service, TimerService, run,
};
use braid_transport::{
    ClientTls, ClientTlsOptions, ConnectOptions, ListenOptions, Listener, ListenerKind, Target, TcpOptions,
    Transport,
};

use super::rig::{Pki, counters, measure};

fn target(transport: Transport, port: u16) -> Target {
    Target { transport, host: "127.0.0.1".to_owned(), port, path: String::new() }
}

fn reach(target: Target, tcp: TcpOptions) -> Result<Dialer, DialError> {
    // Other tests verify the certificate.
    let tls = ClientTlsOptions { insecure: true, alpn: vec![ALPN.to_owned()], ..ClientTlsOptions::default() };
    let options = ConnectOptions { tcp, ..ConnectOptions::default() };
    Dialer::new(vec![target], ClientTls::new(tls), options, Vec::new())
}

/// A server, and where it is.
fn serve(kind: ListenerKind, options: &ListenOptions) -> (Responder, Target) {
    let transport = kind.transport();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = Listener::bind(kind, any, options).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let responder = Responder::new(Service::default(), TimerService::exact().expect("a thread"));
    let serving = responder.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    (responder, target(transport, port))
}

fn kinds(pki: &Pki) -> [ListenerKind; 3] {
    [ListenerKind::Tcp, ListenerKind::Tls(pki.server.clone()), ListenerKind::Quic(pki.server.clone())]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_transports_answer_every_request() {
    let pki = Pki::new();
    for kind in kinds(&pki) {
        for (connections, streams, reuse) in [(2, 10, Reuse::Kept), (4, 1, Reuse::OneRequest)] {
            let (responder, target) = serve(kind.clone(), &Pki::listen_options());
            let dialer = reach(target, TcpOptions::default()).expect("one target");
            let load =
                RequestLoad { connections, streams, reuse, requests: Some(100), ..RequestLoad::default() };
            let timers = TimerService::exact().expect("a thread");
            let summary = run(&load, dialer, &timers, pending(), |_| {}).await.expect("the load makes sense");
            let [requests, responses, failed, unfinished, made] = counters(&summary);
            assert_eq!([requests, responses, failed, unfinished], [100, 100, 0, 0], "{:?}", summary.events);
            // One may be done with all before the other has begun.
            let expected = if reuse == Reuse::Kept { 1..=2 } else { 100..=100 };
            assert!(expected.contains(&made), "{made} connections: {kind:?}, {reuse:?}");
            assert_eq!(summary.topics[0].bytes, 8_000_000);
            assert_eq!(responder.summary().counters["requests"], 100);
        }
    }
}

#[tokio::test]
async fn an_early_connection_replaces_the_last_one() {
    let pki = Pki::new();
    let (_, target) = serve(ListenerKind::Quic(pki.server.clone()), &Pki::listen_options());
    let dialer = reach(target, TcpOptions::default()).expect("one target");
    let load = RequestLoad {
        reuse: Reuse::OneRequest,
        zero_rtt: true,
        requests: Some(10),
        ..RequestLoad::default()
    };
    assert_eq!(counters(&measure(&load, dialer).await), [10, 10, 0, 0, 10]);
}

#[tokio::test]
async fn a_refused_connection_is_a_failure_that_names_the_address() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let dialer = reach(target(Transport::Tcp, port), TcpOptions::default()).expect("one target");
    let summary = measure(&RequestLoad { requests: Some(2), ..RequestLoad::default() }, dialer).await;
    assert_eq!(counters(&summary), [2, 0, 2, 0, 0]);
    let expected = format!("cannot connect to 127.0.0.1:{port}: nothing listens on 127.0.0.1:{port}");
    assert_eq!(summary.events.iter().map(|event| &*event.what).collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn a_server_sends_with_the_congestion_control_it_is_given() {
    let tcp = |name: &str| TcpOptions { congestion: Some(name.into()) };
    let options = ListenOptions { tcp: tcp("reno"), ..Pki::listen_options() };
    let (_, target) = serve(ListenerKind::Tcp, &options);
    let load = RequestLoad { requests: Some(2), ..RequestLoad::default() };
    let dialer = reach(target.clone(), tcp("reno")).expect("a known name");
    assert_eq!(counters(&measure(&load, dialer).await), [2, 2, 0, 0, 1]);
    let error = reach(target, tcp("warp")).expect_err("no such name").to_string();
    assert!(error.starts_with("TCP congestion control \"warp\": "), "{error}");
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let options = ListenOptions { tcp: tcp("warp"), ..ListenOptions::default() };
    let error = Listener::bind(ListenerKind::Tcp, any, &options).expect_err("no such name");
    assert!(error.to_string().contains("TCP congestion control \"warp\": "), "{error}");
}
