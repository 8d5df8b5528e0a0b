//! Authenticator that asks a service over HTTP.

use braid_broker::{Credentials, Refusal};
use braid_proto::reason::ReasonCode;
use braid_transport::PeerCertificate;

use crate::chain::{Answer, grant_claims, unix_now};
use crate::hook::{Hook, HookAnswer, Question};
use crate::http::HttpProblem;

/// Name of the authenticator, the source of its identities.
const SOURCE: &str = "http";

impl Hook {
    /// Asks the service about a client. The chain fails closed: without an answer the client is refused.
    pub(crate) async fn verify(&self, credentials: &Credentials<'_>) -> Answer {
        let Credentials { client_id, user_name, password, peer, listener, .. } = *credentials;
        let question = Question {
            username: user_name,
            password: password.map(AsRef::as_ref),
            client_id: client_id.as_str(),
            peer_host: peer.address.map(|address| address.ip()),
            protocol: peer.transport.scheme(),
            listener: listener.tag.as_deref(),
            cert_common_name: peer.certificate.as_ref().and_then(PeerCertificate::common_name),
        };
        match self.ask(&question, unix_now()).await {
            Ok(HookAnswer::Allow(claims)) => grant_claims(credentials, SOURCE, claims),
            Ok(HookAnswer::Ignore) => Answer::Ignored,
            Ok(HookAnswer::Deny) => {
                Answer::Refused(Refusal::new(ReasonCode::NotAuthorized, "the service denies it"))
            }
            Err(error) => {
                let reason = match error.problem {
                    HttpProblem::Busy => ReasonCode::ServerBusy,
                    _ => ReasonCode::ServerUnavailable,
                };
                Answer::Refused(Refusal::new(reason, error.to_string()))
            }
        }
    }
}
