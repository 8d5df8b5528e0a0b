//! What a broker did to the file of its store, as `strace` tells it.

use std::collections::BTreeSet;

/// Bytes that a device writes or does not.
pub(super) const BLOCK: usize = 4096;

/// What was done to a file, up to its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Calls {
    /// Blocks that were written and synced.
    pub(super) synced: BTreeSet<u64>,
    /// Blocks that were written since the last sync.
    pub(super) unsynced: BTreeSet<u64>,
    pub(super) has_failed: bool,
    /// Writes and syncs that follow the failure.
    pub(super) after_failure: Vec<String>,
}

impl Calls {
    /// Of lines like `12 pwrite64(3</store.redb>, ""..., 100, 200) = 100`, those about the file with this name.
    pub(super) fn parse(log: &str, name: &str) -> Self {
        let mut calls = Self::default();
        let file = format!("/{name}>");
        // Threads whose last call is about the file: where that ends in a later line, the line does not say so.
        let mut threads = BTreeSet::new();
        for line in log.lines() {
            let Some((thread, call)) = line.split_once(' ') else { continue };
            let call = call.trim_start();
            if call.starts_with("+++") || call.starts_with("---") {
                continue;
            }
            if !call.starts_with("<... ") {
                if call.contains(&file) {
                    threads.insert(thread);
                } else {
                    threads.remove(thread);
                }
            }
            if !threads.contains(thread) {
                continue;
            }
            if calls.has_failed {
                calls.after_failure.push(call.to_owned());
            } else if call.ends_with("(INJECTED)") {
                calls.has_failed = true;
            } else {
                calls.note(call);
            }
        }
        calls
    }

    fn note(&mut self, call: &str) {
        if let Some(blocks) = written(call) {
            self.unsynced.extend(blocks);
        }
        // `fdatasync(..)`, or `<... fdatasync resumed>)` where it ends in a later line than it began in.
        let is_sync = call.trim_start_matches("<... ").trim_start_matches('f').trim_start_matches("data");
        if is_sync.starts_with("sync") && call.ends_with("= 0") {
            self.synced.append(&mut self.unsynced);
        }
    }
}

/// The blocks that this call writes, if it does.
fn written(call: &str) -> Option<impl Iterator<Item = u64>> {
    let (_, rest) = call.strip_prefix("pwrite64(")?.split_once(">, ")?;
    let (arguments, _) = rest.split_once(')').or_else(|| rest.split_once(" <unfinished"))?;
    let mut numbers = arguments.rsplit(", ");
    let offset: u64 = numbers.next()?.parse().ok()?;
    let length: u64 = numbers.next()?.parse().ok()?;
    let block = BLOCK as u64;
    Some(offset / block..(offset + length).div_ceil(block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_since_the_last_sync_is_unsynced() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8192, 4096) = 8192\n",
                "7 fdatasync(3</a.redb>)             = 0\n",
                "7 ftruncate(3</a.redb>, 90000) = 0\n",
                "7 pwrite64(3</a.redb>, \"\"..., 320, 0) = 320\n",
                "7 pwrite64(3</a.redb>, \"\"..., 2, 8191) = 2\n",
                "7 fdatasync(3</a.redb>) = -1 EIO (Input/output error) (INJECTED)\n",
                "7 +++ exited with 74 +++\n",
            ),
            "a.redb",
        );
        assert_eq!(calls.synced, [1, 2].into());
        assert_eq!(calls.unsynced, [0, 1, 2].into());
        assert!(calls.has_failed && calls.after_failure.is_empty(), "{calls:?}");
    }

    #[test]
    fn whatever_follows_the_failure_is_told() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = -1 EIO (Input/output error) (INJECTED)\n",
                "9 fdatasync(3</a.redb>) = 0\n",
            ),
            "a.redb",
        );
        assert_eq!(calls.after_failure, ["fdatasync(3</a.redb>) = 0"]);
        assert!(calls.unsynced.is_empty());
    }

    #[test]
    fn a_sync_that_did_not_return_has_synced_nothing() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0 <unfinished ...>\n",
                "7 fdatasync(3</a.redb> <unfinished ...>\n",
            ),
            "a.redb",
        );
        assert_eq!((calls.synced, calls.unsynced), ([].into(), [0].into()));
    }

    #[test]
    fn another_file_is_another_matter() {
        let log = concat!(
            "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = 8\n",
            "8 fdatasync(4</b.redb> <unfinished ...>\n",
            "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = -1 EIO (Input/output error) (INJECTED)\n",
            "8 <... fdatasync resumed>) = 0\n",
        );
        let (calls, other) = (Calls::parse(log, "a.redb"), Calls::parse(log, "b.redb"));
        assert!(calls.has_failed && calls.after_failure.is_empty() && calls.synced.is_empty(), "{calls:?}");
        assert_eq!(other, Calls::default());
    }

    #[test]
    fn a_sync_may_end_in_a_later_line() {
        let calls = Calls::parse(
            concat!(
                "7 pwrite64(3</a.redb>, \"\"..., 8, 0) = 8\n",
                "7 fdatasync(3</a.redb> <unfinished ...>\n",
                "7 <... fdatasync resumed>) = 0\n",
            ),
            "a.redb",
        );
        assert_eq!((calls.synced, calls.unsynced), ([0].into(), [].into()));
    }
}
