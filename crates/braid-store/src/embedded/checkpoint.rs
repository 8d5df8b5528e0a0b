//! Checkpointer thread: applies the merged changes of the write-ahead log to the tables.

use super::group_commit::{GroupCommit, guarded};
use super::tables::Tables;
use super::wal::Wal;

/// Applies one checkpoint after the other, until the store is closed or fails.
pub(super) fn run(commits: &GroupCommit, wal: &Wal, tables: &Tables) {
    lower_priority();
    while let Some(checkpoint) = wal.next_checkpoint() {
        let applied = guarded(|| tables.apply(&checkpoint.writes, checkpoint.sequence, checkpoint.is_last));
        if let Err(failure) = applied {
            wal.fail(&failure);
            return commits.fail(&failure, &tables.path, Vec::new());
        }
        drop(checkpoint);
        wal.end_checkpoint();
    }
}

/// Lowers the scheduling priority of this thread. While the journal has room no caller waits for a checkpoint, but
/// every thread that becomes ready would wait for the end of this one's time slice, some milliseconds. When there is no
/// room the other threads wait, and leave it the processors.
#[cfg(target_os = "linux")]
fn lower_priority() {
    // About a tenth of a contended processor: enough for some 50,000 messages a second.
    const NICE: i32 = 10;
    // Linux changes the calling thread alone; elsewhere it would be the process. Nothing depends on its success.
    let _ = rustix::process::nice(NICE);
}

#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(test)]
mod tests {
    #[cfg(target_os = "linux")]
    #[test]
    fn only_this_threads_priority_is_lowered() {
        use rustix::process::getpriority_process;

        let before = getpriority_process(None).unwrap();
        let after = std::thread::spawn(|| {
            super::lower_priority();
            getpriority_process(None).unwrap()
        });
        assert_eq!(after.join().unwrap(), (before + 10).min(19));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
