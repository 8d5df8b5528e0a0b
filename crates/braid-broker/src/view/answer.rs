//! Answers of the tasks of connections.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::inquiry::{ANSWER_TIMEOUT, Inquiry, ViewError};
use crate::registry::SessionEntry;

/// Asks the connection of a session.
///
/// # Errors
/// There is no connection, or it did not answer.
pub(super) async fn ask<T>(
    entry: &Arc<SessionEntry>,
    question: impl FnOnce(oneshot::Sender<T>) -> Inquiry,
) -> Result<T, ViewError> {
    let (answer, answered) = oneshot::channel();
    entry.queue.inquire(question(answer))?.into_iter().for_each(Waker::wake);
    match timeout(ANSWER_TIMEOUT, answered).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(ViewError::Vanished),
        Err(_) => Err(ViewError::NoAnswer),
    }
}
