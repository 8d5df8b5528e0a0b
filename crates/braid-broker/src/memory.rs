//! Memory accounting of the broker, with the watermarks above which publishers are slowed and connections refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use braid_proto::message::{MemoryAccount, MemoryCharge, Message, SharedMessage};
use braid_proto::stream::Priority;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::config::LimitsConfig;
use crate::queue::usage::heap_cost;
use crate::sharded::ShardedCounters;

/// Estimated bytes of a queued delivery beside its message.
const DELIVERY: i64 = 128;

/// Steps from nothing to the low watermark at least, and bytes of one at most: all shards together may be one step each
/// beyond a watermark.
const STEPS: i64 = 1024;
const MAX_STEP: i64 = 64 << 10;

/// Level of memory use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Below the low watermark.
    Fine,
    /// Above the low watermark: publishers are slowed.
    Slow,
    /// Above the high watermark: new connections are refused as well.
    Full,
}

/// Bytes in use for connected clients: messages in flight, each counted once however many subscribers it has, and
/// incomplete packets.
///
/// Messages that are queued for offline clients or retained are counted apart. Their sum does not shrink when nothing
/// is published, and has limits of its own.
///
/// Relaxed: the sums guard no other memory. A stale read is corrected by the next one, and by [`Memory::settle`].
#[derive(Debug)]
pub(crate) struct Memory {
    watermarks: Watermarks,
    /// Signed: a release on one thread may be seen before the charge of another. In shards: a message changes it on the
    /// thread of its publisher and on that of its last subscriber.
    used: ShardedCounters<1>,
    /// Change of a shard of `used` after which the sum is compared with the watermarks.
    step: i64,
    /// Bytes that were received on QUIC streams and not read. They count for the high watermark only: a publisher that
    /// is slowed has more of them.
    unread: AtomicI64,
    /// Bytes of messages that are queued for offline clients, or retained.
    resting: AtomicI64,
    /// The part of `resting` that is retained.
    retained: AtomicI64,
    /// Number of deliveries that are queued for offline clients.
    deliveries: AtomicI64,
    /// Bytes of entries whose message is in the store alone.
    stored_entries: AtomicI64,
    /// Upper bound of the queues of all offline clients together.
    offline_limit: i64,
    relief: Arc<Notify>,
}

/// Watermarks of memory, and which of them are exceeded. The beginning is notified, whichever sum caused it.
#[derive(Debug)]
struct Watermarks {
    low: i64,
    high: i64,
    /// Publishers are slowed. Set above the low watermark, cleared an eighth below it.
    is_pressed: AtomicBool,
    /// New connections are refused: the high watermark is exceeded.
    is_exhausted: AtomicBool,
    changed: Notify,
}

impl Watermarks {
    fn new(limits: &LimitsConfig) -> Self {
        Self {
            low: signed(limits.memory_low),
            high: signed(limits.memory_high),
            is_pressed: AtomicBool::new(false),
            is_exhausted: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// Hysteresis: at the low watermark itself publishers would be stopped and started with each message.
    fn resume_at(&self) -> i64 {
        self.low - self.low / 8
    }

    fn is_pressed(&self) -> bool {
        self.is_pressed.load(Ordering::Relaxed)
    }

    /// Compares sums with the watermarks.
    fn update(&self, used: i64, unread: i64) {
        let is_pressed = used > self.low || (used > self.resume_at() && self.is_pressed());
        if change(&self.is_pressed, is_pressed) {
            self.changed.notify_one();
        }
        let is_exhausted = used.saturating_add(unread) > self.high;
        // The end is not notified: an overload is checked every second until it is over.
        if change(&self.is_exhausted, is_exhausted) && is_exhausted {
            self.changed.notify_one();
        }
    }
}

/// Changes a flag; true if that was a change. The load comes first: most updates change nothing, and must not write to
/// a shared cache line.
fn change(flag: &AtomicBool, value: bool) -> bool {
    flag.load(Ordering::Relaxed) != value && flag.swap(value, Ordering::Relaxed) != value
}

impl Memory {
    pub(crate) fn new(limits: &LimitsConfig) -> Self {
        Self {
            watermarks: Watermarks::new(limits),
            used: ShardedCounters::default(),
            step: (signed(limits.memory_low) / STEPS).clamp(1, MAX_STEP),
            unread: AtomicI64::new(0),
            resting: AtomicI64::new(0),
            retained: AtomicI64::new(0),
            deliveries: AtomicI64::new(0),
            stored_entries: AtomicI64::new(0),
            offline_limit: signed(limits.resting_bytes),
            relief: Arc::default(),
        }
    }

    // -- Counting ----------------------------------------------------------------------------------

    /// Account for the messages of one connection.
    pub(crate) fn account(self: &Arc<Self>) -> Arc<dyn MemoryAccount> {
        Arc::new(ConnectionMemoryAccount(self.clone()))
    }

    /// Charges messages that are not shared yet, as one sum.
    pub(crate) fn charge(&self, account: &Arc<dyn MemoryAccount>, messages: &mut [SharedMessage]) {
        self.add(messages.iter().map(|message| heap_cost(message)).sum());
        for message in messages {
            let bytes = heap_cost(message);
            match SharedMessage::get_mut(message) {
                Some(message) => message.set_charge(MemoryCharge::new(account.clone(), bytes)),
                None => self.remove(bytes),
            }
        }
    }

    /// Charges one message that was found at the start.
    pub(crate) fn charge_one(&self, account: &Arc<dyn MemoryAccount>, message: &mut Message) {
        let bytes = heap_cost(message);
        self.add(bytes);
        message.set_charge(MemoryCharge::new(account.clone(), bytes));
    }

    /// Changes the sum of retained messages.
    pub(crate) fn note_retained(&self, more: usize, less: usize) {
        self.retained.fetch_add(signed(more) - signed(less), Ordering::Relaxed);
    }

    /// Changes the sum of entries whose message is in the store alone.
    pub(crate) fn note_stored_entries(&self, more: usize, less: usize) {
        self.stored_entries.fetch_add(signed(more) - signed(less), Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.change(signed(bytes));
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.change(-signed(bytes));
    }

    fn change(&self, bytes: i64) {
        let (before, after) = self.used.add(0, bytes);
        if before.div_euclid(self.step) != after.div_euclid(self.step) {
            self.watermarks.update(self.used.sum(0), self.unread());
        }
    }

    /// Changes the sum of received bytes that are not read.
    pub(crate) fn note_unread(&self, before: usize, now: usize) {
        self.unread.fetch_add(signed(now) - signed(before), Ordering::Relaxed);
        self.watermarks.update(self.used.sum(0), self.unread());
    }

    fn unread(&self) -> i64 {
        self.unread.load(Ordering::Relaxed).max(0)
    }

    /// Bytes in use for connected clients.
    pub(crate) fn used(&self) -> u64 {
        self.used.sum(0).max(0).unsigned_abs()
    }

    /// Bytes in use and received bytes that are not read.
    pub(crate) fn held(&self) -> u64 {
        self.used().saturating_add(self.unread().unsigned_abs())
    }

    /// Bytes of messages that are queued for offline clients, or retained.
    pub(crate) fn resting(&self) -> u64 {
        self.resting.load(Ordering::Relaxed).max(0).unsigned_abs()
    }

    /// Bytes of the queues of all offline clients: each message once, unless it is retained, and each delivery. A
    /// message in the store alone counts with its entry only.
    pub(crate) fn queued(&self) -> u64 {
        self.queued_bytes().max(0).unsigned_abs()
    }

    fn queued_bytes(&self) -> i64 {
        let messages = self.resting.load(Ordering::Relaxed) - self.retained.load(Ordering::Relaxed);
        let deliveries = self.deliveries.load(Ordering::Relaxed).max(0).saturating_mul(DELIVERY);
        let stored = self.stored_entries.load(Ordering::Relaxed).max(0);
        messages.max(0).saturating_add(deliveries).saturating_add(stored)
    }

    /// Whether the queues of all offline clients have no room for one more message of `bytes`. Urgent messages may use
    /// a reserve.
    pub(crate) fn is_offline_limit_reached(&self, bytes: usize, priority: Priority) -> bool {
        let reserve = if priority > Priority::DEFAULT { self.offline_limit / 4 } else { 0 };
        self.queued_bytes().saturating_add(signed(bytes)).saturating_add(DELIVERY)
            > self.offline_limit + reserve
    }

    /// Whether the queues of all offline clients are an eighth below their limit.
    pub(crate) fn has_offline_room(&self) -> bool {
        self.queued_bytes() <= self.offline_limit - self.offline_limit / 8
    }

    // -- Watermarks --------------------------------------------------------------------------------

    pub(crate) fn low(&self) -> u64 {
        self.watermarks.low.unsigned_abs()
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.watermarks.is_pressed()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.used.sum(0) > self.watermarks.high
    }

    /// Whether new connections are refused.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.held() > self.watermarks.high.unsigned_abs()
    }

    pub(crate) fn level(&self) -> Level {
        match (self.is_exhausted(), self.is_pressed()) {
            (true, _) => Level::Full,
            (false, true) => Level::Slow,
            (false, false) => Level::Fine,
        }
    }

    /// Free part of the span between the watermarks, from 0 to 1.
    pub(crate) fn slack(&self) -> f64 {
        let Watermarks { low, high, .. } = self.watermarks;
        let span = (high - low).max(1) as f64;
        ((high - self.used.sum(0)) as f64 / span).clamp(0.0, 1.0)
    }

    // -- Notifications -----------------------------------------------------------------------------

    /// Waits until a watermark is exceeded, or publishers are no longer slowed.
    pub(crate) async fn changed(&self) {
        self.watermarks.changed.notified().await;
    }

    /// Corrects the flag after updates that threads saw in different orders, and wakes waiting connections if memory is
    /// no longer short.
    pub(crate) fn settle(&self) -> Level {
        self.watermarks.update(self.used.sum(0), self.unread());
        if !self.is_pressed() {
            self.relief.notify_waiters();
        }
        self.level()
    }

    /// Resolves when publishers are no longer slowed, from the moment of this call on.
    pub(crate) fn relief(&self) -> OwnedNotified {
        self.relief.clone().notified_owned()
    }
}

/// Account for the messages of one connection. They share its reference count, which is not contended as one for all
/// connections would be.
#[derive(Debug)]
struct ConnectionMemoryAccount(Arc<Memory>);

impl MemoryAccount for ConnectionMemoryAccount {
    fn move_offline(&self, bytes: usize) {
        self.0.resting.fetch_add(signed(bytes), Ordering::Relaxed);
        self.0.remove(bytes);
    }

    fn move_online(&self, bytes: usize) {
        self.0.resting.fetch_sub(signed(bytes), Ordering::Relaxed);
        self.0.add(bytes);
    }

    fn release(&self, bytes: usize) {
        self.0.remove(bytes);
    }

    fn begin_delivery(&self) {
        self.0.deliveries.fetch_add(1, Ordering::Relaxed);
    }

    fn end_delivery(&self) {
        self.0.deliveries.fetch_sub(1, Ordering::Relaxed);
    }
}

fn signed(bytes: usize) -> i64 {
    // Sums of a few of these must not overflow.
    i64::try_from(bytes).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll_once<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn memory(memory_low: usize, memory_high: usize) -> Memory {
        Memory::new(&LimitsConfig { memory_low, memory_high, ..LimitsConfig::default() })
    }

    #[test]
    fn publishers_are_slowed_from_the_low_watermark_until_an_eighth_below() {
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
    fn a_watermark_is_noticed_within_one_step_of_a_thread() {
        const LOW: usize = 1 << 30;
        let memory = memory(LOW, 2 * LOW);
        let mut used = 0;
        while memory.level() == Level::Fine && used < 2 * LOW {
            memory.add(1000);
            used += 1000;
        }
        assert!((LOW..LOW + (64 << 10) + 1000).contains(&used), "{used}");
    }

    #[test]
    fn unread_bytes_refuse_clients_and_slow_no_publisher() {
        let memory = memory(800, 1600);
        let is_notified = || poll_once(pin!(memory.changed())).is_ready();
        memory.note_unread(0, 1600);
        assert_eq!((memory.level(), memory.held(), memory.used()), (Level::Fine, 1600, 0));
        assert!(!is_notified());
        memory.add(1);
        assert_eq!((memory.level(), memory.is_pressed()), (Level::Full, false));
        assert!(is_notified(), "whichever sum exceeded the watermark");
        memory.note_unread(1600, 100);
        assert_eq!((memory.settle(), memory.held(), memory.used()), (Level::Fine, 101, 1));
    }

    #[test]
    fn offline_messages_slow_no_publisher() {
        let memory = Arc::new(memory(800, 1600));
        let account = memory.account();
        memory.add(2000);
        assert_eq!(memory.level(), Level::Full);
        account.move_offline(2000);
        assert_eq!((memory.level(), memory.used(), memory.resting()), (Level::Fine, 0, 2000));
        account.move_online(2000);
        assert_eq!((memory.level(), memory.used(), memory.resting()), (Level::Full, 2000, 0));
    }

    #[test]
    fn largest_watermarks_are_never_reached() {
        let memory = memory(usize::MAX, usize::MAX);
        memory.add(usize::MAX);
        memory.add(1 << 40);
        assert!(memory.used() > 1 << 40);
        memory.remove(usize::MAX);
        assert_eq!(memory.used(), 1 << 40);
    }
}
