//! Journal: its header, and the records around the groups.

use std::ops::Range;

use super::FORMAT;

/// Unit of the device's atomic writes, in bytes. A record begins with a block, so that its write touches no other
/// record.
pub(crate) const BLOCK: usize = 4096;

const MAGIC: [u8; 8] = *b"braidjnl";
const HEADER: usize = 36;
const HEAD: usize = 24;

/// Content of the first block of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Number of the store and of its opening.
    pub(crate) store: u64,
    /// Blocks of each segment.
    pub(crate) blocks: u64,
}

/// Upper half of a store's number, which it keeps; each opening draws another lower half.
const KEPT: u64 = !(u32::MAX as u64);

/// The number of the same store at a later opening.
pub(crate) const fn later(store: u64, random: u64) -> u64 {
    (store & KEPT) | (random & !KEPT)
}

/// True for two numbers of one store.
pub(crate) const fn is_same(store: u64, other: u64) -> bool {
    store & KEPT == other & KEPT
}

/// Kinds of a first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstBlock {
    /// Nothing but zeros.
    Blank,
    /// Bytes of another file format.
    Foreign,
    /// A journal's, with a wrong checksum.
    Damaged,
    /// A journal's of a newer format.
    Newer(u64),
    Header(Header),
}

pub(crate) fn encode_header(Header { store, blocks }: Header) -> Vec<u8> {
    let mut block = MAGIC.to_vec();
    for number in [FORMAT, store, blocks] {
        block.extend_from_slice(&number.to_be_bytes());
    }
    block.extend_from_slice(&crc32fast::hash(&block).to_be_bytes());
    block.resize(BLOCK, 0);
    block
}

pub(crate) fn decode_header(block: &[u8]) -> FirstBlock {
    if block.iter().all(|byte| *byte == 0) {
        return FirstBlock::Blank;
    }
    let Some((header, _)) = block.split_at_checked(HEADER).filter(|_| block.starts_with(&MAGIC)) else {
        return FirstBlock::Foreign;
    };
    let number = |at: usize| u64_at(header, at);
    if u32_at(header, HEADER - 4) != crc32fast::hash(&header[..HEADER - 4]) {
        return FirstBlock::Damaged;
    }
    match number(8) {
        1..=FORMAT => FirstBlock::Header(Header { store: number(16), blocks: number(24) }),
        newer if newer > FORMAT => FirstBlock::Newer(newer),
        _ => FirstBlock::Damaged,
    }
}

/// Clears the buffer and reserves the head of a record.
pub(crate) fn begin_record(record: &mut Vec<u8>) {
    record.clear();
    record.resize(HEAD, 0);
}

/// Longest group of a record of this many blocks, in bytes.
pub(crate) fn group_len_max(blocks: u64) -> usize {
    let bytes = usize::try_from(blocks).map_or(usize::MAX, |blocks| blocks.saturating_mul(BLOCK));
    // The record's length is a u32.
    bytes.min(u32::MAX as usize).saturating_sub(HEAD)
}

/// Completes a record: its head, and zeros to the end of the last block.
pub(crate) fn end_record(record: &mut Vec<u8>, store: u64, sequence: u64) {
    let length = u32::try_from(record.len() - HEAD).unwrap_or(u32::MAX);
    record[..8].copy_from_slice(&store.to_be_bytes());
    record[8..16].copy_from_slice(&sequence.to_be_bytes());
    record[16..20].copy_from_slice(&length.to_be_bytes());
    let checksum = checksum(&record[..20], &record[HEAD..]);
    record[20..HEAD].copy_from_slice(&checksum.to_be_bytes());
    record.resize(record.len().next_multiple_of(BLOCK), 0);
}

/// A record with a valid checksum.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) sequence: u64,
    /// Position of its group in the segment.
    pub(crate) group: Range<usize>,
}

/// Valid records of the store in a segment with sequence numbers above `after`.
pub(crate) fn find_records(segment: &[u8], store: u64, after: u64) -> Vec<Found> {
    let mut found = Vec::new();
    let mut at = 0;
    while at + HEAD <= segment.len() {
        let record = record_at(segment, at, store, after);
        at = record.as_ref().map_or(at + BLOCK, |record| record.group.end.next_multiple_of(BLOCK));
        found.extend(record);
    }
    found
}

fn record_at(segment: &[u8], at: usize, store: u64, after: u64) -> Option<Found> {
    let (head, rest) = segment.get(at..)?.split_at_checked(HEAD)?;
    let sequence = u64_at(head, 8);
    if u64_at(head, 0) != store || sequence <= after {
        return None;
    }
    let length = usize::try_from(u32_at(head, 16)).ok()?;
    let group = rest.get(..length)?;
    let is_whole = checksum(&head[..20], group) == u32_at(head, 20);
    is_whole.then(|| Found { sequence, group: at + HEAD..at + HEAD + length })
}

fn checksum(head: &[u8], group: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(group);
    hasher.finalize()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let number = bytes.get(at..).and_then(|rest| rest.first_chunk());
    number.map_or(0, |number| u64::from_be_bytes(*number))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(|rest| rest.first_chunk());
    number.map_or(0, |number| u32::from_be_bytes(*number))
}
