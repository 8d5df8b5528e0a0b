//! Text that others wrote, made harmless: program output, link strings, titles.

use std::fmt::{self, Display, Formatter, Write};

/// `text` on one line for a terminal or a plot: no control characters, nothing that turns the direction of reading.
pub(super) fn line(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { visible(c) }).collect()
}

/// `text` shortened to `longest` characters, with an ellipsis where something is missing.
pub(super) fn shortened(text: &str, longest: usize) -> String {
    let text = line(text);
    if text.chars().count() <= longest {
        return text;
    }
    let mut short: String = text.chars().take(longest.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

/// Breaks `text` at spaces into lines of at most `width` characters; a longer word has a line of its own.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in line(text).split_whitespace() {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= width => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Text in an HTML element or a quoted attribute.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(c)?,
                c => f.write_char(visible(c))?,
            }
        }
        Ok(())
    }
}

/// Control characters as their pictures, and what XML forbids or what reorders its surroundings as U+FFFD.
fn visible(c: char) -> char {
    match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fffe}'
        | '\u{ffff}' => '\u{fffd}',
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_steer_a_terminal_or_a_page() {
        assert_eq!(line("a\x1b[31mb\r\n\tc"), "a␛[31mb␍␊ c");
        assert_eq!(line("a\u{202e}b\u{9b}2J\u{ffff}"), "a\u{fffd}b\u{fffd}2J\u{fffd}");
        assert_eq!(Escaped("<a href='x'>&\"\0\n").to_string(), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;␀\n");
    }

    #[test]
    fn long_text_is_shortened_or_broken_at_spaces() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcd fgh", 6), "abcd…");
        assert_eq!(wrapped("one two three abcdefghij x", 8), ["one two", "three", "abcdefghij", "x"]);
        assert_eq!(wrapped("", 8), Vec::<String>::new());
    }
}
