//! Links in real time: packets of the kernels of two namespaces, through a [`Pipeline`](crate::Pipeline) per direction.
//!
//! A [`Wire`] is one end. [`start`] joins two of them by a thread per direction, with no runtime, no lock and no wait
//! for anything but packets and time. Packets that could not be read, sent or logged are counted in [`Stopped`].

mod batch;
mod clock;
mod end;
mod error;
mod lateness;
mod link;
mod log;
mod packet;
mod path;
mod pcapng;
mod replay;
pub(crate) mod sys;
mod tun;
mod verdicts;
mod wake;

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

pub use batch::Batch;
pub use end::{DirectionEnd, Stopped};
pub use error::WireError;
pub use lateness::{Lateness, Reading};
pub use link::{Options, Running, start};
pub use packet::PacketSocket;
pub use replay::{Difference, VerdictLog, VerdictLogError};
pub use tun::Tun;

/// One end of an emulated link: the packets of the kernel of one namespace. It is read by the thread of one direction
/// and written by both, which send packets and replies.
pub trait Wire: Send + Sync {
    /// The device.
    fn name(&self) -> &str;

    /// `tun` or `packet`.
    fn kind(&self) -> &'static str;

    /// Bytes before the IP header of every frame: 0, or 14 for Ethernet.
    fn link_header(&self) -> usize;

    /// Descriptor that is readable when frames have arrived.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Adds frames to `batch` until there are no more or it is full, and says how many. Never waits; none at all is an
    /// error of the kind `WouldBlock`.
    fn recv(&self, batch: &mut Batch) -> io::Result<usize>;

    /// Whether all frames that are read say when they reached the kernel.
    fn stamps(&self) -> bool {
        false
    }

    /// Sends the first frames and says how many, at least one. An error is that of the first frame, which was not
    /// sent. Never waits.
    fn send(&self, frames: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Number of frames that the kernel has dropped since the wire was opened because they were not read in time.
    fn missed(&self) -> u64;
}
