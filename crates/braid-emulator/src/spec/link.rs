//! Both directions of a link, each a path that changes with time; read from one line and written as one line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::path::{Key, NONE, PathSpec};
use super::quantity::{Fault, LinkError, duration_text, parse_duration};
use crate::direction::Direction;
use crate::stage::{Ecn, Management, Order};

/// Specification of a direction at the start, with its later changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Timeline {
    /// From time 0.
    pub start: PathSpec,
    /// Later, in rising order of time.
    pub changes: Vec<Change>,
}

/// From `at` on, `path` holds in place of what was before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Since the start of the link.
    pub at: Duration,
    /// The whole path, not only what differs.
    pub path: PathSpec,
}

impl From<PathSpec> for Timeline {
    fn from(start: PathSpec) -> Self {
        Self { start, changes: Vec::new() }
    }
}

impl Timeline {
    /// The specification at `at`.
    pub fn at(&self, at: Duration) -> &PathSpec {
        self.changes.iter().rev().find(|change| change.at <= at).map_or(&self.start, |change| &change.path)
    }

    /// Lets `path` hold from `at` on, which is later than all changes so far; no change is no entry.
    pub(crate) fn push(&mut self, at: Duration, path: PathSpec) {
        if *self.at(at) != path {
            self.changes.push(Change { at, path });
        }
    }

    /// Changes at `at`, as `key=value` words.
    pub(crate) fn difference(&self, at: Duration) -> Vec<String> {
        let empty = PathSpec::default();
        let before = if at.is_zero() { &empty } else { self.at(at - Duration::from_nanos(1)) };
        let word = |key: &Key| {
            let (old, new) = (key.text(before), key.text(self.at(at)));
            (old != new).then(|| format!("{}={}", key.name(), new.as_deref().unwrap_or(NONE)))
        };
        Key::ALL.iter().filter_map(word).collect()
    }
}

impl PathSpec {
    /// Refuses what would silently do nothing.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let entry = |key: Key| format!("{}={}", key.name(), key.text(self).unwrap_or_default());
        let lacking = |key: Key, problem: &str, remedy: &str| {
            Err(LinkError::new(&entry(key), Fault::new(problem, remedy)))
        };
        if self.jitter.is_some() && self.delay.is_none() {
            return lacking(Key::Jitter, "jitter without delay", "add for example delay=50ms");
        }
        if self.distribution.is_some() && self.jitter.is_none() {
            return lacking(Key::Dist, "a distribution without jitter", "add for example jitter=10ms");
        }
        let has_line = self.rate.is_some() || self.trace.is_some();
        for (key, is_set) in [
            (Key::Queue, self.queue.is_some()),
            (Key::Ecn, self.ecn.is_some()),
            (Key::Stall, self.stall.is_some()),
            (Key::Aggregate, self.aggregate.is_some()),
        ] {
            if is_set && !has_line {
                return lacking(key, "no line", "add for example rate=10mbit");
            }
        }
        if self.rate.is_some() && self.trace.is_some() {
            return lacking(Key::Trace, "a trace and a rate", "leave one of them");
        }
        if self.aggregate.is_some() && !self.is_managed() && self.order != Some(Order::Line) {
            return lacking(
                Key::Aggregate,
                "packets that leave together in the order of netem",
                "add order=line",
            );
        }
        if self.is_managed() && self.reorder.is_some() {
            return lacking(
                Key::Reorder,
                "packets that overtake a managed queue",
                "use jitter with order=line",
            );
        }
        if self.is_managed() && self.order == Some(Order::Netem) {
            return lacking(
                Key::Order,
                "a managed queue in the order of netem",
                "write order=line, or nothing",
            );
        }
        if self.ecn == Some(Ecn::Managed) && !self.queue.is_some_and(|queue| queue != Management::Fifo) {
            return lacking(
                Key::Ecn,
                "marks in place of drops of no CoDel",
                "add queue=codel, or write ecn=5ms",
            );
        }
        if self.replay.is_some() && self.duplicate.is_some() {
            return lacking(Key::Replay, "a replay and duplicates", "leave one of them");
        }
        if self.reorder.is_some() && self.delay.is_none() && !has_line {
            return lacking(Key::Reorder, "nothing to overtake", "add for example delay=50ms");
        }
        Ok(())
    }
}

/// A link between a left and a right end. As text:
///
/// - `delay=50ms loss=1%`: words `key=value` for both directions; a key at most once.
/// - `down: delay=20ms / up: policer=29pps/5`: words for one direction; they overrule those for both.
/// - `policer=29pps/5 ; t=60s policer=10pps/5 ; t=120s policer=none`: changes at times since the start of the link;
///   what is not named stays.
/// - `seed=7`: once, before all changes.
/// - `nat=...` for both directions means: the left end is behind a NAT.
///
/// The keys are the fields of [`PathSpec`]. The empty text is a link that does nothing. `Display` writes a text that
/// reads back as the same value; serde uses it too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LinkSpec {
    /// The seed of all decisions, if the link names one.
    pub seed: Option<u64>,
    /// From left to right.
    pub up: Timeline,
    /// From right to left.
    pub down: Timeline,
}

impl LinkSpec {
    /// The timeline of `direction`.
    pub fn timeline(&self, direction: Direction) -> &Timeline {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

impl FromStr for LinkSpec {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut link = Self::default();
        let mut time = Duration::ZERO;
        for (place, part) in text.split(';').enumerate() {
            let mut words: Vec<&str> = part.split_whitespace().collect();
            let at = match words.first().and_then(|word| word.strip_prefix("t=")) {
                Some(value) => {
                    words.remove(0);
                    later(value, time)?
                }
                None if place == 0 => Duration::ZERO,
                None => {
                    return Err(LinkError::new(part.trim(), Fault::new("no time", "write ; t=60s loss=1%")));
                }
            };
            time = at;
            link.read_entry(at, &words)?;
        }
        Ok(link)
    }
}

fn later(value: &str, than: Duration) -> Result<Duration, LinkError> {
    let entry = format!("t={value}");
    let at = parse_duration(value).map_err(|fault| LinkError::new(&entry, fault))?;
    if at <= than {
        let remedy = format!("write changes in rising order, after {}", duration_text(than));
        return Err(LinkError::new(&entry, Fault::new("a time too early", remedy)));
    }
    Ok(at)
}

/// A `key=value` and the direction it is for; both if `None`.
struct Word<'a> {
    scope: Option<Direction>,
    text: &'a str,
    key: Key,
    value: &'a str,
}

impl LinkSpec {
    fn read_entry(&mut self, at: Duration, words: &[&str]) -> Result<(), LinkError> {
        let mut settings = self.settings(at, words)?;
        // Those for one direction overrule those for both, wherever they stand.
        settings.sort_by_key(|word| word.scope.is_some());
        for direction in Direction::BOTH {
            let mut path = self.timeline(direction).at(at).clone();
            for word in &settings {
                let left_only = word.key == Key::Nat && direction == Direction::Down;
                if word.scope == Some(direction) || (word.scope.is_none() && !left_only) {
                    word.key.set(&mut path, word.value).map_err(|fault| LinkError::new(word.text, fault))?;
                }
            }
            path.check()?;
            let timeline = match direction {
                Direction::Up => &mut self.up,
                Direction::Down => &mut self.down,
            };
            if at.is_zero() {
                timeline.start = path;
            } else {
                timeline.push(at, path);
            }
        }
        Ok(())
    }

    /// Sorts out directions, keys and values; a seed is taken at once.
    fn settings<'a>(&mut self, at: Duration, words: &[&'a str]) -> Result<Vec<Word<'a>>, LinkError> {
        let mut scope = None;
        let mut settings: Vec<Word> = Vec::new();
        for &word in words {
            let mut text = word;
            for direction in Direction::BOTH {
                let rest =
                    text.strip_prefix(direction.to_string().as_str()).and_then(|rest| rest.strip_prefix(':'));
                if let Some(rest) = rest {
                    (scope, text) = (Some(direction), rest);
                }
            }
            if text == "/" {
                scope = None;
            }
            if matches!(text, "" | "/") {
                continue;
            }
            let fail = |problem: String, remedy: &str| LinkError::new(text, Fault::new(problem, remedy));
            let Some((name, value)) = text.split_once('=') else {
                return Err(fail("no \"=\"".into(), "write key=value, for example delay=50ms"));
            };
            match name {
                "seed" => self.read_seed(at, text, value)?,
                "t" => return Err(fail("a time in mid-entry".into(), "write it first, after a \";\"")),
                _ => {
                    let key = Key::parse(name).map_err(|fault| LinkError::new(text, fault))?;
                    if settings.iter().any(|before| before.key == key && before.scope == scope) {
                        return Err(fail(format!("{name} twice"), "leave one of them"));
                    }
                    if [Key::Queue, Key::Ecn].contains(&key) && !at.is_zero() {
                        return Err(fail(
                            "a management of the queue that changes with time".into(),
                            "write it before the first \";\"",
                        ));
                    }
                    if key == Key::Nat && !at.is_zero() {
                        return Err(fail(
                            "a NAT that changes with time".into(),
                            "name its times: nat=rebind@60s",
                        ));
                    }
                    settings.push(Word { scope, text, key, value });
                }
            }
        }
        Ok(settings)
    }

    fn read_seed(&mut self, at: Duration, text: &str, value: &str) -> Result<(), LinkError> {
        let fail = |problem, remedy| Err(LinkError::new(text, Fault::new(problem, remedy)));
        let Ok(seed) = value.parse() else { return fail("no whole number", "write for example seed=7") };
        if !at.is_zero() {
            return fail("a seed that changes with time", "write it before the first \";\"");
        }
        if self.seed.replace(seed).is_some() {
            return fail("seed twice", "leave one of them");
        }
        Ok(())
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.up.changes.iter().chain(&self.down.changes).map(|change| change.at);
        let mut times: Vec<Duration> = std::iter::once(Duration::ZERO).chain(changes).collect();
        times.sort_unstable();
        times.dedup();
        for at in times {
            let mut words = Vec::new();
            if at.is_zero() {
                words.extend(self.seed.map(|seed| format!("seed={seed}")));
            } else {
                words.push(format!(" ; t={}", duration_text(at)));
            }
            words.extend(sections(self.up.difference(at), &self.down.difference(at)));
            f.write_str(&words.join(" "))?;
        }
        Ok(())
    }
}

/// The words of both directions, without a prefix where they are the same.
fn sections(up: Vec<String>, down: &[String]) -> Vec<String> {
    let is_nat = |word: &String| word.starts_with("nat=");
    let shared = !down.iter().any(is_nat) && up.iter().filter(|word| !is_nat(word)).eq(down);
    if shared {
        return up;
    }
    let section =
        |name: &str, words: &[String]| (!words.is_empty()).then(|| format!("{name}: {}", words.join(" ")));
    let both: Vec<String> = section("up", &up).into_iter().chain(section("down", down)).collect();
    vec![both.join(" / ")]
}

impl TryFrom<String> for LinkSpec {
    type Error = LinkError;

    fn try_from(text: String) -> Result<Self, LinkError> {
        text.parse()
    }
}

impl From<LinkSpec> for String {
    fn from(link: LinkSpec) -> Self {
        link.to_string()
    }
}

impl From<PathSpec> for LinkSpec {
    /// Uses the path in both directions; a NAT is that of the left end.
    fn from(path: PathSpec) -> Self {
        let down = PathSpec { nat: None, ..path.clone() };
        Self { seed: None, up: path.into(), down: down.into() }
    }
}
