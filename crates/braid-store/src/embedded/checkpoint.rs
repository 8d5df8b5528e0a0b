use super::ahead::Ahead;
use super::file::File;
use super::group::Shared;
use super::writer::guarded;

/// Brings one checkpoint after the other into the tables, until the store is closed or something fails.
pub(super) fn run(shared: &Shared, ahead: &Ahead, file: &File) {
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
