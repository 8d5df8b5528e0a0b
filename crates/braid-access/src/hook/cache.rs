//! LRU cache of answers, which also joins concurrent questions that are the same.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use lru::LruCache;
use ring::hmac;
use ring::rand::SystemRandom;
use tokio::time::Instant;

use super::{HookAnswer, NoRandomNumbers};
use crate::http::HttpError;

type Outcome = Result<HookAnswer, HttpError>;

/// Keyed hash of a whole question. Neither the question nor its password is stored.
type Fingerprint = [u8; 32];

/// Cache of answers by question.
pub(super) struct AnswerCache {
    /// Random, of this process: fingerprints tell nothing to a reader who lacks it.
    key: hmac::Key,
    time_to_live: Duration,
    state: Arc<CacheState>,
}

struct CacheState {
    // Never held across an await, and no future is dropped under it.
    tables: Mutex<Tables>,
}

struct Tables {
    kept: LruCache<Fingerprint, KeptAnswer>,
    /// Requests in progress, with their numbers. Each ends with its last waiter, and then removes its entry.
    pending: HashMap<Fingerprint, (u64, WeakShared<BoxFuture<'static, Outcome>>)>,
    /// Number of the next request.
    next: u64,
}

struct KeptAnswer {
    answer: HookAnswer,
    since: Instant,
}

impl AnswerCache {
    pub(super) fn new(time_to_live: Duration, entries: usize) -> Result<Self, NoRandomNumbers> {
        let key =
            hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| NoRandomNumbers)?;
        let entries = NonZeroUsize::new(entries).unwrap_or(NonZeroUsize::MIN);
        let tables = Tables { kept: LruCache::new(entries), pending: HashMap::new(), next: 0 };
        Ok(Self { key, time_to_live, state: Arc::new(CacheState { tables: Mutex::new(tables) }) })
    }

    /// The cached answer to `question`, or that of the request in progress, or else that of `ask`, which is polled by
    /// all callers that wait for it. `now` is in seconds since the Unix epoch.
    pub(super) async fn answer<F>(&self, question: &[u8], now: u64, ask: F) -> Outcome
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(hmac::sign(&self.key, question).as_ref());
        let request = {
            let mut tables = self.state.tables();
            if let Some(answer) = tables.cached(&fingerprint, self.time_to_live, now) {
                return Ok(answer);
            }
            if let Some(request) = tables.pending.get(&fingerprint).and_then(|(_, weak)| weak.upgrade()) {
                request
            } else {
                let number = tables.next;
                tables.next += 1;
                let entry = PendingEntry { state: Arc::clone(&self.state), fingerprint, number };
                let request = async move {
                    let outcome = ask.await;
                    entry.finish(&outcome);
                    outcome
                };
                let request: Shared<BoxFuture<'static, Outcome>> = request.boxed().shared();
                tables.pending.extend(request.downgrade().map(|weak| (fingerprint, (number, weak))));
                request
            }
        };
        request.await
    }
}

impl CacheState {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Poisoning is harmless: each change is one insertion or removal.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn cached(&mut self, fingerprint: &Fingerprint, time_to_live: Duration, now: u64) -> Option<HookAnswer> {
        let KeptAnswer { answer, since } = self.kept.get(fingerprint)?;
        if since.elapsed() < time_to_live && !answer.is_expired(now) {
            return Some(answer.clone());
        }
        self.kept.pop(fingerprint);
        None
    }
}

/// Entry of a request in the table of those in progress, which it leaves when it ends or is dropped.
struct PendingEntry {
    state: Arc<CacheState>,
    fingerprint: Fingerprint,
    number: u64,
}

impl PendingEntry {
    fn finish(self, outcome: &Outcome) {
        if let Ok(answer @ (HookAnswer::Allow(_) | HookAnswer::Deny)) = outcome {
            let kept = KeptAnswer { answer: answer.clone(), since: Instant::now() };
            self.state.tables().kept.put(self.fingerprint, kept);
        }
    }
}

impl Drop for PendingEntry {
    fn drop(&mut self) {
        let mut tables = self.state.tables();
        // A dropped request may have been replaced by then.
        if tables.pending.get(&self.fingerprint).is_some_and(|(number, _)| *number == self.number) {
            tables.pending.remove(&self.fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use braid_auth::claims::Claims;
    use tokio::sync::oneshot;
    use tokio::time::advance;

    use super::*;
    use crate::http::HttpProblem;

    const TIME_TO_LIVE: Duration = Duration::from_secs(60);

    fn allow(user: &str, expires_at: Option<u64>) -> HookAnswer {
        HookAnswer::Allow(Claims { user: Some(user.into()), expires_at, ..Claims::default() })
    }

    fn failure() -> Outcome {
        Err(HttpError { url: "http://localhost/".into(), problem: HttpProblem::Busy })
    }

    fn cache(entries: usize) -> AnswerCache {
        AnswerCache::new(TIME_TO_LIVE, entries).expect("random numbers")
    }

    /// Asks, and tells whether the service was asked.
    async fn ask(cache: &AnswerCache, question: u8, now: u64, outcome: &Outcome) -> (Outcome, bool) {
        let asked = Arc::new(AtomicUsize::new(0));
        let (count, outcome) = (Arc::clone(&asked), outcome.clone());
        let request = async move {
            count.fetch_add(1, Ordering::Relaxed);
            outcome
        };
        (cache.answer(&[question], now, request).await, asked.load(Ordering::Relaxed) > 0)
    }

    /// Random questions, answers and times against a table without a limit.
    #[tokio::test(start_paused = true)]
    async fn cache_agrees_with_a_naive_table() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let (cache, mut table) = (cache(4), HashMap::new());
        let (mut seconds, mut hits) = (0, 0);
        for _ in 0..2_000 {
            let step = random.u64(0..20);
            advance(Duration::from_secs(step)).await;
            seconds += step;
            let question = random.u8(0..4);
            let fresh = match random.u8(0..6) {
                0 => failure(),
                1 => Ok(HookAnswer::Ignore),
                2 => Ok(HookAnswer::Deny),
                3 => Ok(allow("a", Some(seconds + random.u64(0..90)))),
                _ => Ok(allow("b", None)),
            };
            let known = table.get(&question).filter(|(answer, until): &&(HookAnswer, u64)| {
                let end = if let HookAnswer::Allow(claims) = answer { claims.expires_at } else { None };
                seconds < *until && end.is_none_or(|end| seconds < end)
            });
            let expected = known.map_or((fresh.clone(), true), |(answer, _)| (Ok(answer.clone()), false));
            assert_eq!(ask(&cache, question, seconds, &fresh).await, expected);
            hits += usize::from(!expected.1);
            if let (Ok(answer), true) = expected {
                table.remove(&question);
                if answer != HookAnswer::Ignore {
                    table.insert(question, (answer, seconds + TIME_TO_LIVE.as_secs()));
                }
            } else if expected.1 {
                table.remove(&question);
            }
            assert!(cache.state.tables().pending.is_empty());
        }
        assert!((200..1_800).contains(&hits), "{hits} hits");
    }

    #[tokio::test(start_paused = true)]
    async fn least_recently_used_answer_is_evicted() {
        let cache = cache(2);
        let deny = Ok(HookAnswer::Deny);
        for (question, is_asked) in [(1, true), (2, true), (1, false), (3, true), (1, false), (2, true)] {
            assert_eq!(ask(&cache, question, 0, &deny).await, (deny.clone(), is_asked), "{question}");
        }
        assert_eq!(cache.state.tables().kept.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn same_questions_share_a_request_that_ends_with_the_last_caller() {
        let cache = cache(2);
        let (answer, answered) = oneshot::channel::<Outcome>();
        let mut first = Box::pin(cache.answer(b"q", 0, async { answered.await.expect("an answer") }));
        assert_eq!((&mut first).now_or_never(), None);
        let never = || async { unreachable!("the first request is in progress") };
        let mut second = Box::pin(cache.answer(b"q", 0, never()));
        let mut third = Box::pin(cache.answer(b"q", 0, never()));
        assert_eq!(((&mut second).now_or_never(), (&mut third).now_or_never()), (None, None));
        // The caller that began the request leaves first.
        drop(first);
        answer.send(failure()).expect("the request goes on");
        assert_eq!((second.await, third.await), (failure(), failure()));

        let (answer, answered) = oneshot::channel::<Outcome>();
        let mut alone = Box::pin(cache.answer(b"q", 0, async { answered.await.expect("an answer") }));
        assert_eq!((&mut alone).now_or_never(), None);
        assert_eq!(cache.state.tables().pending.len(), 1);
        drop(alone);
        assert!(answer.is_closed() && cache.state.tables().pending.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_ended_request_leaves_the_entry_of_its_successor() {
        let cache = cache(2);
        let fingerprint = Fingerprint::default();
        let entry = |number| PendingEntry { state: Arc::clone(&cache.state), fingerprint, number };
        let request = async { failure() }.boxed().shared();
        let weak = request.downgrade().expect("not polled yet");
        cache.state.tables().pending.insert(fingerprint, (7, weak));
        drop(entry(6));
        assert_eq!(cache.state.tables().pending.len(), 1);
        drop(entry(7));
        assert!(cache.state.tables().pending.is_empty());
    }
}
