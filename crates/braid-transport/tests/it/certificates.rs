//! Certificate files.

use std::fs;
use std::path::Path;

use braid_transport::{
    CertificateFiles, ClientAuth, ClientTlsOptions, ListenerKind, ServerTls, fingerprint_sha256, self_signed,
};

use crate::support::{Pki, bind, pair};

fn names() -> Vec<String> {
    vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
}

#[test]
fn a_self_signed_pair_is_made_once_and_for_its_owner() {
    let dir = tempfile::tempdir().expect("directory");
    let dir = dir.path().join("not/there/yet");
    let files = self_signed(&dir, &names()).expect("made");
    let before = (fs::read(&files.certificate).expect("read"), fs::read(&files.key).expect("read"));
    for (path, wanted) in [(&files.certificate, 0o600), (&files.key, 0o600), (&dir, 0o700)] {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
            assert_eq!(mode, wanted, "{}", path.display());
        }
    }
    let again = self_signed(&dir, &["elsewhere".to_owned()]).expect("reused");
    assert_eq!(again, files);
    let after = (fs::read(&files.certificate).expect("read"), fs::read(&files.key).expect("read"));
    assert!(before == after, "the pair was made anew");
    assert_eq!(fs::read_dir(&dir).expect("list").count(), 2, "a draft was left behind");
}

#[test]
fn a_certificate_whose_key_is_gone_is_not_overwritten() {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &names()).expect("made");
    let certificate = fs::read(&files.certificate).expect("read");
    fs::remove_file(&files.key).expect("remove");
    let error = self_signed(dir.path(), &names()).expect_err("half a pair").to_string();
    assert!(error.contains("cert.pem is there but") && error.contains("key.pem is not"), "{error}");
    assert!(fs::read(&files.certificate).expect("read") == certificate);
}

#[test]
fn a_key_that_a_crash_left_alone_is_replaced() {
    let dir = tempfile::tempdir().expect("directory");
    fs::write(dir.path().join("key.pem"), "half").expect("write");
    let files = self_signed(dir.path(), &names()).expect("made");
    ServerTls::load(files, ClientAuth::None).expect("a good pair");
}

#[tokio::test]
async fn a_self_signed_pair_is_trusted_as_its_own_ca() {
    let dir = tempfile::tempdir().expect("directory");
    let files = self_signed(dir.path(), &names()).expect("made");
    let server = ServerTls::load(files.clone(), ClientAuth::None).expect("load");
    let client = braid_transport::ClientTls::new(ClientTlsOptions {
        ca_files: vec![files.certificate.clone()],
        ..ClientTlsOptions::default()
    });
    for kind in [ListenerKind::Tls(server.clone()), ListenerKind::Quic(server)] {
        let mut listener = bind(kind);
        let (_server, client) = pair(&mut listener, &client).await;
        let seen = client.peer.certificate.expect("certificate").fingerprint_sha256();
        assert_eq!(seen, files.fingerprint_sha256().expect("fingerprint"));
    }
}

#[test]
fn a_fingerprint_is_sha256_in_colons() {
    // FIPS 180-2, appendix B.1
    let expected =
        "BA:78:16:BF:8F:01:CF:EA:41:41:40:DE:5D:AE:22:23:B0:03:61:A3:96:17:7A:9C:B4:10:FF:61:F2:00:15:AD";
    assert_eq!(fingerprint_sha256(b"abc"), expected);
}

fn load_error(certificate: &Path, key: &Path) -> String {
    let files = CertificateFiles { certificate: certificate.to_owned(), key: key.to_owned() };
    ServerTls::load(files, ClientAuth::None).expect_err("of no use").to_string()
}

#[test]
fn errors_name_the_file_and_what_is_wrong_with_it() {
    let pki = Pki::new();
    let good = pki.issue("good", &["localhost"]);
    let other = pki.issue("other", &["localhost"]);
    let missing = pki.path().join("missing.pem");
    let garbage = pki.path().join("garbage.pem");
    fs::write(&garbage, "not PEM at all").expect("write");
    let broken = pki.path().join("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").expect("write");

    let cases = [
        (load_error(&missing, &good.key), format!("cannot read {}: ", missing.display())),
        (load_error(&good.certificate, &missing), format!("cannot read {}: ", missing.display())),
        (load_error(&garbage, &good.key), format!("{} holds no certificate", garbage.display())),
        (load_error(&good.key, &good.key), format!("{} holds no certificate", good.key.display())),
        (load_error(&good.certificate, &garbage), format!("{} holds no private key", garbage.display())),
        (load_error(&broken, &good.key), format!("{} cannot be used: ", broken.display())),
        (
            load_error(&good.certificate, &other.key),
            format!("{} and {} do not belong together", good.certificate.display(), other.key.display()),
        ),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with(&expected), "{message:?} does not start with {expected:?}");
    }
}

#[test]
fn an_unreadable_client_ca_is_said_so() {
    let pki = Pki::new();
    let ca = pki.path().join("nowhere.pem");
    let auth = ClientAuth::Required { ca: ca.clone() };
    let error = ServerTls::load(pki.issue("server", &["localhost"]), auth).expect_err("no CA").to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", ca.display())), "{error}");
}
