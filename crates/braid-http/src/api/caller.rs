//! Caller of the API.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::request::Parts;

use super::extract::Refused;
use crate::request::{Client, proxy_sign};

/// Caller of the API, by what its request says.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Client,
    /// Value of `Authorization`.
    pub(super) authorization: Option<HeaderValue>,
    /// Sign of a proxy, which speaks for others.
    pub(super) proxy: Option<Box<str>>,
}

/// Caller that may use the API, as an extension of its requests.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    pub(super) user: Option<Arc<str>>,
}

impl Caller {
    /// Caller of a request.
    ///
    /// # Errors
    /// The front does not know the client.
    pub(super) fn of(request: &Parts) -> Result<Self, Refused> {
        let client = request.extensions.get::<Client>().ok_or_else(unknown)?.clone();
        let mut authorization = request.headers.get(AUTHORIZATION).cloned();
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let proxy = proxy_sign(request.version, &request.headers).map(Box::from);
        Ok(Self { client, authorization, proxy })
    }
}

impl Admitted {
    /// Admitted caller of a request.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn of(request: &Parts) -> Result<&Self, Refused> {
        request.extensions.get().ok_or_else(unknown)
    }
}

fn unknown() -> Refused {
    Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "the client of the request is not known")
}
