//! Why a wire could not be opened or a link not be started.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// A wire or link that cannot be.
#[derive(Debug, Error)]
pub enum WireError {
    /// The kernel has no TUN driver, or the container hides it.
    #[error(
        "there is no /dev/net/tun here: load the module tun, or ask for the wire \"packet\" (AF_PACKET on veth)"
    )]
    NoTun,
    /// The file may not be opened, as with mode 0600 and without being root.
    #[error(
        "/dev/net/tun may not be opened: ask for the wire \"packet\" (AF_PACKET on veth), run as root, or chmod 0666 it"
    )]
    TunForbidden,
    /// The device may not be created in this namespace.
    #[error("may not create the TUN device {0} here: run inside a namespace of the laboratory or as root")]
    TunRefused(String),
    /// Anything else about TUN.
    #[error("cannot create the TUN device {device}: {source}")]
    Tun {
        /// Its name.
        device: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Packet sockets need CAP_NET_RAW.
    #[error("may not open a packet socket here: run inside a namespace of the laboratory or as root")]
    PacketForbidden,
    /// There is no such device.
    #[error("there is no network device {0} in this namespace: create the veth pair first")]
    NoDevice(String),
    /// Anything else about packet sockets.
    #[error("cannot open a packet socket on {device}: {source}")]
    Packet {
        /// The device.
        device: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A device name that no kernel takes.
    #[error("\"{0}\" is no device name: write 1 to 15 bytes without space and slash")]
    DeviceName(String),
    /// The frames of both ends must look the same.
    #[error("a link from {left} to {right} cannot be: use the same kind of wire at both ends")]
    Mixed {
        /// The kind of the left wire.
        left: &'static str,
        /// The kind of the right wire.
        right: &'static str,
    },
    /// A log cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The system refuses a thread or an event descriptor.
    #[error("cannot start the link: {0}")]
    Start(io::Error),
}
