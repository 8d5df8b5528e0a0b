//! Parser of format strings.

use std::str::Chars;

use thiserror::Error;

use super::{Layout, Piece};

/// Error of a format string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum FormatError {
    /// `%` or `@` at the end.
    #[error("the format ends in the middle of a sequence: write %% or @@ for the character itself")]
    Incomplete,
    /// `\` at the end.
    #[error("the format ends in the middle of an escape: write \\\\ for the character itself")]
    IncompleteEscape,
    /// `%` with an unknown letter.
    #[error("%{0} is no parameter: use one of A C D E F I j J l m p P q R r S t U x X, or %%")]
    Parameter(char),
    /// `\` with an unknown character.
    #[error("\\{0} is no escape: use one of 0 a e n r t v, or \\\\")]
    Escape(char),
    /// A width out of range.
    #[error("a field of more than 10,000 characters is too wide")]
    TooWide,
}

const WIDEST: usize = 10_000;

pub(super) fn parse(text: &str) -> Result<Vec<Piece>, FormatError> {
    let mut pieces = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        pieces.push(match char {
            '%' => parameter(&mut chars)?,
            '@' => match chars.next().ok_or(FormatError::Incomplete)? {
                '@' => Piece::Literal('@'),
                'N' => Piece::Nanoseconds,
                conversion => Piece::Time(conversion),
            },
            '\\' => Piece::Literal(escape(chars.next().ok_or(FormatError::IncompleteEscape)?)?),
            char => Piece::Literal(char),
        });
    }
    Ok(pieces)
}

fn escape(char: char) -> Result<char, FormatError> {
    Ok(match char {
        '\\' => '\\',
        '0' => '\0',
        'a' => '\x07',
        'e' => '\x1B',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0B',
        other => return Err(FormatError::Escape(other)),
    })
}

/// Parses the text after a `%`: flags, width, `.` and maximum width, and a letter.
fn parameter(chars: &mut Chars<'_>) -> Result<Piece, FormatError> {
    let mut layout = Layout::default();
    let mut next = chars.next().ok_or(FormatError::Incomplete)?;
    while matches!(next, '0' | '-') {
        layout.zero |= next == '0';
        layout.left |= next == '-';
        next = chars.next().ok_or(FormatError::Incomplete)?;
    }
    layout.width = width(&mut next, chars)?.unwrap_or(0);
    if next == '.' {
        next = chars.next().ok_or(FormatError::Incomplete)?;
        layout.most = width(&mut next, chars)?;
    }
    Ok(match next {
        '%' => Piece::Literal('%'),
        'U' => Piece::Unix,
        'j' => Piece::Json { is_parsed: false },
        'J' => Piece::Json { is_parsed: true },
        letter => Piece::parameter(letter, layout).ok_or(FormatError::Parameter(letter))?,
    })
}

/// Parses a number at `next`, and moves `next` to its end.
fn width(next: &mut char, chars: &mut Chars<'_>) -> Result<Option<usize>, FormatError> {
    let mut width = None;
    while let Some(digit) = next.to_digit(10) {
        let value = width.unwrap_or(0) * 10 + digit as usize;
        if value > WIDEST {
            return Err(FormatError::TooWide);
        }
        width = Some(value);
        *next = chars.next().ok_or(FormatError::Incomplete)?;
    }
    Ok(width)
}
