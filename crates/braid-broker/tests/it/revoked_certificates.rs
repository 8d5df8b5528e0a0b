//! Clients whose certificate is not accepted any more, after a reload. Lists of revoked ones: `revocation.rs` of
//! braid-transport.

use std::fs;
use std::path::Path;
use std::time::Duration;

use braid_proto::packet::{Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_transport::{
    CertificateFiles, ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, ListenOptions, Listener,
    ListenerKind, ServerTls, Target, Transport, self_signed,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

use crate::support::{Client, TestBroker, connect_v5, quiet};

/// Authority of the clients, and the files of a certificate that it signs.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("an authority"))
    }

    fn issue(&self, dir: &Path) -> CertificateFiles {
        let (key, mut params) = (KeyPair::generate().expect("key"), CertificateParams::default());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let files = CertificateFiles { certificate: dir.join("client.pem"), key: dir.join("client-key.pem") };
        fs::write(&files.certificate, certificate.pem()).expect("write");
        fs::write(&files.key, key.serialize_pem()).expect("write");
        files
    }
}

async fn is_connected(client: &mut Client) -> bool {
    client.send(Packet::Pingreq).await;
    client.next().await == Some(Packet::Pingresp)
}

/// The certificate is verified again by the files of the reload; other clients stay.
#[tokio::test]
async fn a_client_whose_certificate_is_not_accepted_any_more_is_disconnected() {
    let dir = tempfile::tempdir().expect("a directory");
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = dir.path().join("ca.pem");
    fs::write(&ca, authority.0.pem()).expect("write");
    let own = self_signed(dir.path(), &["localhost".to_owned()]).expect("a certificate");
    let server = own.certificate.clone();
    let tls = ServerTls::load(own, ClientAuth::Required { ca: ca.clone() }).expect("files");
    let loopback = ([127, 0, 0, 1], 0).into();
    let listener = Listener::bind(ListenerKind::Tls(tls.clone()), loopback, &ListenOptions::default());
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let broker = TestBroker::start_listening(quiet(), vec![listener.into()]);
    let client_tls = ClientTls::new(ClientTlsOptions {
        ca_files: vec![server],
        identity: Some(authority.issue(dir.path())),
        server_name: Some("localhost".to_owned()),
        ..ClientTlsOptions::default()
    });
    let target =
        Target { transport: Transport::Tls, host: "127.0.0.1".to_owned(), port, path: String::new() };
    let link = braid_transport::connect(&target, &client_tls, &ConnectOptions::default()).await;
    let mut client = Client::over(link.expect("the broker listens"), ProtocolVersion::V5);
    client.send_connect(connect_v5("client")).await;
    client.accepted().await;
    let mut plain = broker.v5("plain").await;
    let mut reload = async |authorities: String| {
        fs::write(&ca, authorities).expect("write");
        tls.reload().expect("good files");
        broker.handle.recheck_clients().await;
        assert!(is_connected(&mut plain).await);
    };
    reload(other.0.pem() + &authority.0.pem()).await;
    assert!(is_connected(&mut client).await);
    reload(other.0.pem()).await;
    // The clock is the real one, and a test that fails should not take minutes.
    let end =
        tokio::time::timeout(Duration::from_secs(20), client.expect_disconnect(ReasonCode::NotAuthorized));
    end.await.expect("the certificate is verified again");
}
