//! How much the broker holds, and when that is too much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use braid_proto::message::{Account, Charge, Message};
use braid_proto::stream::Priority;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::config::LimitsConfig;
use crate::queue::usage::heap_cost;

/// What a delivery in a queue costs beside its message, about.
const DELIVERY: i64 = 128;

/// How much is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Below the low mark.
    Fine,
    /// Above it: publishers are hardly read.
    Slow,
    /// Above the high mark: new connections are refused as well.
    Full,
}

/// The sum of what is held for as long as clients take it: messages on their way, each once however many are to get it,
/// and packets in parts. What waits for clients that are away, and what is retained, is counted apart: it does not
/// shrink when nobody publishes, and has caps of its own.
///
/// Relaxed: the sums guard no other memory. A late look at them is mended by the next one, and by [`Memory::settle`].
#[derive(Debug)]
pub(crate) struct Memory {
    low: i64,
    high: i64,
    /// Signed: what one thread gives back may be seen before what another has taken.
    used: AtomicI64,
    resting: AtomicI64,
    /// How many of the bytes at rest are of messages that are retained.
    retained: AtomicI64,
    /// Deliveries that wait for clients that are away.
    waiting: AtomicI64,
    /// Bytes that are known of deliveries in the store alone, for clients that are away.
    shelved: AtomicI64,
    /// What all these and their messages may have together.
    resting_limit: i64,
    /// Publishers are held back: from the low mark up until a little below it.
    is_pressed: AtomicBool,
    changed: Notify,
    relief: Arc<Notify>,
}

impl Memory {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            low: signed(limits.memory_low),
            high: signed(limits.memory_high),
            used: AtomicI64::new(0),
            resting: AtomicI64::new(0),
            retained: AtomicI64::new(0),
            waiting: AtomicI64::new(0),
            shelved: AtomicI64::new(0),
            resting_limit: signed(limits.resting_bytes),
            is_pressed: AtomicBool::new(false),
            changed: Notify::new(),
            relief: Arc::default(),
        }
    }

    // -- Counting ----------------------------------------------------------------------------------

    /// Charges messages that nobody shares yet, in one sum.
    pub(crate) fn charge(&self, account: &Arc<dyn Account>, messages: &mut [Arc<Message>]) {
        self.add(messages.iter().map(|message| heap_cost(message)).sum());
        for message in messages {
            let bytes = heap_cost(message);
            match Arc::get_mut(message) {
                Some(message) => message.set_charge(Charge::new(account.clone(), bytes)),
                None => self.remove(bytes),
            }
        }
    }

    /// The same for one that a start found.
    pub(crate) fn charge_one(&self, account: &Arc<dyn Account>, message: &mut Message) {
        let bytes = heap_cost(message);
        self.add(bytes);
        message.set_charge(Charge::new(account.clone(), bytes));
    }

    /// What is retained changes by so much: it is at rest, and in no queue.
    pub(crate) fn note_retained(&self, more: usize, less: usize) {
        self.retained.fetch_add(signed(more) - signed(less), Ordering::Relaxed);
    }

    /// What is known of deliveries in the store alone changes by so much.
    pub(crate) fn note_shelved(&self, more: usize, less: usize) {
        self.shelved.fetch_add(signed(more) - signed(less), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: usize) {
        let bytes = signed(bytes);
        if self.used.fetch_add(bytes, Ordering::Relaxed) + bytes > self.low && !self.is_pressed() {
            self.set_pressed(true);
        }
    }

    pub(crate) fn remove(&self, bytes: usize) {
        let bytes = signed(bytes);
        if self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes <= self.resume_at() && self.is_pressed() {
            self.set_pressed(false);
        }
    }

    fn set_pressed(&self, is_pressed: bool) {
        if self.is_pressed.swap(is_pressed, Ordering::Relaxed) != is_pressed {
            self.changed.notify_one();
        }
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Bytes of messages that wait for clients that are away, or are retained.
    pub(crate) fn resting(&self) -> u64 {
        self.resting.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Bytes that wait for clients that are away: each message once, unless it is retained, and each delivery. Of what
    /// is in the store alone only what the broker knows of it.
    pub(crate) fn queued(&self) -> u64 {
        self.queued_bytes().max(0).unsigned_abs()
    }

    fn queued_bytes(&self) -> i64 {
        let messages = self.resting.load(Ordering::Relaxed) - self.retained.load(Ordering::Relaxed);
        let deliveries = self.waiting.load(Ordering::Relaxed).max(0).saturating_mul(DELIVERY);
        let shelved = self.shelved.load(Ordering::Relaxed).max(0);
        messages.max(0).saturating_add(deliveries).saturating_add(shelved)
    }

    /// Whether so much more may not be queued for a client that is away. What is urgent may use a reserve.
    pub(crate) fn is_crowded(&self, bytes: usize, priority: Priority) -> bool {
        let reserve = if priority > Priority::DEFAULT { self.resting_limit / 4 } else { 0 };
        self.queued_bytes().saturating_add(signed(bytes)).saturating_add(DELIVERY)
            > self.resting_limit + reserve
    }

    /// Whether the queues of clients that are away are an eighth below what they may have.
    pub(crate) fn is_uncrowded(&self) -> bool {
        self.queued_bytes() <= self.resting_limit - self.resting_limit / 8
    }

    // -- Marks -------------------------------------------------------------------------------------

    /// Between the two marks nothing changes: publishers would be stopped and started for each message.
    fn resume_at(&self) -> i64 {
        self.low - self.low / 8
    }

    pub(crate) fn low(&self) -> u64 {
        self.low.unsigned_abs()
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.high
    }

    pub(crate) fn level(&self) -> Level {
        match (self.is_pressed(), self.is_full()) {
            (false, _) => Level::Fine,
            (true, false) => Level::Slow,
            (true, true) => Level::Full,
        }
    }

    /// How much is free between the marks, of 1.
    pub(crate) fn slack(&self) -> f64 {
        let span = (self.high - self.low).max(1) as f64;
        ((self.high - self.used.load(Ordering::Relaxed)) as f64 / span).clamp(0.0, 1.0)
    }

    // -- Telling -----------------------------------------------------------------------------------

    /// Waits until publishers are to be held back, or no longer.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What two threads saw of each other in another order is put right, and who waits is told if that is over.
    pub(crate) fn settle(&self) -> Level {
        let used = self.used.load(Ordering::Relaxed);
        if used > self.low {
            self.is_pressed.store(true, Ordering::Relaxed);
        } else if used <= self.resume_at() {
            self.is_pressed.store(false, Ordering::Relaxed);
        }
        let level = self.level();
        if level == Level::Fine {
            self.relief.notify_waiters();
        }
        level
    }

    /// Done when publishers are read again, seen from the moment of this call.
    pub(crate) fn relief(&self) -> OwnedNotified {
        self.relief.clone().notified_owned()
    }
}

impl Account for Memory {
    fn rest(&self, bytes: usize) {
        self.resting.fetch_add(signed(bytes), Ordering::Relaxed);
        self.remove(bytes);
    }

    fn wake(&self, bytes: usize) {
        self.resting.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.add(bytes);
    }

    fn release(&self, bytes: usize) {
        self.remove(bytes);
    }

    fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The same for one connection: its messages share the count of references to this, and not one that all connections
/// change.
#[derive(Debug)]
pub(crate) struct ConnectionMemoryAccount(pub(crate) Arc<Memory>);

impl Account for ConnectionMemoryAccount {
    fn rest(&self, bytes: usize) {
        self.0.rest(bytes);
    }

    fn wake(&self, bytes: usize) {
        self.0.wake(bytes);
    }

    fn release(&self, bytes: usize) {
        self.0.release(bytes);
    }

    fn begin_wait(&self) {
        self.0.begin_wait();
    }

    fn end_wait(&self) {
        self.0.end_wait();
    }
}

fn signed(bytes: usize) -> i64 {
    // Sums of a few of these must not overflow.
    i64::try_from(bytes).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(memory_low: usize, memory_high: usize) -> Memory {
        Memory::new(&LimitsConfig { memory_low, memory_high, ..LimitsConfig::default() })
    }

    #[test]
    fn publishers_are_held_back_from_the_low_mark_until_an_eighth_below_it() {
        let memory = memory(800, 1600);
        memory.add(800);
        assert_eq!(memory.level(), Level::Fine);
        memory.add(1);
        assert_eq!((memory.level(), memory.slack()), (Level::Slow, 799.0 / 800.0));
        memory.add(800);
        assert_eq!((memory.level(), memory.slack()), (Level::Full, 0.0));
        memory.remove(800);
        memory.remove(100);
        assert_eq!(memory.level(), Level::Slow);
        memory.remove(1);
        assert_eq!(memory.level(), Level::Fine);
    }

    #[test]
    fn what_rests_holds_nobody_back() {
        let memory = memory(800, 1600);
        memory.add(2000);
        assert_eq!(memory.level(), Level::Full);
        memory.rest(2000);
        assert_eq!((memory.level(), memory.used(), memory.resting()), (Level::Fine, 0, 2000));
        memory.wake(2000);
        assert_eq!((memory.level(), memory.used(), memory.resting()), (Level::Full, 2000, 0));
    }

    #[test]
    fn marks_that_are_never_reached_are_no_marks() {
        let memory = memory(usize::MAX, usize::MAX);
        memory.add(usize::MAX);
        memory.add(1 << 40);
        assert!(memory.used() > 1 << 40);
        memory.remove(usize::MAX);
        assert_eq!(memory.used(), 1 << 40);
    }
}
