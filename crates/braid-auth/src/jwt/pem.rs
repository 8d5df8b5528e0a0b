//! Public keys and certificates in PEM (RFC 7468).

use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::{
    OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519,
};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::keys::{Key, KeyProblem, MAX_KEYS, Problem};

pub(super) fn parse(text: &[u8]) -> Result<Vec<Key>, Problem> {
    let text = str::from_utf8(text).map_err(|_| Problem::NotText)?;
    let lines = check_boundaries(text)?;
    let mut keys = Vec::new();
    for block in Pem::iter_from_buffer(text.as_bytes()) {
        if keys.len() == MAX_KEYS {
            return Err(Problem::TooManyKeys);
        }
        let key = block.map_err(|_| KeyProblem::Base64).and_then(|block| parse_block(&block));
        let line = lines.get(keys.len()).copied().unwrap_or_default();
        keys.push(key.map_err(|problem| Problem::Block(keys.len() + 1, line, problem))?);
    }
    if keys.is_empty() { Err(Problem::NoBlock) } else { Ok(keys) }
}

/// Refuses files that are cut off, which the parser takes for a block with text behind it. Returns the line of each
/// BEGIN.
fn check_boundaries(text: &str) -> Result<Vec<usize>, Problem> {
    let (mut begins, mut open) = (Vec::new(), None);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('-')) {
        let inner = line.trim_end().strip_prefix("-----").and_then(|line| line.strip_suffix("-----"));
        let (is_begin, label) = match inner.and_then(|inner| inner.split_once(' ')) {
            Some(("BEGIN", label)) => (true, Some(label)),
            Some(("END", label)) => (false, Some(label)),
            _ => return Err(Problem::Boundary(index + 1)),
        };
        let expected = if is_begin { None } else { label };
        if open != expected {
            return Err(Problem::Boundary(index + 1));
        }
        begins.extend(is_begin.then_some(index + 1));
        open = if is_begin { label } else { None };
    }
    if open.is_some() { Err(Problem::Boundary(text.lines().count())) } else { Ok(begins) }
}

fn parse_block(block: &Pem) -> Result<Key, KeyProblem> {
    let (rest, key) = match block.label.as_str() {
        "PUBLIC KEY" => SubjectPublicKeyInfo::from_der(&block.contents),
        "CERTIFICATE" => X509Certificate::from_der(&block.contents)
            .map(|(rest, certificate)| (rest, certificate.tbs_certificate.subject_pki)),
        label if label.ends_with("PRIVATE KEY") => return Err(KeyProblem::Private),
        label => return Err(KeyProblem::Label(label.into())),
    }
    .map_err(|_| KeyProblem::Der)?;
    if rest.is_empty() { parse_key(&key) } else { Err(KeyProblem::Der) }
}

fn parse_key(key: &SubjectPublicKeyInfo<'_>) -> Result<Key, KeyProblem> {
    let kind = &key.algorithm.algorithm;
    if *kind == OID_PKCS1_RSAENCRYPTION {
        return match key.parsed() {
            Ok(PublicKey::RSA(rsa)) => Key::rsa(rsa.modulus, rsa.exponent),
            _ => Err(KeyProblem::Der),
        };
    }
    if *kind == OID_SIG_ED25519 {
        return Key::ed25519(&key.subject_public_key.data);
    }
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if *kind == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == Some(OID_EC_P256) {
        return Key::p256(&key.subject_public_key.data);
    }
    Err(KeyProblem::Kind)
}
