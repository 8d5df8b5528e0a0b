//! Statements of the MQTT over QUIC contract.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::statement::{Binds, Edition, SUMMARY_LIMIT, SameAs, Standard, Statement, Tested};
use crate::tree::Tree;

/// Our wire contract: prose, in which a statement begins with its number in bold.
pub(super) const FILE: &str = "docs/spec/mqtt-over-quic.md";
/// Exceptions of this implementation, which are no part of the contract.
const EXCEPTIONS: &str = "docs/spec/mqtt-over-quic.toml";

/// Reads the statements of MQTT over QUIC.
///
/// # Errors
/// One line that names the file and the fault in it.
pub(super) fn read(tree: &Tree) -> Result<Standard, String> {
    let text = tree.file(FILE).ok_or(format!("{FILE} is missing"))?;
    let mut exceptions = match tree.file(EXCEPTIONS) {
        Some(file) => exceptions(&file.text)?,
        None => BTreeMap::new(),
    };
    let mut statements: Vec<Statement> = Vec::new();
    for piece in text.text.split("**[BQ").skip(1) {
        let statement = statement(piece, &mut exceptions)?;
        if statements.iter().any(|earlier| earlier.id == statement.id) {
            return Err(format!("{FILE}: {} stands there twice", statement.id));
        }
        statements.push(statement);
    }
    if statements.is_empty() {
        return Err(format!(
            "{FILE}: holds no statement; write each like **[BQ-1]** The server opens no stream."
        ));
    }
    if let Some(id) = exceptions.keys().next() {
        return Err(format!("{EXCEPTIONS}: {FILE} has no {id}"));
    }
    let edition = Edition {
        name: "MQTT over QUIC",
        file: FILE,
        exceptions: EXCEPTIONS,
        tag_prefix: "BQ-",
        tested: Tested::Each,
    };
    Ok(Standard { edition, statements })
}

/// Parses the text between one `**[BQ` and the next, such as `-31]** FIN never ...`, and takes the statement's
/// exception.
fn statement(piece: &str, exceptions: &mut BTreeMap<String, String>) -> Result<Statement, String> {
    let (number, words) = piece.split_once("]**").unwrap_or((piece.lines().next().unwrap_or_default(), ""));
    let id = format!("BQ{number}");
    if !is_id(&id) {
        return Err(format!("{FILE}: `{id}` is no statement's number; write it like **[BQ-31]**"));
    }
    let summary = summary(words);
    if summary.is_empty() {
        return Err(format!("{FILE}: {id} says nothing; write its words behind the number"));
    }
    let exception = exceptions.remove(&id);
    Ok(Statement { id, binds: Binds::Worded, summary, same_as: SameAs::Nothing, exception })
}

/// Whether the text is `BQ-` and a decimal number without leading zeros.
fn is_id(id: &str) -> bool {
    let Some(number) = id.strip_prefix("BQ-") else { return false };
    number.parse::<u16>().is_ok_and(|parsed| parsed.to_string() == number)
}

/// The first sentence of the statement's own paragraph, or as much of it as a list has room for.
fn summary(words: &str) -> String {
    let paragraph = words.lines().map(str::trim).enumerate();
    let own = paragraph
        .take_while(|(at, line)| *at == 0 || !(line.is_empty() || line.starts_with(['-', '#', '|'])));
    let own = own.flat_map(|(_, line)| line.split_whitespace()).collect::<Vec<_>>().join(" ");
    let sentence = own.split_inclusive(". ").next().unwrap_or_default().trim_end();
    if sentence.chars().count() <= SUMMARY_LIMIT {
        return sentence.to_owned();
    }
    let head: String = sentence.chars().take(SUMMARY_LIMIT - 4).collect();
    format!("{} ...", head.rsplit_once(' ').map_or(head.as_str(), |(whole, _)| whole))
}

/// The reason of each exception by its statement's number.
fn exceptions(text: &str) -> Result<BTreeMap<String, String>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        exception: Vec<Exception>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Exception {
        id: String,
        reason: String,
    }
    let File { exception: listed } =
        toml::from_str(text).map_err(|error| format!("{EXCEPTIONS}: {error}"))?;
    let mut reasons = BTreeMap::new();
    for Exception { id, reason } in listed {
        if reason.trim().is_empty() {
            return Err(format!("{EXCEPTIONS}: the exception of {id} has no reason"));
        }
        if reasons.contains_key(&id) {
            return Err(format!("{EXCEPTIONS}: {id} is listed twice"));
        }
        reasons.insert(id, reason);
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_texts(contract: &str, exceptions: &str) -> Result<Vec<Statement>, String> {
        let tree = Tree::of(&[(FILE, contract), (EXCEPTIONS, exceptions)]);
        read(&tree).map(|standard| standard.statements)
    }

    #[test]
    fn a_statement_is_a_number_in_bold_and_its_first_sentence() {
        let contract = "\
# Title
See [BQ-3].

- **[BQ-1]** The port is `14567`, unless
  it is another. It may be said twice.
- **[BQ-30]** FIN, as [BQ-1] says: no 3.1 client
  - sends it.
## Next **[BQ-2]** Last
| a | b |
";
        let statements = read_texts(contract, "").unwrap();
        let found: Vec<_> = statements.iter().map(|found| (&*found.id, &*found.summary)).collect();
        let expected = [
            ("BQ-1", "The port is `14567`, unless it is another."),
            ("BQ-30", "FIN, as [BQ-1] says: no 3.1 client"),
            ("BQ-2", "Last"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_long_sentence_is_cut_at_a_word() {
        let long = format!("**[BQ-1]** {}", "words and ".repeat(20));
        let summary = read_texts(&long, "").unwrap().remove(0).summary;
        assert_eq!(summary, "words and ".repeat(11) + "words ...");
        let exact = "x".repeat(SUMMARY_LIMIT - 1) + ".";
        assert_eq!(read_texts(&format!("**[BQ-1]** {exact} More."), "").unwrap()[0].summary, exact);
    }

    #[test]
    fn each_mistake_is_one_clear_line() {
        let error = |contract: &str, exceptions: &str| read_texts(contract, exceptions).err().unwrap();
        for wrong in ["BQ-x", "BQ-01", "BQ31", "BQ-1], [BQ-2", "BQ-1.2"] {
            let contract = format!("- **[BQ-4]** Some.\n- **[{wrong}]** Some.\n");
            let expected = format!("{FILE}: `{wrong}` is no statement's number; write it like **[BQ-31]**");
            assert_eq!(error(&contract, ""), expected);
        }
        assert!(
            error("- **[BQ-1] Some.\n", "").starts_with(&format!("{FILE}: `BQ-1] Some.` is no statement"))
        );
        assert_eq!(
            error("- **[BQ-1]** A.\n- **[BQ-1]** B.\n", ""),
            format!("{FILE}: BQ-1 stands there twice")
        );
        let silent = format!("{FILE}: BQ-1 says nothing; write its words behind the number");
        assert_eq!(error("- **[BQ-1]**\n\nLater.\n", ""), silent);
        assert!(error("[BQ-1] is not bold.\n", "").starts_with(&format!("{FILE}: holds no statement")));
        assert_eq!(read(&Tree::default()).err().unwrap(), format!("{FILE} is missing"));

        let exception =
            |id: &str, reason: &str| format!("[[exception]]\nid = \"{id}\"\nreason = \"{reason}\"\n");
        let contract = "**[BQ-1]** Some.";
        let wrong = |exceptions: &str| error(contract, exceptions);
        assert_eq!(wrong(&exception("BQ-2", "x")), format!("{EXCEPTIONS}: {FILE} has no BQ-2"));
        assert_eq!(
            wrong(&exception("BQ-1", " ")),
            format!("{EXCEPTIONS}: the exception of BQ-1 has no reason")
        );
        let twice = exception("BQ-1", "x").repeat(2);
        assert_eq!(wrong(&twice), format!("{EXCEPTIONS}: BQ-1 is listed twice"));
        assert!(wrong("[[exception]]\nid = \"BQ-1\"\nwhy = \"x\"\n").contains("unknown field `why`"));
        let read = read_texts(contract, &exception("BQ-1", "It rains.")).unwrap();
        assert_eq!(read[0].exception.as_deref(), Some("It rains."));
    }
}
