//! System calls that no safe library offers.
#![expect(unsafe_code, reason = "TUNSETIFF, addresses of packet sockets, recvmmsg, sendmmsg and SCHED_FIFO")]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, socket};

use super::batch::BATCH;

// linux/if_packet.h and linux/sockios.h, which libc does not have.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const SIOCSIFTXQLEN: libc::Ioctl = 0x8943;

/// A device name as the kernel takes it, ending with a zero.
pub(crate) type IfName = [libc::c_char; libc::IFNAMSIZ];

/// `name` for the kernel, if it can be a device's.
pub(crate) fn ifname(name: &str) -> Option<IfName> {
    let mut bytes: IfName = [0; libc::IFNAMSIZ];
    let fits = (1..libc::IFNAMSIZ).contains(&name.len());
    let taken = name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':' | b'%'));
    if !fits || !taken || matches!(name, "." | "..") {
        return None;
    }
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    Some(bytes)
}

/// Request about the device `name` of the calling thread's namespace.
pub(crate) fn request(name: &IfName) -> libc::ifreq {
    // SAFETY: `ifreq` is plain bytes, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    request.ifr_name = *name;
    request
}

/// Result of a system call, or its error.
pub(crate) fn check(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Makes an open `/dev/net/tun` the TUN device `name`, without protocol header.
pub(super) fn create_tun(fd: BorrowedFd<'_>, name: &IfName) -> io::Result<()> {
    let mut request = request(name);
    let flags = libc::IFF_TUN | libc::IFF_NO_PI;
    request.ifr_ifru.ifru_flags = i16::try_from(flags).map_err(io::Error::other)?;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which lives until the call is over.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(())
}

/// Lets `packets` wait in the device `name` of the calling thread's namespace.
pub(super) fn allow_waiting(name: &IfName, packets: u16) -> io::Result<()> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let mut request = request(name);
    // The kernel's `ifr_qlen` is an int in the union, as the metric is.
    request.ifr_ifru.ifru_metric = packets.into();
    // SAFETY: SIOCSIFTXQLEN reads one `ifreq`, which lives until the call is over.
    check(unsafe { libc::ioctl(any.as_raw_fd(), SIOCSIFTXQLEN, &raw mut request) })?;
    Ok(())
}

/// Binds a packet socket to the device number `index` and to all protocols.
pub(super) fn bind_to_device(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: `sockaddr_ll` is plain bytes, for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?;
    address.sll_protocol = u16::try_from(libc::ETH_P_ALL).map_err(io::Error::other)?.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let length = length_of::<libc::sockaddr_ll>();
    // SAFETY: the pointer is to a `sockaddr_ll` of that length, which lives until the call is over.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    Ok(())
}

/// `struct tpacket_stats`.
#[repr(C)]
#[derive(Default)]
struct PacketStatistics {
    packets: u32,
    drops: u32,
}

/// Number of frames that a packet socket has dropped for want of room since the last call.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut statistics = PacketStatistics::default();
    let mut length = length_of::<PacketStatistics>();
    let (level, option) = (libc::SOL_PACKET, PACKET_STATISTICS);
    let (value, size) = ((&raw mut statistics).cast(), &raw mut length);
    // SAFETY: the pointers are to a structure of that length and to the length, which live until the call is over.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value, size) })?;
    Ok(statistics.drops)
}

/// Room for what a socket says beside the bytes of a message, and what it says if that is the time of its coming.
#[repr(C)]
#[derive(Clone, Copy)]
struct Control {
    header: libc::cmsghdr,
    time: libc::timespec,
}

impl Control {
    fn empty() -> Self {
        // SAFETY: both are plain numbers, for which all zeros is a value.
        unsafe { mem::zeroed() }
    }

    /// Since 1970.
    fn arrival(&self) -> Option<Duration> {
        let Self { header, time } = self;
        let whole = (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)
            && header.cmsg_len >= size_of::<Self>() as _;
        let seconds = u64::try_from(time.tv_sec).ok().filter(|_| whole)?;
        Some(Duration::new(seconds, u32::try_from(time.tv_nsec).ok()?))
    }
}

/// Reads frames into `slots`, at most [`BATCH`], writes how long they are and when they came, and says how many they
/// are. Never waits.
pub(super) fn recv_many(
    fd: BorrowedFd<'_>,
    slots: &mut [IoSliceMut<'_>],
    lengths: &mut [usize],
    arrivals: &mut [Option<Duration>],
) -> io::Result<usize> {
    // `IoSliceMut` has the layout of `iovec`, by its documentation.
    let mut messages = messages(slots.as_mut_ptr().cast(), slots.len());
    let mut controls = [Control::empty(); BATCH];
    for (message, control) in messages.iter_mut().zip(&mut controls) {
        message.msg_hdr.msg_control = (&raw mut *control).cast();
        message.msg_hdr.msg_controllen = size_of::<Control>() as _;
    }
    let (first, count) = (messages.as_mut_ptr(), libc::c_uint::try_from(slots.len().min(BATCH)).unwrap_or(0));
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `first` points to at least `count` messages, each with one `iovec` of `slots`, which is borrowed mutably
    // until the call is over, and with a `Control`, which lives until then; there is no timeout.
    let read = check(unsafe { libc::recvmmsg(fd.as_raw_fd(), first, count, flags, ptr::null_mut()) })?;
    for (length, message) in lengths.iter_mut().zip(&messages[..read]) {
        *length = message.msg_len as usize;
    }
    for (arrival, control) in arrivals.iter_mut().zip(&controls[..read]) {
        *arrival = control.arrival();
    }
    Ok(read)
}

/// Sends the first of `frames`, at most [`BATCH`], and says how many. Never waits.
pub(super) fn send_many(fd: BorrowedFd<'_>, frames: &[IoSlice<'_>]) -> io::Result<usize> {
    // `IoSlice` has the layout of `iovec`, by its documentation. The kernel only reads what it points to.
    let mut messages = messages(frames.as_ptr().cast_mut().cast(), frames.len());
    let (first, count) =
        (messages.as_mut_ptr(), libc::c_uint::try_from(frames.len().min(BATCH)).unwrap_or(0));
    // SAFETY: `first` points to at least `count` messages, each with one `iovec` of `frames`, which is borrowed until
    // the call is over and which sendmmsg does not write.
    check(unsafe { libc::sendmmsg(fd.as_raw_fd(), first, count, libc::MSG_DONTWAIT) })
}

/// One message for each of the `count` slices from `slices` on.
fn messages(slices: *mut libc::iovec, count: usize) -> [libc::mmsghdr; BATCH] {
    // SAFETY: `mmsghdr` is lengths and pointers, for which all zeros is a value.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
    for (place, message) in messages.iter_mut().enumerate().take(count) {
        message.msg_hdr.msg_iov = slices.wrapping_add(place);
        message.msg_hdr.msg_iovlen = 1;
    }
    messages
}

// === Options of sockets ===

/// Level and name.
pub(crate) type SocketOption = (libc::c_int, libc::c_int);

/// Keeps a packet socket from seeing what its device sends. Linux 4.20.
pub(super) const IGNORE_OUTGOING: SocketOption = (libc::SOL_PACKET, PACKET_IGNORE_OUTGOING);
/// Lets a packet socket hand frames to the driver itself. A queue before it would drop them without a word while the
/// device comes up, and costs time later. Linux 3.14.
pub(super) const BYPASS_QUEUE: SocketOption = (libc::SOL_PACKET, PACKET_QDISC_BYPASS);
/// Lets all that is received on a socket say when the kernel had it.
pub(super) const STAMP_ARRIVALS: SocketOption = (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS);
/// Lets every send on a UDP socket be one of several datagrams of so many bytes, for the kernel or a device to take
/// apart.
pub(crate) const SEGMENT_SENDS: SocketOption = (libc::SOL_UDP, libc::UDP_SEGMENT);
/// Lets datagrams over IPv4 go without a checksum.
pub(crate) const OMIT_CHECKSUMS: SocketOption = (libc::SOL_SOCKET, libc::SO_NO_CHECK);

/// Sets an option of a socket.
pub(crate) fn set(fd: BorrowedFd<'_>, (level, option): SocketOption, number: u16) -> io::Result<()> {
    let number = libc::c_int::from(number);
    let length = length_of::<libc::c_int>();
    // SAFETY: the pointer is to an int of that length, which lives until the call is over.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const number).cast(), length) })?;
    Ok(())
}

/// Lets the calling thread run before all ordinary ones; whether that is permitted.
pub(super) fn run_first() -> bool {
    // SAFETY: `sched_param` is plain numbers, for which all zeros is a value.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = 1;
    // SAFETY: the pointer is to a `sched_param` that lives until the call is over; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0 }
}

fn length_of<T>() -> libc::socklen_t {
    libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0)
}
