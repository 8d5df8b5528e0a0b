//! Untrusted text for a terminal.

use std::borrow::Cow;

/// Escapes control characters, and characters that change the direction of text, as `\u{1b}`: topics and reasons come
/// from other clients.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(2 * text.len());
    for character in text.chars() {
        if is_control(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, shown) in [
            ("a/\u{1b}[2J", "a/\\u{1b}[2J"),
            ("a\nb\r\t", "a\\u{a}b\\u{d}\\u{9}"),
            ("\u{7f}\u{9b}31m", "\\u{7f}\\u{9b}31m"),
            ("x\u{202e}y", "x\\u{202e}y"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in ["a/b c", "ä/日本/e\u{301}", "\"\\", ""] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
