//! Waiting for descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of `descriptors` can be read or is closed at the other end, and tells which.
pub(super) fn ready<const N: usize>(descriptors: [BorrowedFd<'_>; N]) -> io::Result<[bool; N]> {
    loop {
        match look(&descriptors, None) {
            Err(Errno::INTR) => {}
            outcome => return Ok(outcome?),
        }
    }
}

/// The same, but waits no longer than `most`: nothing may be ready then.
pub(super) fn ready_within<const N: usize>(
    descriptors: [BorrowedFd<'_>; N],
    most: Duration,
) -> io::Result<[bool; N]> {
    let most = Timespec::try_from(most).map_err(io::Error::other)?;
    match look(&descriptors, Some(&most)) {
        Err(Errno::INTR) => Ok([false; N]),
        outcome => Ok(outcome?),
    }
}

/// Whether `descriptor` can be read now or is closed at the other end.
pub(super) fn is_ready(descriptor: BorrowedFd<'_>) -> io::Result<bool> {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let [ready] = look(&[descriptor], Some(&AT_ONCE))?;
    Ok(ready)
}

fn look<const N: usize>(
    descriptors: &[BorrowedFd<'_>; N],
    timeout: Option<&Timespec>,
) -> Result<[bool; N], Errno> {
    let mut asked = descriptors.each_ref().map(|descriptor| PollFd::new(descriptor, PollFlags::IN));
    poll(&mut asked, timeout)?;
    Ok(asked.map(|one| !one.revents().is_empty()))
}
