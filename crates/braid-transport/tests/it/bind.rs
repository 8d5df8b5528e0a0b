//! Binding, and reaching an address.

use std::net::SocketAddr;

use braid_transport::{ClientTls, ConnectOptions, ListenOptions, Listener, ListenerKind, Transport, connect};

use crate::driven::Link;
use crate::support::{Pki, address, bind, carry, loopback, pair, target};

#[tokio::test]
async fn a_port_in_use_is_said_so() {
    let pki = Pki::new();
    for (kind, socket) in [(ListenerKind::Tcp, "TCP"), (ListenerKind::Quic(pki.server()), "UDP")] {
        let first = bind(kind.clone());
        let taken = address(&first);
        let error = Listener::bind(kind, taken, &ListenOptions::default()).expect_err("taken");
        let expected = format!(
            "{socket} port {} on 127.0.0.1 is in use: stop the program that has it or choose another port",
            taken.port()
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn a_foreign_address_is_said_so() {
    // 192.0.2.0/24 is for documentation.
    let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
    let error = Listener::bind(ListenerKind::Tcp, foreign, &ListenOptions::default()).expect_err("not ours");
    assert!(error.to_string().starts_with("192.0.2.1 is not an address of this machine"), "{error}");
}

#[tokio::test]
async fn an_unspecified_ipv6_listener_takes_ipv4_under_its_own_name() {
    let any: SocketAddr = "[::]:0".parse().expect("address");
    let Ok(mut listener) = Listener::bind(ListenerKind::Tcp, any, &ListenOptions::default()) else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let mut target = target(Transport::Tcp, address(&listener));
    target.host = "127.0.0.1".to_owned();
    let link = Link::from(
        connect(&target, &ClientTls::default(), &ConnectOptions::default()).await.expect("connect"),
    );
    let incoming = listener.accept().await.expect("accept");
    assert!(incoming.peer_address().is_some_and(|address| address.is_ipv4()), "{incoming:?}");
    assert!(link.peer().address.is_some());
}

#[tokio::test]
async fn a_port_is_free_again_after_close() {
    let pki = Pki::new();
    for kind in pki.kinds() {
        let mut listener = bind(kind.clone());
        let taken = address(&listener);
        let (mut server, mut client) = pair(&mut listener, &pki.client()).await;
        carry(&mut client, &mut server, b"x").await;
        drop((server, client));
        listener.close().await;
        if matches!(kind, ListenerKind::Quic(_)) {
            // The endpoint's task lets go of its socket when the last connection has drained.
            continue;
        }
        Listener::bind(kind, taken, &ListenOptions::default()).expect("free again");
    }
}

#[tokio::test]
async fn a_refused_connection_is_said_so() {
    let listener = bind(ListenerKind::Tcp);
    let target = target(Transport::Tcp, address(&listener));
    drop(listener);
    let error =
        connect(&target, &ClientTls::default(), &ConnectOptions::default()).await.expect_err("closed");
    let port = target.port;
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot connect to localhost:{port}: nothing listens on ")), "{text}");
}

#[tokio::test]
async fn a_name_without_address_is_said_so() {
    let mut target = target(Transport::Tcp, loopback());
    target.host = "no-such-host.invalid".to_owned();
    let error =
        connect(&target, &ClientTls::default(), &ConnectOptions::default()).await.expect_err("no address");
    assert!(error.to_string().starts_with("cannot find the address of no-such-host.invalid: "), "{error}");
}
