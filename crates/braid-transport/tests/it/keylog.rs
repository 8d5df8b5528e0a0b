//! The files that explain a connection afterwards: TLS secrets and qlog.

use std::fs;
use std::path::Path;
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::Network;
use braid_transport::{
    ConnectOptions, ListenOptions, Listener, ListenerKind, ServerTls, ServerTlsOptions, connect,
};

use tokio::time::sleep;

use crate::driven::Link;
use crate::ends::{close, read, write};
use crate::support::{Pki, accept, address, loopback, target};

/// The lines of a key log: label, client random, secret.
fn lines(path: &Path) -> Vec<(String, String, String)> {
    let text = fs::read_to_string(path).expect("read");
    assert!(text.ends_with('\n'));
    let parts = |line: &str| {
        let parts: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let [label, random, secret] = parts.try_into().expect("three parts");
        assert!(random.len() == 64 && secret.len() >= 64);
        assert!(random.chars().chain(secret.chars()).all(|c| matches!(c, '0'..='9' | 'a'..='f')));
        (label, random, secret)
    };
    text.lines().map(parts).collect()
}

fn server(pki: &Pki, key_log: &Path) -> ServerTls {
    let files = pki.issue("server", &["localhost"]);
    let options = ServerTlsOptions { key_log: Some(key_log.to_path_buf()), ..ServerTlsOptions::new(files) };
    ServerTls::new(options).expect("server")
}

#[tokio::test]
async fn both_sides_log_the_same_secrets() {
    let pki = Pki::new();
    let (ours, theirs) = (pki.path().join("client.keys"), pki.path().join("server.keys"));
    let server = server(&pki, &theirs);
    let client = pki.client_with(|options| options.key_log = Some(ours.clone()));
    for kind in
        [ListenerKind::Tls(server.clone()), ListenerKind::Wss(server.clone()), ListenerKind::Quic(server)]
    {
        let mut listener = Listener::bind(kind, loopback(), &ListenOptions::default()).expect("bind");
        let target = target(listener.transport(), address(&listener));
        let tls = client.clone();
        let client = tokio::spawn(async move {
            let mut link =
                Link::from(connect(&target, &tls, &ConnectOptions::default()).await.expect("connect"));
            write(&mut link, b"!").await.expect("write");
            link
        });
        let link = accept(&mut listener).await.await.expect("join").expect("handshake");
        drop((client.await.expect("join"), link));
    }
    let (mut ours, mut theirs) = (lines(&ours), lines(&theirs));
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
    let of_label = |label| ours.iter().filter(|(found, _, _)| found == label).count();
    assert_eq!(of_label("CLIENT_TRAFFIC_SECRET_0"), 3, "{ours:?}");
}

#[tokio::test]
async fn a_key_log_that_cannot_be_written_ends_nothing() {
    let pki = Pki::new();
    let nowhere = pki.path().join("no such directory").join("keys");
    let mut listener =
        Listener::bind(ListenerKind::Quic(server(&pki, &nowhere)), loopback(), &ListenOptions::default())
            .expect("bind");
    let tls = pki.client_with(|options| options.key_log = Some(nowhere));
    crate::support::pair(&mut listener, &tls).await;
}

/// Connects, carries a byte each way, and leaves.
async fn exchange(network: &Network, pki: &Pki, directory: &Path) {
    let directory = Some(directory.to_path_buf());
    let quic = QuicOptions { qlog_dir: directory.clone(), ..QuicOptions::server() };
    let mut listener =
        network.listen(pki.server(), &ListenOptions { quic, ..ListenOptions::default() }).expect("listen");
    let options = QuicOptions { qlog_dir: directory, ..QuicOptions::client() };
    let connector = network.host("device").connector(address(&listener), pki.client(), options);
    let client = tokio::spawn(async move {
        let mut link = Link::from(connector.connect().await.expect("connect"));
        write(&mut link, b"!").await.expect("write");
        read(&mut link).await.expect("read");
        close(&mut link).await.expect("close");
        link
    });
    let mut server = accept(&mut listener).await.await.expect("join").expect("handshake");
    let byte = read(&mut server).await.expect("read");
    write(&mut server, &[byte]).await.expect("write");
    drop((client.await.expect("join"), server));
    listener.close().await;
}

#[tokio::test(start_paused = true)]
async fn every_connection_has_its_qlog_file_on_either_side() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let directory = pki.path().join("new").join("qlog");
    exchange(&network, &pki, &directory).await;
    // Both ends forget the connection.
    sleep(Duration::from_secs(60)).await;
    let mut names: Vec<String> = fs::read_dir(&directory)
        .expect("directory")
        .map(|entry| entry.expect("entry").file_name().into_string().expect("name"))
        .collect();
    names.sort_by_key(|name| name.contains("-server-"));
    let [client, server] = &names[..] else { panic!("{names:?}") };
    let cid = |name: &str| name.rsplit('-').next().expect("part").to_owned();
    assert!(
        client.contains("-client-") && cid(client) == cid(server) && client.ends_with(".qlog"),
        "{names:?}"
    );
    for name in &names {
        let text = fs::read_to_string(directory.join(name)).expect("read");
        assert!(text.starts_with("\u{1e}{"), "a JSON text sequence");
        assert!(text.ends_with("}\n"), "nothing is cut off: {:?}", &text[text.len() - 80..]);
        let mut sent = text.lines().filter(|line| line.contains(r#""name":"quic:packet_sent""#));
        let carries = |line: &str| line.contains(r#""frame_type":"stream","stream_id":0"#);
        assert!(sent.any(carries), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_qlog_that_cannot_be_written_ends_nothing() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let file = pki.path().join("a file");
    fs::write(&file, b"").expect("write");
    exchange(&network, &pki, &file.join("below")).await;
}
