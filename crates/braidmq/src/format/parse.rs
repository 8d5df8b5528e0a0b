use std::str::Chars;

use thiserror::Error;

use super::{Field, Layout, Piece};

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
    let mut literal = Vec::new();
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let piece = match char {
            '%' => parameter(&mut chars)?,
            '@' => match chars.next().ok_or(FormatError::Incomplete)? {
                '@' => Err(b'@'),
                'N' => Ok(Piece::Nanoseconds),
                conversion => Ok(Piece::Time(conversion)),
            },
            '\\' => Err(escape(chars.next().ok_or(FormatError::IncompleteEscape)?)?),
            char => {
                literal.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
        };
        match piece {
            Err(byte) => literal.push(byte),
            Ok(piece) => {
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(piece);
            }
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}

fn escape(char: char) -> Result<u8, FormatError> {
    Ok(match char {
        '\\' => b'\\',
        '0' => 0,
        'a' => 0x07,
        'e' => 0x1B,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 0x0B,
        other => return Err(FormatError::Escape(other)),
    })
}

/// Parses the text after a `%`: flags, width, `.` and maximum width, and a letter. `Err` is a plain byte.
fn parameter(chars: &mut Chars<'_>) -> Result<Result<Piece, u8>, FormatError> {
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
    let field = match next {
        '%' => return Ok(Err(b'%')),
        'I' => return Ok(Ok(Piece::Iso(layout))),
        'U' => return Ok(Ok(Piece::Unix)),
        'j' => return Ok(Ok(Piece::Json { parsed: false })),
        'J' => return Ok(Ok(Piece::Json { parsed: true })),
        'A' => Field::TopicAlias,
        'C' => Field::ContentType,
        'D' => Field::CorrelationData,
        'E' => Field::MessageExpiry,
        'F' => Field::PayloadFormat,
        'l' => Field::PayloadLength,
        'm' => Field::PacketId,
        'P' => Field::UserProperties,
        'p' => Field::Payload,
        'q' => Field::QoS,
        'R' => Field::ResponseTopic,
        'r' => Field::Retain,
        'S' => Field::SubscriptionIds,
        't' => Field::Topic,
        'x' => Field::HexLower,
        'X' => Field::HexUpper,
        other => return Err(FormatError::Parameter(other)),
    };
    Ok(Ok(Piece::Field(field, layout)))
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
