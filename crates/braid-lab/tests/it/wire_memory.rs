//! Wires in memory, between a link and a test.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_emulator::PathCounters;
use braid_lab::wire::{Batch, Running, Wire};

/// Limit of waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// Answer of a wire to a sent frame, or to the n-th read.
type Refusal<T> = Box<dyn Fn(T) -> Option<i32> + Send + Sync>;

/// The wire.
pub(crate) struct MemoryWire {
    head: usize,
    offered: Arc<Mutex<VecDeque<Vec<u8>>>>,
    /// Readable once frames were offered.
    wakeup: UnixStream,
    sent: Mutex<Sender<Vec<u8>>>,
    send_error: Refusal<Vec<u8>>,
    recv_error: Mutex<VecDeque<i32>>,
    age: Option<Duration>,
}

/// The kernel behind it.
pub(crate) struct MemoryKernel {
    offered: Arc<Mutex<VecDeque<Vec<u8>>>>,
    notifier: UnixStream,
    sent: Receiver<Vec<u8>>,
}

pub(crate) fn memory_wire(head: usize) -> (MemoryWire, MemoryKernel) {
    let (wakeup, notifier) = UnixStream::pair().unwrap();
    wakeup.set_nonblocking(true).unwrap();
    let (sent, received) = channel();
    let offered = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
    let wire = MemoryWire {
        head,
        offered: Arc::clone(&offered),
        wakeup,
        sent: Mutex::new(sent),
        send_error: Box::new(|_| None),
        recv_error: Mutex::default(),
        age: None,
    };
    (wire, MemoryKernel { offered, notifier, sent: received })
}

impl MemoryWire {
    /// Answers a frame that is sent with an error number.
    pub(crate) fn refusing(
        self,
        send_error: impl Fn(Vec<u8>) -> Option<i32> + Send + Sync + 'static,
    ) -> Self {
        Self { send_error: Box::new(send_error), ..self }
    }

    /// Stamps the last frame of each read as so old.
    pub(crate) fn stamping(self, age: Duration) -> Self {
        Self { age: Some(age), ..self }
    }

    /// Fails the first reads with these error numbers.
    pub(crate) fn failing(self, errors: &[i32]) -> Self {
        Self { recv_error: Mutex::new(errors.iter().copied().collect()), ..self }
    }
}

impl Wire for MemoryWire {
    fn name(&self) -> &str {
        "memory"
    }

    fn kind(&self) -> &'static str {
        if self.head == 0 { "tun" } else { "packet" }
    }

    fn link_header(&self) -> usize {
        self.head
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    fn recv(&self, batch: &mut Batch) -> io::Result<usize> {
        if let Some(error) = self.recv_error.lock().unwrap().pop_front() {
            return Err(io::Error::from_raw_os_error(error));
        }
        let read = batch.fill(|slot| {
            let mut offered = self.offered.lock().unwrap();
            let Some(frame) = offered.pop_front() else {
                while (&self.wakeup).read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
                return Err(io::ErrorKind::WouldBlock.into());
            };
            slot[..frame.len()].copy_from_slice(&frame);
            Ok(frame.len())
        })?;
        if let Some(age) = self.age {
            batch.stamp_last(SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - age);
        }
        Ok(read)
    }

    fn stamps(&self) -> bool {
        self.age.is_some()
    }

    fn send(&self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        for (sent, frame) in frames.iter().enumerate() {
            match (self.send_error)(frame.to_vec()) {
                None => self.sent.lock().unwrap().send(frame.to_vec()).unwrap(),
                Some(error) if sent == 0 => return Err(io::Error::from_raw_os_error(error)),
                Some(_) => return Ok(sent),
            }
        }
        Ok(frames.len())
    }

    fn missed(&self) -> u64 {
        3
    }
}

impl MemoryKernel {
    /// Delivers frames, all at once.
    pub(crate) fn offer(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut offered = self.offered.lock().unwrap();
        offered.extend(frames);
        (&self.notifier).write_all(&[1]).unwrap();
    }

    /// The next frame that was sent.
    pub(crate) fn take(&self) -> Vec<u8> {
        self.sent.recv_timeout(PATIENCE).unwrap()
    }

    /// The next frames that were sent.
    pub(crate) fn take_many(&self, count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| self.take()).collect()
    }

    /// All other frames that were sent until now.
    pub(crate) fn rest(&self) -> Vec<Vec<u8>> {
        self.sent.try_iter().collect()
    }

    /// Waits until the link has dropped the wire.
    pub(crate) fn until_dropped(&self) {
        while self.sent.recv_timeout(PATIENCE) != Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {}
    }
}

/// Waits for published counters, up first.
pub(crate) fn until(running: &Running, condition: impl Fn([PathCounters; 2]) -> bool) {
    let start = Instant::now();
    while !condition(running.counters()) {
        assert!(start.elapsed() < PATIENCE, "{:?}", running.counters());
        std::thread::yield_now();
    }
}
