//! Verification of client certificates, with revocation lists.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, VerifierBuilderError, WebPkiClientVerifier};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use super::{ClientAuth, ServerTls, provider};
use crate::certificate::{add_roots, read};
use crate::error::CertificateError;
use crate::transport::{PeerCertificate, VerifyAgain};

/// Verifier of client certificates; `None` where none is asked for.
///
/// With revocation lists, each certificate of a chain must be covered by a list of its issuer that has not expired.
pub(super) fn client_verifier(
    auth: &ClientAuth,
    crl: &[PathBuf],
) -> Result<Option<Arc<dyn ClientCertVerifier>>, CertificateError> {
    let (ca, is_optional) = match auth {
        ClientAuth::None => {
            return match crl.first() {
                None => Ok(None),
                Some(path) => Err(CertificateError(format!(
                    "{} is a revocation list for client certificates, but none are asked for: ask for them, or remove the list",
                    path.display()
                ))),
            };
        }
        ClientAuth::Optional { ca } => (ca, true),
        ClientAuth::Required { ca } => (ca, false),
    };
    let mut roots = RootCertStore::empty();
    add_roots(&mut roots, ca)?;
    let roots = Arc::new(roots);
    let builder = || WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider());
    let mut lists = Vec::new();
    for path in crl {
        lists.extend(read_crls(path, builder)?);
    }
    let builder = builder().with_crls(lists).enforce_revocation_expiration();
    let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map(Some).map_err(|error| CertificateError::unusable(ca, &error))
}

/// Chain of a connected client, which is verified again after a reload.
struct ClientChain {
    tls: ServerTls,
    /// Certificates behind that of the client.
    intermediates: Vec<CertificateDer<'static>>,
}

impl VerifyAgain for ClientChain {
    fn is_refused(&self, certificate: &[u8]) -> bool {
        let Some(verifier) = self.tls.client_verifier() else { return false };
        let certificate = CertificateDer::from(certificate);
        verifier.verify_client_cert(&certificate, &self.intermediates, UnixTime::now()).is_err()
    }
}

/// Certificate of a client, from the chain that it sent in a handshake with `tls`.
pub(crate) fn client_certificate(
    chain: Option<&[CertificateDer<'_>]>,
    tls: &ServerTls,
) -> Option<PeerCertificate> {
    let (certificate, intermediates) = chain?.split_first()?;
    let intermediates = intermediates.iter().map(|one| one.clone().into_owned()).collect();
    let chain = ClientChain { tls: tls.clone(), intermediates };
    Some(PeerCertificate::new(certificate).with_verification(chain))
}

/// All revocation lists of a file in PEM or DER; never empty. Each is parsed and has not expired.
///
/// `builder` makes a verifier, whose library is the one that has to parse them.
fn read_crls(
    path: &Path,
    builder: impl Fn() -> ClientCertVerifierBuilder,
) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    let bytes = read(path)?;
    let is_pem = bytes.windows(PEM_BEGIN.len()).any(|window| window == PEM_BEGIN);
    let lists = if is_pem {
        CertificateRevocationListDer::pem_slice_iter(&bytes)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| CertificateError::unusable(path, &error))?
    } else {
        vec![CertificateRevocationListDer::from(bytes)]
    };
    if lists.is_empty() {
        return Err(CertificateError(format!(
            "{} holds no revocation list: a PEM file with BEGIN X509 CRL, or one list in DER is expected",
            path.display()
        )));
    }
    for list in &lists {
        builder().with_crls([list.clone()]).build().map_err(|error| match error {
            VerifierBuilderError::InvalidCrl(reason) => CertificateError(format!(
                "{} cannot be used as a revocation list: {reason:?}",
                path.display()
            )),
            error => CertificateError::unusable(path, &error),
        })?;
        check_expiration(path, list)?;
    }
    Ok(lists)
}

const PEM_BEGIN: &[u8] = b"-----BEGIN ";

/// Refuses a list whose `nextUpdate` has passed: with it every client certificate would be refused.
fn check_expiration(path: &Path, list: &[u8]) -> Result<(), CertificateError> {
    let (_, parsed) = CertificateRevocationList::from_der(list)
        .map_err(|error| CertificateError::unusable(path, &error))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    match parsed.next_update() {
        Some(next) if u64::try_from(next.timestamp()).is_ok_and(|next| now < next) => Ok(()),
        Some(next) => Err(CertificateError(format!(
            "the revocation list {} has expired ({next}): get the current one of its authority",
            path.display()
        ))),
        None => Err(CertificateError(format!(
            "the revocation list {} does not say when it expires (nextUpdate): get one that does",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
        KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
    };
    use rustls::CertificateError as Defect;

    use super::*;

    /// A list that expires while the server runs lets no client in that it could concern.
    #[test]
    fn clients_are_refused_once_a_list_has_expired() {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("ca");
        let next_update = date_time_ymd(2050, 1, 1);
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let dir = tempfile::tempdir().expect("directory");
        let (ca_file, crl) = (dir.path().join("ca.pem"), dir.path().join("crl.pem"));
        fs::write(&ca_file, ca.pem()).expect("write");
        fs::write(&crl, list.signed_by(&ca).expect("list").pem().expect("PEM")).expect("write");
        let leaf = CertificateParams::new(vec!["client.example".to_owned()]).expect("params");
        let leaf = leaf.signed_by(&KeyPair::generate().expect("key"), &ca).expect("leaf");

        let auth = ClientAuth::Required { ca: ca_file };
        let verifier = client_verifier(&auth, &[crl]).expect("verifier").expect("one is asked for");
        let at = |seconds: i64| {
            let at = u64::try_from(next_update.unix_timestamp() + seconds).expect("positive");
            let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
            verifier.verify_client_cert(leaf.der(), &[], now)
        };
        at(-1).expect("the list is current");
        let error = at(1).expect_err("the list has expired");
        assert!(
            matches!(error, rustls::Error::InvalidCertificate(Defect::ExpiredRevocationListContext { .. })),
            "{error:?}"
        );
    }
}
