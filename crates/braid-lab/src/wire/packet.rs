//! AF_PACKET on one end of a veth pair: what the other end sends comes to us, and what we send arrives there.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::batch::Batch;
use super::{Wire, WireError, sys};

/// Bytes that may wait in each direction: some thousand frames, as the kernel counts them.
const WAITING: usize = 16 << 20;
/// Addresses and EtherType.
const ETHERNET: usize = 14;

/// A packet socket that sees all frames which a device receives, and none that it sends.
#[derive(Debug)]
pub struct PacketSocket {
    device: String,
    socket: OwnedFd,
    stamps: bool,
    missed: AtomicU64,
}

impl PacketSocket {
    /// Takes the frames of `device`, which lives in the network namespace of the calling thread. They reach the kernel
    /// of that namespace too, which therefore must have no address and no route there. The other end of the pair is
    /// best brought up after this one: the end that is first sends nothing until the kernel has noticed the second.
    ///
    /// # Errors
    /// Without the device or the right to it; each says what to do instead.
    pub fn open(device: &str) -> Result<Self, WireError> {
        if sys::ifname(device).is_none() {
            return Err(WireError::device_name(device));
        }
        let fail = |error: io::Error| WireError(format!("cannot open a packet socket on {device}: {error}"));
        // Without a protocol it receives nothing until it is bound.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(io::Error::from)
            .map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => WireError(
                    "may not open a packet socket here: run inside a namespace of the laboratory or as root"
                        .into(),
                ),
                _ => fail(error),
            })?;
        let index = name_to_index(&socket, device).map_err(|_| {
            WireError(format!(
                "there is no network device {device} in this namespace: create the veth pair first"
            ))
        })?;
        sys::set(socket.as_fd(), sys::IGNORE_OUTGOING, 1).map_err(fail)?;
        sys::set(socket.as_fd(), sys::BYPASS_QUEUE, 1).map_err(fail)?;
        // All kernels can; without it the wait for a processor stands for it.
        let stamps = sys::set(socket.as_fd(), sys::STAMP_ARRIVALS, 1).is_ok();
        // Smaller buffers may lose bursts, which `missed` and send errors show.
        if sockopt::set_socket_recv_buffer_size_force(&socket, WAITING).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&socket, WAITING);
        }
        let _ = sockopt::set_socket_send_buffer_size(&socket, WAITING);
        sys::bind_to_device(socket.as_fd(), index).map_err(fail)?;
        // A device that is down leaves an error behind, which is no news to those who bring it up next.
        let _ = sockopt::socket_error(&socket);
        Ok(Self { device: device.to_owned(), socket, stamps, missed: AtomicU64::new(0) })
    }
}

// === impl Wire for PacketSocket ===

impl Wire for PacketSocket {
    fn name(&self) -> &str {
        &self.device
    }

    fn kind(&self) -> &'static str {
        "packet"
    }

    fn link_header(&self) -> usize {
        ETHERNET
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.fill_slots(|slots, lengths, arrivals| sys::recv_many(self.fd(), slots, lengths, arrivals))
    }

    fn stamps(&self) -> bool {
        self.stamps
    }

    fn send(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send_many(self.fd(), frames)
    }

    fn missed(&self) -> u64 {
        // The kernel starts from 0 again when it was asked.
        let new = sys::take_drops(self.fd()).map_or(0, u64::from);
        self.missed.fetch_add(new, Ordering::Relaxed) + new
    }
}
