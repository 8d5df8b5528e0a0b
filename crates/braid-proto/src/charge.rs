//! What the memory of a message counts for, as long as anybody holds it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::message::Message;

/// Who counts the memory that messages keep, in bytes. What a message counts for moves between three states: in use,
/// resting, gone.
pub trait MemoryAccount: fmt::Debug + Send + Sync {
    /// From use to rest: somebody who is away is to get it, or nobody yet.
    fn move_offline(&self, bytes: usize);
    /// From rest to use.
    fn move_online(&self, bytes: usize);
    /// From use to gone: nobody holds the message any more.
    fn release(&self, bytes: usize);
    /// One more delivery of a message waits for somebody who is away.
    fn begin_delivery(&self);
    /// One of them does no more.
    fn end_delivery(&self);
}

/// What one message counts for, however many hold it. Given back when the last of them lets go.
#[derive(Debug)]
pub struct MemoryCharge {
    account: Arc<dyn MemoryAccount>,
    bytes: usize,
    /// How many hold the message at rest.
    offline: AtomicUsize,
}

impl MemoryCharge {
    /// A charge of bytes that `account` has counted as in use: of many messages in one sum.
    pub fn new(account: Arc<dyn MemoryAccount>, bytes: usize) -> Self {
        Self { account, bytes, offline: AtomicUsize::new(0) }
    }

    // Relaxed: the count guards no other memory, and what two threads tell the account adds up in any order.

    pub(crate) fn begin_offline(&self) {
        if self.offline.fetch_add(1, Ordering::Relaxed) == 0 {
            self.account.move_offline(self.bytes);
        }
    }

    pub(crate) fn end_offline(&self) {
        if self.offline.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.account.move_online(self.bytes);
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        if *self.offline.get_mut() > 0 {
            self.account.move_online(self.bytes);
        }
        self.account.release(self.bytes);
    }
}

/// Somebody who holds a message at rest: as long as there is one, the message counts as resting, whoever else holds it.
#[derive(Debug)]
pub struct OfflineCharge(Arc<Message>);

impl OfflineCharge {
    /// `None`: the message counts for nothing.
    pub fn new(message: &Arc<Message>) -> Option<Self> {
        message.charge()?;
        Some(Self::of(message.clone()))
    }

    /// The same of any message, also of one that counts for nothing.
    pub fn of(message: Arc<Message>) -> Self {
        if let Some(charge) = message.charge() {
            charge.begin_offline();
            charge.account.begin_delivery();
        }
        Self(message)
    }

    /// The message.
    pub fn message(&self) -> &Arc<Message> {
        &self.0
    }
}

impl Clone for OfflineCharge {
    fn clone(&self) -> Self {
        Self::of(self.0.clone())
    }
}

impl Drop for OfflineCharge {
    fn drop(&mut self) {
        if let Some(charge) = self.0.charge() {
            charge.end_offline();
            charge.account.end_delivery();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;
    use crate::message::Delivery;
    use crate::packet::QoS;
    use crate::topic::TopicName;

    /// Bytes in use, and resting.
    #[derive(Debug, Default)]
    struct Sums(Mutex<(i64, i64)>, AtomicUsize);

    impl Sums {
        fn move_bytes(&self, used: i64, resting: i64) {
            let mut sums = self.0.lock().expect("no panic");
            *sums = (sums.0 + used, sums.1 + resting);
        }
    }

    impl MemoryAccount for Sums {
        fn move_offline(&self, bytes: usize) {
            self.move_bytes(-(bytes as i64), bytes as i64);
        }

        fn move_online(&self, bytes: usize) {
            self.move_bytes(bytes as i64, -(bytes as i64));
        }

        fn release(&self, bytes: usize) {
            self.move_bytes(-(bytes as i64), 0);
        }

        fn begin_delivery(&self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }

        fn end_delivery(&self) {
            self.1.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn charged(sums: &Arc<Sums>) -> Arc<Message> {
        let topic = TopicName::parse("t").expect("a topic name");
        let mut message = Message::new(topic, Bytes::new(), QoS::AtLeastOnce, false);
        sums.move_bytes(100, 0);
        message.set_charge(MemoryCharge::new(sums.clone(), 100));
        Arc::new(message)
    }

    #[test]
    fn a_message_counts_once_until_the_last_holder_lets_go() {
        let sums = Arc::new(Sums::default());
        let message = charged(&sums);
        let mut deliveries = vec![Delivery::of(message.clone()), Delivery::of(message)];
        assert_eq!(*sums.0.lock().unwrap(), (100, 0));
        deliveries.pop();
        assert_eq!(*sums.0.lock().unwrap(), (100, 0));
        deliveries.pop();
        assert_eq!(*sums.0.lock().unwrap(), (0, 0));
    }

    #[test]
    fn it_rests_as_long_as_anybody_holds_it_at_rest() {
        let sums = Arc::new(Sums::default());
        let message = charged(&sums);
        let (mut first, mut second) = (Delivery::of(message.clone()), Delivery::of(message.clone()));
        first.charge_offline();
        first.charge_offline();
        second.charge_offline();
        let copy = first.clone();
        message.begin_offline();
        assert_eq!(sums.1.load(Ordering::Relaxed), 3, "however many share a message, each waits");
        drop((first, second));
        message.end_offline();
        assert_eq!(*sums.0.lock().unwrap(), (0, 100));
        drop(copy);
        assert_eq!(sums.1.load(Ordering::Relaxed), 0);
        assert_eq!(*sums.0.lock().unwrap(), (100, 0));
        // Whoever goes last, all of it goes.
        message.begin_offline();
        drop(message);
        assert_eq!(*sums.0.lock().unwrap(), (0, 0));
    }
}
