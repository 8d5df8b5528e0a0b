//! Reasons why a wire could not be opened or a link not be started.

use std::fmt::Display;

use thiserror::Error;

/// Error of opening a wire or of starting a link, on one line that says what to do instead.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WireError(pub(super) String);

impl WireError {
    /// A device name that no kernel takes.
    pub(super) fn device_name(name: &str) -> Self {
        Self(format!("\"{name}\" is no device name: write 1 to 15 bytes without space and slash"))
    }

    /// The system refuses a thread or an event descriptor.
    pub(super) fn start(error: impl Display) -> Self {
        Self(format!("cannot start the link: {error}"))
    }
}
