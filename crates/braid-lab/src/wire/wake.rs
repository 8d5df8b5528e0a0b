//! Wake-up of a waiting thread by another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Event flag: set by any thread, consumed by one, which polls the descriptor or checks the flag.
#[derive(Debug)]
pub(super) struct Wake {
    fd: OwnedFd,
    /// Lets a busy thread check without a system call.
    is_notified: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, is_notified: AtomicBool::new(false) })
    }

    /// Wakes the thread, which then sees all earlier writes of the caller.
    pub(super) fn notify(&self) {
        self.is_notified.store(true, Ordering::Release);
        // Fails only when the counter is full, and then the thread is woken already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Whether it was notified since the last call.
    pub(super) fn take(&self) -> bool {
        if !self.is_notified.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.is_notified.swap(false, Ordering::AcqRel)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
