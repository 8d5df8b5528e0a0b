//! pcapng (draft-ietf-opsawg-pcapng), the three blocks that are needed: the libraries for it are unmaintained or larger
//! than this file.

use std::io::{self, Write};
use std::time::Duration;

use braid_emulator::Direction;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

const LINKTYPE_ETHERNET: u16 = 1;
const LINKTYPE_RAW: u16 = 101;

const OPTION_COMMENT: u16 = 1;
const OPTION_IF_NAME: u16 = 2;
const OPTION_IF_TSRESOL: u16 = 9;
/// Times are in units of 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// A capture of both directions, each an interface of its own.
#[derive(Debug)]
pub(super) struct Capture<W> {
    to: W,
    /// Since 1970, of time 0 of the link.
    epoch: Duration,
}

impl<W: Write> Capture<W> {
    /// Begins a capture of frames with `head` bytes before the IP header, 0 or 14.
    pub(super) fn new(mut to: W, head: usize, epoch: Duration) -> io::Result<Self> {
        let mut section = Vec::new();
        section.extend(0x1a2b_3c4d_u32.to_le_bytes());
        section.extend(1_u16.to_le_bytes());
        section.extend(0_u16.to_le_bytes());
        // The length of the section, unknown.
        section.extend((-1_i64).to_le_bytes());
        write_block(&mut to, SECTION_HEADER, &section)?;
        let link_type = if head == 0 { LINKTYPE_RAW } else { LINKTYPE_ETHERNET };
        for direction in Direction::BOTH {
            let mut interface = Vec::new();
            interface.extend(link_type.to_le_bytes());
            // Reserved, and no limit to the length of packets.
            interface.extend([0; 6]);
            push_option(&mut interface, OPTION_IF_NAME, direction.to_string().as_bytes());
            push_option(&mut interface, OPTION_IF_TSRESOL, &[NANOSECONDS]);
            push_option(&mut interface, 0, &[]);
            write_block(&mut to, INTERFACE, &interface)?;
        }
        Ok(Self { to, epoch })
    }

    /// Writes a frame that came at `at`, with `comment`.
    pub(super) fn packet(
        &mut self,
        direction: Direction,
        at: Duration,
        frame: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let time = u64::try_from((self.epoch + at).as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut packet = Vec::with_capacity(frame.len() + comment.len() + 40);
        packet.extend((direction as u32).to_le_bytes());
        // The upper half comes first, whatever the byte order.
        packet.extend(&time[4..]);
        packet.extend(&time[..4]);
        packet.extend(length);
        packet.extend(length);
        packet.extend(frame);
        pad(&mut packet);
        push_option(&mut packet, OPTION_COMMENT, comment.as_bytes());
        push_option(&mut packet, 0, &[]);
        write_block(&mut self.to, ENHANCED_PACKET, &packet)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn write_block(to: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?.to_le_bytes();
    to.write_all(&kind.to_le_bytes())?;
    to.write_all(&length)?;
    to.write_all(body)?;
    to.write_all(&length)
}

fn push_option(block: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    block.extend(code.to_le_bytes());
    block.extend(u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    block.extend(value);
    pad(block);
}

fn pad(block: &mut Vec<u8>) {
    block.resize(block.len().next_multiple_of(4), 0);
}
