//! Clients of the tests, and their credentials: password files, tokens and certificates.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use braid_access::{HashPool, KeyFileKind, Link, Tokens, Users};
use braid_auth::jwt::JwtOptions;
use braid_auth::password::PasswordHash;
use braid_auth::scram::MIN_ITERATIONS;
use braid_broker::{Authenticate, Credentials, Grant, ListenerPolicy, Outcome, Refusal};
use braid_proto::packet::ClientId;
use braid_transport::{Peer, PeerCertificate, Transport};
use bytes::Bytes;
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use ring::hmac;
use tempfile::TempDir;

pub(crate) const SECRET: &[u8] = b"a secret of at least thirty-two bytes";

/// A client, of another machine if nothing else is said.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: Option<&'static str>,
    pub(crate) password: Option<Bytes>,
    pub(crate) method: Option<&'static str>,
    pub(crate) data: Option<Bytes>,
    pub(crate) certificate: Option<PeerCertificate>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) proxy: Option<SocketAddr>,
    pub(crate) listener: ListenerPolicy,
}

impl Default for Login {
    fn default() -> Self {
        Self {
            user: None,
            password: None,
            method: None,
            data: None,
            certificate: None,
            address: Some(([192, 0, 2, 7], 1).into()),
            proxy: None,
            listener: ListenerPolicy::default(),
        }
    }
}

impl Login {
    pub(crate) fn with(user: &'static str, password: impl AsRef<[u8]>) -> Self {
        let password = Some(Bytes::copy_from_slice(password.as_ref()));
        Self { user: Some(user), password, ..Self::default() }
    }

    pub(crate) async fn outcome(&self, authenticator: &impl Authenticate) -> Result<Outcome, Refusal> {
        let peer = Peer {
            address: self.address,
            transport: Transport::Tcp,
            certificate: self.certificate.clone(),
            tls_version: None,
            alpn: None,
            proxy: self.proxy,
        };
        let credentials = Credentials {
            client_id: &ClientId::from("c1"),
            user_name: self.user,
            password: self.password.as_ref(),
            method: self.method,
            data: self.data.as_ref(),
            peer: &peer,
            listener: &self.listener,
        };
        authenticator.authenticate(&credentials).await
    }

    /// The acceptance, from an authenticator that needs one step.
    pub(crate) async fn grant(&self, authenticator: &impl Authenticate) -> Result<Grant, Refusal> {
        self.outcome(authenticator).await.map(|outcome| match outcome {
            Outcome::Accepted(grant) => *grant,
            Outcome::Challenge(_) => panic!("one step"),
        })
    }

    /// `user by source`, or Reason Code and cause.
    pub(crate) async fn answer(&self, authenticator: &impl Authenticate) -> String {
        match self.grant(authenticator).await {
            Ok(Grant { identity, .. }) => {
                format!("{} by {}", identity.user().unwrap_or("unknown"), identity.source().unwrap_or("none"))
            }
            Err(Refusal { reason, cause }) => format!("{:#x} {cause}", reason.value()),
        }
    }
}

/// Line of a password file, with a hash that takes a millisecond.
pub(crate) fn line(user: &str, password: &str) -> String {
    let hash = PasswordHash::scram_sha_256(password.as_bytes(), [7; 16], MIN_ITERATIONS).expect("a hash");
    format!("{user}:{}\n", hash.to_text())
}

pub(crate) fn write(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("write");
    path
}

pub(crate) fn users(file: &Path, pool: &HashPool) -> Link {
    Link::Password(Users::open(file, pool.clone(), [1; 32]).expect("users"))
}

/// Tokens with the secret in this file.
pub(crate) fn tokens(file: &Path) -> Link {
    let options = JwtOptions { client_id_claim: Some("client".into()), ..JwtOptions::default() };
    Link::Token(Tokens::from_file(file, KeyFileKind::Secret, options).expect("keys").into())
}

/// Token with these claims, in JSON.
pub(crate) fn token(secret: &[u8], claims: &str) -> String {
    let [header, claims] = [r#"{"alg":"HS256"}"#, claims].map(|part| URL_SAFE_NO_PAD.encode(part));
    let signed = format!("{header}.{claims}");
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Certificate with these common names and DNS names.
pub(crate) fn certificate(common_names: &[&str], alternative_names: &[&str]) -> PeerCertificate {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for name in common_names {
        params.distinguished_name.push(DnType::CommonName, *name);
    }
    let names = alternative_names.iter().map(|name| SanType::DnsName((*name).try_into().expect("a name")));
    params.subject_alt_names = names.collect();
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    PeerCertificate::new(certificate.der())
}
