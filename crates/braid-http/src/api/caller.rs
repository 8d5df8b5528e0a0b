//! Caller of the API.

use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::request::Parts;

use crate::request::{Client, proxy_sign};

/// Caller of the API, as an extension of its requests.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) client: Client,
    /// Value of `Authorization`.
    pub(super) authorization: Option<HeaderValue>,
    /// Sign of a proxy, which speaks for others.
    pub(super) proxy: Option<Box<str>>,
    /// Set once the caller is verified.
    pub(super) user: Option<Arc<str>>,
}

impl Caller {
    /// Caller of a request; `None` if the front does not know the client.
    pub(super) fn of(request: &Parts) -> Option<Self> {
        let client = request.extensions.get::<Client>()?.clone();
        let mut authorization = request.headers.get(AUTHORIZATION).cloned();
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let proxy = proxy_sign(request.version, &request.headers).map(Box::from);
        Some(Self { client, authorization, proxy, user: None })
    }
}
