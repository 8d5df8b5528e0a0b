//! Limit of the frames on a stream of HTTP/3 that a receiver buffers whole: all but DATA.
//!
//! The `h3` crate (0.0.8) waits for the whole of a HEADERS, SETTINGS or unknown frame, however long. Behind this filter
//! it sees no frame above the limit: an unknown one is discarded, as RFC 9114, section 9 demands, and HEADERS become
//! a field section above the limit of any server, which `h3` answers with 431. Empty DATA frames are left out.

use bytes::{Bytes, BytesMut};

/// Largest payload of a frame that is passed on, bytes.
const LIMIT: u64 = 64 << 10;

/// Field lines in place of a HEADERS frame above the limit. Each counts 38 bytes (RFC 9114, 4.2.2): together 76 KiB.
const FIELD_LINES: usize = 2048;

/// Field line of the static table of QPACK: `:path /`.
const FIELD_LINE: u8 = 0xc1;

const DATA: u64 = 0x00;
const HEADERS: u64 = 0x01;
/// WEBTRANSPORT_STREAM, the only frame without a length; `h3` refuses it.
const WEBTRANSPORT: u64 = 0x41;
/// Type of a unidirectional stream with frames (RFC 9114, 6.2.1).
const CONTROL: u64 = 0x00;

/// Filter for the bytes of one stream, in their order.
pub(super) struct FrameLimit {
    state: State,
    /// Bytes of a header that is not complete.
    header: BytesMut,
}

enum State {
    /// In the type of a unidirectional stream.
    StreamType,
    /// In type or length of a frame.
    FrameHeader,
    /// In a frame that is passed on: bytes that are left.
    Passing(u64),
    /// In a frame that is discarded.
    Discarding(u64),
    /// The rest of the stream has no frames.
    Rest,
}

impl FrameLimit {
    /// Filter of a request stream.
    pub(super) fn bidi() -> Self {
        Self { state: State::FrameHeader, header: BytesMut::new() }
    }

    /// Filter of a unidirectional stream.
    pub(super) fn uni() -> Self {
        Self { state: State::StreamType, header: BytesMut::new() }
    }

    /// The bytes that take the place of `chunk`, the next of the stream; maybe none.
    pub(super) fn filter(&mut self, mut chunk: Bytes) -> Bytes {
        if let State::Passing(left) = &mut self.state
            && *left >= chunk.len() as u64
        {
            *left -= chunk.len() as u64;
            return chunk;
        }
        let mut passed = BytesMut::with_capacity(chunk.len());
        while !chunk.is_empty() {
            self.step(&mut chunk, &mut passed);
        }
        passed.freeze()
    }

    /// The bytes that were held back when the stream ends.
    pub(super) fn finish(&mut self) -> Bytes {
        self.header.split().freeze()
    }

    /// Tests whether the payload of a frame is incomplete: its stream must not end here.
    pub(super) fn is_in_payload(&self) -> bool {
        matches!(self.state, State::Passing(1..) | State::Discarding(1..))
    }

    /// Moves on by one header or a part of a payload.
    fn step(&mut self, chunk: &mut Bytes, passed: &mut BytesMut) {
        let take = |left: u64, chunk: &mut Bytes| {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            chunk.split_to(length)
        };
        match &mut self.state {
            State::Rest => passed.extend_from_slice(&std::mem::take(chunk)),
            State::Passing(0) | State::Discarding(0) => self.state = State::FrameHeader,
            State::Passing(left) => {
                let part = take(*left, chunk);
                *left -= part.len() as u64;
                passed.extend_from_slice(&part);
            }
            State::Discarding(left) => {
                let part = take(*left, chunk);
                *left -= part.len() as u64;
            }
            State::StreamType | State::FrameHeader => {
                self.header.extend_from_slice(&chunk.split_to(1));
                let Some((first, rest)) = varint(&self.header) else { return };
                let next = match self.state {
                    State::StreamType if first == CONTROL => State::FrameHeader,
                    State::StreamType => State::Rest,
                    _ if first == WEBTRANSPORT => State::Rest,
                    _ => {
                        let Some((length, _)) = varint(rest) else { return };
                        if first == DATA && length == 0 {
                            // `h3` takes it for the end of the body.
                            self.header.clear();
                            State::FrameHeader
                        } else if first == DATA || length <= LIMIT {
                            State::Passing(length)
                        } else {
                            self.header.clear();
                            if first == HEADERS {
                                put_large_field_section(passed);
                            }
                            State::Discarding(length)
                        }
                    }
                };
                passed.extend_from_slice(&self.header.split());
                self.state = next;
            }
        }
    }
}

/// A HEADERS frame with a field section of 76 KiB in 2 KiB.
fn put_large_field_section(passed: &mut BytesMut) {
    // Type, length 2050 in two bytes, and Required Insert Count and Base of QPACK: no dynamic table.
    passed.extend_from_slice(&[1, 0x48, 2, 0, 0]);
    passed.resize(passed.len() + FIELD_LINES, FIELD_LINE);
}

/// Integer of RFC 9000, section 16, and the bytes behind it; `None` if it is not complete.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let length = 1 << (bytes.first()? >> 6);
    let (number, rest) = bytes.split_at_checked(length)?;
    let value = number.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some((value & (u64::MAX >> (66 - 8 * length)), rest))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::cast_possible_truncation, reason = "the ranges of the match")]

    use super::*;

    fn encode(value: u64) -> Vec<u8> {
        match value {
            0..0x40 => vec![value as u8],
            0x40..0x4000 => (0x4000 | value as u16).to_be_bytes().to_vec(),
            0x4000..0x4000_0000 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
            _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
        }
    }

    fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
        [encode(kind), encode(payload.len() as u64), payload.to_vec()].concat()
    }

    /// The output for `input` in chunks of random sizes.
    fn filtered(mut filter: FrameLimit, input: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
        let (mut output, mut rest) = (Vec::new(), input);
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(rng.usize(1..=rest.len().min(70_000)));
            output.extend_from_slice(&filter.filter(Bytes::copy_from_slice(chunk)));
            rest = behind;
        }
        output.extend_from_slice(&filter.finish());
        output
    }

    #[test]
    fn integers_have_one_two_four_or_eight_bytes() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1] {
            let bytes = encode(value);
            assert_eq!(varint(&bytes), Some((value, &[][..])));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn the_large_field_section_is_one_frame() {
        let mut passed = BytesMut::new();
        put_large_field_section(&mut passed);
        let (kind, rest) = varint(&passed).expect("type");
        let (length, payload) = varint(rest).expect("length");
        assert_eq!((kind, length), (HEADERS, payload.len() as u64));
    }

    /// Random frames against the frames that a receiver without a limit would need.
    #[test]
    fn frames_up_to_the_limit_and_data_pass_and_others_do_not() {
        let mut rng = fastrand::Rng::with_seed(7);
        let large = {
            let mut passed = BytesMut::new();
            put_large_field_section(&mut passed);
            passed.to_vec()
        };
        for _ in 0..300 {
            let (mut input, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..rng.usize(1..6) {
                let kind = [DATA, HEADERS, 0x04, 0x21, 0x1f * 1000 + 0x21][rng.usize(..5)];
                let size = [0, 1, 100, LIMIT as usize, LIMIT as usize + 1, 200_000][rng.usize(..6)];
                let bytes = frame(kind, &vec![rng.u8(..); size]);
                input.extend_from_slice(&bytes);
                match (kind, size as u64 > LIMIT) {
                    (DATA, _) if size == 0 => {}
                    (DATA, _) | (_, false) => expected.extend_from_slice(&bytes),
                    (HEADERS, true) => expected.extend_from_slice(&large),
                    (_, true) => {}
                }
            }
            assert_eq!(filtered(FrameLimit::bidi(), &input, &mut rng), expected);
            let control = [&[0], &input[..]].concat();
            assert_eq!(filtered(FrameLimit::uni(), &control, &mut rng), [&[0], &expected[..]].concat());
            // QPACK streams have no frames.
            let encoder = [&[2], &input[..]].concat();
            assert_eq!(filtered(FrameLimit::uni(), &encoder, &mut rng), encoder);
        }
    }

    #[test]
    fn a_payload_is_incomplete_until_its_last_byte() {
        for (kind, size) in [(DATA, 3), (HEADERS, 3), (HEADERS, LIMIT as usize + 1), (0x21, 200_000)] {
            let (mut filter, bytes) = (FrameLimit::bidi(), frame(kind, &vec![7; size]));
            let (last, before) = bytes.split_last().expect("a frame");
            assert!(!filter.is_in_payload());
            filter.filter(Bytes::copy_from_slice(before));
            assert!(filter.is_in_payload(), "{kind} {size}");
            filter.filter(Bytes::copy_from_slice(&[*last]));
            assert!(!filter.is_in_payload(), "{kind} {size}");
        }
        let mut filter = FrameLimit::bidi();
        filter.filter(Bytes::from_static(&[0, 0x40, 100]));
        assert!(filter.is_in_payload(), "the header of a DATA frame without a byte of its payload");
    }

    #[test]
    fn an_incomplete_header_is_passed_on_at_the_end() {
        let mut rng = fastrand::Rng::with_seed(1);
        assert_eq!(filtered(FrameLimit::bidi(), &[0x01, 0x80, 0x01], &mut rng), [0x01, 0x80, 0x01]);
        assert_eq!(filtered(FrameLimit::bidi(), &[0x40, 0x41, 9, 9], &mut rng), [0x40, 0x41, 9, 9]);
    }
}
