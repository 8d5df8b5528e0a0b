//! Reading PEM files, with errors that name the file.

use std::fs;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::CertificateError;

/// All certificates of a file; never empty.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let text = read(path)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(path, &error))?;
    if chain.is_empty() {
        Err(CertificateError::NoCertificate { path: path.to_path_buf() })
    } else {
        Ok(chain)
    }
}

/// The first private key of a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text = read(path)?;
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => {
            Err(CertificateError::NoKey { path: path.to_path_buf() })
        }
        Err(error) => Err(unusable(path, &error)),
    }
}

/// Adds the certificates of a file to the authorities we believe.
pub(crate) fn add_roots(roots: &mut RootCertStore, path: &Path) -> Result<(), CertificateError> {
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, &error))?;
    }
    Ok(())
}

pub(crate) fn unusable(path: &Path, reason: &impl ToString) -> CertificateError {
    CertificateError::Unusable { path: path.to_path_buf(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    fs::read(path).map_err(|source| CertificateError::Unreadable { path: path.to_path_buf(), source })
}
