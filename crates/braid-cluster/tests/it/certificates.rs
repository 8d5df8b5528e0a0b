//! Certificates of an authority of the test.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use tempfile::TempDir;

/// Authority, and a folder for its certificates.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { dir: tempfile::tempdir().unwrap(), issuer };
        fs::write(authority.path("ca.pem"), authority.issuer.pem()).unwrap();
        authority
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    /// Makes `NAME.pem` and `NAME-key.pem`, for a client with this subject, or a server with these addresses.
    pub(crate) fn issue(&self, name: &str, common_name: &str, addresses: &[&str]) -> (PathBuf, PathBuf) {
        let mut params =
            CertificateParams::new(addresses.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (file, key_file) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}-key.pem")));
        fs::write(&file, certificate.pem()).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        (file, key_file)
    }
}
