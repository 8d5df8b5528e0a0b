use super::ahead::Ahead;
use super::file::File;
use super::group::Shared;
use super::writer::guarded;

/// Brings one checkpoint after the other into the tables, until the store is closed or something fails.
pub(super) fn run(shared: &Shared, ahead: &Ahead, file: &File) {
    give_way();
    while let Some(checkpoint) = ahead.next() {
        let written = guarded(|| file.write(&checkpoint.writes, checkpoint.sequence, checkpoint.is_last));
        if let Err(failure) = written {
            ahead.fail(&failure);
            shared.fail(&failure, &file.place, Vec::new());
            return;
        }
        drop(checkpoint);
        ahead.settle();
    }
}

/// Nobody waits for the tables as long as there is room in the journal, but everybody waits for a processor that they
/// use: a thread that becomes ready otherwise waits for the end of this one's turn, some milliseconds. When there is no
/// room the others wait, and leave it the processors.
#[cfg(target_os = "linux")]
fn give_way() {
    // A tenth of a processor that somebody else wants: enough for some 50,000 messages a second.
    const NICER: i32 = 10;
    // Of this thread alone, as Linux has it; elsewhere it would be the process. Whatever refuses it, nothing depends on it.
    let _ = rustix::process::nice(NICER);
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::thread;

    use rustix::process::getpriority_process;

    use super::give_way;

    #[test]
    fn the_thread_gives_way_and_no_other() {
        let before = getpriority_process(None).unwrap();
        let after = thread::spawn(|| {
            give_way();
            getpriority_process(None).unwrap()
        });
        assert_eq!(after.join().unwrap(), (before + 10).min(19));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }
}
