//! Authentication by a service over HTTP, with the answers of EMQX's HTTP authenticator.
//!
//! The hook sends each question as JSON in a POST request and takes an answer of `allow`, `deny` or `ignore`
//! (`docs/http-hook.md` has the format). Everything else is an error: another status, a malformed or late answer, no
//! connection. Callers then refuse the client, and ask no other authenticator.

mod answer;
mod cache;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use braid_auth::claims::Claims;
use bytes::Bytes;
use serde::Serialize;
use thiserror::Error;

use crate::http::{HttpClient, HttpError};
use cache::AnswerCache;

/// Facts about a client that asks to connect. No `Debug`: the password is among them.
#[derive(Clone, Copy, Serialize)]
pub struct Question<'a> {
    /// User Name of the CONNECT, if it has one.
    pub username: Option<&'a str>,
    /// Password of the CONNECT, if it has one. Bytes that are not UTF-8 have no JSON: such a client is denied without a
    /// request.
    #[serde(serialize_with = "as_text")]
    pub password: Option<&'a [u8]>,
    /// Client Identifier; empty if the client leaves it to the broker.
    #[serde(rename = "clientid")]
    pub client_id: &'a str,
    /// Address of the client; `None` for one in this process.
    #[serde(rename = "peerhost")]
    pub peer_host: Option<IpAddr>,
    /// Transport, by the scheme of its URLs: `mqtt`, `mqtts`, `ws`, `wss` or `quic`.
    pub protocol: &'a str,
    /// Tag of the listener, if it has one.
    pub listener: Option<&'a str>,
    /// Common Name of the client's verified certificate, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_common_name: Option<&'a str>,
}

fn as_text<S: serde::Serializer>(password: &Option<&[u8]>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = password.map(str::from_utf8).transpose().map_err(serde::ser::Error::custom)?;
    text.serialize(serializer)
}

/// Answer of the service about a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookAnswer {
    /// The client is let in, with these facts.
    Allow(Claims),
    /// The client is refused.
    Deny,
    /// The service leaves the decision to the next authenticator.
    Ignore,
}

impl HookAnswer {
    /// The answer at `now`, in seconds since the Unix epoch: an answer that has ended permits nothing.
    fn at(self, now: u64) -> Self {
        if self.is_expired(now) { Self::Deny } else { self }
    }

    fn is_expired(&self, now: u64) -> bool {
        matches!(self, Self::Allow(Claims { expires_at: Some(end), .. }) if *end <= now)
    }
}

/// Options of a [`Hook`].
#[derive(Clone, Copy, Debug)]
pub struct HookOptions {
    /// Time for which an answer of `allow` or `deny` is used for the same question again, but not beyond the end that
    /// the answer names. Concurrent questions that are the same share one request. Zero: every question is sent.
    pub cache: Duration,
    /// Maximum number of cached answers; at least 1.
    pub cache_entries: usize,
}

impl Default for HookOptions {
    /// No cache; 1,000 answers if there is one.
    fn default() -> Self {
        Self { cache: Duration::ZERO, cache_entries: 1_000 }
    }
}

/// Failure to make a [`Hook`]: the operating system gives no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the operating system gives no random numbers, which the cache of the authentication hook needs")]
pub struct NoRandomNumbers;

/// Authenticator that asks a service over HTTP.
pub struct Hook {
    client: Arc<HttpClient>,
    cache: Option<AnswerCache>,
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({:?})", self.client)
    }
}

impl Hook {
    /// A hook that sends its questions with `client`.
    ///
    /// # Errors
    /// [`NoRandomNumbers`], if there is a cache.
    pub fn new(client: HttpClient, options: HookOptions) -> Result<Self, NoRandomNumbers> {
        let HookOptions { cache, cache_entries } = options;
        let cache = if cache.is_zero() { None } else { Some(AnswerCache::new(cache, cache_entries)?) };
        Ok(Self { client: Arc::new(client), cache })
    }

    /// Asks about a client. `now` is the time in seconds since the Unix epoch.
    ///
    /// The call can be dropped at any time; its request ends with the last call that waits for it.
    ///
    /// # Errors
    /// There is no valid answer: the client has to be refused, as server busy if too many questions wait, otherwise as
    /// server unavailable.
    pub async fn ask(&self, question: &Question<'_>, now: u64) -> Result<HookAnswer, HttpError> {
        // The only failure is a password that is not UTF-8.
        let Ok(body) = serde_json::to_vec(question) else { return Ok(HookAnswer::Deny) };
        let body = Bytes::from(body);
        let answer = match &self.cache {
            None => request(&self.client, body).await,
            Some(cache) => {
                let client = Arc::clone(&self.client);
                let sent = body.clone();
                cache.answer(&body, now, async move { request(&client, sent).await }).await
            }
        };
        answer.map(|answer| answer.at(now))
    }
}

async fn request(client: &HttpClient, body: Bytes) -> Result<HookAnswer, HttpError> {
    let response = client.post_json(body).await?;
    answer::parse(&response).map_err(|problem| client.error(problem))
}
