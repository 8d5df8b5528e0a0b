//! Keys of tokens (JWKS, RFC 7517), fetched from a URL and kept fresh.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::http::{HttpClient, HttpError, HttpProblem};

/// Maximum length of a key set, in bytes: for `max_body` of the client.
pub const MAX_KEYS_BODY: usize = 1 << 20;

/// Minimum time between two fetches that tokens with unknown keys cause, and the pause after a failed one.
pub const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Options of [`RemoteKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKeysOptions {
    /// Time between two fetches; at least [`MIN_INTERVAL`].
    pub refresh: Duration,
    /// Maximum age of keys while they cannot be fetched; at least `refresh` and [`MIN_INTERVAL`]. Older ones are not
    /// used.
    pub max_stale: Duration,
}

impl Default for RemoteKeysOptions {
    /// A fetch in 10 minutes, and keys of at most a day.
    fn default() -> Self {
        Self { refresh: Duration::from_secs(600), max_stale: Duration::from_secs(86_400) }
    }
}

/// Failure of [`RemoteKeys::start`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteKeysError {
    /// The time between two fetches is too short.
    #[error("keys cannot be fetched every {0:?}: set {MIN_INTERVAL:?} or more")]
    Refresh(Duration),
    /// Keys would be too old before they are fetched again.
    #[error("keys of at most {max_stale:?} are too old before the next fetch: set {least:?} or more")]
    MaxStale {
        /// The maximum age asked for.
        max_stale: Duration,
        /// The lowest one that can be used.
        least: Duration,
    },
    /// The keys cannot be fetched, or are malformed.
    #[error("cannot fetch keys from {0}")]
    Fetch(#[from] HttpError),
}

/// Keys from a URL. A task fetches them again until this value is dropped.
///
/// `K` is the parsed form of a key set, such as the verifier of tokens.
pub struct RemoteKeys<K> {
    state: watch::Receiver<KeysState<K>>,
    changes: watch::Receiver<()>,
    wanted: Arc<Notify>,
    max_stale: Duration,
    refresher: AbortHandle,
}

/// State of the keys, changed by the task alone.
struct KeysState<K> {
    keys: Arc<K>,
    /// Time of the request that brought the keys.
    fetched: Instant,
    /// Time of the last request.
    attempted: Instant,
    is_fetching: bool,
    /// Number of requests that have ended.
    attempts: u64,
}

impl<K> fmt::Debug for RemoteKeys<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteKeys").finish_non_exhaustive()
    }
}

impl<K> Drop for RemoteKeys<K> {
    fn drop(&mut self) {
        self.refresher.abort();
    }
}

impl<K: Send + Sync + 'static> RemoteKeys<K> {
    /// Fetches the keys, and begins to fetch them again and again. `parse` makes keys of the body of a response, and
    /// says in one line what is wrong with another.
    ///
    /// # Errors
    /// Every [`RemoteKeysError`].
    pub async fn start<F>(
        client: HttpClient,
        options: RemoteKeysOptions,
        parse: F,
    ) -> Result<Self, RemoteKeysError>
    where
        F: Fn(&[u8]) -> Result<K, String> + Send + Sync + 'static,
    {
        let RemoteKeysOptions { refresh, max_stale } = options;
        if refresh < MIN_INTERVAL {
            return Err(RemoteKeysError::Refresh(refresh));
        }
        let least = refresh.saturating_add(MIN_INTERVAL);
        if max_stale < least {
            return Err(RemoteKeysError::MaxStale { max_stale, least });
        }
        let began = Instant::now();
        let (keys, body) = fetch(&client, &parse).await?;
        let state = KeysState { keys, fetched: began, attempted: began, is_fetching: false, attempts: 0 };
        let (sender, receiver) = watch::channel(state);
        let (changed, changes) = watch::channel(());
        let wanted = Arc::new(Notify::new());
        let refresher =
            Refresher { client, options, parse, body, state: sender, changed, wanted: Arc::clone(&wanted) };
        let refresher = tokio::spawn(refresher.run()).abort_handle();
        Ok(Self { state: receiver, changes, wanted, max_stale, refresher })
    }

    /// The last keys that were fetched; `None` if they are too old to be trusted.
    #[must_use]
    pub fn current(&self) -> Option<Arc<K>> {
        let state = self.state.borrow();
        (state.fetched.elapsed() <= self.max_stale).then(|| Arc::clone(&state.keys))
    }

    /// Notices of fetches that brought other keys.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.clone()
    }

    /// Fetches the keys because a token names none of the current ones; true if a fetch has ended since the call, so
    /// that it is worth to look again. False at once if the last fetch began less than [`MIN_INTERVAL`] ago.
    ///
    /// Concurrent callers wait for the same fetch, and the call can be dropped at any time.
    pub async fn refresh_for_unknown_key(&self) -> bool {
        let mut state = self.state.clone();
        let attempts = {
            let state = state.borrow_and_update();
            if !state.is_fetching {
                if state.attempted.elapsed() < MIN_INTERVAL {
                    return false;
                }
                self.wanted.notify_one();
            }
            state.attempts
        };
        // An error means that the task has ended.
        state.wait_for(|state| state.attempts > attempts).await.is_ok()
    }
}

/// The task that fetches keys.
struct Refresher<K, F> {
    client: HttpClient,
    options: RemoteKeysOptions,
    parse: F,
    /// Last response with keys.
    body: Bytes,
    state: watch::Sender<KeysState<K>>,
    changed: watch::Sender<()>,
    wanted: Arc<Notify>,
}

/// Health of the fetches, for the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FetchHealth {
    Well,
    /// Fetches fail, and the last keys are in use.
    Failing,
    /// Fetches fail, and the last keys are too old.
    Stale,
}

impl<K, F: Fn(&[u8]) -> Result<K, String>> Refresher<K, F> {
    async fn run(mut self) {
        let RemoteKeysOptions { refresh, max_stale } = self.options;
        let mut health = FetchHealth::Well;
        loop {
            let pause = if health == FetchHealth::Well { refresh } else { MIN_INTERVAL };
            tokio::select! {
                () = sleep(pause.saturating_sub(self.since_attempt())) => {}
                () = self.wanted.notified() => {
                    if self.since_attempt() < MIN_INTERVAL {
                        continue;
                    }
                }
            }
            let failure = self.fetch().await.err();
            let is_stale = self.state.borrow().fetched.elapsed() > max_stale;
            health = self.log(health, failure, is_stale);
        }
    }

    fn since_attempt(&self) -> Duration {
        self.state.borrow().attempted.elapsed()
    }

    async fn fetch(&mut self) -> Result<(), HttpError> {
        let began = Instant::now();
        self.state.send_modify(|state| {
            state.attempted = began;
            state.is_fetching = true;
        });
        let fetched = fetch(&self.client, &self.parse).await;
        self.state.send_modify(|state| {
            state.is_fetching = false;
            state.attempts += 1;
            if let Ok((keys, _)) = &fetched {
                state.keys = Arc::clone(keys);
                state.fetched = began;
            }
        });
        let (_, body) = fetched?;
        if body != self.body {
            self.body = body;
            self.changed.send_replace(());
        }
        Ok(())
    }

    /// Logs each change of health once.
    fn log(&self, before: FetchHealth, failure: Option<HttpError>, is_stale: bool) -> FetchHealth {
        let max_age = self.options.max_stale;
        match (failure, is_stale) {
            (None, _) => {
                if before != FetchHealth::Well {
                    tracing::info!(client = ?self.client, "keys of tokens are fetched again");
                }
                FetchHealth::Well
            }
            (Some(error), false) => {
                if before == FetchHealth::Well {
                    tracing::warn!(%error, ?max_age, "cannot fetch keys of tokens: the last ones are used until they are too old");
                }
                FetchHealth::Failing
            }
            (Some(error), true) => {
                if before != FetchHealth::Stale {
                    tracing::error!(%error, ?max_age, "the last keys of tokens are too old: tokens are refused until keys are fetched");
                }
                FetchHealth::Stale
            }
        }
    }
}

/// Keys of the response, and its body.
async fn fetch<K>(
    client: &HttpClient,
    parse: impl Fn(&[u8]) -> Result<K, String>,
) -> Result<(Arc<K>, Bytes), HttpError> {
    let response = client.get().await?;
    let keys = match response.status {
        200 => parse(&response.body).map_err(|reason| describe(&response.body, reason)),
        status => Err(HttpProblem::Status { status }),
    };
    keys.map(|keys| (Arc::new(keys), response.body)).map_err(|problem| client.error(problem))
}

fn describe(body: &[u8], reason: String) -> HttpProblem {
    if body.trim_ascii_start().starts_with(b"<") {
        return HttpProblem::Content(
            "the answer is HTML or XML instead of keys; check the path of the URL".to_owned(),
        );
    }
    HttpProblem::Content(reason)
}
