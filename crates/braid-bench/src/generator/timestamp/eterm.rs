//! Erlang's external term format, as far as it takes to step over a term.
//!
//! Source: the "External Term Format" chapter of the ERTS manual.

use super::digits;
use crate::emqtt::tag;

/// The number in the field `name` of a map, a binary or an atom; `None` for everything else.
pub(super) fn field(term: &[u8], name: &[u8]) -> Option<u64> {
    let mut reader = Reader(term);
    if reader.byte()? != tag::MAP {
        return None;
    }
    for _ in 0..reader.length32()? {
        if reader.key()? == Some(name) {
            return reader.number();
        }
        reader.skip()?;
    }
    None
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn length16(&mut self) -> Option<usize> {
        let &[high, low] = self.take(2)? else { return None };
        Some(u16::from_be_bytes([high, low]).into())
    }

    fn length32(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.first_chunk::<4>()?;
        usize::try_from(u32::from_be_bytes(*bytes)).ok()
    }

    /// A binary or an atom; `Some(None)` when the key is another term, which is skipped.
    fn key(&mut self) -> Option<Option<&'a [u8]>> {
        let before = self.0;
        let len = match self.byte()? {
            tag::BINARY => self.length32()?,
            tag::SMALL_ATOM | tag::SMALL_ATOM_UTF8 => self.byte()?.into(),
            tag::ATOM | tag::ATOM_UTF8 => self.length16()?,
            _ => {
                self.0 = before;
                self.skip()?;
                return Some(None);
            }
        };
        Some(Some(self.take(len)?))
    }

    fn number(&mut self) -> Option<u64> {
        match self.byte()? {
            tag::SMALL_INTEGER => self.byte().map(u64::from),
            tag::INTEGER => {
                let bytes = self.take(4)?.first_chunk::<4>()?;
                u64::try_from(i32::from_be_bytes(*bytes)).ok()
            }
            tag::SMALL_BIG => {
                let (len, sign) = (self.byte()?, self.byte()?);
                let little_endian = self.take(len.into())?;
                let (low, high) = little_endian.split_at_checked(8).unwrap_or((little_endian, &[]));
                if sign != 0 || high.iter().any(|&byte| byte != 0) {
                    return None;
                }
                Some(low.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
            }
            tag::BINARY => {
                let len = self.length32()?;
                digits(self.take(len)?)
            }
            _ => None,
        }
    }

    /// Steps over one term with all that is in it, however deep.
    fn skip(&mut self) -> Option<()> {
        let mut terms: u64 = 1;
        while terms > 0 {
            terms -= 1;
            let length = match self.byte()? {
                tag::SMALL_INTEGER => 1,
                tag::INTEGER => 4,
                tag::NEW_FLOAT => 8,
                tag::FLOAT => 31,
                tag::NIL => 0,
                tag::SMALL_ATOM | tag::SMALL_ATOM_UTF8 => self.byte()?.into(),
                tag::ATOM | tag::ATOM_UTF8 | tag::STRING => self.length16()?,
                tag::BINARY => self.length32()?,
                tag::SMALL_BIG => usize::from(self.byte()?) + 1,
                tag::LARGE_BIG => self.length32()?.checked_add(1)?,
                container => {
                    let elements = match container {
                        tag::SMALL_TUPLE => self.byte()?.into(),
                        tag::LARGE_TUPLE => self.length32()? as u64,
                        tag::LIST => self.length32()? as u64 + 1,
                        tag::MAP => self.length32()? as u64 * 2,
                        _ => return None,
                    };
                    terms = terms.checked_add(elements)?;
                    0
                }
            };
            self.take(length)?;
        }
        Some(())
    }
}
