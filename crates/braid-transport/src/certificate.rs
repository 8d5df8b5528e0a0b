//! Certificate files: where they are, a self-signed pair for development, fingerprints.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rustls::crypto::hash::HashAlgorithm;
use rustls::crypto::ring;

use crate::error::CertificateError;
use crate::tls::pem;

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
        let chain = pem::certificates(&self.certificate)?;
        Ok(chain.first().map(|leaf| fingerprint_sha256(leaf)).unwrap_or_default())
    }
}

/// SHA-256 over a certificate's DER, as colon-separated upper-case hexadecimal (95 characters), as
/// other tools print it.
#[must_use]
pub fn fingerprint_sha256(der: &[u8]) -> String {
    let suites = ring::ALL_CIPHER_SUITES;
    let sha256 = suites
        .iter()
        .filter_map(|suite| suite.tls13())
        .map(|suite| suite.common.hash_provider)
        .find(|hash| hash.algorithm() == HashAlgorithm::SHA256);
    let Some(sha256) = sha256 else { return String::new() };
    let digest = sha256.hash(der);
    let pairs: Vec<String> = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
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
            return Err(CertificateError::KeyMissing { certificate: files.certificate, key: files.key });
        }
        // A key alone is what a crash between the two writes leaves.
        (false, _) => {}
    }
    let (certificate, key) = generate(names)?;
    fs::create_dir_all(dir)
        .map_err(|source| CertificateError::Unwritable { path: dir.to_path_buf(), source })?;
    write_private(&files.key, &key)?;
    write_private(&files.certificate, &certificate)?;
    Ok(files)
}

/// Whether [`self_signed`] has nothing to write: its certificate is there.
#[must_use]
pub fn is_self_signed_there(dir: &Path) -> bool {
    self_signed_files(dir).certificate.exists()
}

fn self_signed_files(dir: &Path) -> CertificateFiles {
    CertificateFiles { certificate: dir.join("cert.pem"), key: dir.join("key.pem") }
}

/// A new pair as PEM text: certificate, key.
fn generate(names: &[String]) -> Result<(String, String), CertificateError> {
    let refused =
        |error: rcgen::Error| CertificateError::Names { names: names.join(", "), reason: error.to_string() };
    let mut params = CertificateParams::new(names.to_vec()).map_err(refused)?;
    params.distinguished_name.push(DnType::CommonName, "BraidMQ development");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().map_err(refused)?;
    let certificate = params.self_signed(&key).map_err(refused)?;
    Ok((certificate.pem(), key.serialize_pem()))
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
    write().map_err(|source| CertificateError::Unwritable { path: path.to_path_buf(), source })
}
