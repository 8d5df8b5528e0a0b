//! JSON, as far as it takes to step over a value. What is stepped over is not checked: this reads a measurement's
//! payloads, and those that are not JSON just have no time.

use super::digits;

/// The number in the field `name` of an object. A name that the payload writes with escapes is not found.
pub(super) fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let mut reader = Reader { text, at: 0 };
    reader.expect(b'{')?;
    loop {
        let is_wanted = reader.string()? == name;
        reader.expect(b':')?;
        if is_wanted {
            return reader.number();
        }
        reader.skip()?;
        reader.expect(b',')?;
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// The next byte that is no white space, which stays.
    fn peek(&mut self) -> Option<u8> {
        self.at += self.rest().iter().position(|byte| !byte.is_ascii_whitespace())?;
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// Text between quotes, with its escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.at;
        loop {
            self.at += self.rest().iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
            if self.text.get(self.at) == Some(&b'"') {
                let found = self.text.get(start..self.at);
                self.at += 1;
                return found;
            }
            self.at += 2;
        }
    }

    fn number(&mut self) -> Option<u64> {
        if self.peek()? == b'"' {
            return digits(self.string()?);
        }
        let len = self.rest().iter().position(|byte| !byte.is_ascii_digit())?;
        // A fraction or an exponent would be another number than these digits.
        let is_whole = !matches!(self.rest().get(len), Some(b'.' | b'e' | b'E'));
        if is_whole { digits(self.rest().get(..len)?) } else { None }
    }

    /// Steps over one value with all that is in it, however deep.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => drop(self.string()?),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => self.at += 1,
                _ => {
                    let len = self.rest().iter().position(|byte| {
                        byte.is_ascii_whitespace() || matches!(byte, b',' | b':' | b'}' | b']' | b'"')
                    })?;
                    if len == 0 {
                        return None;
                    }
                    self.at += len;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}
