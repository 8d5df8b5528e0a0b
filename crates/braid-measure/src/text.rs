//! Sanitising of text from outside (program output, link strings, titles) for terminals, HTML and SVG.

use std::fmt::{self, Display, Formatter, Write};

/// `text` on one line for a terminal or a chart, without control characters and marks that change the reading
/// direction.
#[must_use]
pub fn line(text: &str) -> String {
    text.chars().map(|c| if c == '\t' { ' ' } else { visible(c) }).collect()
}

/// `text` shortened to `longest` characters, with an ellipsis where it was cut.
#[must_use]
pub fn shortened(text: &str, longest: usize) -> String {
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
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
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

/// Text escaped for an element or a quoted attribute of HTML and SVG.
pub struct Escaped<'a>(pub &'a str);

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

/// Control characters as their symbols; characters that XML forbids or that reorder their surroundings as U+FFFD.
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
    fn control_characters_and_markup_are_replaced() {
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
