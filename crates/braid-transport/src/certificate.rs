//! Certificates: files, a self-signed pair for development, fingerprints, names.

use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::RootCertStore;
use rustls::crypto::hash::{self, HashAlgorithm};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

use crate::error::CertificateError;

/// A certificate chain and its private key, each in a PEM file. The leaf comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The chain, leaf first.
    pub certificate: PathBuf,
    /// The private key of the leaf: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: PathBuf,
}

impl CertificateFiles {
    /// SHA-256 of the leaf, as colon-separated hexadecimal.
    ///
    /// # Errors
    /// The certificate file cannot be read or holds no certificate.
    pub fn fingerprint_sha256(&self) -> Result<String, CertificateError> {
        let chain = read_certificates(&self.certificate)?;
        Ok(chain.first().map(|leaf| fingerprint_sha256(leaf)).unwrap_or_default())
    }
}

/// SHA-256 over a certificate's DER, as colon-separated upper-case hexadecimal (95 characters), as
/// other tools print it.
#[must_use]
pub fn fingerprint_sha256(der: &[u8]) -> String {
    let Some(digest) = sha256([der]) else { return String::new() };
    let pairs: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

/// SHA-256 over all parts. `None` if the provider has no such hash.
pub(crate) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Option<hash::Output> {
    let suites = ring::ALL_CIPHER_SUITES;
    let mut hashes = suites.iter().filter_map(|suite| suite.tls13()).map(|suite| suite.common.hash_provider);
    let mut context = hashes.find(|hash| hash.algorithm() == HashAlgorithm::SHA256)?.start();
    parts.into_iter().for_each(|part| context.update(part));
    Some(context.finish())
}

/// Time in which all certificates are valid, in seconds since the Unix epoch. Empty if one cannot be parsed.
pub(crate) fn validity<'a>(certificates: impl IntoIterator<Item = &'a [u8]>) -> Range<u64> {
    let of_one = |der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = &certificate.tbs_certificate.validity;
        let seconds = |time: &ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
        Some(seconds(&validity.not_before)..seconds(&validity.not_after))
    };
    certificates
        .into_iter()
        .map(|der| of_one(der).unwrap_or(0..0))
        .fold(0..u64::MAX, |all, one| all.start.max(one.start)..all.end.min(one.end))
}

/// The self-signed pair of a development server in `dir` (`cert.pem`, `key.pem`), made with the DNS
/// names and addresses in `names` when it is not there yet. Both files are for their owner only.
///
/// An existing pair is used as it is, whatever its names: clients may have stored its fingerprint.
///
/// # Errors
/// The directory or the files cannot be written, a name cannot stand in a certificate, or the
/// certificate is there without its key.
pub fn self_signed(dir: &Path, names: &[String]) -> Result<CertificateFiles, CertificateError> {
    let files = self_signed_files(dir);
    match (files.certificate.exists(), files.key.exists()) {
        (true, true) => return Ok(files),
        (true, false) => {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            return Err(CertificateError(format!(
                "{certificate} is there but {key} is not: bring the key back, or remove the certificate to have a new pair made"
            )));
        }
        // A crash between the two writes leaves a key alone.
        (false, _) => {}
    }
    let (certificate, key) = generate(names)?;
    create_private_directory(dir).map_err(|error| unwritable(dir, &error))?;
    write_private(&files.key, &key)?;
    write_private(&files.certificate, &certificate)?;
    Ok(files)
}

impl CertificateFiles {
    /// Whether [`self_signed`] has nothing to write in this directory: its certificate is there.
    #[must_use]
    pub fn are_in(directory: &Path) -> bool {
        self_signed_files(directory).certificate.exists()
    }
}

fn self_signed_files(dir: &Path) -> CertificateFiles {
    CertificateFiles { certificate: dir.join("cert.pem"), key: dir.join("key.pem") }
}

/// A new pair as PEM text: certificate, key.
fn generate(names: &[String]) -> Result<(String, String), CertificateError> {
    let refused = |error: rcgen::Error| {
        CertificateError(format!("cannot make a certificate for {}: {error}", names.join(", ")))
    };
    let mut params = CertificateParams::new(names.to_vec()).map_err(refused)?;
    params.distinguished_name.push(DnType::CommonName, "BraidMQ development");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = params.self_signed(&key).map_err(refused)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// Creates a directory with mode 0700, and so the missing ones above it.
fn create_private_directory(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// Writes beside the target and renames, so that a crash never leaves half a file.
fn write_private(path: &Path, text: &str) -> Result<(), CertificateError> {
    let draft = path.with_extension("pem.new");
    let write = || -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            options.mode(0o600);
        }
        let mut file = options.open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> CertificateError {
    CertificateError(format!("cannot write {}: {error}", path.display()))
}

/// Common Name of a certificate's subject, if there is exactly one and it is plain text.
pub(crate) fn common_name(der: &[u8]) -> Option<&str> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let mut names = certificate.tbs_certificate.subject.iter_common_name();
    let name = names.next().filter(|_| names.next().is_none())?;
    name.as_str().ok().filter(|name| is_plain(name))
}

/// The only entry of a certificate's Subject Alternative Name, if it is a DNS name, e-mail address or URI. Entries of
/// every kind count.
pub(crate) fn only_alternative_name(der: &[u8]) -> Option<&str> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let extension = certificate.subject_alternative_name().ok()??;
    match extension.value.general_names[..] {
        [GeneralName::RFC822Name(name) | GeneralName::DNSName(name) | GeneralName::URI(name)] => {
            Some(name).filter(|name| is_plain(name))
        }
        _ => None,
    }
}

/// DNS names of a certificate's Subject Alternative Name.
pub(crate) fn dns_names(der: &[u8]) -> Vec<&str> {
    let Ok((_, certificate)) = X509Certificate::from_der(der) else { return Vec::new() };
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = extension.value.general_names.iter();
    names
        .filter_map(|name| match *name {
            GeneralName::DNSName(name) if is_plain(name) => Some(name),
            _ => None,
        })
        .collect()
}

/// True for text that all readers understand alike.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && !text.chars().any(char::is_control)
}

// === PEM files ===

/// All certificates of a file; never empty.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::unusable(path, &error))?;
    if chain.is_empty() {
        return Err(CertificateError(format!(
            "{} holds no certificate: a PEM file with BEGIN CERTIFICATE is expected",
            path.display()
        )));
    }
    Ok(chain)
}

/// The first private key of a file.
pub(crate) fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text = read(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => CertificateError(format!(
            "{} holds no private key: an unencrypted PEM file with BEGIN PRIVATE KEY is expected",
            path.display()
        )),
        error => CertificateError::unusable(path, &error),
    })
}

/// Adds the certificates of a file to trusted authorities.
pub(crate) fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), CertificateError> {
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| CertificateError::unusable(path, &error))?;
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(path).map_err(|error| CertificateError(format!("cannot read {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use rcgen::SanType;

    use super::*;

    fn certificate(common_names: &[&str], names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Weavers");
        for name in common_names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = names;
        let key = KeyPair::generate().expect("key");
        params.self_signed(&key).expect("certificate").der().to_vec()
    }

    #[test]
    fn common_names_are_found() {
        let names = vec![
            SanType::DnsName("sensor.example".try_into().expect("name")),
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::URI("urn:dev:7".try_into().expect("uri")),
        ];
        let der = certificate(&["sensor-7"], names);
        assert_eq!(common_name(&der), Some("sensor-7"));
        assert_eq!(only_alternative_name(&der), None);
    }

    #[test]
    fn an_alternative_name_is_the_only_one_of_all_kinds() {
        let dns = |name: &str| SanType::DnsName(name.try_into().expect("name"));
        let uri = |name: &str| SanType::URI(name.try_into().expect("uri"));
        let mail = SanType::Rfc822Name("a@b.example".try_into().expect("address"));
        let other = SanType::OtherName((vec![1, 3, 6, 1], "x".to_owned().into()));
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        for (names, expected) in [
            (vec![], None),
            (vec![dns("a.example")], Some("a.example")),
            (vec![uri("urn:dev:7")], Some("urn:dev:7")),
            (vec![mail], Some("a@b.example")),
            (vec![address.clone()], None),
            (vec![other.clone()], None),
            (vec![dns("a\n")], None),
            (vec![dns("a.example"), dns("b.example")], None),
            (vec![dns("a.example"), uri("urn:dev:7")], None),
            (vec![dns("a.example"), address], None),
            (vec![other, dns("a.example")], None),
            (vec![dns("a.example"), dns("b\n")], None),
        ] {
            assert_eq!(only_alternative_name(&certificate(&["d"], names.clone())), expected, "{names:?}");
        }
    }

    #[test]
    fn certificate_without_names_has_none() {
        let der = certificate(&[], Vec::new());
        assert_eq!(common_name(&der), None);
        assert_eq!(only_alternative_name(&der), None);
    }

    #[test]
    fn control_characters_are_no_identity() {
        let der = certificate(&["admin\u{0}.example"], Vec::new());
        assert_eq!(common_name(&der), None);
    }

    #[test]
    fn truncated_certificates_give_nothing_wrong() {
        let names = vec![SanType::DnsName("a.example".try_into().expect("name"))];
        let der = certificate(&["a"], names);
        for end in 0..der.len() {
            let part = der.get(..end).unwrap_or_default();
            assert_eq!(common_name(part), None, "{end} bytes");
            assert_eq!(only_alternative_name(part), None, "{end} bytes");
        }
    }
}
