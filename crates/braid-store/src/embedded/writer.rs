use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::file::File;
use super::group::{Shared, tell};
use crate::error::StoreError;

/// Writes one group after the other until the store is closed or a write fails. The only thread that writes.
pub(super) fn run(shared: &Shared, file: &File) {
    while let Some((writes, waiting)) = shared.take() {
        let began = Instant::now();
        let written = if writes.is_empty() { Ok(()) } else { guarded(|| file.write(&writes)) };
        if let Err(failure) = &written {
            tracing::error!(
                store = &*file.place,
                "{failure}; nothing is acknowledged any more, what was acknowledged is safe"
            );
            shared.fail(failure, waiting);
            return;
        }
        let took = began.elapsed();
        // Told before it is let go: a message is found in the group until it is found in the table.
        shared.expect_company();
        tell(waiting, &written);
        drop(writes);
        shared.written(took);
    }
}

/// A database that breaks down takes no caller with it.
fn guarded(write: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        Err(StoreError::Failed { reason: Arc::from("the database stopped while it was writing") })
    })
}
