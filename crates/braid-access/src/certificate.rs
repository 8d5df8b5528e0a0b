//! Authenticator of clients by the certificate that they proved to own in the TLS handshake.

use braid_broker::{Credentials, Refusal};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_transport::PeerCertificate;
use serde::{Deserialize, Serialize};

use crate::chain::{Answer, grant_with};

/// Name of the authenticator, the source of its identities.
const SOURCE: &str = "x509";

/// Part of a certificate that is a name. The value is used exactly as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertificateName {
    /// Common Name of the subject.
    CommonName,
    /// The only entry of the Subject Alternative Name extension.
    AlternativeName,
    /// SHA-256 of the certificate, as colon-separated hexadecimal.
    Fingerprint,
}

impl CertificateName {
    /// The name; `None` if there is none, or more than one: an identity must not be ambiguous.
    fn of(self, certificate: &PeerCertificate) -> Option<String> {
        match self {
            Self::CommonName => certificate.common_name().map(str::to_owned),
            Self::AlternativeName => certificate.only_alternative_name().map(str::to_owned),
            Self::Fingerprint => Some(certificate.fingerprint_sha256()),
        }
    }
}

/// Authenticator of clients by their certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// Part that is the user name.
    pub user: CertificateName,
    /// Part that is the Client Identifier, instead of the one in CONNECT.
    pub client_id: Option<CertificateName>,
}

impl Certificates {
    /// Names a client by its certificate. A client without one is left to other authenticators.
    pub(crate) fn verify(self, credentials: &Credentials<'_>) -> Answer {
        let Some(certificate) = &credentials.peer.certificate else { return Answer::Ignored };
        let Some(user) = self.user.of(certificate).filter(|name| is_name(name)) else {
            return unnamed("user name");
        };
        let client_id = match self.client_id.map(|part| part.of(certificate).filter(|name| is_name(name))) {
            Some(None) => return unnamed("client identifier"),
            Some(Some(name)) => Some(ClientId::from(name.as_str())),
            None => None,
        };
        grant_with(credentials, SOURCE, Some(&user), |grant| grant.client_id = client_id)
    }
}

/// Tests whether a text may be a user name or Client Identifier.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= usize::from(u16::MAX) && !text.chars().any(char::is_control)
}

fn unnamed(what: &str) -> Answer {
    let cause = format!("the certificate has no name, or several, where its {what} should be");
    Answer::Refused(Refusal::new(ReasonCode::NotAuthorized, cause))
}
