//! What a walk through Topic Names in the order of their levels does next.

/// The least character a topic can have: behind a level and everything below it.
const JUST_BEHIND: char = '\u{1}';

/// What follows for the walk from the name it has reached.
pub(crate) enum Verdict<'a> {
    /// It matches.
    Match,
    /// It does not, but the next one may.
    Next,
    /// Nothing that follows can match.
    Done,
    /// Nothing before where this lands can match.
    Leap(Leap<'a>),
}

/// To the first `keep` bytes of the name followed by the levels `then`, or to whatever is just behind those
/// bytes and all below them. That is always behind the name.
pub(crate) struct Leap<'a> {
    keep: usize,
    then: Option<&'a str>,
}

impl Leap<'_> {
    /// Writes into `to` where the leap from `name` lands.
    pub(crate) fn land(&self, name: &str, to: &mut String) {
        to.clear();
        to.push_str(&name[..self.keep]);
        match self.then {
            Some(levels) => to.push_str(levels),
            None => to.push(JUST_BEHIND),
        }
    }
}

/// Where a walk begins that has been `after`: nothing between the two can match. `None`: nothing further can.
///
/// A name decides by itself what can follow it. So a walk that goes on repeats the leap it was about to make,
/// and needs to keep nothing but the name.
pub(crate) fn start(pattern: &str, after: Option<&str>) -> Option<String> {
    let Some(after) = after else {
        return Some(literal_prefix(pattern).to_owned());
    };
    match judge(pattern, after) {
        // In the order of levels no text is between these two.
        Verdict::Match | Verdict::Next => Some(format!("{after}/")),
        Verdict::Done => None,
        Verdict::Leap(leap) => {
            let mut to = String::new();
            leap.land(after, &mut to);
            Some(to)
        }
    }
}

/// The levels of `pattern` before its first wildcard: no match comes before them.
fn literal_prefix(pattern: &str) -> &str {
    match pattern.find(['+', '#']) {
        // `a/#` matches `a` as well.
        Some(at) => pattern[..at].strip_suffix('/').unwrap_or_default(),
        None => pattern,
    }
}

/// What follows from the name that was reached, whatever else there is.
pub(crate) fn judge<'a>(pattern: &'a str, name: &str) -> Verdict<'a> {
    let mut wanted = 0;
    let mut had = 0;
    loop {
        // Both are at the start of a level here.
        let want = level(pattern, wanted);
        if want == "#" || want == "+" {
            if wanted == 0 && name.starts_with('$') {
                // [MQTT-4.7.2-1]
                return Verdict::Leap(Leap { keep: level(name, 0).len(), then: None });
            }
            if want == "#" {
                return Verdict::Match;
            }
        }
        let have = level(name, had);
        if want != "+" && want != have {
            // [MQTT-4.7.3-4] Byte by byte.
            return if want.as_bytes() > have.as_bytes() {
                Verdict::Leap(Leap { keep: had, then: Some(literal_prefix(&pattern[wanted..])) })
            } else if had == 0 {
                Verdict::Done
            } else {
                Verdict::Leap(Leap { keep: had - 1, then: None })
            };
        }
        wanted += want.len();
        had += have.len();
        match (wanted < pattern.len(), had < name.len()) {
            (true, true) => {}
            (false, false) => return Verdict::Match,
            (true, false) if &pattern[wanted..] == "/#" => return Verdict::Match,
            (true, false) => return Verdict::Next,
            (false, true) => return Verdict::Leap(Leap { keep: had, then: None }),
        }
        wanted += 1;
        had += 1;
    }
}

/// The level that starts at byte `at`.
fn level(text: &str, at: usize) -> &str {
    let rest = &text[at..];
    rest.find('/').map_or(rest, |end| &rest[..end])
}
