//! Primitive values: numbers, texts, times, topics.

use std::time::{Duration, SystemTime};

use braid_proto::packet::{PacketId, QoS};
use braid_proto::topic::{TopicFilter, TopicName};

/// Error of the decoding, with the kind of value that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Decoder of a key or a value.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn packet_id(&mut self) -> Result<PacketId, Malformed> {
        PacketId::new(self.u16()?).ok_or(Malformed("a packet identifier"))
    }

    pub(super) fn varint(&mut self) -> Result<usize, Malformed> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(value).map_err(|_| Malformed("a length"));
            }
        }
        Err(Malformed("a length"))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        self.take(length)
    }

    /// Bytes after their length as u32.
    pub(super) fn value(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.u32()?).map_err(|_| Malformed("a length"))?;
        self.take(length)
    }

    pub(super) const fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Malformed> {
        text(self.bytes()?)
    }

    pub(super) const fn rest(&mut self) -> &'a [u8] {
        let rest = self.0;
        self.0 = &[];
        rest
    }

    pub(super) fn rest_text(&mut self) -> Result<&'a str, Malformed> {
        text(self.rest())
    }

    pub(super) fn time(&mut self) -> Result<SystemTime, Malformed> {
        let (seconds, nanoseconds) = (self.u64()?.cast_signed(), self.u32()?);
        join_time(seconds, nanoseconds).ok_or(Malformed("a time"))
    }

    /// Refuses remaining bytes, which this format did not write.
    pub(super) const fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("the end")) }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Malformed("a whole number"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed("the whole length"))?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Joins two parts of a key, whose lengths must add up to its length.
pub(super) fn concat<const N: usize>(first: &[u8], second: &[u8]) -> [u8; N] {
    let mut key = [0; N];
    key[..first.len()].copy_from_slice(first);
    key[first.len()..].copy_from_slice(second);
    key
}

pub(super) fn topic(text: &str) -> Result<TopicName, Malformed> {
    TopicName::parse(text).map_err(|_| Malformed("a topic name"))
}

pub(super) fn filter(text: &str) -> Result<TopicFilter, Malformed> {
    TopicFilter::parse(text).map_err(|_| Malformed("a topic filter"))
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(bytes).map_err(|_| Malformed("text"))
}

pub(super) fn qos(bits: u8) -> Result<QoS, Malformed> {
    QoS::from_bits(bits & QOS).ok_or(Malformed("a QoS"))
}

/// Bits of a QoS, the lowest of the flags.
pub(super) const QOS: u8 = 0b11;

/// `bit` if `set`.
pub(super) const fn flag(bit: u8, set: bool) -> u8 {
    if set { bit } else { 0 }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len());
    out.extend_from_slice(bytes);
}

pub(super) fn put_time(out: &mut Vec<u8>, time: SystemTime) {
    let (seconds, nanoseconds) = split_time(time);
    out.extend_from_slice(&seconds.to_be_bytes());
    out.extend_from_slice(&nanoseconds.to_be_bytes());
}

/// Seconds since 1970, and nanoseconds from there on forward.
pub(crate) fn split_time(time: SystemTime) -> (i64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (since.as_secs().cast_signed(), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let whole = 0_i64.saturating_sub_unsigned(before.as_secs());
            match before.subsec_nanos() {
                0 => (whole, 0),
                nanoseconds => (whole.saturating_sub(1), 1_000_000_000 - nanoseconds),
            }
        }
    }
}

/// `None` for a time beyond the range of `SystemTime`.
pub(crate) fn join_time(seconds: i64, nanoseconds: u32) -> Option<SystemTime> {
    let (epoch, whole) = (SystemTime::UNIX_EPOCH, Duration::from_secs(seconds.unsigned_abs()));
    let second = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second?.checked_add(Duration::from_nanos(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_takes_a_byte_for_every_seven_bits() {
        for (length, bytes) in [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (1 << 32, 5)] {
            let mut out = Vec::new();
            put_varint(&mut out, length);
            assert_eq!(out.len(), bytes, "{length}");
            assert_eq!(Reader::new(&out).varint(), Ok(length));
        }
        assert_eq!(Reader::new(&[0xFF; 9]).varint(), Err(Malformed("a length")));
    }

    #[test]
    fn a_time_keeps_its_nanoseconds_before_1970_too() {
        for (seconds, nanoseconds) in [(0, 0), (1_800_000_000, 999_999_999), (1, 1)] {
            let apart = Duration::new(seconds, nanoseconds);
            for time in [SystemTime::UNIX_EPOCH + apart, SystemTime::UNIX_EPOCH - apart] {
                let mut out = Vec::new();
                put_time(&mut out, time);
                assert_eq!(out.len(), 12);
                assert_eq!(Reader::new(&out).time(), Ok(time));
            }
        }
        let first = join_time(i64::MIN, 0).unwrap();
        assert_eq!(split_time(first), (i64::MIN, 0));
        let never = [i64::MAX.to_be_bytes().as_slice(), &[0xFF; 4]].concat();
        assert_eq!(Reader::new(&never).time(), Err(Malformed("a time")));
    }

    #[test]
    fn truncated_input_is_malformed() {
        assert!(Reader::new(&[5, 1, 2]).bytes().is_err());
        assert!(Reader::new(&[0; 7]).u64().is_err());
        assert!(Reader::new(&[0, 0]).packet_id().is_err());
        assert!(Reader::new(&[1]).end().is_err());
    }
}
