//! Verification of client certificates, with revocation lists.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientCertVerifierBuilder, VerifierBuilderError, WebPkiClientVerifier};
use x509_parser::prelude::{ASN1Time, CertificateRevocationList, FromDer};

use super::{ClientAuth, ServerTls, provider};
use crate::certificate::{add_roots, read, sha256, validity};
use crate::error::CertificateError;
use crate::transport::{PeerCertificate, VerifyAgain};

/// Verifier of client certificates, and what its verdicts depend on beside the certificates.
#[derive(Clone)]
pub(super) struct ClientVerifier {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    /// SHA-256 of the authorities and revocation lists; `None` if it is not known.
    anchors: Option<Digest>,
    /// Time at which the first revocation list expires, in seconds since the Unix epoch.
    lists_expire: u64,
}

type Digest = [u8; 32];

/// Verifier of client certificates; `None` where none is asked for.
///
/// With revocation lists, each certificate of a chain must be covered by a list of its issuer that has not expired.
pub(super) fn client_verifier(
    auth: &ClientAuth,
    crl: &[PathBuf],
) -> Result<Option<ClientVerifier>, CertificateError> {
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
    let (mut lists, mut lists_expire) = (Vec::new(), u64::MAX);
    for path in crl {
        for (list, expires) in read_crls(path, builder)? {
            lists_expire = lists_expire.min(expires);
            lists.push(list);
        }
    }
    let anchors = digest(&roots, &lists);
    let builder = builder().with_crls(lists).enforce_revocation_expiration();
    let builder = if is_optional { builder.allow_unauthenticated() } else { builder };
    let verifier = builder.build().map_err(|error| CertificateError::unusable(ca, &error))?;
    Ok(Some(ClientVerifier { verifier, anchors, lists_expire }))
}

fn digest(roots: &RootCertStore, lists: &[CertificateRevocationListDer<'_>]) -> Option<Digest> {
    let no_constraints: &[u8] = &[];
    let of_roots = roots.roots.iter().flat_map(|root| {
        let constraints = root.name_constraints.as_ref().map_or(no_constraints, AsRef::as_ref);
        [root.subject.as_ref(), root.subject_public_key_info.as_ref(), constraints]
    });
    let parts: Vec<&[u8]> = of_roots.chain(lists.iter().map(AsRef::as_ref)).collect();
    // With the lengths, no other parts have the same bytes.
    let lengths: Vec<[u8; 8]> = [roots.roots.len()]
        .into_iter()
        .chain(parts.iter().map(|part| part.len()))
        .map(|length| (length as u64).to_be_bytes())
        .collect();
    let parts = lengths.iter().map(AsRef::as_ref).chain(parts);
    sha256(parts)?.as_ref().try_into().ok()
}

/// Chain of a connected client, which is verified again after a reload.
struct ClientChain {
    tls: ServerTls,
    /// Certificates behind that of the client.
    intermediates: Vec<CertificateDer<'static>>,
    acceptance: Acceptance,
}

impl VerifyAgain for ClientChain {
    fn is_refused(&self, certificate: &[u8]) -> bool {
        let Some(verifier) = self.tls.client_verifier() else { return false };
        let now = UnixTime::now();
        !self.acceptance.holds(&verifier, now.as_secs(), || {
            let certificate = CertificateDer::from(certificate);
            verifier.verifier.verify_client_cert(&certificate, &self.intermediates, now).is_ok()
        })
    }
}

/// Last acceptance of a chain, which spares signatures until something changes that it depends on.
struct Acceptance {
    /// Time in which all certificates of the chain are valid, in seconds since the Unix epoch. Outside of it nothing is
    /// remembered: one that has expired may not be needed.
    validity: Range<u64>,
    /// Authorities and revocation lists by which it was accepted.
    anchors: Mutex<Option<Digest>>,
}

impl Acceptance {
    /// Tests whether the chain is accepted at this time, in seconds since the Unix epoch. `verify` is asked unless that
    /// is known.
    fn holds(&self, verifier: &ClientVerifier, now: u64, verify: impl FnOnce() -> bool) -> bool {
        let is_timeless = self.validity.contains(&now) && now < verifier.lists_expire;
        let anchors = verifier.anchors.filter(|_| is_timeless);
        // Poisoning is harmless: the value is replaced as a whole.
        let mut accepted = self.anchors.lock().unwrap_or_else(PoisonError::into_inner);
        if anchors.is_some() && *accepted == anchors {
            return true;
        }
        let is_accepted = verify();
        *accepted = anchors.filter(|_| is_accepted);
        is_accepted
    }
}

/// Certificate of a client, from the chain that it sent in a handshake with `tls`.
pub(crate) fn client_certificate(
    chain: Option<&[CertificateDer<'_>]>,
    tls: &ServerTls,
) -> Option<PeerCertificate> {
    let chain = chain?;
    let (certificate, intermediates) = chain.split_first()?;
    let intermediates = intermediates.iter().map(|one| one.clone().into_owned()).collect();
    let validity = validity(chain.iter().map(AsRef::as_ref));
    let acceptance = Acceptance { validity, anchors: Mutex::new(None) };
    let chain = ClientChain { tls: tls.clone(), intermediates, acceptance };
    Some(PeerCertificate::new(certificate).with_verification(chain))
}

/// All revocation lists of a file in PEM or DER, with the times at which they expire, in seconds since the Unix epoch;
/// never empty. Each is parsed and has not expired.
///
/// `builder` makes a verifier, whose library is the one that has to parse them.
fn read_crls(
    path: &Path,
    builder: impl Fn() -> ClientCertVerifierBuilder,
) -> Result<Vec<(CertificateRevocationListDer<'static>, u64)>, CertificateError> {
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
    let with_expiration = |list: CertificateRevocationListDer<'static>| {
        builder().with_crls([list.clone()]).build().map_err(|error| match error {
            VerifierBuilderError::InvalidCrl(reason) => CertificateError(format!(
                "{} cannot be used as a revocation list: {reason:?}",
                path.display()
            )),
            error => CertificateError::unusable(path, &error),
        })?;
        let expires = expiration(path, &list)?;
        Ok((list, expires))
    };
    lists.into_iter().map(with_expiration).collect()
}

const PEM_BEGIN: &[u8] = b"-----BEGIN ";

/// Time of a list's `nextUpdate`. Refuses one for which it has passed: with it every client certificate would be
/// refused.
fn expiration(path: &Path, list: &[u8]) -> Result<u64, CertificateError> {
    let (_, parsed) = CertificateRevocationList::from_der(list)
        .map_err(|error| CertificateError::unusable(path, &error))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seconds = |next: &ASN1Time| u64::try_from(next.timestamp()).unwrap_or(0);
    match parsed.next_update() {
        Some(next) if now < seconds(&next) => Ok(seconds(&next)),
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
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa,
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
            verifier.verifier.verify_client_cert(leaf.der(), &[], now)
        };
        at(-1).expect("the list is current");
        let error = at(1).expect_err("the list has expired");
        assert!(
            matches!(error, rustls::Error::InvalidCertificate(Defect::ExpiredRevocationListContext { .. })),
            "{error:?}"
        );
    }

    fn verifier(roots: &[&CertificateDer<'static>], lists: &[&[u8]]) -> ClientVerifier {
        let mut store = RootCertStore::empty();
        roots.iter().for_each(|root| store.add((*root).clone()).expect("a root"));
        let lists: Vec<_> = lists.iter().map(|list| CertificateRevocationListDer::from(*list)).collect();
        let anchors = digest(&store, &lists);
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider());
        ClientVerifier { verifier: verifier.build().expect("verifier"), anchors, lists_expire: u64::MAX }
    }

    fn authority(name: &str) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("key")).expect("ca");
        ca.der().clone()
    }

    /// Each step: time, files, expiration of the lists, what a verification would say; whether there is one, and the
    /// answer.
    #[test]
    fn a_chain_is_verified_once_for_each_state_of_the_files() {
        let first = verifier(&[&authority("a")], &[]);
        let second = verifier(&[&authority("b")], &[]);
        let unknown = ClientVerifier { anchors: None, ..first.clone() };
        let acceptance = Acceptance { validity: 100..200, anchors: Mutex::new(None) };
        let later = u64::MAX;
        for (number, (now, files, lists_expire, verdict, is_asked, expected)) in [
            (150, &first, later, true, true, true),
            (160, &first, later, false, false, true),
            (199, &first, later, false, false, true),
            (200, &first, later, false, true, false), // expired
            (150, &first, later, true, true, true),   // the clock was wrong
            (99, &first, later, false, true, false),
            (150, &first, later, true, true, true),
            (150, &second, later, false, true, false), // another authority
            (150, &first, later, true, true, true),
            (150, &second, later, true, true, true),
            (150, &second, later, false, false, true),
            (150, &unknown, later, true, true, true),
            (150, &unknown, later, false, true, false),
            (150, &first, 151, true, true, true),
            (150, &first, 150, false, true, false), // a list has expired
        ]
        .into_iter()
        .enumerate()
        {
            let (files, mut asked) = (ClientVerifier { lists_expire, ..files.clone() }, false);
            let holds = acceptance.holds(&files, now, || {
                asked = true;
                verdict
            });
            assert_eq!((asked, holds), (is_asked, expected), "step {number}");
        }
    }

    #[test]
    fn anchors_are_those_of_the_authorities_and_lists() {
        let (a, b) = (authority("a"), authority("b"));
        let anchors = |roots: &[&CertificateDer<'static>], lists: &[&[u8]]| {
            verifier(roots, lists).anchors.expect("SHA-256 is there")
        };
        let all = [
            anchors(&[&a], &[]),
            anchors(&[&b], &[]),
            anchors(&[&authority("a")], &[]), // of the same name, with another key
            anchors(&[&a, &b], &[]),
            anchors(&[&a], &[b"xy"]),
            anchors(&[&a], &[b"x", b"y"]),
            anchors(&[&a], &[b"xz"]),
        ];
        let different: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(anchors(&[&a], &[b"xy"]), anchors(&[&a], &[b"xy"]), "nothing has changed");
    }

    #[test]
    fn a_chain_is_valid_while_all_its_certificates_are() {
        let certificate = |from, to| {
            let mut params = CertificateParams::new(vec!["client.example".to_owned()]).expect("params");
            (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
            params.self_signed(&KeyPair::generate().expect("key")).expect("certificate").der().clone()
        };
        let of = |certificates: &[&[u8]]| validity(certificates.iter().copied());
        let at = |year| u64::try_from(date_time_ymd(year, 1, 1).unix_timestamp()).expect("positive");
        let (long, short) = (certificate(2000, 2050), certificate(2010, 2020));
        assert_eq!(of(&[&long]), at(2000)..at(2050));
        assert_eq!(of(&[&long, &short]), at(2010)..at(2020));
        assert!(of(&[&long, b"garbage"]).is_empty());
    }
}
