//! Server certificates by the name that a client asks for (SNI).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::provider;
use crate::certificate::{CertificateFiles, dns_names, read_certificates, read_private_key};
use crate::error::CertificateError;

/// Certificate and key for each name of the additional certificates, and for all other clients the default one.
///
/// A name of a certificate matches in full, or `*.` in front of it stands for one label (RFC 6125, 6.4.3). A full match
/// precedes a wildcard; of several certificates with one name the first is used.
pub(super) struct CertificateResolver {
    default: Arc<CertifiedKey>,
    by_name: HashMap<String, Arc<CertifiedKey>>,
    /// By the name behind `*.`.
    by_parent: HashMap<String, Arc<CertifiedKey>>,
}

impl CertificateResolver {
    /// Reads the files.
    pub(super) fn load(
        default: &CertificateFiles,
        additional: &[CertificateFiles],
    ) -> Result<Self, CertificateError> {
        let default = Arc::new(certified_key(default)?);
        let (mut by_name, mut by_parent) = (HashMap::new(), HashMap::new());
        for files in additional {
            let certified = Arc::new(certified_key(files)?);
            let names = certified.cert.first().map(|leaf| dns_names(leaf)).unwrap_or_default();
            if names.is_empty() {
                return Err(CertificateError(format!(
                    "{} has no DNS name in its Subject Alternative Name, so that no client would get it: make it for a name, or remove it from the additional certificates",
                    files.certificate.display()
                )));
            }
            for name in names {
                let name = name.to_ascii_lowercase();
                let (names, name) = match name.strip_prefix("*.") {
                    Some(parent) => (&mut by_parent, parent.to_owned()),
                    None => (&mut by_name, name),
                };
                names.entry(name).or_insert_with(|| Arc::clone(&certified));
            }
        }
        Ok(Self { default, by_name, by_parent })
    }

    /// The certificate for a name in lower case.
    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        self.by_name.get(name).or_else(|| {
            let (label, parent) = name.split_once('.')?;
            self.by_parent.get(parent).filter(|_| !label.is_empty())
        })
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = client_hello.server_name().map(str::to_ascii_lowercase);
        let named = name.as_deref().and_then(|name| self.find(name));
        Some(Arc::clone(named.unwrap_or(&self.default)))
    }
}

/// Without the keys.
impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateResolver").finish_non_exhaustive()
    }
}

fn certified_key(files: &CertificateFiles) -> Result<CertifiedKey, CertificateError> {
    let chain = read_certificates(&files.certificate)?;
    let key = read_private_key(&files.key)?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => CertificateError::mismatch(files),
        rustls::Error::InvalidCertificate(_) => CertificateError::unusable(&files.certificate, &error),
        error => CertificateError::unusable(&files.key, &error),
    })
}
