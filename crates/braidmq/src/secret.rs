//! Text of an argument that nothing may show, and passwords from elsewhere.

use std::fmt;
use std::io::{self, BufRead};
use std::ops::Deref;

/// Environment variable with a password.
pub(crate) const VARIABLE: &str = "BRAIDMQ_PASSWORD";

/// Reads a password of up to `most` bytes, which ends with its line or with the source. One that is longer has `most`
/// bytes and one, so that it is not shortened.
pub(crate) fn first_line(source: impl BufRead, most: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    source.take(most as u64 + 1).read_until(b'\n', &mut line)?;
    let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(line.len());
    line.truncate(end);
    Ok(line)
}

/// Text whose `Debug` is hidden: a password, or a URL that may hold one.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Source of one line that does not end, as a terminal: a second read fails.
    struct Open(&'static [u8]);

    impl Read for Open {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("it waits")),
                count => Ok(count),
            }
        }
    }

    #[test]
    fn a_password_ends_with_its_line_and_does_not_wait_for_more() {
        let read =
            |text, most| first_line(io::BufReader::new(Open(text)), most).map_err(|error| error.to_string());
        assert_eq!(read(b"secret\n", 100), Ok(b"secret".to_vec()));
        assert_eq!(read(b"secret\r\nmore", 100), Ok(b"secret".to_vec()));
        assert_eq!(read(b"too long\n", 3), Ok(b"too ".to_vec()));
        assert_eq!(read(b"secret", 100), Err("it waits".to_owned()));
        assert_eq!(first_line(&b"secret"[..], 100).ok(), Some(b"secret".to_vec()));
    }
}
