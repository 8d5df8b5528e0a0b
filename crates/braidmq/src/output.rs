//! Standard output and the progress line on standard error.

use std::io::{self, ErrorKind, Write};

/// Writes to standard output. A reader that closed the pipe is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Replaces the line of the terminal on standard error, which may be closed; an empty text clears it.
pub(crate) fn replace_line(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
}
