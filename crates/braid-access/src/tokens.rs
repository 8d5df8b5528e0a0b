//! Authenticator of JSON Web Tokens, which clients send as their password.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use braid_auth::jwt::{self, ConnectNames, JwtOptions, KeyFingerprint, OptionsError, Verdict, Verifier};
use braid_broker::{Credential, Credentials, Refusal};
use braid_proto::reason::ReasonCode;
use tokio::sync::watch;

use crate::chain::{Answer, grant_claims, unix_now};
use crate::file::{FileError, read};
use crate::http::HttpClient;
use crate::remote_keys::{RemoteKeys, RemoteKeysError, RemoteKeysOptions};

/// Name of the authenticator, the source of its identities.
const SOURCE: &str = "jwt";

/// Kind of a file with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFileKind {
    /// Secret of HS256.
    Secret,
    /// Public key or certificate in PEM.
    Pem,
    /// JSON Web Key Set.
    Jwks,
}

/// Keys of tokens that were read from a file, with the options of the verification.
#[derive(Debug)]
pub struct Keys(Verifier);

/// Authenticator of JSON Web Tokens.
#[derive(Clone)]
pub struct Tokens {
    source: Arc<Source>,
}

/// Key of the token of a connected client.
struct TokenKey {
    tokens: Tokens,
    key: KeyFingerprint,
}

impl Credential for TokenKey {
    /// Keys of a URL that are too old say nothing.
    fn is_revoked(&self) -> bool {
        self.tokens.verifier().is_some_and(|verifier| !verifier.has_key(self.key))
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey").finish_non_exhaustive()
    }
}

enum Source {
    File { path: PathBuf, kind: KeyFileKind, options: JwtOptions, current: RwLock<Arc<Verifier>> },
    Url(RemoteKeys<Verifier>),
}

impl Tokens {
    /// Authenticator with the keys of a file.
    ///
    /// # Errors
    /// The file cannot be read or is malformed, or the options cannot be met.
    pub fn from_file(path: &Path, kind: KeyFileKind, options: JwtOptions) -> Result<Self, FileError> {
        let Keys(verifier) = load(path, kind, &options)?;
        let current = RwLock::new(Arc::new(verifier));
        let source = Source::File { path: path.to_owned(), kind, options, current };
        Ok(Self { source: Arc::new(source) })
    }

    /// Authenticator with the key set of a URL, which is fetched now, and again and again.
    ///
    /// # Errors
    /// The keys cannot be fetched.
    pub async fn from_url(
        client: HttpClient,
        remote: RemoteKeysOptions,
        options: JwtOptions,
    ) -> Result<Self, RemoteKeysError> {
        let parse = move |body: &[u8]| {
            let keys = jwt::Keys::from_jwks(body, "the answer").map_err(|error| error.to_string())?;
            Verifier::new(keys, options.clone()).map_err(|error| error.to_string())
        };
        Ok(Self { source: Arc::new(Source::Url(RemoteKeys::start(client, remote, parse).await?)) })
    }

    /// Notices of other keys from a URL; `None` for keys of a file.
    pub(crate) fn changes(&self) -> Option<watch::Receiver<()>> {
        match &*self.source {
            Source::File { .. } => None,
            Source::Url(keys) => Some(keys.changes()),
        }
    }

    /// Reads the keys of the file again; `None` for keys of a URL, which are fetched by themselves.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub(crate) fn reload(&self) -> Result<Option<Keys>, FileError> {
        match &*self.source {
            Source::File { path, kind, options, .. } => load(path, *kind, options).map(Some),
            Source::Url(_) => Ok(None),
        }
    }

    /// Replaces the keys, and returns the former ones for the caller to free.
    #[must_use]
    pub(crate) fn replace(&self, keys: Option<Keys>) -> Option<Arc<Verifier>> {
        let (Source::File { current, .. }, Some(Keys(verifier))) = (&*self.source, keys) else { return None };
        let verifier = Arc::new(verifier);
        let mut current = current.write().unwrap_or_else(PoisonError::into_inner);
        Some(std::mem::replace(&mut *current, verifier))
    }

    /// Verifies the password of a CONNECT, if it has the form of a token.
    pub(crate) async fn verify(&self, credentials: &Credentials<'_>) -> Answer {
        // Other passwords are none of this authenticator's, also while it has no keys.
        let Some(token) = credentials.password.filter(|password| jwt::has_form(password)) else {
            return Answer::Ignored;
        };
        let connect = ConnectNames { user: credentials.user_name, client_id: credentials.client_id.as_str() };
        let now = unix_now();
        let Some(verifier) = self.verifier() else {
            let cause = "the keys of tokens are too old, and cannot be fetched";
            return Answer::Refused(Refusal::new(ReasonCode::ServerUnavailable, cause));
        };
        let (mut verdict, mut key) = verifier.verify_keyed(token, &connect, now);
        if let Verdict::Refused(refusal) = &verdict
            && verifier.may_lack_key(token, refusal)
            && let Source::Url(keys) = &*self.source
            && keys.refresh_for_unknown_key().await
            && let Some(verifier) = keys.current()
        {
            (verdict, key) = verifier.verify_keyed(token, &connect, now);
        }
        match verdict {
            Verdict::NotAJwt => Answer::Ignored,
            Verdict::Refused(refusal) => {
                Answer::Refused(Refusal::new(ReasonCode::NotAuthorized, refusal.to_string()))
            }
            Verdict::Accepted(claims) => {
                let mut answer = grant_claims(credentials, SOURCE, claims);
                if let Answer::Accepted(grant) = &mut answer {
                    let credential =
                        |key| -> Box<dyn Credential> { Box::new(TokenKey { tokens: self.clone(), key }) };
                    grant.credential = key.map(credential);
                }
                answer
            }
        }
    }

    fn verifier(&self) -> Option<Arc<Verifier>> {
        match &*self.source {
            Source::File { current, .. } => {
                Some(current.read().unwrap_or_else(PoisonError::into_inner).clone())
            }
            Source::Url(keys) => keys.current(),
        }
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

fn load(path: &Path, kind: KeyFileKind, options: &JwtOptions) -> Result<Keys, FileError> {
    let content = read(path, jwt::MAX_KEY_FILE_BYTES)?;
    let name = path.display().to_string();
    let keys = match kind {
        KeyFileKind::Secret => jwt::Keys::from_secret(&content, &name),
        KeyFileKind::Pem => jwt::Keys::from_pem(&content, &name),
        KeyFileKind::Jwks => jwt::Keys::from_jwks(&content, &name),
    };
    let keys = keys.map_err(|error| FileError::Content(error.to_string()))?;
    let with_options = |error: OptionsError| FileError::Content(error.to_string());
    Verifier::new(keys, options.clone()).map(Keys).map_err(with_options)
}
