//! Certificate, key and CA files.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a certificate, key or CA file is of no use. Every message names the file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file has no certificate in it.
    #[error("{} holds no certificate: a PEM file with BEGIN CERTIFICATE is expected", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file has no private key in it.
    #[error("{} holds no private key: an unencrypted PEM file with BEGIN PRIVATE KEY is expected", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The certificate was made for another key.
    #[error("{} and {} do not belong together: give the key that the certificate was made for", certificate.display(), key.display())]
    Mismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// The file is PEM, but what is in it cannot be used.
    #[error("{} cannot be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate without its key; making a new pair would overwrite somebody's certificate.
    #[error("{} is there but {} is not: bring the key back, or remove the certificate to have a new pair made", certificate.display(), key.display())]
    KeyMissing {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A certificate cannot be made for these names.
    #[error("cannot make a certificate for {names}: {reason}")]
    Names {
        /// The names asked for.
        names: String,
        /// What is wrong with them.
        reason: String,
    },
    /// The system's CA certificates cannot be found.
    #[error("no CA certificates found on this system ({reason}): give the server's CA with --cafile")]
    NoSystemRoots {
        /// What went wrong.
        reason: String,
    },
    /// The TLS library refuses the configuration.
    #[error("TLS cannot be configured: {reason}")]
    Config {
        /// What the library said.
        reason: String,
    },
}
