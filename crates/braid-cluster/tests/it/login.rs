//! Logins at the servers, and TLS.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_cluster::{ClusterError, ClusterOptions, Login, Node, Risk};
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::certificates::Authority;
use super::servers::{Servers, Settings};

async fn join(options: &ClusterOptions) -> Result<(), ClusterError> {
    let joined = Node::join(options, "1.0").await;
    if let Err(error) = &joined {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    joined.map(drop)
}

async fn refused(options: &ClusterOptions) -> String {
    join(options).await.unwrap_err().to_string()
}

/// Options for one server, whose risks are accepted.
fn options_of_one(servers: &Servers) -> ClusterOptions {
    let mut options = servers.options("a", "1");
    options.accepted = vec![Risk::Replicas];
    options.dimensions.replicas = 1;
    options
}

fn tls(authority: &Authority, verify: &str) -> String {
    let [cert, key, ca] = ["server.pem", "server-key.pem", "ca.pem"].map(|name| authority.path(name));
    format!("tls {{ cert_file: {cert:?}, key_file: {key:?}, ca_file: {ca:?}, {verify} }}")
}

#[tokio::test]
async fn servers_prove_who_they_are() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.issue("server", "server", &["127.0.0.1"]);
    let more = format!("max_payload: 8MB\n{}", tls(&authority, ""));
    let servers = Servers::start(1, &Settings { more: &more, ..Settings::default() }).await;
    let mut options = options_of_one(&servers);
    options.servers = vec![servers.url(0).replace("nats:", "tls:")];
    options.ca_files = vec![other.ca()];
    let error = refused(&options).await;
    assert!(
        error.starts_with("TLS with NATS at tls://127.0.0.1:") && error.contains("cluster.ca"),
        "{error}"
    );
    options.ca_files = vec![authority.path("none.pem")];
    let error = refused(&options).await;
    assert!(error.starts_with("cluster.ca: ") && error.contains("none.pem cannot be used"), "{error}");
    options.ca_files = vec![other.ca(), authority.ca()];
    join(&options).await.unwrap();
    // The certificate has an address, not this name.
    options.servers = vec![options.servers[0].replace("127.0.0.1", "localhost")];
    let error = refused(&options).await;
    assert!(error.starts_with("TLS with NATS at tls://localhost:"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_at_a_tls_address() {
    let servers = Servers::start(1, &Settings::default()).await;
    let mut options = options_of_one(&servers);
    join(&options).await.unwrap();
    options.servers = vec![servers.url(0).replace("nats:", "tls:")];
    let error = refused(&options).await;
    assert!(error.contains(&options.servers[0]), "{error}");
}

#[tokio::test]
async fn nodes_prove_who_they_are() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.issue("server", "server", &["127.0.0.1"]);
    let node = authority.issue("node", "braidmq-node", &[]);
    let foreign = other.issue("node", "braidmq-node", &[]);
    let more = format!(
        "max_payload: 8MB\nauthorization {{ user: u, password: s3cret }}\n{}",
        tls(&authority, "verify: true")
    );
    let servers = Servers::start(1, &Settings { more: &more, ..Settings::default() }).await;
    let mut options = options_of_one(&servers);
    options.servers = vec![servers.url(0).replace("nats:", "tls:")];
    options.ca_files = vec![authority.ca()];
    options.login = Login::Password { user: "u".to_owned(), password: "s3cret".to_owned() };
    let error = refused(&options).await;
    assert!(error.starts_with("TLS with NATS at ") && error.contains("cluster.certificate"), "{error}");
    options.certificate = Some(foreign);
    let error = refused(&options).await;
    assert!(error.starts_with("TLS with NATS at "), "{error}");
    options.certificate = Some((node.0.clone(), authority.path("server-key.pem")));
    let error = refused(&options).await;
    assert!(error.starts_with("TLS with NATS at ") && error.contains("cluster.key"), "{error}");
    options.certificate = Some((node.0.clone(), authority.path("none.pem")));
    let error = refused(&options).await;
    assert!(error.starts_with("cluster.key: ") && error.contains("none.pem cannot be used"), "{error}");
    options.certificate = Some((authority.path("node-key.pem"), node.1.clone()));
    let error = refused(&options).await;
    assert!(error.starts_with("TLS with NATS at "), "no certificate in the file: {error}");
    options.certificate = Some(node);
    join(&options).await.unwrap();
    options.login = Login::Password { user: "u".to_owned(), password: "wr0ng".to_owned() };
    let error = refused(&options).await;
    assert!(error.contains("refuses this node") && !error.contains("wr0ng"), "{error}");
}

/// JSON Web Token of NATS, as `nsc` makes it.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let (iss, sub) = (issuer.public_key(), subject.public_key());
    let claims =
        json!({ "jti": "1", "iat": 1_700_000_000, "iss": iss, "sub": sub, "name": "test", "nats": nats });
    let signed = format!("{}.{}", part(json!({ "typ": "JWT", "alg": "ed25519-nkey" })), part(claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn write_credentials(file: &Path, token: &str, key: &KeyPair) {
    let seed = key.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{seed}\n\
         ------END USER NKEY SEED------\n"
    );
    fs::write(file, text).unwrap();
}

#[tokio::test]
async fn a_file_with_a_token_is_a_login() {
    let dir = tempfile::tempdir().unwrap();
    let (operator, user) = (KeyPair::new_operator(), KeyPair::new_user());
    let [account, system] = [KeyPair::new_account(), KeyPair::new_account()];
    let limits = |disk: i64| {
        json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1,
                "leaf": -1, "mem_storage": disk, "disk_storage": disk, "streams": disk, "consumer": disk })
    };
    let of_account = |key: &KeyPair, disk| {
        token(&operator, key, &json!({ "type": "account", "version": 2, "limits": limits(disk) }))
    };
    let more = format!(
        "max_payload: 8MB\noperator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
        token(&operator, &operator, &json!({ "type": "operator", "version": 2 })),
        system.public_key(),
        account.public_key(),
        of_account(&account, -1),
        system.public_key(),
        of_account(&system, 0),
    );
    let servers = Servers::start(1, &Settings { more: &more, ..Settings::default() }).await;
    let mut options = options_of_one(&servers);
    let error = refused(&options).await;
    assert!(error.contains("refuses this node") && error.contains("cluster.credentials"), "{error}");

    let of_user =
        json!({ "type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1 });
    let file = dir.path().join("node.creds");
    options.login = Login::Credentials(file.clone());
    let error = refused(&options).await;
    assert!(error.starts_with("cluster.credentials: ") && error.contains("cannot be used"), "{error}");
    fs::write(&file, "no token").unwrap();
    let error = refused(&options).await;
    assert!(error.starts_with("cluster.credentials: ") && error.contains("cannot be used"), "{error}");
    // An account that the server does not know, and the key of another user.
    write_credentials(&file, &token(&KeyPair::new_account(), &user, &of_user), &user);
    let error = refused(&options).await;
    assert!(error.contains("refuses this node"), "{error}");
    write_credentials(&file, &token(&account, &user, &of_user), &KeyPair::new_user());
    let error = refused(&options).await;
    assert!(error.contains("refuses this node"), "{error}");
    write_credentials(&file, &token(&account, &user, &of_user), &user);
    join(&options).await.unwrap();
}
