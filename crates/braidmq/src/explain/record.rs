//! The JSON values in a file: a JSON text sequence (RFC 7464), JSON text after JSON text, or one JSON text.

use serde_json::{Deserializer, Value};

const RECORD_SEPARATOR: u8 = 0x1E;

/// Why a record cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadRecord {
    /// `line` counts from 1.
    NotJson { line: usize, problem: String },
    /// The last record of several ends in the middle, as after a crash of who wrote it.
    CutOff,
}

/// The values in order; ends after the first error.
pub(super) fn records(bytes: &[u8]) -> impl Iterator<Item = Result<Value, BadRecord>> {
    let mut line = 0;
    let mut texts = bytes.split(|byte| *byte == RECORD_SEPARATOR).peekable();
    let sequence = std::iter::from_fn(move || {
        let text = texts.next()?;
        let first_line = line;
        line += text.iter().filter(|byte| **byte == b'\n').count();
        Some((text, first_line, texts.peek().is_none()))
    });
    let mut some = false;
    let mut failed = false;
    sequence
        .flat_map(|(text, first_line, last)| {
            Deserializer::from_slice(text).into_iter().map(move |value| (value, first_line, last))
        })
        .map_while(move |(value, first_line, last)| {
            if failed {
                return None;
            }
            let record = value.map_err(|error| {
                failed = true;
                if error.is_eof() && last && some {
                    return BadRecord::CutOff;
                }
                let position = format!(" at line {} column {}", error.line(), error.column());
                let problem = error.to_string().replace(&position, "");
                BadRecord::NotJson { line: first_line + error.line().max(1), problem }
            });
            some = true;
            Some(record)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Vec<Result<Value, BadRecord>> {
        records(text.as_bytes()).collect()
    }

    #[test]
    fn a_sequence_lines_and_one_document_are_the_same() {
        let both = vec![Ok(json!({"a": 1})), Ok(json!({"b": [2]}))];
        assert_eq!(read("\u{1e}{\"a\":1}\n\u{1e}{\"b\":[2]}\n"), both);
        assert_eq!(read("\u{1e}{\"a\":\n1}\u{1e}\u{1e}{\"b\":[2]}"), both);
        assert_eq!(read("{\"a\":1}\n{\"b\":[2]}\n"), both);
        assert_eq!(read("{\n \"a\": 1\n}\n"), both[..1]);
        assert_eq!(read(" \n"), []);
    }

    #[test]
    fn the_line_that_is_not_json_is_named_and_the_last() {
        let bad = |line| vec![Err(BadRecord::NotJson { line, problem: "expected ident".into() })];
        assert_eq!(read("nonsense"), bad(1));
        assert_eq!(read("\u{1e}{}\n\u{1e}{}\n\u{1e}nonsense\n\u{1e}{}\n")[2..], bad(3));
        assert_eq!(read("{}\n{}\n\nnonsense\n{}\n")[2..], bad(4));
    }

    #[test]
    fn a_last_record_that_is_cut_off_is_told_from_a_bad_one() {
        assert_eq!(read("\u{1e}{}\n\u{1e}{\"time\":1")[1..], [Err(BadRecord::CutOff)]);
        assert_eq!(read("{}\n{\"time\":")[1..], [Err(BadRecord::CutOff)]);
        assert!(matches!(read("{\"time\":")[..], [Err(BadRecord::NotJson { line: 1, .. })]));
        assert!(matches!(read("\u{1e}{}\n\u{1e}{\"a\"\u{1e}{}")[1], Err(BadRecord::NotJson { line: 2, .. })));
    }
}
