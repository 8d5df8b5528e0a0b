//! TUN: the packets that a kernel routes into a device come to us, and those that we write arrive there.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use braid_measure::network::Devices;

use super::batch::Batch;
use super::{Wire, WireError, sys};

/// Frames that may wait to be read. The kernel's 500 are 6 ms of a fast TCP.
const WAITING: u16 = 4096;

/// A TUN device without a protocol header and without offloads, so that every read and write is one whole IP packet.
/// Its descriptor works from any namespace; the device lives in the one where it was created, and as long as this.
#[derive(Debug)]
pub struct Tun {
    name: String,
    file: File,
    /// Devices of its namespace, if /proc is there.
    devices: Option<Devices>,
}

impl Tun {
    /// Creates the device `name` in the network namespace of the calling thread. It is down and has no address.
    ///
    /// # Errors
    /// Without TUN or the right to it; each says what to do instead.
    pub fn open(name: &str) -> Result<Self, WireError> {
        let ifname = sys::ifname(name).ok_or_else(|| WireError::device_name(name))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")
            .map_err(|error| unopened(name, &error))?;
        sys::create_tun(file.as_fd(), &ifname).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => WireError(format!(
                "may not create the TUN device {name} here: run inside a namespace of the laboratory or as root"
            )),
            _ => uncreated(name, &error),
        })?;
        // Without it bursts may be lost, which `missed` shows.
        let _ = sys::allow_waiting(&ifname, WAITING);
        Ok(Self { name: name.to_owned(), file, devices: Devices::of_this_thread().ok() })
    }
}

fn unopened(name: &str, error: &io::Error) -> WireError {
    const INSTEAD: &str = "ask for the wire \"packet\" (AF_PACKET on veth)";
    // The device file may be there without a driver behind it.
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::NotFound, _) | (_, Some(libc::ENODEV | libc::ENXIO)) => {
            WireError(format!("there is no /dev/net/tun here: load the module tun, or {INSTEAD}"))
        }
        // As with mode 0600 and without being root.
        (io::ErrorKind::PermissionDenied, _) => {
            WireError(format!("/dev/net/tun may not be opened: {INSTEAD}, run as root, or chmod 0666 it"))
        }
        _ => uncreated(name, error),
    }
}

fn uncreated(name: &str, error: &io::Error) -> WireError {
    WireError(format!("cannot create the TUN device {name}: {error}"))
}

// === impl Wire for Tun ===

impl Wire for Tun {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "tun"
    }

    fn link_header(&self) -> usize {
        0
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        batch.fill(|slot| (&self.file).read(slot))
    }

    fn send(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        for (sent, frame) in frames.iter().enumerate() {
            // A flipped bit can make a version that a TUN does not take, and that the receiver would drop.
            if !matches!(frame.first(), Some(first) if matches!(first >> 4, 4 | 6)) {
                continue;
            }
            match (&self.file).write(frame) {
                Ok(_) => {}
                Err(error) if sent == 0 => return Err(error),
                Err(_) => return Ok(sent),
            }
        }
        Ok(frames.len())
    }

    fn missed(&self) -> u64 {
        self.devices.as_ref().and_then(|devices| devices.send_drops(&self.name)).unwrap_or(0)
    }
}
