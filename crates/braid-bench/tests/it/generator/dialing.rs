//! Every transport over the loopback interface, and what cannot be dialled.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use braid_bench::emqtt::{DurationHistogram, exposition};
use braid_bench::generator::{Clock, Dialer, Ended, PublishPlan, RunStatistics, TimerService, Work, run};
use braid_bench::summary::Role;
use braid_broker::{Anonymous, Broker, BrokerConfig};
use braid_proto::packet::QoS;
use braid_store::MemoryStore;
use braid_transport::{
    ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, ListenOptions, Listener, ListenerKind,
    ServerTls, Target, TcpOptions, Transport, self_signed,
};

use super::broker::{clients, one_topic, plan};

fn target(transport: Transport, port: u16) -> Target {
    Target { transport, host: "localhost".to_owned(), port, path: "/mqtt".to_owned() }
}

#[tokio::test]
async fn every_transport_carries_a_load_and_tells_its_handshakes() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = self_signed(directory.path(), &["localhost".to_owned()]).expect("a certificate");
    let ca_files = vec![files.certificate.clone()];
    let tls = || ServerTls::load(files.clone(), ClientAuth::None).expect("the certificate is there");
    let kinds = [
        ListenerKind::Tcp,
        ListenerKind::Tls(tls()),
        ListenerKind::Ws,
        ListenerKind::Wss(tls()),
        ListenerKind::Quic(tls()),
    ];
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bind = |kind| Listener::bind(kind, anywhere, &ListenOptions::default()).expect("a free port");
    let listeners: Vec<_> = kinds.into_iter().map(bind).collect();
    let port =
        |listener: &Listener| (listener.transport(), listener.local_addr().expect("an address").port());
    let ports: Vec<_> = listeners.iter().map(port).collect();
    let rule = Box::new(Anonymous { from_anywhere: true });
    let store = Arc::new(MemoryStore::new());
    let broker = Broker::build(BrokerConfig::default(), rule, store, listeners).expect("an empty store");
    let handle = broker.handle();
    tokio::spawn(broker.run(Duration::ZERO));
    let timers = TimerService::exact().expect("a thread");
    let mut received = 0;
    for (transport, port) in ports {
        let tls =
            ClientTls::new(ClientTlsOptions { ca_files: ca_files.clone(), ..ClientTlsOptions::default() });
        let dialer = || {
            let tcp = TcpOptions { congestion: Some("reno".into()) };
            let options = ConnectOptions { tcp, ..ConnectOptions::default() };
            let addresses = vec![IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3])];
            let targets = vec![target(transport, port)];
            Dialer::new(targets, tls.clone(), options, addresses).expect("it can be had")
        };
        // Saturated: bytes that the link has taken make room, and wake only this task.
        let publish = PublishPlan { limit: 20_000, ..one_topic("a", Duration::ZERO, QoS::AtMostOnce) };
        let statistics = RunStatistics::new(Clock::now());
        let load = plan(clients(Role::Pub, 2), Work::Publish(publish), Duration::from_secs(60));
        let ended = run(load, dialer(), timers.clone(), statistics.clone(), std::future::pending()).await;
        assert_eq!((ended, statistics.topics()[0].acked), (Ended::Complete, 20_000), "{transport}");
        received += 20_000;
        let publish =
            PublishPlan { limit: 100, ..one_topic("a", Duration::from_millis(1), QoS::AtLeastOnce) };
        let statistics = RunStatistics::new(Clock::now());
        let load = plan(clients(Role::Pub, 2), Work::Publish(publish), Duration::from_secs(60));
        let ended = run(load, dialer(), timers.clone(), statistics.clone(), std::future::pending()).await;
        assert_eq!(
            (ended, statistics.topics()[0].acked),
            (Ended::Complete, 100),
            "{transport}: {:?}",
            statistics.events(0)
        );
        received += 100;
        // The connections of the first load were closed before those of the second came: all of it was read.
        while handle.statistics().get(braid_broker::Counter::MessagesReceived) < received {
            tokio::task::yield_now().await;
        }
        assert_eq!(handle.statistics().get(braid_broker::Counter::MessagesReceived), received);
        let text = exposition(&statistics.counters(), &statistics.histograms());
        let counted = |which: DurationHistogram, times: u32| {
            assert!(text.contains(&format!("{}_count {times}\n", which.name())), "{transport}: {text}");
        };
        counted(DurationHistogram::TcpHandshake, if transport == Transport::Quic { 0 } else { 2 });
        counted(DurationHistogram::Handshake, if transport.is_encrypted() { 2 } else { 0 });
        counted(DurationHistogram::Connect, 2);
    }
}

#[test]
fn invalid_addresses_are_refused_before_the_run() {
    let error = |targets, options, tls| {
        let refused = Dialer::new(targets, ClientTls::new(tls), options, Vec::new());
        refused.expect_err("it cannot be dialled").to_string()
    };
    let tls = ClientTlsOptions::default;
    assert_eq!(error(Vec::new(), ConnectOptions::default(), tls()), "no host: give one with -h");
    let unknown = TcpOptions { congestion: Some("warp".into()) };
    let options = ConnectOptions { tcp: unknown, ..ConnectOptions::default() };
    let text = error(vec![target(Transport::Tcp, 1883)], options.clone(), tls());
    assert!(text.contains("congestion control \"warp\""), "{text}");
    let missing = ClientTlsOptions { ca_files: vec!["missing.pem".into()], ..tls() };
    let text = error(vec![target(Transport::Quic, 14567)], options.clone(), missing);
    assert!(text.contains("missing.pem"), "{text}");
    // TCP's congestion control is nothing to QUIC.
    let insecure = ClientTls::new(ClientTlsOptions { insecure: true, ..tls() });
    assert!(Dialer::new(vec![target(Transport::Quic, 14567)], insecure, options, Vec::new()).is_ok());
}
