//! Caller of the API: the test whether it may use the API, for requests and for event streams.

use std::net::SocketAddr;

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::request::Parts;
use braid_broker::{Ban, BanTarget};

use super::Api;
use super::auth::Principal;
use super::extract::Refused;
use crate::request::{Client, proxy_sign};

/// Caller of the API, as an extension of its requests.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Client,
    /// Value of `Authorization`.
    pub(super) authorization: Option<HeaderValue>,
    /// Sign of a proxy, which speaks for others.
    pub(super) proxy: Option<Box<str>>,
}

impl Caller {
    /// Caller of a request; `None` if the front does not know the client.
    pub(super) fn of(request: &Parts) -> Option<Self> {
        let client = request.extensions.get::<Client>()?.clone();
        let mut authorization = request.headers.get(AUTHORIZATION).cloned();
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let proxy = proxy_sign(request.version, &request.headers).map(Box::from);
        Some(Self { client, authorization, proxy })
    }
}

impl Api {
    /// Tests whether a caller may use the API now, by its credentials, its role and the bans of the broker. Cheap for
    /// credentials that were right lately.
    ///
    /// # Errors
    /// It may not, or the broker or an authenticator does not answer.
    pub(super) async fn verify(&self, caller: &Caller) -> Result<Principal, Refused> {
        let address = caller.client.address;
        self.refuse_banned(None, address)?;
        let principal = self.0.login.principal(caller).await?;
        self.refuse_banned(principal.user(), address)?;
        if self.handle()?.is_revoked(&principal.identity) {
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
