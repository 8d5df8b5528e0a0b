//! The logs of a link, written by a thread of their own: the packet path never waits for a disk.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::mem;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::WireError;
use super::clock::Clock;
use super::pcapng::Capture;
use super::verdicts::{Flow, Outcome, Record, Seconds, TITLE, mark, path_text};
use braid_emulator::{Departure, Direction, LinkSpec, PathSpec, Verdict, ecn_of};

/// Capacity of the channel in turns; a turn is a batch of packets at most.
const PAGES: usize = 1024;
/// Packets kept without a verdict, more than any link holds; those whose verdicts were dropped would stay forever.
const INSIDE: usize = 1 << 17;
/// Bytes of a packet that is logged by its headers: link header, IP header with some extensions, transport header.
const HEADERS: usize = 160;

/// Entry of the logs.
#[derive(Debug)]
pub(super) enum Entry {
    /// Arrival of a packet.
    Arrived(Arrival),
    /// Verdict about a packet.
    Settled(Verdict),
    /// Change of the link after the arrival of packet `after`.
    Changed { after: u64, at: Duration, path: Box<PathSpec> },
    /// Packet that the kernel refused although its verdict says sent.
    Unsent { index: u64, copy: bool, error: String },
    /// Last entry of a direction, with the number of verdicts that were dropped.
    Closed { unlogged: u64 },
}

/// A packet without a final verdict.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) index: u64,
    pub(super) at: Duration,
    /// Bytes without link header.
    pub(super) size: usize,
    pub(super) duplicated: bool,
    /// The frame, or the front of it.
    pub(super) frame: Box<[u8]>,
}

type Page = (Direction, Vec<Entry>);

/// The writing thread.
#[derive(Debug)]
pub(super) struct Log {
    sender: SyncSender<Page>,
    writer: JoinHandle<Option<String>>,
    head: usize,
    whole: bool,
}

impl Log {
    /// Creates the files `verdicts` and `pcap`; `None` if neither is requested.
    pub(super) fn start(
        verdicts: Option<&Path>,
        pcap: Option<&Path>,
        link: &LinkSpec,
        seed: u64,
        head: usize,
        clock: Clock,
    ) -> Result<Option<Self>, WireError> {
        if verdicts.is_none() && pcap.is_none() {
            return Ok(None);
        }
        let ledger =
            |mut file: BufWriter<File>| write!(file, "{TITLE}\nlink {link}\nseed {seed}\n").map(|()| file);
        let capture = |file| Capture::new(file, head, clock.epoch());
        let writer = Writer {
            ledger: verdicts.map(|path| create(path, ledger)).transpose()?,
            capture: pcap.map(|path| create(path, capture)).transpose()?,
            inside: Default::default(),
            head,
        };
        let (sender, pages) = sync_channel(PAGES);
        let writer = thread::Builder::new()
            .name("lab-log".to_owned())
            .spawn(move || writer.run(&pages))
            .map_err(WireError::start)?;
        Ok(Some(Self { sender, writer, head, whole: pcap.is_some() }))
    }

    /// Log of `direction`, for the thread that serves it.
    pub(super) fn direction(&self, direction: Direction) -> DirectionLog {
        let keep = if self.whole { usize::MAX } else { HEADERS };
        let sender = self.sender.clone();
        DirectionLog { direction, sender, page: Vec::new(), head: self.head, keep, unlogged: 0 }
    }

    /// Waits until all is written; returns the first error. All directions must be closed.
    pub(super) fn finish(self) -> Option<String> {
        drop(self.sender);
        self.writer.join().unwrap_or_else(|_| Some("the thread of the logs has died".to_owned()))
    }
}

fn create<T>(path: &Path, begin: impl FnOnce(BufWriter<File>) -> io::Result<T>) -> Result<T, WireError> {
    let begun = File::create(path).map(BufWriter::new).and_then(begin);
    begun.map_err(|error| WireError(format!("cannot write {}: {error}", path.display())))
}

/// Sender of the entries of one direction: once per turn, without waiting.
#[derive(Debug)]
pub(super) struct DirectionLog {
    direction: Direction,
    sender: SyncSender<Page>,
    page: Vec<Entry>,
    head: usize,
    /// Bytes of a frame that are kept.
    keep: usize,
    unlogged: u64,
}

impl DirectionLog {
    pub(super) fn arrived(&mut self, index: u64, at: Duration, duplicated: bool, frame: &[u8]) {
        let size = frame.len().saturating_sub(self.head);
        let frame = frame[..frame.len().min(self.keep)].into();
        self.page.push(Entry::Arrived(Arrival { index, at, size, duplicated, frame }));
    }

    pub(super) fn settled(&mut self, verdict: Verdict) {
        self.page.push(Entry::Settled(verdict));
    }

    pub(super) fn changed(&mut self, after: u64, at: Duration, path: &PathSpec) {
        self.page.push(Entry::Changed { after, at, path: Box::new(path.clone()) });
    }

    pub(super) fn unsent(&mut self, departure: &Departure, error: &io::Error) {
        let &Departure { index, copy, .. } = departure;
        self.page.push(Entry::Unsent { index, copy, error: error.to_string() });
    }

    /// Sends the entries of a turn, or counts its verdicts if there is no room.
    pub(super) fn turn(&mut self) {
        if self.page.is_empty() {
            return;
        }
        let page = (self.direction, mem::take(&mut self.page));
        if let Err(TrySendError::Full((_, page)) | TrySendError::Disconnected((_, page))) =
            self.sender.try_send(page)
        {
            let verdicts = page.iter().filter(|entry| matches!(entry, Entry::Settled(_)));
            self.unlogged += verdicts.count() as u64;
        }
    }

    /// Sends the rest, waiting for room; returns the number of verdicts that were not sent.
    pub(super) fn close(mut self) -> u64 {
        let unlogged = self.unlogged;
        self.page.push(Entry::Closed { unlogged });
        // Only a thread that has died does not take it, which `Log::finish` reports.
        let _ = self.sender.send((self.direction, self.page));
        unlogged
    }
}

/// Writing thread, which joins verdicts with their packets.
#[derive(Debug)]
struct Writer {
    ledger: Option<BufWriter<File>>,
    capture: Option<Capture<BufWriter<File>>>,
    /// Packets of each direction, and whether they and their duplicates are settled.
    inside: [BTreeMap<u64, (Arrival, [bool; 2])>; 2],
    head: usize,
}

impl Writer {
    /// Writes pages until all senders are dropped. Returns the first error, after which nothing more is written.
    fn run(mut self, pages: &Receiver<Page>) -> Option<String> {
        let written = self.write_all(pages);
        // Senders must not see a closed channel because of a full disk.
        while written.is_err() && pages.recv().is_ok() {}
        written.err().map(|error| format!("a log is not whole: {error}"))
    }

    fn write_all(&mut self, pages: &Receiver<Page>) -> io::Result<()> {
        while let Ok(mut page) = pages.recv() {
            loop {
                let (direction, entries) = page;
                for entry in entries {
                    self.write(direction, entry)?;
                }
                match pages.try_recv() {
                    Ok(next) => page = next,
                    Err(_) => break,
                }
            }
            // The files of a quiet link are up to date.
            self.flush()?;
        }
        self.flush()
    }

    fn write(&mut self, direction: Direction, entry: Entry) -> io::Result<()> {
        match entry {
            Entry::Arrived(arrival) => {
                let settled = [false, !arrival.duplicated];
                let inside = &mut self.inside[direction as usize];
                inside.insert(arrival.index, (arrival, settled));
                if inside.len() > INSIDE {
                    inside.pop_first();
                }
                Ok(())
            }
            Entry::Settled(verdict) => self.settle(direction, &verdict),
            Entry::Changed { after, at, path } => {
                let (at, path) = (Seconds(at), path_text(&path));
                self.line(format_args!("{direction} {after} ! {at} {path}"))
            }
            Entry::Unsent { index, copy, error } => {
                let mark = mark(copy);
                self.line(format_args!("# {direction} {index} {mark} was not sent: {error}"))
            }
            Entry::Closed { unlogged } => {
                let rest = mem::take(&mut self.inside[direction as usize]);
                // With missing verdicts it is unknown which packets are inside.
                for (arrival, settled) in rest.into_values().filter(|_| unlogged == 0) {
                    for copy in [false, true] {
                        if !settled[usize::from(copy)] {
                            self.record(direction, &arrival, copy, Outcome::Inside, (None, false))?;
                        }
                    }
                }
                if unlogged == 0 {
                    Ok(())
                } else {
                    self.line(format_args!("unlogged {direction} {unlogged}"))
                }
            }
        }
    }

    fn settle(&mut self, direction: Direction, verdict: &Verdict) -> io::Result<()> {
        let &Verdict { index, copy, at, size, corrupted, is_marked, fate } = verdict;
        let changed = (corrupted, is_marked);
        let Some((arrival, mut settled)) = self.inside[direction as usize].remove(&index) else {
            // The page of its arrival found no room.
            let arrival = Arrival { index, at, size, duplicated: copy, frame: Box::default() };
            return self.record(direction, &arrival, copy, Outcome::Settled(fate), changed);
        };
        self.record(direction, &arrival, copy, Outcome::Settled(fate), changed)?;
        settled[usize::from(copy)] = true;
        if settled != [true, true] {
            self.inside[direction as usize].insert(index, (arrival, settled));
        }
        Ok(())
    }

    fn record(
        &mut self,
        direction: Direction,
        arrival: &Arrival,
        copy: bool,
        outcome: Outcome,
        (corrupted, is_marked): (Option<u64>, bool),
    ) -> io::Result<()> {
        let &Arrival { index, at, size, ref frame, .. } = arrival;
        let packet = frame.get(self.head..).unwrap_or_default();
        let (flow, ecn) = (Flow::of(packet), ecn_of(packet));
        let record = Record { direction, index, copy, at, size, flow, ecn, outcome, corrupted, is_marked };
        self.line(format_args!("{record}"))?;
        if let Some(capture) = self.capture.as_mut().filter(|_| !frame.is_empty()) {
            capture.packet(direction, at, frame, &record.verdict_text())?;
        }
        Ok(())
    }

    /// Writes a line of the verdict log, if there is one.
    fn line(&mut self, line: fmt::Arguments<'_>) -> io::Result<()> {
        self.ledger.as_mut().map_or(Ok(()), |ledger| writeln!(ledger, "{line}"))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ledger.as_mut().map_or(Ok(()), Write::flush)?;
        self.capture.as_mut().map_or(Ok(()), Capture::flush)
    }
}
