//! Data representations of MQTT 1.5, read from a slice and written to a buffer.

use bytes::{BufMut, Bytes, BytesMut};

use crate::types::{PacketId, PayloadSlice, Violation};

/// Maximum value of a Variable Byte Integer.
pub(crate) const VARIABLE_BYTE_INTEGER_MAX: usize = 268_435_455;

/// Maximum size of a packet, bytes, fixed header included.
pub(crate) const PACKET_SIZE_MAX: usize = 1 + 4 + VARIABLE_BYTE_INTEGER_MAX;

/// Reader of the fields of one packet.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    source: Source<'a>,
}

/// Memory of the packet, which decides whether large fields are shared or copied.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A read buffer that will be overwritten: fields are copied.
    Borrowed,
    /// An allocation of its own: fields are slices of it.
    Shared(&'a Bytes),
}

impl<'a> Reader<'a> {
    pub(crate) fn new(body: &'a [u8], source: Source<'a>) -> Self {
        Self { rest: body, source }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Violation> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(Violation::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Violation::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Violation> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_be_bytes)
    }

    /// A Variable Byte Integer (MQTT 5, 1.5.5).
    pub(crate) fn variable(&mut self) -> Result<usize, Violation> {
        match variable(self.rest)? {
            Some((value, len)) => {
                check_minimal(value, len)?;
                self.rest = &self.rest[len..];
                Ok(value)
            }
            None => Err(Violation::Truncated),
        }
    }

    /// A UTF-8 Encoded String (MQTT 5, 1.5.4).
    pub(crate) fn string(&mut self) -> Result<&'a str, Violation> {
        let bytes = self.binary()?;
        // Surrogates are ill-formed in UTF-8 too. A byte order mark stays in the text. [MQTT-1.5.4-3]
        let text = std::str::from_utf8(bytes).map_err(|_| Violation::Utf8)?; // [MQTT-1.5.4-1]
        if bytes.contains(&0) {
            return Err(Violation::Utf8Null); // [MQTT-1.5.4-2]
        }
        Ok(text)
    }

    /// Binary Data (MQTT 5, 1.5.6), borrowed.
    pub(crate) fn binary(&mut self) -> Result<&'a [u8], Violation> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }

    /// Binary Data as an owned value.
    pub(crate) fn owned_binary(&mut self) -> Result<Bytes, Violation> {
        let field = self.binary()?;
        Ok(self.own(field))
    }

    /// A Packet Identifier. [MQTT-2.2.1-3]
    pub(crate) fn packet_id(&mut self) -> Result<PacketId, Violation> {
        PacketId::new(self.u16()?).ok_or(Violation::PacketIdZero)
    }

    /// Owned value of a field: shared where the packet has its own allocation.
    pub(crate) fn own(&self, field: &'a [u8]) -> Bytes {
        match self.source {
            Source::Shared(whole) => whole.slice_ref(field),
            Source::Borrowed => Bytes::copy_from_slice(field),
        }
    }

    /// Skips a byte of zero, if it is next: a Property Length without properties.
    pub(crate) fn skip_zero(&mut self) -> bool {
        let rest = self.rest.strip_prefix(&[0]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Takes the rest of the packet as the payload of its message.
    pub(crate) fn payload(&mut self) -> PayloadSlice<'a> {
        let rest = self.rest();
        match self.source {
            Source::Shared(whole) => whole.slice_ref(rest).into(),
            Source::Borrowed => PayloadSlice::Input(rest),
        }
    }

    /// Takes the rest of the packet.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Bytes that are not read.
    pub(crate) fn len(&self) -> usize {
        self.rest.len()
    }

    /// Reader of the next `len` bytes.
    pub(crate) fn part(&mut self, len: usize) -> Result<Self, Violation> {
        Ok(Self { rest: self.take(len)?, source: self.source })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Checks that the packet ends here.
    pub(crate) fn finish(&self) -> Result<(), Violation> {
        if self.rest.is_empty() { Ok(()) } else { Err(Violation::TrailingBytes) }
    }
}

/// Value of the Variable Byte Integer at the start of `bytes`, and its length; `None` when more bytes are needed. The
/// length need not be minimal: MQTT 3 does not demand that.
pub(crate) fn variable(bytes: &[u8]) -> Result<Option<(usize, usize)>, Violation> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(4).enumerate() {
        value |= usize::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if bytes.len() >= 4 { Err(Violation::VariableByteInteger) } else { Ok(None) }
}

/// Checks that the Variable Byte Integer of this value has the minimal length. [MQTT-1.5.5-1]
pub(crate) fn check_minimal(value: usize, width: usize) -> Result<(), Violation> {
    if width == variable_len(value) { Ok(()) } else { Err(Violation::VariableByteInteger) }
}

/// Length of the Variable Byte Integer of this value, bytes.
pub(crate) const fn variable_len(value: usize) -> usize {
    match value {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

/// Variable Byte Integer in its minimal encoding, and its length. [MQTT-1.5.5-1]
pub(crate) fn variable_bytes(mut value: usize) -> ([u8; 4], usize) {
    debug_assert!(value <= VARIABLE_BYTE_INTEGER_MAX);
    let mut bytes = [0; 4];
    let len = variable_len(value);
    for (index, byte) in bytes[..len].iter_mut().enumerate() {
        let more = if index + 1 < len { 0x80 } else { 0 };
        *byte = value.to_le_bytes()[0] & 0x7F | more;
        value >>= 7;
    }
    (bytes, len)
}

/// Writes a Variable Byte Integer.
pub(crate) fn put_variable(out: &mut BytesMut, value: usize) {
    let (bytes, len) = variable_bytes(value);
    out.put_slice(&bytes[..len]);
}

/// Writes a UTF-8 Encoded String; bytes beyond 65,535 are cut at a character boundary.
pub(crate) fn put_string(out: &mut impl BufMut, text: &str) {
    let mut len = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    put_binary(out, &text.as_bytes()[..len]);
}

/// Writes Binary Data; bytes beyond 65,535 are cut.
pub(crate) fn put_binary(out: &mut impl BufMut, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.put_u16(len);
    out.put_slice(&bytes[..usize::from(len)]);
}

/// Writes `body` behind its length as a Variable Byte Integer.
///
/// One byte is reserved for the length, which is not known before and mostly short; the body is moved only when that is
/// not enough.
pub(crate) fn put_measured(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u8(0);
    body(out);
    let len = out.len() - at - 1;
    let (length, width) = variable_bytes(len);
    if width > 1 {
        out.put_bytes(0, width - 1);
        out.copy_within(at + 1..at + 1 + len, at + width);
    }
    out[at..at + width].copy_from_slice(&length[..width]);
}
