//! Several server certificates, chosen by the name that the client asks for.

use std::fs;

use braid_transport::{CertificateFiles, ListenerKind, ServerTls, ServerTlsOptions};

use crate::support::{Pki, bind, pair};

fn fingerprint(files: &CertificateFiles) -> String {
    files.fingerprint_sha256().expect("fingerprint")
}

#[tokio::test]
async fn a_client_gets_the_certificate_of_the_name_it_asks_for() {
    let pki = Pki::new();
    // The default has all names too, so that the client believes it whatever it is shown.
    let all = ["localhost", "a.example", "*.b.example", "c.b.example", "x.c.b.example"];
    let default = pki.issue("default", &all);
    let exact = pki.issue("exact", &["A.example", "c.b.example"]);
    let wildcard = pki.issue("wildcard", &["*.b.example"]);
    let later = pki.issue("later", &["a.example", "*.b.example"]);
    let options = ServerTlsOptions {
        additional: vec![wildcard.clone(), exact.clone(), later],
        ..ServerTlsOptions::new(default.clone())
    };
    let tls = ServerTls::new(options).expect("load");
    let cases = [
        ("localhost", &default),
        ("a.example", &exact),
        ("A.EXAMPLE", &exact),
        ("c.b.example", &exact),
        ("d.b.example", &wildcard),
        ("x.c.b.example", &default),
    ];
    for kind in
        [ListenerKind::Tls(tls.clone()), ListenerKind::Wss(tls.clone()), ListenerKind::Quic(tls.clone())]
    {
        let mut listener = bind(kind);
        for (name, expected) in cases {
            let client = pki.client_with(|options| options.server_name = Some(name.to_owned()));
            let (_server, client) = pair(&mut listener, &client).await;
            let seen = client.peer.certificate.expect("certificate").fingerprint_sha256();
            assert_eq!(seen, fingerprint(expected), "{name}");
        }
    }
}

#[tokio::test]
async fn a_client_without_a_name_gets_the_default() {
    let pki = Pki::new();
    let default = pki.issue("default", &["127.0.0.1"]);
    let options = ServerTlsOptions {
        additional: vec![pki.issue("other", &["localhost", "127.0.0.1"])],
        ..ServerTlsOptions::new(default.clone())
    };
    let mut listener = bind(ListenerKind::Tls(ServerTls::new(options).expect("load")));
    // An address is not sent as a name (RFC 6066, 3).
    let client = pki.client_with(|options| options.server_name = Some("127.0.0.1".to_owned()));
    let (_server, client) = pair(&mut listener, &client).await;
    let seen = client.peer.certificate.expect("certificate").fingerprint_sha256();
    assert_eq!(seen, fingerprint(&default));
}

#[tokio::test]
async fn reload_takes_all_certificates_or_none() {
    let pki = Pki::new();
    let (default, other) = (pki.issue("default", &["localhost"]), pki.issue("other", &["other.example"]));
    let options =
        ServerTlsOptions { additional: vec![other.clone()], ..ServerTlsOptions::new(default.clone()) };
    let tls = ServerTls::new(options).expect("load");
    let old = fingerprint(&default);
    let mut listener = bind(ListenerKind::Tls(tls.clone()));

    let new = fingerprint(&pki.issue("default", &["localhost"]));
    let key = fs::read(&other.key).expect("read");
    fs::write(&other.key, "garbage").expect("write");
    let error = tls.reload().expect_err("garbage").to_string();
    assert!(error.starts_with(&other.key.display().to_string()), "{error}");
    for (key, expected) in [(None, old), (Some(key), new)] {
        if let Some(key) = key {
            fs::write(&other.key, key).expect("write");
            tls.reload().expect("reload");
        }
        let (_server, client) = pair(&mut listener, &pki.client()).await;
        assert_eq!(client.peer.certificate.expect("certificate").fingerprint_sha256(), expected);
    }
}

#[test]
fn an_additional_certificate_that_cannot_serve_is_an_error_with_its_file() {
    let pki = Pki::new();
    let default = pki.issue("default", &["localhost"]);
    let nameless = pki.issue("nameless", &["127.0.0.1"]);
    let good = pki.issue("good", &["good.example"]);
    let missing = pki.path().join("missing.pem");
    let cases = [
        (nameless.clone(), format!("{} has no DNS name", nameless.certificate.display())),
        (
            CertificateFiles { certificate: missing.clone(), ..good.clone() },
            format!("cannot read {}: ", missing.display()),
        ),
        (
            CertificateFiles { key: nameless.key.clone(), ..good.clone() },
            format!("{} and {} do not belong together", good.certificate.display(), nameless.key.display()),
        ),
    ];
    for (files, expected) in cases {
        let options = ServerTlsOptions { additional: vec![files], ..ServerTlsOptions::new(default.clone()) };
        let error = ServerTls::new(options).expect_err("of no use").to_string();
        assert!(error.starts_with(&expected), "{error:?} does not start with {expected:?}");
    }
}

#[test]
fn keys_are_not_in_debug() {
    let pki = Pki::new();
    let default = pki.issue("default", &["localhost"]);
    let options = ServerTlsOptions {
        additional: vec![pki.issue("other", &["other.example"])],
        ..ServerTlsOptions::new(default)
    };
    let text = format!("{:?}", ServerTls::new(options).expect("load"));
    let expected = "ServerTls { shared: Shared { options: ServerTlsOptions { files: ";
    assert!(text.starts_with(expected) && text.ends_with(" }, .. } }"), "{text}");
    assert!(text.contains("other.key") && !text.contains("PRIVATE"), "{text}");
    assert!(text.len() < 2_000, "more than the options: {text}");
}
