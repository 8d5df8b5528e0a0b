//! Alternative services of the origin (RFC 7838): the header field `Alt-Svc`, and what clients remember of it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Lifetime of an alternative without `ma` [RFC 7838, 3.1].
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest lifetime, so that times stay in their range.
const MOST_MAX_AGE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Time for which QUIC is not tried after its first failure, as in Chrome; each further failure doubles it.
const BROKEN: Duration = Duration::from_secs(300);

/// Most doublings of [`BROKEN`], some 38 hours.
const MOST_DOUBLINGS: u32 = 9;

// === The field ===

/// Value of `Alt-Svc`, as far as it matters to a client of HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AltSvc {
    /// All alternatives of the origin are invalid.
    Clear,
    /// HTTP/3 at the host of the origin.
    Http3 { port: u16, max_age: Duration },
}

impl AltSvc {
    /// Parses a value. `None` if it is malformed, or names neither `clear` nor HTTP/3 at `host`: a client may ignore
    /// alternatives.
    fn parse(value: &str, host: &str) -> Option<Self> {
        let value = value.trim_matches([' ', '\t']);
        if value == "clear" {
            return Some(Self::Clear);
        }
        split(value, ',').into_iter().find_map(|entry| Self::parse_entry(entry, host))
    }

    /// `h3=":443"; ma=3600; persist=1`.
    fn parse_entry(entry: &str, host: &str) -> Option<Self> {
        let mut parts = split(entry, ';').into_iter();
        let (protocol, authority) = parts.next()?.split_once('=')?;
        // Names of protocols are compared by case; only others are percent-encoded.
        if protocol != "h3" {
            return None;
        }
        let authority = unquoted(authority)?;
        let (at, port) = authority.rsplit_once(':')?;
        if !at.is_empty() && !at.trim_matches(['[', ']']).eq_ignore_ascii_case(host) {
            return None;
        }
        let port = port.parse().ok().filter(|&port| port != 0)?;
        let mut max_age = DEFAULT_MAX_AGE;
        for parameter in parts {
            let (name, text) = parameter.split_once('=')?;
            // Unknown parameters are ignored [RFC 7838, 3].
            if name.eq_ignore_ascii_case("ma") {
                let text = unquoted(text).unwrap_or_else(|| text.to_owned());
                max_age = Duration::from_secs(text.parse().ok()?).min(MOST_MAX_AGE);
            }
        }
        Some(Self::Http3 { port, max_age })
    }
}

/// Parts between separators that are not inside of quotes, without the spaces around them.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(|c| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            c => return c == separator && !is_quoted,
        }
        false
    });
    parts.map(|part| part.trim_matches([' ', '\t'])).filter(|part| !part.is_empty()).collect()
}

/// Content of a quoted string; `None` if it is none.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut is_escaped = false;
    let plain = inner.chars().filter(|&c| {
        is_escaped = c == '\\' && !is_escaped;
        !is_escaped
    });
    Some(plain.collect())
}

// === The cache ===

/// Alternative of the origin that all clients of a run know, and whether QUIC works.
#[derive(Debug)]
pub(super) struct AltSvcCache {
    host: String,
    state: Mutex<State>,
    /// Changes with the answers of [`AltSvcCache::quic`] and [`AltSvcCache::is_advertised`].
    changed: watch::Sender<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Port of HTTP/3, and the end of its lifetime.
    alternative: Option<(u16, Instant)>,
    /// Failures of QUIC in a row.
    failures: u32,
    broken_until: Option<Instant>,
}

impl AltSvcCache {
    /// Cache of the origin at `host`, without an alternative.
    pub(super) fn new(host: &str) -> Self {
        Self { host: host.to_owned(), state: Mutex::default(), changed: watch::Sender::new(()) }
    }

    /// Port of HTTP/3 if it is advertised and not known to be broken.
    pub(super) fn quic(&self, now: Instant) -> Option<u16> {
        let state = *self.state();
        let is_broken = state.broken_until.is_some_and(|until| now < until);
        state.alternative.filter(|(_, end)| now < *end && !is_broken).map(|(port, _)| port)
    }

    /// True if HTTP/3 is advertised, whether it works or not: connections that are established go on.
    pub(super) fn is_advertised(&self, now: Instant) -> bool {
        self.state().alternative.is_some_and(|(_, end)| now < end)
    }

    /// Wakes when one of these answers may have changed.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Notes a value of `Alt-Svc` of a response.
    pub(super) fn learn(&self, value: &str, now: Instant) {
        let Some(service) = AltSvc::parse(value, &self.host) else { return };
        self.update(now, |state| match service {
            AltSvc::Clear => state.alternative = None,
            // 0 is stale at once.
            AltSvc::Http3 { port, max_age } => state.alternative = Some((port, now + max_age)),
        });
    }

    /// A connection over QUIC failed.
    pub(super) fn quic_failed(&self, now: Instant) {
        self.update(now, |state| {
            // The clients that began before the first failure do not count.
            if state.broken_until.is_none_or(|until| until <= now) {
                let doublings = state.failures.min(MOST_DOUBLINGS);
                state.failures += 1;
                state.broken_until = Some(now + BROKEN * 2_u32.pow(doublings));
            }
        });
    }

    /// A connection over QUIC was established.
    pub(super) fn quic_worked(&self, now: Instant) {
        self.update(now, |state| (state.failures, state.broken_until) = (0, None));
    }

    fn update(&self, now: Instant, change: impl FnOnce(&mut State)) {
        let answers = || (self.quic(now), self.is_advertised(now));
        let before = answers();
        change(&mut self.state());
        if answers() != before {
            self.changed.send_replace(());
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoning is harmless: each change is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn values_are_those_of_the_rfc() {
        let at = |port, seconds| Some(AltSvc::Http3 { port, max_age: seconds * SECOND });
        for (value, expected) in [
            ("clear", Some(AltSvc::Clear)),
            (" clear\t", Some(AltSvc::Clear)),
            ("CLEAR", None),
            ("h3=\":443\"", at(443, 86_400)),
            ("h3=\":18083\"; ma=3600; persist=1", at(18_083, 3600)),
            ("h3=\":443\";MA=\"60\"", at(443, 60)),
            ("h3=\":443\"; ma=0", at(443, 0)),
            ("h3=\":443\"; ma=99999999999", at(443, 365 * 86_400)),
            ("h3=\":443\"; x=\"a;b,c\"; ma=5", at(443, 5)),
            ("h2=\":8443\", h3-29=\":1\" , h3=\":2\";ma=7, h3=\":3\"", at(2, 7)),
            ("h3=\"ORIGIN:4\"", at(4, 86_400)),
            ("h3=\"other:4\", h3=\":5\"", at(5, 86_400)),
            ("h3=\"\\:6\"", at(6, 86_400)),
            ("h3=:443", None),
            ("h3=\":\"", None),
            ("h3=\":0\"", None),
            ("h3=\":65536\"", None),
            ("h3=\":443\"; ma=x", None),
            ("h3=\":443\"; ma", None),
            ("H3=\":443\"", None),
            ("h3=\":443", None),
            ("", None),
        ] {
            assert_eq!(AltSvc::parse(value, "origin"), expected, "{value}");
        }
    }

    #[test]
    fn an_alternative_lives_until_its_end_or_clear() {
        let (cache, now) = (AltSvcCache::new("origin"), Instant::now());
        assert_eq!(cache.quic(now), None);
        let mut changes = cache.changes();
        cache.learn("h3=\":5\"; ma=10", now);
        assert!(changes.has_changed().unwrap());
        assert_eq!((cache.quic(now), cache.quic(now + 10 * SECOND)), (Some(5), None));
        changes.mark_unchanged();
        cache.learn("h3=\":5\"; ma=10", now + SECOND);
        cache.learn("nonsense", now + SECOND);
        assert!(!changes.has_changed().unwrap(), "only the lifetime has changed");
        assert_eq!(cache.quic(now + 10 * SECOND), Some(5));
        cache.learn("clear", now + SECOND);
        assert!(changes.has_changed().unwrap());
        assert_eq!(cache.quic(now + SECOND), None);
    }

    #[test]
    fn failures_in_a_row_double_the_time_without_quic() {
        let (cache, now) = (AltSvcCache::new("origin"), Instant::now());
        cache.learn("h3=\":5\"; ma=31536000", now);
        let mut at = now;
        for doublings in (0..12).map(|n: u32| n.min(MOST_DOUBLINGS)) {
            cache.quic_failed(at);
            cache.quic_failed(at + SECOND);
            let until = at + BROKEN * 2_u32.pow(doublings);
            assert_eq!((cache.quic(until - SECOND), cache.quic(until)), (None, Some(5)), "{doublings}");
            assert!(cache.is_advertised(until - SECOND), "a connection that works goes on");
            at = until;
        }
        cache.quic_worked(at);
        cache.quic_failed(at);
        assert_eq!(cache.quic(at + BROKEN), Some(5), "it begins again after a success");
    }
}
