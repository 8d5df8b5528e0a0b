use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::ahead::Ahead;
use super::file::File;
use super::group::{Shared, tell};
use crate::error::StoreError;

/// Makes one group after the other durable until the store is closed or something fails.
pub(super) fn run(shared: &Shared, ahead: &Ahead, file: &File) {
    let mut record = Vec::new();
    while let Some((writes, waiting)) = shared.take() {
        let nothing = writes.is_empty();
        let written =
            if nothing { Ok(Duration::ZERO) } else { guarded(|| ahead.append(&writes, &mut record, file)) };
        let took = match written {
            Ok(took) => took,
            Err(failure) => {
                ahead.fail(&failure);
                shared.fail(&failure, &file.place, waiting);
                return;
            }
        };
        shared.expect_company();
        tell(waiting, &Ok(()));
        // Before it is let go: a message is found in the group until it is found in what is ahead of the tables.
        if !nothing {
            ahead.join(&writes);
        }
        drop(writes);
        shared.written(took);
    }
}

/// A database that breaks down takes no caller with it.
pub(super) fn guarded<T>(write: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        Err(StoreError::Failed { reason: Arc::from("the database stopped while it was writing") })
    })
}
