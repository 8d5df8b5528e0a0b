//! Parser of configuration text, whose errors name the place and the remedy.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use thiserror::Error;

/// Refusal of a configuration: one line with the place and the remedy.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// `place` is a file and line, an option or an environment variable.
    #[error("{place}: {problem}")]
    Refused { place: String, problem: String },
}

impl ConfigError {
    /// Adds file and line to the refusal of a key that the file has.
    pub(crate) fn in_file(self, path: Option<&Path>) -> Self {
        let Self::Refused { place, problem } = self else { return self };
        let line = path.and_then(|path| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(format!("{}:{}: {place}", path.display(), line_of(&text, &place)?))
        });
        Self::Refused { place: line.unwrap_or(place), problem }
    }
}

/// Line of a key such as `http.listen`; `None` if the text has it not.
fn line_of(text: &str, place: &str) -> Option<usize> {
    let document = toml::de::DeTable::parse(text).ok()?;
    let key = place.split(' ').next().unwrap_or(place);
    let (mut table, mut start) = (document.get_ref(), None);
    let mut segments = key.split('.').peekable();
    while let Some(segment) = segments.next() {
        let (name, value) = table.get_key_value(segment)?;
        start = Some(name.span().start);
        match value.get_ref() {
            toml::de::DeValue::Table(inner) => table = inner,
            _ if segments.peek().is_some() => return None,
            _ => {}
        }
    }
    start.map(|start| 1 + text[..start].matches('\n').count())
}

/// Reads a configuration file and checks every key of it against `T`.
///
/// # Errors
/// The file cannot be read, or is not valid.
pub(crate) fn read_file<T: DeserializeOwned>(path: &Path) -> Result<toml::Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    parse_text::<T>(&text, path)
}

/// Parses the text of a configuration file and checks every key of it against `T`.
///
/// # Errors
/// The text is not valid. The error names file and line.
pub(crate) fn parse_text<T: DeserializeOwned>(text: &str, path: &Path) -> Result<toml::Table, ConfigError> {
    let refused = |error: &toml::de::Error| {
        let line =
            error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
        ConfigError::Refused {
            place: format!("{}:{line}", path.display()),
            problem: explain(error.message()),
        }
    };
    toml::from_str::<T>(text).map_err(|error| refused(&error))?;
    toml::from_str(text).map_err(|error| refused(&error))
}

/// Reads one `KEY=VALUE` of the command line or the environment, checked against `T`. The value is TOML if it parses as
/// that, and otherwise text.
pub(crate) fn read_setting<T: DeserializeOwned>(
    place: &str,
    key: &str,
    value: &str,
) -> Result<toml::Table, ConfigError> {
    let refused = |problem: &str| ConfigError::Refused { place: place.to_owned(), problem: explain(problem) };
    let parsed = toml::from_str::<toml::Table>(&format!("value = {value}"))
        .ok()
        .and_then(|mut table| table.remove("value"));
    // Text needs no quotes: `--set log.level=info`.
    let candidates = [parsed, Some(toml::Value::String(value.to_owned()))];
    // The error of the value as TOML says more than that of the value as text.
    let mut problem = None;
    for candidate in candidates.into_iter().flatten() {
        let table = nest(key, candidate);
        match table.clone().try_into::<T>() {
            Ok(_) => return Ok(table),
            Err(error) => {
                problem.get_or_insert_with(|| error.message().to_owned());
            }
        }
    }
    let problem = problem.unwrap_or_default();
    if problem.contains("expected a sequence") {
        return Err(refused(&format!("write a list: [\"{value}\"]")));
    }
    Err(refused(&problem))
}

fn nest(key: &str, value: toml::Value) -> toml::Table {
    let (first, rest) = key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    let value = match rest {
        Some(rest) => toml::Value::Table(nest(rest, value)),
        None => value,
    };
    toml::Table::from_iter([(first.to_owned(), value)])
}

/// The deserializer's message on one line, with the nearest known key where the key is unknown.
fn explain(message: &str) -> String {
    let message = message.lines().collect::<Vec<_>>().join(" ");
    let mut quoted = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(unknown)) => {
            let likeness = |known: &&str| strsim::normalized_damerau_levenshtein(known, unknown);
            let nearest = quoted.max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
            match nearest {
                Some(nearest) if likeness(&nearest) > 0.4 => {
                    format!("unknown key `{unknown}`; did you mean `{nearest}`?")
                }
                _ => format!("unknown key `{unknown}`"),
            }
        }
        // Only rules of priority are a list of sections.
        _ if message == "invalid type: map, expected a sequence" => {
            "write each rule with two brackets: [[priority]]".to_owned()
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn file_error(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let name = file.path().display().to_string();
        read_file::<Config>(file.path()).unwrap_err().to_string().replace(&name, "FILE")
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
        assert_eq!(
            file_error("data_dir = \"x\"\n\n[listeners]\ntpc = []\n"),
            "FILE:4: unknown key `tpc`; did you mean `tcp`?"
        );
        assert_eq!(file_error("[limit]\n"), "FILE:1: unknown key `limit`; did you mean `limits`?");
    }

    #[test]
    fn bad_values_and_bad_toml_are_named_with_their_line() {
        assert!(file_error("\nallow_anonymous = 1\n").starts_with("FILE:2: invalid type: integer `1`"));
        assert!(file_error("[listeners]\ntcp = [\"localhost\"]\n").starts_with("FILE:2: "));
        assert!(file_error("a = \n").starts_with("FILE:1: "));
    }

    /// Whatever a file contains, it is a configuration or an error of one line: cut at each byte, or with
    /// random changes.
    #[test]
    fn any_file_is_a_configuration_or_an_error_of_one_line() {
        let text = "data_dir = 'd'  # files\n[listeners]\ntcp = [ '127.0.0.1:1' ]\n[[listener]]\ntransport = \"tls\"\n\
                    bind = '[::1]:2'\nproxy_trusted = ['10.0.0.0/8']\n[[authenticator]]\nkind = 'jwt'\n\
                    secret_file = 's'\nchecks = { a = '%u' }\n[acl]\nfile = 'é'\n[[priority]]\nfilter = 'a/#'\n\
                    priority = 200\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).unwrap();
            let read = read_file::<Config>(file.path());
            let error = read.map_or_else(|error| error.to_string(), |_| String::new());
            assert!(!error.contains('\n'), "{error}");
            error.is_empty()
        };
        let accepted = (0..text.len()).filter(|length| read(&text.as_bytes()[..*length])).count();
        assert!(accepted > 0 && accepted < text.len());
        assert!(read(text.replace('\n', "\r\n").as_bytes()) && read(text.replace(' ', "\t").as_bytes()));
        let with_mark = ["\u{feff}", text].concat();
        read(with_mark.as_bytes());
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            read(&bytes);
        }
    }

    #[test]
    fn the_error_of_a_priority_rule_names_its_line() {
        for (rule, expected) in [
            ("filter = 'a/#/b'\npriority = 1", "FILE:4: \"a/#/b\": '#' must stand alone in the last level"),
            ("filter = ''\npriority = 1", "FILE:4: \"\": a topic must have at least one character"),
            ("filter = '$share/g/a/+'\npriority = 1", "a rule cannot have; write \"a/+\""),
            (
                "filter = 'a'\npriority = 65536",
                "FILE:5: invalid value: integer `65536`, expected a priority from 0",
            ),
            (
                "filter = 'a'\npriority = -1",
                "FILE:5: invalid value: integer `-1`, expected a priority from 0",
            ),
            (
                "filter = 'a'\npriority = 'high'",
                "FILE:5: invalid type: string \"high\", expected a priority from 0",
            ),
            ("filter = 'a'", "FILE:3: missing field `priority`"),
            ("filter = 'a'\npriority = 1\nprio = 2", "FILE:6: unknown key `prio`; did you mean `priority`?"),
        ] {
            let error = file_error(&format!("[log]\n\n[[priority]]\n{rule}\n"));
            assert!(error.contains(expected), "{rule:?} says: {error}");
        }
        let error = file_error("[priority]\nfilter = 'a'\npriority = 1\n");
        assert_eq!(error, "FILE:1: write each rule with two brackets: [[priority]]");
    }

    #[test]
    fn the_refusal_of_a_value_names_the_line_of_its_key() {
        let text = "[http]\nlisten = [\n]\n[http.api]\nlisten = []\n[[http.route]]\npath = '/a'\n[tls]\n";
        for (place, expected) in [
            ("http.listen", Some(2)),
            ("http.api.listen", Some(5)),
            ("http.api", Some(4)),
            ("http.route /a", Some(6)),
            ("http.route.path", None),
            ("http.tls", None),
            ("listener 127.0.0.1:1 tag", None),
        ] {
            assert_eq!(line_of(text, place), expected, "{place}");
        }
        assert_eq!(line_of("http.api.listen = []", "http.api.listen"), Some(1));
        assert_eq!(line_of("= not TOML", "http"), None);
    }

    #[test]
    fn settings_need_no_quotes_and_are_checked() {
        let level = read_setting::<Config>("--set", "log.level", "debug").unwrap();
        assert_eq!(level["log"]["level"].as_str(), Some("debug"));
        let number = read_setting::<Config>("--set", "mqtt.receive_maximum", "7").unwrap();
        assert_eq!(number["mqtt"]["receive_maximum"].as_integer(), Some(7));
        let unknown = read_setting::<Config>("--set", "mqtt.recieve_maximum", "7").unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "--set: unknown key `recieve_maximum`; did you mean `receive_maximum`?"
        );
        assert!(read_setting::<Config>("--set", "mqtt.receive_maximum", "70000").is_err());
    }
}
