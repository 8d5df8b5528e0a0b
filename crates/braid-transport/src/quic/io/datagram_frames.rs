//! DATAGRAM frames of a connection (RFC 9221): those that have come, and those of the next packet.
//!
//! The library puts its DATAGRAM frames before all STREAM frames and never sends one again. So it is given those of one
//! packet at a time, by a [`DatagramSource`] that knows the streams.

use std::collections::VecDeque;

use bytes::Bytes;
use noq_proto::PathId;

/// Received datagrams that wait to be read at most.
const MAX_UNREAD: usize = 256;

/// Bytes of received datagrams that wait to be read at most.
const MAX_UNREAD_BYTES: usize = 64 << 10;

/// Bytes of DATAGRAM frames in which the library may differ from the length of their payload: type and length.
const FRAME_OVERHEAD: usize = 3;

/// Chooser of the datagrams that leave with the next packet.
pub(in crate::quic) trait DatagramSource {
    /// Adds datagrams to the next packet, if there are some and they may leave before the bytes of streams. True: the
    /// source has to be asked before the packet after this one.
    fn fill(&mut self, packet: &mut NextPacket<'_>) -> bool;

    /// Handles packets that have left.
    fn handle_sent(&mut self, sent: &SentPackets);

    /// Handles that the library sends nothing now. `is_certain`: it has nothing; otherwise it may have to wait. True:
    /// the source is to be asked again.
    fn handle_idle(&mut self, is_certain: bool) -> bool;
}

/// Packets that have left with one call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) struct SentPackets {
    /// Bytes of UDP payload.
    pub(in crate::quic) bytes: u64,
    pub(in crate::quic) packets: u64,
    /// The last one had no room left.
    pub(in crate::quic) is_full: bool,
    /// STREAM frames since the connection began.
    pub(in crate::quic) stream_frames: u64,
    /// Bytes of lost packets since then.
    pub(in crate::quic) lost_bytes: u64,
}

/// Packet that is about to be built.
pub(in crate::quic) struct NextPacket<'a> {
    library: &'a mut noq_proto::Connection,
    /// The path that carries data first.
    path: PathId,
    /// Bytes of DATAGRAM frames for which it has room.
    size: usize,
    /// Those that are left.
    left: usize,
}

impl NextPacket<'_> {
    /// Tests whether a datagram fits beside those that were added.
    pub(in crate::quic) fn fits(&self, bytes: usize) -> bool {
        bytes + FRAME_OVERHEAD <= self.left
    }

    /// Tests whether a datagram fits into any packet.
    pub(in crate::quic) fn takes(&self, bytes: usize) -> bool {
        bytes + FRAME_OVERHEAD <= self.size
    }

    /// Leaves room for frames of streams.
    pub(in crate::quic) fn reserve(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Tests whether the gate, or the window of the congestion controller, permits a packet now.
    pub(in crate::quic) fn may_leave(&mut self) -> bool {
        let path = self.library.path_stats(self.path);
        path.is_some_and(|path| path.cwnd >= u64::from(path.current_mtu))
    }

    /// Adds a datagram, which is sent once. False: the library does not take it, and never will. [BQ-84]
    pub(in crate::quic) fn add(&mut self, datagram: Bytes) -> bool {
        self.left = self.left.saturating_sub(datagram.len() + FRAME_OVERHEAD);
        self.library.datagrams().send(datagram, false).is_ok()
    }

    /// Bytes of lost packets since the connection began.
    pub(in crate::quic) fn lost_bytes(&mut self) -> u64 {
        self.library.stats().lost_bytes
    }
}

/// DATAGRAM frames of a connection that permits them.
pub(in crate::quic) struct DatagramFrames {
    unread: VecDeque<Bytes>,
    unread_bytes: usize,
    received: u64,
    /// Datagrams that had to make room for later ones.
    overflowed: u64,
    /// Room in the library while it holds no datagram.
    room: usize,
}

impl DatagramFrames {
    /// Frames of a connection whose library holds no datagram to send.
    pub(super) fn new(library: &mut noq_proto::Connection) -> Self {
        let room = library.datagrams().send_buffer_space();
        Self { unread: VecDeque::new(), unread_bytes: 0, received: 0, overflowed: 0, room }
    }

    /// Takes the datagrams that have come out of the library.
    pub(super) fn take_received(&mut self, library: &mut noq_proto::Connection) {
        while let Some(datagram) = library.datagrams().recv() {
            self.received += 1;
            self.unread_bytes += datagram.len();
            // A copy: the frame shares the buffer of all datagrams of UDP that came together.
            self.unread.push_back(Bytes::copy_from_slice(&datagram));
            while self.unread.len() > MAX_UNREAD || self.unread_bytes > MAX_UNREAD_BYTES {
                self.overflowed += 1;
                self.pop();
            }
        }
    }

    fn pop(&mut self) -> Option<Bytes> {
        let datagram = self.unread.pop_front()?;
        self.unread_bytes -= datagram.len();
        Some(datagram)
    }

    /// Takes the next datagram that has come. Those of more than `max` bytes are dropped.
    pub(in crate::quic) fn read(&mut self, max: usize) -> Option<Bytes> {
        loop {
            let datagram = self.pop()?;
            if datagram.len() <= max {
                return Some(datagram);
            }
            self.overflowed += 1;
        }
    }

    /// Tests whether datagrams have come and were not read.
    pub(in crate::quic) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Bytes of datagrams that have come and were not read.
    pub(in crate::quic) fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Number of datagrams that have come, and of those that were dropped unread.
    pub(in crate::quic) fn received(&self) -> (u64, u64) {
        (self.received, self.overflowed)
    }

    /// Has the source add datagrams to the next packet. True: the packet has to be built by itself.
    pub(super) fn fill(
        &self,
        library: &mut noq_proto::Connection,
        path: PathId,
        source: &mut dyn DatagramSource,
    ) -> bool {
        if library.datagrams().send_buffer_space() < self.room {
            return true; // Some were added to a packet that the congestion controller has not permitted yet.
        }
        let Some(size) = library.datagrams().max_size().map(|size| size + FRAME_OVERHEAD) else {
            return false;
        };
        source.fill(&mut NextPacket { library, path, size, left: size })
    }
}

impl SentPackets {
    /// Packets of a batch that has left.
    pub(super) fn of(library: &mut noq_proto::Connection, transmit: &noq_proto::Transmit) -> Self {
        let segment = transmit.segment_size.unwrap_or(transmit.size).max(1);
        let last = match transmit.size % segment {
            0 => segment,
            rest => rest,
        };
        let stats = library.stats();
        Self {
            bytes: transmit.size as u64,
            packets: transmit.size.div_ceil(segment) as u64,
            // Less than that is not worth a STREAM frame to the library.
            is_full: last + 64 >= usize::from(library.current_mtu()),
            stream_frames: stats.frame_tx.stream,
            lost_bytes: stats.lost_bytes,
        }
    }
}
