//! TLS: whom the ends believe, reload, and what goes wrong.

use std::fs;
use std::io::Write;
use std::sync::Arc;

use braid_transport::{
    ClientAuth, ClientTls, ClientTlsOptions, ConnectError, ConnectOptions, HandshakeError, ListenerKind,
    ServerTls, ServerTlsOptions, TlsVersion, Transport, connect,
};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Pki, Wire, accept, address, bind, carry, dial, pair, target};

fn secure_kinds(pki: &Pki, auth: &ClientAuth) -> [ListenerKind; 3] {
    let tls = pki.server_with(auth.clone());
    [ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls.clone()), ListenerKind::Quic(tls)]
}

#[tokio::test]
async fn a_client_certificate_is_known_to_the_server() {
    let pki = Pki::new();
    let identity = pki.issue("sensor-7", &["sensor.example"]);
    let fingerprint = identity.fingerprint_sha256().expect("fingerprint");
    let client = pki.client_with(|options| options.identity = Some(identity));
    for auth in [ClientAuth::Optional { ca: pki.ca() }, ClientAuth::Required { ca: pki.ca() }] {
        for kind in secure_kinds(&pki, &auth) {
            let mut listener = bind(kind);
            let (server, _client) = pair(&mut listener, &client).await;
            let certificate = server.peer.certificate.expect("certificate");
            assert_eq!(certificate.fingerprint_sha256(), fingerprint);
            assert_eq!(certificate.common_name(), Some("sensor-7"));
            assert_eq!(certificate.only_alternative_name(), Some("sensor.example"));
        }
    }
}

#[tokio::test]
async fn an_optional_client_certificate_may_be_missing() {
    let pki = Pki::new();
    for kind in secure_kinds(&pki, &ClientAuth::Optional { ca: pki.ca() }) {
        let mut listener = bind(kind);
        let (server, _client) = pair(&mut listener, &pki.client()).await;
        assert_eq!(server.peer.certificate, None);
    }
}

#[tokio::test]
async fn a_required_client_certificate_may_not_be_missing() {
    let pki = Pki::new();
    for kind in secure_kinds(&pki, &ClientAuth::Required { ca: pki.ca() }) {
        let mut listener = bind(kind);
        let client = dial(&listener, &pki.client());
        let error = accept(&mut listener).await.await.expect("join").expect_err("no certificate");
        assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Quic(_)), "{error}");
        assert!(error.to_string().contains("ertificate"), "{error}");
        client.abort();
    }
}

#[tokio::test]
async fn a_client_certificate_of_another_ca_is_refused_even_if_optional() {
    let (pki, other) = (Pki::new(), Pki::new());
    let identity = other.issue("other", &["other.example"]);
    let client = pki.client_with(|options| options.identity = Some(identity));
    for kind in secure_kinds(&pki, &ClientAuth::Optional { ca: pki.ca() }) {
        let mut listener = bind(kind);
        let attempt = dial(&listener, &client);
        let error = accept(&mut listener).await.await.expect("join").expect_err("another CA");
        assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Quic(_)), "{error}");
        attempt.abort();
    }
}

#[tokio::test]
async fn reload_changes_the_certificate_of_new_connections_only() {
    let pki = Pki::new();
    let tls = pki.server();
    let kinds =
        [ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls.clone()), ListenerKind::Quic(tls.clone())];
    for kind in kinds {
        let mut listener = bind(kind);
        let (mut old_server, mut old_client) = pair(&mut listener, &pki.client()).await;
        let old = tls.files().fingerprint_sha256().expect("fingerprint");

        let new = pki.issue("server", &["localhost"]).fingerprint_sha256().expect("fingerprint");
        assert_ne!(old, new);
        tls.reload().expect("reload");

        let (_server, client) = pair(&mut listener, &pki.client()).await;
        assert_eq!(client.peer.certificate.expect("certificate").fingerprint_sha256(), new);
        assert_eq!(old_client.peer.certificate.as_ref().expect("certificate").fingerprint_sha256(), old);
        carry(&mut old_client, &mut old_server, b"still here").await;
    }
}

#[tokio::test]
async fn a_reload_that_fails_leaves_the_old_certificate() {
    let pki = Pki::new();
    let tls = pki.server();
    let old = tls.files().fingerprint_sha256().expect("fingerprint");
    fs::write(&tls.files().certificate, "garbage").expect("write");
    let error = tls.reload().expect_err("garbage").to_string();
    assert!(error.starts_with(&tls.files().certificate.display().to_string()), "{error}");
    for kind in [ListenerKind::Tls(tls.clone()), ListenerKind::Quic(tls.clone())] {
        let mut listener = bind(kind);
        let (_server, client) = pair(&mut listener, &pki.client()).await;
        assert_eq!(client.peer.certificate.expect("certificate").fingerprint_sha256(), old);
    }
}

/// Error of a client that connects to `kind`, whose handshake fails on the server as well.
async fn refusal(kind: ListenerKind, client: &ClientTls) -> ConnectError {
    let mut listener = bind(kind);
    let attempt = dial(&listener, client);
    let server = accept(&mut listener).await;
    let error = attempt.await.expect("join").map(|link| link.peer).expect_err("refused");
    assert!(server.await.expect("join").is_err());
    error
}

#[tokio::test]
async fn a_client_says_why_it_does_not_believe_the_server() {
    let (pki, others) = (Pki::new(), Pki::new());
    for kind in secure_kinds(&pki, &ClientAuth::None) {
        let error = refusal(kind.clone(), &others.client()).await.to_string();
        let expected =
            "the certificate of localhost is not trusted: give its CA with --cafile, or --insecure for tests";
        assert_eq!(error, expected);

        let elsewhere = pki.client_with(|options| options.server_name = Some("other.example".to_owned()));
        let error = refusal(kind, &elsewhere).await;
        assert!(matches!(error, ConnectError::WrongName { .. }), "{error}");
    }
}

#[tokio::test]
async fn insecure_believes_any_certificate() {
    let pki = Pki::new();
    let client = ClientTls::new(ClientTlsOptions { insecure: true, ..ClientTlsOptions::default() });
    for kind in secure_kinds(&pki, &ClientAuth::None) {
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &client).await;
        carry(&mut client, &mut server, b"hello").await;
    }
}

#[tokio::test]
async fn insecure_with_authorities_checks_all_but_the_name() {
    let (pki, other) = (Pki::new(), Pki::new());
    let unnamed = |pki: &Pki| {
        pki.client_with(|options| {
            options.insecure = true;
            options.server_name = Some("elsewhere".to_owned());
        })
    };
    for kind in secure_kinds(&pki, &ClientAuth::None) {
        let mut listener = bind(kind.clone());
        let (mut server, mut client) = pair(&mut listener, &unnamed(&pki)).await;
        carry(&mut client, &mut server, b"hello").await;
        let error = refusal(kind, &unnamed(&other)).await;
        assert!(matches!(error, ConnectError::NotTrusted(_)), "{error}");
    }
}

#[tokio::test]
async fn an_application_protocol_is_taken_if_it_is_ours_and_ignored_if_not() {
    let pki = Pki::new();
    for (offered, settled) in [("mqtt", Some("mqtt")), ("x-amzn-mqtt-ca", None)] {
        let mut listener = bind(ListenerKind::Tls(pki.server()));
        let client = pki.client_with(|options| options.alpn = vec![offered.to_owned()]);
        let (server, _client) = pair(&mut listener, &client).await;
        assert_eq!(server.peer.alpn.as_deref(), settled);
    }
}

#[tokio::test]
async fn a_list_of_application_protocols_admits_no_others() {
    let pki = Pki::new();
    let files = pki.issue("server", &["localhost"]);
    let names = ["mqtts", "x-amzn-mqtt-ca"].map(str::to_owned);
    let options = ServerTlsOptions { alpn: names.into(), ..ServerTlsOptions::new(files) };
    let tls = ServerTls::new(options).expect("load");
    let secure = || ListenerKind::Tls(tls.clone());
    let (websocket, quic) = (|| ListenerKind::Wss(tls.clone()), || ListenerKind::Quic(tls.clone()));
    let cases: [(ListenerKind, &[&str], Option<&str>); _] = [
        (secure(), &["x-amzn-mqtt-ca", "mqtts"], Some("mqtts")),
        (secure(), &["h2", "x-amzn-mqtt-ca"], Some("x-amzn-mqtt-ca")),
        (secure(), &[], None),
        (websocket(), &["http/1.1"], Some("http/1.1")),
        (websocket(), &["mqtts"], None),
        (quic(), &["mqtts"], Some("mqtts")),
    ];
    let client = |names: &[&str]| {
        pki.client_with(|options| options.alpn = names.iter().map(|name| (*name).to_owned()).collect())
    };
    for (kind, offered, settled) in cases {
        let mut listener = bind(kind);
        let (server, _client) = pair(&mut listener, &client(offered)).await;
        assert_eq!(server.peer.alpn.as_deref(), settled, "{offered:?}");
    }
    refusal(secure(), &client(&["mqtt"])).await;
    let error = refusal(quic(), &client(&["mqtt"])).await;
    assert!(matches!(error, ConnectError::Alpn { .. }), "{error}");
}

#[test]
fn application_protocols_have_1_to_255_bytes() {
    let pki = Pki::new();
    for (length, is_right) in [(0, false), (1, true), (255, true), (256, false)] {
        let files = pki.issue("server", &["localhost"]);
        let options = ServerTlsOptions { alpn: vec!["a".repeat(length)], ..ServerTlsOptions::new(files) };
        match ServerTls::new(options) {
            Ok(_) => assert!(is_right, "{length} bytes"),
            Err(error) => {
                assert!(error.to_string().contains(&format!("has {length} bytes: give")), "{error}");
                assert!(!is_right, "{length} bytes");
            }
        }
    }
}

/// A configuration of rustls itself, without a certificate.
pub(crate) fn client_config(
    pki: &Pki,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(pki.ca()).expect("ca")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The version that a server of this minimum and a client of only one version agree on.
async fn agreed(
    minimum: TlsVersion,
    version: &'static rustls::SupportedProtocolVersion,
) -> Option<&'static str> {
    let pki = Pki::new();
    let files = pki.issue("server", &["localhost"]);
    let options = ServerTlsOptions { min_version: minimum, ..ServerTlsOptions::new(files) };
    let mut listener = bind(ListenerKind::Tls(ServerTls::new(options).expect("load")));
    let socket = TcpStream::connect(address(&listener)).await.expect("connect");
    let name = ServerName::try_from("localhost").expect("name");
    let connector = TlsConnector::from(client_config(&pki, &[version]));
    let client = tokio::spawn(connector.connect(name, socket).into_fallible());
    let server = accept(&mut listener).await.await.expect("join");
    assert_eq!(client.await.expect("join").is_ok(), server.is_ok());
    server.ok().and_then(|link| link.peer().tls_version)
}

#[tokio::test]
async fn the_minimum_version_of_tls_can_be_raised() {
    let (old, new) = (&rustls::version::TLS12, &rustls::version::TLS13);
    assert_eq!(agreed(TlsVersion::default(), old).await, Some("TLSv1.2"));
    assert_eq!(agreed(TlsVersion::default(), new).await, Some("TLSv1.3"));
    assert_eq!(agreed(TlsVersion::V1_3, old).await, None);
    assert_eq!(agreed(TlsVersion::V1_3, new).await, Some("TLSv1.3"));
    assert_eq!("1.2".parse(), Ok(TlsVersion::V1_2));
    assert_eq!("1.3".parse(), Ok(TlsVersion::V1_3));
    for unknown in ["1.1", "", "1.3 ", "TLSv1.3"] {
        let error = unknown.parse::<TlsVersion>().expect_err("unknown");
        assert!(error.ends_with("use 1.2 or 1.3"), "{error}");
    }
}

/// RUSTSEC-2024-0399: a ClientHello in several records caused a panic in rustls's `Acceptor`.
#[tokio::test]
async fn a_client_hello_in_records_of_one_byte_completes_the_handshake() {
    for version in rustls::ALL_VERSIONS {
        let pki = Pki::new();
        let mut listener = bind(ListenerKind::Tls(pki.server()));
        let address = address(&listener);
        let config = client_config(&pki, &[version]);
        let client = tokio::task::spawn_blocking(move || {
            let name = ServerName::try_from("localhost").expect("name");
            let mut client = rustls::ClientConnection::new(config, name).expect("client");
            let mut socket = std::net::TcpStream::connect(address).expect("connect");
            let mut flight = Vec::new();
            client.write_tls(&mut flight).expect("ClientHello");
            // RFC 8446, 5.1: type, version, length, and as many bytes.
            let (header, hello) = flight.split_at(5);
            assert_eq!((header[0], usize::from(header[3]) << 8 | usize::from(header[4])), (22, hello.len()));
            let records: Vec<u8> =
                hello.iter().flat_map(|byte| [header[0], header[1], header[2], 0, 1, *byte]).collect();
            socket.write_all(&records).expect("write");
            client.complete_io(&mut socket).expect("handshake");
        });
        accept(&mut listener).await.await.expect("join").expect("handshake");
        client.await.expect("join");
    }
}

#[tokio::test]
async fn a_plain_client_on_a_tls_port_fails_alone() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Tls(pki.server()));
    let socket = TcpStream::connect(address(&listener)).await.expect("connect");
    let server = accept(&mut listener).await;
    socket.writable().await.expect("writable");
    socket.try_write(b"\x10\x10\0\x04MQTT\x04\x02\0\x3c\0\x04test").expect("write");
    let error = server.await.expect("join").expect_err("not TLS");
    assert!(matches!(error, HandshakeError::Tls(_)), "{error}");
}

#[tokio::test]
async fn a_tls_client_on_a_plain_port_is_told_so() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Tcp);
    let target = target(Transport::Tls, address(&listener));
    let client = pki.client();
    let attempt = tokio::spawn(async move { connect(&target, &client, &ConnectOptions::default()).await });
    let mut server = Wire::from(accept(&mut listener).await.await.expect("join").expect("plain"));
    // A broker closes on what is no CONNECT.
    server.io.read_exact(&mut [0; 200]).await.expect("a ClientHello");
    drop(server);
    let error = attempt.await.expect("join").expect_err("not TLS").to_string();
    assert!(error.starts_with("TLS with localhost failed: "), "{error}");
}

#[tokio::test]
async fn wrong_client_files_are_known_before_anything_is_connected() {
    let pki = Pki::new();
    let client = pki.client_with(|options| options.ca_files = vec![pki.path().join("gone.pem")]);
    let error = client.check().expect_err("missing").to_string();
    assert!(error.starts_with("cannot read ") && error.contains("gone.pem"), "{error}");
}
