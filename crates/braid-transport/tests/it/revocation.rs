//! Revocation lists for client certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::Network;
use braid_transport::{
    CertificateFiles, ClientAuth, ClientTls, HandshakeError, ListenOptions, Listener, ListenerKind,
    PeerCertificate, ServerTls, ServerTlsOptions,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    CrlDistributionPoint, CrlIssuingDistributionPoint, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, SigningKey, date_time_ymd,
};
use rustls::HandshakeKind;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::driven::Link;
use crate::ends::{read, write};
use crate::support::{Pki, accept, address, bind, dial, pair};

/// A certificate of this serial number for a client.
fn client(pki: &Pki, serial: u64) -> CertificateFiles {
    pki.issue_with(&format!("client-{serial}"), &["client.example"], |params| {
        params.serial_number = Some(SerialNumber::from(serial));
    })
}

/// A list with these serial numbers, for another 25 years.
fn list(revoked: &[u64]) -> CertificateRevocationListParams {
    let revoked = revoked.iter().map(|serial| RevokedCertParams {
        serial_number: SerialNumber::from(*serial),
        revocation_time: date_time_ymd(2024, 1, 1),
        reason_code: None,
        invalidity_date: None,
    });
    CertificateRevocationListParams {
        this_update: date_time_ymd(2024, 1, 1),
        next_update: date_time_ymd(2050, 1, 1),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    }
}

fn pem<S: SigningKey>(list: &CertificateRevocationListParams, issuer: &Issuer<'_, S>) -> String {
    list.signed_by(issuer).expect("list").pem().expect("PEM")
}

fn options(pki: &Pki, crl: &Path) -> ServerTlsOptions {
    ServerTlsOptions {
        client_auth: ClientAuth::Required { ca: pki.ca() },
        crl: vec![crl.to_owned()],
        ..ServerTlsOptions::new(pki.issue("server", &["localhost"]))
    }
}

/// A server with this list in a file, and the file.
fn server(pki: &Pki, revoked: &[u64]) -> (ServerTls, PathBuf) {
    let path = pki.path().join("crl.pem");
    fs::write(&path, pem(&list(revoked), pki.issuer())).expect("write");
    (ServerTls::new(options(pki, &path)).expect("load"), path)
}

fn identified(pki: &Pki, files: &CertificateFiles) -> ClientTls {
    pki.client_with(|options| options.identity = Some(files.clone()))
}

/// The server's error for a client that is refused.
async fn refusal(listener: &mut Listener, client: &ClientTls) -> String {
    let attempt = dial(listener, client);
    let error = accept(listener).await.await.expect("join").expect_err("a client that must be refused");
    attempt.abort();
    assert!(matches!(error, HandshakeError::Tls(_) | HandshakeError::Quic(_)), "{error:?}");
    error.to_string()
}

fn kinds(tls: &ServerTls) -> [ListenerKind; 3] {
    [ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls.clone()), ListenerKind::Quic(tls.clone())]
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_and_others_are_not() {
    let pki = Pki::new();
    let (revoked, good) = (identified(&pki, &client(&pki, 7)), identified(&pki, &client(&pki, 8)));
    let path = pki.path().join("list");
    let list = list(&[7]).signed_by(pki.issuer()).expect("list");
    for bytes in [list.pem().expect("PEM").into_bytes(), list.der().to_vec()] {
        fs::write(&path, bytes).expect("write");
        for auth in [ClientAuth::Required { ca: pki.ca() }, ClientAuth::Optional { ca: pki.ca() }] {
            let options = ServerTlsOptions { client_auth: auth, ..options(&pki, &path) };
            let tls = ServerTls::new(options).expect("load");
            for kind in kinds(&tls) {
                let mut listener = bind(kind);
                let error = refusal(&mut listener, &revoked).await;
                assert!(error.ends_with("invalid peer certificate: Revoked"), "{error}");
                pair(&mut listener, &good).await;
            }
        }
    }
}

/// RUSTSEC-2026-0049: only the first distribution point of a certificate was compared with that of the list.
#[tokio::test]
async fn a_revoked_certificate_with_two_distribution_points_is_refused() {
    let pki = Pki::new();
    let points: Vec<_> = ["http://crl.example/1", "http://crl.example/2"]
        .map(|uri| CrlDistributionPoint { uris: vec![uri.to_owned()] })
        .into();
    let path = pki.path().join("crl.pem");
    for point in &points {
        let mut list = list(&[7]);
        let distribution_point = point.clone();
        list.issuing_distribution_point =
            Some(CrlIssuingDistributionPoint { distribution_point, scope: None });
        fs::write(&path, pem(&list, pki.issuer())).expect("write");
        let mut listener = bind(ListenerKind::Tls(ServerTls::new(options(&pki, &path)).expect("load")));
        for serial in [7, 8] {
            let files = pki.issue_with("client", &["client.example"], |params| {
                params.serial_number = Some(SerialNumber::from(serial));
                params.crl_distribution_points = points.clone();
            });
            if serial == 7 {
                let error = refusal(&mut listener, &identified(&pki, &files)).await;
                assert!(error.ends_with("Revoked"), "{point:?}: {error}");
            } else {
                pair(&mut listener, &identified(&pki, &files)).await;
            }
        }
    }
}

#[tokio::test]
async fn every_certificate_of_a_chain_needs_a_list_of_its_issuer() {
    let pki = Pki::new();
    let mut params = CertificateParams::new(Vec::new()).expect("params");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, "Intermediate");
    params.serial_number = Some(SerialNumber::from(100_u64));
    let key = KeyPair::generate().expect("key");
    let intermediate = CertifiedIssuer::signed_by(params, key, pki.issuer()).expect("intermediate");
    let files = client(&pki, 7);
    let mut params = CertificateParams::new(vec!["client.example".to_owned()]).expect("params");
    params.serial_number = Some(SerialNumber::from(7_u64));
    let key = KeyPair::generate().expect("key");
    let leaf = params.signed_by(&key, &intermediate).expect("leaf");
    fs::write(&files.certificate, leaf.pem() + &intermediate.pem()).expect("write");
    fs::write(&files.key, key.serialize_pem()).expect("write");
    let client = identified(&pki, &files);

    let of_ca = |revoked: &[u64]| pem(&list(revoked), pki.issuer());
    let of_intermediate = |revoked: &[u64]| pem(&list(revoked), &intermediate);
    let unknown = "is of the issuer of each certificate in the client's chain";
    let cases = [
        (of_ca(&[]) + &of_intermediate(&[]), None),
        (of_ca(&[]), Some(unknown)),
        (of_intermediate(&[]), Some(unknown)),
        (of_ca(&[]) + &of_intermediate(&[7]), Some("Revoked")),
        (of_ca(&[100]) + &of_intermediate(&[]), Some("Revoked")),
    ];
    let path = pki.path().join("crl.pem");
    for (n, (lists, expected)) in cases.into_iter().enumerate() {
        fs::write(&path, lists).expect("write");
        let mut listener = bind(ListenerKind::Tls(ServerTls::new(options(&pki, &path)).expect("load")));
        match expected {
            Some(expected) => {
                let error = refusal(&mut listener, &client).await;
                assert!(error.contains(expected), "case {n}: {error}");
            }
            None => drop(pair(&mut listener, &client).await),
        }
    }
}

#[tokio::test]
async fn a_list_that_another_authority_has_signed_refuses_all() {
    let (pki, other) = (Pki::new(), Pki::new());
    let path = pki.path().join("crl.pem");
    // Both authorities have the same name.
    fs::write(&path, pem(&list(&[]), other.issuer())).expect("write");
    let tls = ServerTls::new(options(&pki, &path)).expect("load");
    let mut listener = bind(ListenerKind::Tls(tls));
    let error = refusal(&mut listener, &identified(&pki, &client(&pki, 7))).await;
    assert!(error.contains("BadSignature"), "{error}");
}

#[tokio::test]
async fn reload_revokes_and_a_list_that_cannot_be_used_leaves_the_old_one() {
    let pki = Pki::new();
    let (tls, path) = server(&pki, &[7]);
    let (seven, eight) = (identified(&pki, &client(&pki, 7)), identified(&pki, &client(&pki, 8)));
    for kind in kinds(&tls) {
        fs::write(&path, pem(&list(&[7]), pki.issuer())).expect("write");
        tls.reload().expect("reload");
        let mut listener = bind(kind);
        let (mut server, mut client) = pair(&mut listener, &eight).await;
        let certificate = server.peer.certificate.clone().expect("the client has one");
        assert!(!certificate.is_refused());
        fs::write(&path, "garbage").expect("write");
        let error = tls.reload().expect_err("garbage").to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        refusal(&mut listener, &seven).await;
        assert!(!certificate.is_refused(), "the old list is in force");
        fs::write(&path, pem(&list(&[7, 8]), pki.issuer())).expect("write");
        tls.reload().expect("reload");
        refusal(&mut listener, &eight).await;
        assert!(certificate.is_refused(), "for the broker, which ends the connection");
        crate::support::carry(&mut client, &mut server, b"a connection of before").await;
        let client_side = client.peer.certificate.as_ref().expect("the server has one");
        assert!(!client_side.is_refused(), "a client does not verify again");
    }
}

#[tokio::test]
async fn reload_with_another_authority_refuses_and_with_the_old_one_accepts_again() {
    let (pki, other) = (Pki::new(), Pki::new());
    let ca = pki.path().join("clients.pem");
    let is_refused_with = |tls: &ServerTls, authority: &Pki, certificate: &PeerCertificate| {
        fs::copy(authority.ca(), &ca).expect("copy");
        tls.reload().expect("reload");
        // The second answer is that of the first.
        let refused = [(); 2].map(|()| certificate.is_refused());
        assert_eq!(refused[0], refused[1]);
        refused[0]
    };
    fs::copy(pki.ca(), &ca).expect("copy");
    let options = ServerTlsOptions {
        client_auth: ClientAuth::Required { ca: ca.clone() },
        ..ServerTlsOptions::new(pki.issue("server", &["localhost"]))
    };
    let tls = ServerTls::new(options).expect("load");
    for kind in kinds(&tls) {
        let mut listener = bind(kind);
        let (server, _client) = pair(&mut listener, &identified(&pki, &client(&pki, 7))).await;
        let certificate = server.peer.certificate.clone().expect("the client has one");
        for (authority, is_refused) in [(&pki, false), (&other, true), (&pki, false)] {
            assert_eq!(is_refused_with(&tls, authority, &certificate), is_refused);
        }
    }
}

/// RUSTSEC-2026-0104: a list could cause a panic before its signature was checked.
#[test]
fn a_revocation_list_cut_at_each_byte_is_an_error_with_its_file() {
    let pki = Pki::new();
    let path = pki.path().join("crl");
    let options = options(&pki, &path);
    let mut list = list(&[7, 8, 9]);
    let distribution_point = CrlDistributionPoint { uris: vec!["http://crl.example/1".to_owned()] };
    list.issuing_distribution_point = Some(CrlIssuingDistributionPoint { distribution_point, scope: None });
    let list = list.signed_by(pki.issuer()).expect("list");
    let pem = list.pem().expect("PEM").into_bytes();
    let pem = pem.trim_ascii_end();
    for whole in [list.der().as_ref(), pem] {
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("write");
            let error = ServerTls::new(options.clone()).expect_err("a part of a list").to_string();
            assert!(error.contains(&path.display().to_string()), "{end} bytes: {error}");
            assert!(!error.contains('\n'), "{end} bytes: {error}");
        }
        fs::write(&path, whole).expect("write");
        ServerTls::new(options.clone()).expect("the whole list");
    }
    let mut longer = list.der().to_vec();
    longer.push(0);
    fs::write(&path, longer).expect("write");
    ServerTls::new(options).expect_err("bytes behind the list");
}

#[test]
fn a_list_of_no_use_is_an_error_with_its_file() {
    let pki = Pki::new();
    let (_, path) = server(&pki, &[]);
    let expired = pki.path().join("expired.pem");
    let mut old = list(&[]);
    old.next_update = date_time_ymd(2024, 2, 1);
    fs::write(&expired, pem(&old, pki.issuer())).expect("write");
    let certificate = pki.ca();
    let missing = pki.path().join("missing.pem");
    let good = options(&pki, &path);
    let unasked = ServerTlsOptions { client_auth: ClientAuth::None, ..good.clone() };
    let crl =
        |path: &Path| ServerTlsOptions { crl: vec![good.crl[0].clone(), path.to_owned()], ..good.clone() };
    let cases = [
        (crl(&missing), format!("cannot read {}: ", missing.display())),
        (crl(&certificate), format!("{} holds no revocation list", certificate.display())),
        (crl(&expired), format!("the revocation list {} has expired (", expired.display())),
        (unasked, format!("{} is a revocation list for client certificates, but none", path.display())),
    ];
    for (options, expected) in cases {
        let error = ServerTls::new(options).expect_err("of no use").to_string();
        assert!(error.starts_with(&expected), "{error:?} does not start with {expected:?}");
    }
}

/// A client of rustls itself, which tells whether it has resumed a session.
fn connector(pki: &Pki, files: &CertificateFiles) -> TlsConnector {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.ca()).expect("ca")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = vec![CertificateDer::from_pem_file(&files.certificate).expect("certificate")];
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("key");
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(rustls::ALL_VERSIONS)
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("identity");
    TlsConnector::from(Arc::new(config))
}

/// Connects, and reads a byte with the tickets before it.
async fn visit(listener: &mut Listener, connector: &TlsConnector) -> Result<HandshakeKind, HandshakeError> {
    let (socket, connector) =
        (TcpStream::connect(address(listener)).await.expect("connect"), connector.clone());
    let client = tokio::spawn(async move {
        let name = ServerName::try_from("localhost").expect("name");
        let mut io = connector.connect(name, socket).await?;
        io.read_u8().await?;
        Ok::<_, std::io::Error>(io.get_ref().1.handshake_kind())
    });
    let mut link = accept(listener).await.await.expect("join")?;
    write(&mut link, b"!").await.expect("write");
    Ok(client.await.expect("join").expect("connect").expect("a handshake"))
}

#[tokio::test]
async fn a_client_that_is_revoked_does_not_resume_over_tls() {
    let pki = Pki::new();
    let (tls, path) = server(&pki, &[]);
    let mut listener = bind(ListenerKind::Tls(tls.clone()));
    let connector = connector(&pki, &client(&pki, 7));
    assert_eq!(visit(&mut listener, &connector).await.expect("first"), HandshakeKind::Full);
    assert_eq!(visit(&mut listener, &connector).await.expect("second"), HandshakeKind::Resumed);
    fs::write(&path, pem(&list(&[7]), pki.issuer())).expect("write");
    tls.reload().expect("reload");
    let error = visit(&mut listener, &connector).await.expect_err("revoked").to_string();
    assert!(error.ends_with("Revoked"), "{error}");
}

/// With and without early data, and with a ticket that the client got after an earlier reload.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_revoked_does_not_resume_over_quic() {
    for zero_rtt in [false, true] {
        let (pki, network) = (Pki::new(), Network::new(1));
        let (tls, path) = server(&pki, &[]);
        let mut listener = network.listen(tls.clone(), &ListenOptions::default()).expect("listen");
        let device = network.host("device");
        device.change(|link| link.latency = Duration::from_millis(50));
        let identity = identified(&pki, &client(&pki, 7));
        let connector =
            device.connector(address(&listener), identity, QuicOptions::client()).zero_rtt(zero_rtt);
        for visit in 0..2 {
            let connector = connector.clone();
            let client = tokio::spawn(async move {
                let mut link = Link::from(connector.connect().await.expect("connect"));
                let is_early = link.is_early();
                write(&mut link, b"!").await.expect("write");
                assert_eq!(read(&mut link).await.expect("read"), b'!');
                is_early
            });
            let mut link =
                Link::from(listener.accept().await.expect("accept").handshake().await.expect("handshake"));
            assert_eq!(read(&mut link).await.expect("read"), b'!');
            write(&mut link, b"!").await.expect("write");
            assert_eq!(client.await.expect("join"), zero_rtt && visit > 0, "there was a ticket");
        }
        fs::write(&path, pem(&list(&[7]), pki.issuer())).expect("write");
        tls.reload().expect("reload");
        let client = tokio::spawn(async move {
            let mut link = Link::from(connector.connect().await?);
            assert_eq!(link.is_early(), zero_rtt);
            let _ = write(&mut link, b"!").await;
            Ok::<_, braid_transport::ConnectError>(read(&mut link).await)
        });
        let incoming = listener.accept().await.expect("accept");
        let error = incoming.handshake().await.expect_err("revoked").to_string();
        assert!(error.ends_with("Revoked"), "{error}");
        assert!(!matches!(client.await.expect("join"), Ok(Ok(_))), "nothing was answered");
    }
}
