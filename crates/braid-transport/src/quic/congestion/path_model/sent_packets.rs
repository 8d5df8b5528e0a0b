//! What was sent, and what became of it, in the order of sending.

use std::collections::VecDeque;

/// A packet of which nothing is heard for so long (s) holds up nobody.
const FORGOTTEN: f64 = 3.0;

/// A packet that asks for an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) number: u64,
    /// s
    pub(super) at: f64,
    /// Bytes of it that were urgent.
    pub(super) urgent: u64,
    /// Datagrams before it that ask for no acknowledgement, since the beginning: nobody will tell what became of them.
    pub(super) silent: u64,
    /// Packets that were on their way with it.
    pub(super) on_the_way: u64,
    /// As large as the path takes: there was more to send.
    pub(super) is_full: bool,
    /// It asks whether more is let through than is known.
    pub(super) is_probe: bool,
    /// What the mirror had before it.
    pub(super) level: f64,
    /// Corrections of the mirror before it, in sum.
    pub(super) shift: f64,
    /// Which of all datagrams it is.
    pub(super) place: u64,
    /// How long (s) it was expected to wait in a queue, where there is one.
    pub(super) expected: Option<f64>,
    pub(super) fate: Option<Fate>,
    /// When (s) that was told.
    pub(super) told: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Passed,
    Lost,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    packets: VecDeque<Sent>,
    /// Of which nothing is known yet.
    open: u64,
}

impl Ledger {
    pub(super) fn push(&mut self, sent: Sent) {
        self.packets.push_back(sent);
        self.open += 1;
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
        self.open = 0;
    }

    /// Notes what became of a packet. The first of its number counts: until the handshake is over, each number is there
    /// up to three times.
    pub(super) fn settle(&mut self, number: u64, fate: Fate, now: f64) -> Option<Sent> {
        let sent = self.packets.iter_mut().find(|sent| sent.number == number && sent.fate.is_none())?;
        sent.fate = Some(fate);
        sent.told = now;
        self.open -= 1;
        Some(*sent)
    }

    /// The next packet whose fate, and that of all before it, is known. Nobody waits for one of which nothing is heard for
    /// `patience` s after something was told of a later one: where keys were discarded, nobody ever tells.
    pub(super) fn next(&mut self, patience: f64, now: f64) -> Option<(Sent, Fate)> {
        self.forget(now);
        while self.packets.front().is_some_and(|first| first.fate.is_none())
            && self.packets.iter().any(|later| later.fate.is_some() && now - later.told > patience)
        {
            self.packets.pop_front();
            self.open -= 1;
        }
        let first = *self.packets.front()?;
        let fate = first.fate?;
        self.packets.pop_front();
        Some((first, fate))
    }

    /// Gives up waiting for what is long over.
    pub(super) fn forget(&mut self, now: f64) {
        while self.packets.front().is_some_and(|first| first.fate.is_none() && now - first.at > FORGOTTEN) {
            self.packets.pop_front();
            self.open -= 1;
        }
    }

    /// Place and time of those sent after this one.
    pub(super) fn after(&self, place: u64) -> impl Iterator<Item = (u64, f64)> {
        self.packets.iter().filter(move |sent| sent.place > place).map(|sent| (sent.place, sent.at))
    }

    /// Whether a probe is not known to have passed.
    pub(super) fn has_open_probe(&self) -> bool {
        self.packets.iter().any(|sent| sent.is_probe && sent.fate != Some(Fate::Passed))
    }

    /// Whether nothing is known of a packet that was sent before this one.
    pub(super) fn is_open_before(&self, number: u64) -> bool {
        self.packets.iter().take_while(|sent| sent.number < number).any(|sent| sent.fate.is_none())
    }

    /// Packets of which nothing is known yet.
    pub(super) fn on_the_way(&self) -> u64 {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: f64 = 0.05;

    fn ledger(packets: u64) -> Ledger {
        let mut ledger = Ledger::default();
        (0..packets).for_each(|number| ledger.push(sent(number)));
        ledger
    }

    /// A packet every 10 ms.
    fn sent(number: u64) -> Sent {
        Sent {
            number,
            at: number as f64 * 0.01,
            urgent: 0,
            silent: 0,
            on_the_way: 0,
            is_full: true,
            is_probe: false,
            level: 0.0,
            shift: 0.0,
            place: number,
            expected: None,
            fate: None,
            told: 0.0,
        }
    }

    fn next(ledger: &mut Ledger, now: f64) -> Option<(u64, Fate)> {
        ledger.next(PATIENCE, now).map(|(sent, fate)| (sent.number, fate))
    }

    /// The library tells of an acknowledgement first, and then of what it shows to be lost, however long ago that was sent.
    #[test]
    fn a_loss_counts_that_is_told_after_a_later_packet_has_passed() {
        let mut ledger = ledger(2);
        ledger.settle(1, Fate::Passed, 1.0);
        assert_eq!(next(&mut ledger, 1.0), None);
        ledger.settle(0, Fate::Lost, 1.0);
        assert_eq!(next(&mut ledger, 1.0), Some((0, Fate::Lost)));
        assert_eq!(next(&mut ledger, 1.0), Some((1, Fate::Passed)));
        assert_eq!(ledger.on_the_way(), 0);
    }

    #[test]
    fn nobody_waits_for_a_packet_of_which_nothing_is_told() {
        let mut ledger = ledger(3);
        ledger.settle(1, Fate::Passed, 1.0);
        assert_eq!(next(&mut ledger, 1.0 + PATIENCE * 0.9), None);
        assert_eq!(next(&mut ledger, 1.0 + PATIENCE * 1.1), Some((1, Fate::Passed)));
        assert_eq!(next(&mut ledger, 2.0), None, "of the third something may yet be told");
        assert_eq!(ledger.on_the_way(), 1);
        assert_eq!(next(&mut ledger, FORGOTTEN + 0.1), None);
        assert_eq!(ledger.on_the_way(), 0);
    }
}
