//! Lines of files that are accepted as a whole or not at all.

use thiserror::Error;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Reason why a line is no line of text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum LineProblem {
    #[error("the file begins with a byte order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    #[error(
        "the last line has no end, so that the file may be cut off; complete it and end it with a newline"
    )]
    Unended,
    #[error("the line is longer than {0} bytes; shorten it")]
    TooLong(usize),
    #[error("the line is not UTF-8; save the file as UTF-8")]
    NotUtf8,
    #[error("the line contains a NUL byte; save the file as plain text")]
    Null,
    #[error("the line contains a CR that is not before its LF; end lines with LF or CRLF")]
    CarriageReturn,
}

/// Checks the beginning of a file.
///
/// # Errors
/// There is a byte order mark.
pub(crate) fn check_beginning(text: &[u8]) -> Result<(), LineProblem> {
    if text.starts_with(BYTE_ORDER_MARK) { Err(LineProblem::ByteOrderMark) } else { Ok(()) }
}

/// Text of a line without its end, which is LF or CRLF. `longest`: its maximum length in bytes. `must_end`: whether the
/// end may not be missing.
///
/// # Errors
/// The line is no line of text.
pub(crate) fn read_line(bytes: &[u8], longest: usize, must_end: bool) -> Result<&str, LineProblem> {
    let ended = bytes.strip_suffix(b"\n");
    let bytes = ended.map_or(bytes, |bytes| bytes.strip_suffix(b"\r").unwrap_or(bytes));
    if bytes.len() > longest {
        return Err(LineProblem::TooLong(longest));
    }
    let text = str::from_utf8(bytes).map_err(|_| LineProblem::NotUtf8)?;
    if text.contains('\0') {
        return Err(LineProblem::Null);
    }
    if text.contains('\r') {
        return Err(LineProblem::CarriageReturn);
    }
    if ended.is_none() && must_end {
        return Err(LineProblem::Unended);
    }
    Ok(text)
}
