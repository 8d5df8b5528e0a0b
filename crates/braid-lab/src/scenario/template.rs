//! Placeholders of command lines and files.

use std::collections::BTreeMap;

/// What `{NAME}` stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placeholders(BTreeMap<String, String>);

impl Placeholders {
    pub(crate) fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Replaces every `{name}` of a known name, in what comes of that too. Other braces stay: files are full of them.
    pub(crate) fn fill(&self, text: &str) -> String {
        // A value may name other placeholders, to this depth.
        const DEPTH: usize = 4;
        let mut text = text.to_owned();
        for _ in 0..DEPTH {
            let filled = self.fill_once(&text);
            if filled == text {
                break;
            }
            text = filled;
        }
        text
    }

    fn fill_once(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            let (before, from) = rest.split_at(open);
            out.push_str(before);
            let value = from.find('}').and_then(|close| {
                let value = self.0.get(from.get(1..close)?)?;
                Some((value, from.get(close + 1..)?))
            });
            match value {
                Some((value, after)) => {
                    out.push_str(value);
                    rest = after;
                }
                None => {
                    out.push('{');
                    rest = from.get(1..).unwrap_or_default();
                }
            }
        }
        out.push_str(rest);
        out
    }

    /// The first `{name}` of a command line that nothing stands for.
    pub(crate) fn unknown(text: &str) -> Option<&str> {
        let open = text.find('{')?;
        let close = text.get(open..)?.find('}')? + open;
        text.get(open + 1..close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_filled_and_other_braces_stay() {
        let mut placeholders = Placeholders::default();
        placeholders.set("broker", "192.168.200.1");
        placeholders.set("to", "-h {broker}");
        let filled = placeholders.fill(r#"{"a": {to}, "b": "{x}"} {"#);
        assert_eq!(filled, r#"{"a": -h 192.168.200.1, "b": "{x}"} {"#);
        assert_eq!(Placeholders::unknown("a {b} c"), Some("b"));
        assert_eq!(Placeholders::unknown("a c"), None);
    }

    #[test]
    fn a_placeholder_of_itself_ends() {
        let mut placeholders = Placeholders::default();
        placeholders.set("a", "{a}{a}");
        assert!(placeholders.fill("{a}").len() < 1000);
    }
}
