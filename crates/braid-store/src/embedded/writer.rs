use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::ahead::Ahead;
use super::file::File;
use super::group::{Shared, tell};
use crate::error::StoreError;

/// Makes one group after the other durable until the store is closed or something fails.
pub(super) fn run(shared: &Shared, ahead: &Ahead, file: &File) {
    let mut record = Vec::new();
    while let Some((writes, waiting)) = shared.take() {
        let began = Instant::now();
        let nothing = writes.is_empty();
        let written = if nothing { Ok(()) } else { guarded(|| ahead.append(&writes, &mut record, file)) };
        if let Err(failure) = &written {
            ahead.fail(failure);
            shared.fail(failure, &file.place, waiting);
            return;
        }
        let took = began.elapsed();
        shared.expect_company();
        tell(waiting, &written);
        // Before it is let go: a message is found in the group until it is found in what is ahead of the tables.
        if !nothing {
            ahead.join(&writes);
        }
        drop(writes);
        shared.written(took);
    }
}

/// A database that breaks down takes no caller with it.
pub(super) fn guarded(write: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        Err(StoreError::Failed { reason: Arc::from("the database stopped while it was writing") })
    })
}
