//! Whether drops follow the level of a bucket at all.

use super::sent_packets::Sent;

/// Where so many of so many packets are lost, so many times in a row, although there were so many tokens, there is no
/// policer.
const COUNT: u32 = 40;
const LOSSY: u32 = 3;
const IN_A_ROW: u32 = 2;
const PLENTY: f64 = 1.5;

/// Packets that found tokens enough, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chance {
    packets: u32,
    lost: u32,
    /// Counts in a row with too many.
    lossy: u32,
}

impl Chance {
    pub(super) fn count(&mut self, is_lost: bool) {
        self.packets += 1;
        self.lost += u32::from(is_lost);
        if self.packets < COUNT {
            return;
        }
        if self.lost < LOSSY {
            self.lossy = 0;
        } else {
            self.lossy += 1;
        }
        (self.packets, self.lost) = (0, 0);
    }

    /// Sending less has not ended the losses.
    pub(super) fn is_random(&self) -> bool {
        self.lossy >= IN_A_ROW
    }
}

/// No policer would drop it, however wrong the mirror is.
pub(super) fn has_tokens(sent: &Sent) -> bool {
    !sent.is_probe && sent.level >= PLENTY
}
