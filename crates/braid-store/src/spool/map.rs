//! The one place of this crate that the compiler cannot check.
#![expect(unsafe_code, reason = "memmap2 asks for a promise about the file that no type can give")]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// How many maps the system allows this process, of files and of memory; Linux's default where it does not say.
pub(super) fn most() -> u64 {
    const DEFAULT: u64 = 65_530;
    let told = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    told.and_then(|told| told.trim().parse().ok()).unwrap_or(DEFAULT)
}

/// Maps the first `len` bytes of a file that has no name, which the map takes over.
pub(super) fn map(file: File, len: usize) -> io::Result<Mmap> {
    // SAFETY: the bytes behind a map must not change and the file must not get shorter. It was opened by us alone and
    // unlinked before anything was written, so nobody else can reach it; we own the only descriptor, whose last write
    // is done, and close it here.
    let map = unsafe { MmapOptions::new().len(len).map(&file) };
    drop(file);
    map
}
