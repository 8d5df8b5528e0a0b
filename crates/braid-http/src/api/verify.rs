//! Test whether a caller may use the API, for requests and for event streams.

use std::net::SocketAddr;

use axum::http::StatusCode;
use braid_broker::bans::{Ban, BanTarget};

use super::Api;
use super::auth::Principal;
use super::caller::Caller;
use super::extract::Refused;

impl Api {
    /// Tests whether a caller may use the API now, by its credentials, its role and the bans of the broker. Cheap for
    /// credentials that were right lately.
    ///
    /// # Errors
    /// The caller may not, or the broker or an authenticator does not answer.
    pub(super) async fn verify(&self, caller: &Caller) -> Result<Principal, Refused> {
        let address = caller.client.address;
        self.refuse_banned(None, address)?;
        let principal = self.0.login.principal(caller).await?;
        self.refuse_banned(principal.user(), address)?;
        let handle = self.handle()?;
        if principal.grant.as_ref().is_some_and(|grant| handle.is_revoked(&grant.identity)) {
            return Err(Refused::new(StatusCode::UNAUTHORIZED, "the user is not known any more"));
        }
        if principal.role.is_none() {
            return Err(Refused::new(
                StatusCode::FORBIDDEN,
                "the user has no role here: name it in http.operators or http.viewers",
            ));
        }
        Ok(principal)
    }

    fn refuse_banned(&self, user: Option<&str>, address: SocketAddr) -> Result<(), Refused> {
        self.handle()?.find_ban(user, address).map_or(Ok(()), |ban| Err(banned(&ban)))
    }
}

fn banned(ban: &Ban) -> Refused {
    let subject = match &ban.target {
        BanTarget::User(user) => format!("the user {user:?} is"),
        BanTarget::Addresses(network) => format!("the addresses {network} are"),
        // Bans of Client Identifiers mean clients of MQTT.
        BanTarget::Client(_) | BanTarget::ClientAt(..) => "the client is".to_owned(),
    };
    let detail = format!("{subject} banned: another operator can lift the ban, from an address without one");
    Refused::new(StatusCode::FORBIDDEN, detail)
}
