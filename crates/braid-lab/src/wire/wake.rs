//! How another thread ends a wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// A bell: rung by anyone, heard by one thread, which waits for its descriptor or asks now and then.
#[derive(Debug)]
pub(super) struct Wake {
    fd: OwnedFd,
    /// So that a thread with packets in hand asks without a system call.
    rung: AtomicBool,
}

impl Wake {
    pub(super) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, rung: AtomicBool::new(false) })
    }

    /// Whoever listens hears all that was done before.
    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // It can only fail when it is rung already.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Whether it was rung since the last question.
    pub(super) fn take(&self) -> bool {
        if !self.rung.load(Ordering::Acquire) {
            return false;
        }
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.rung.swap(false, Ordering::AcqRel)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
