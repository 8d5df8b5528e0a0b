//! Thread that watches a program: reads its output, waits for its end and reaps it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::output::{End, LineSplitter, Lines, Memory, Stream, Termination};
use super::sys::{self, ready_within};

/// Shared state of a program; its lock guards the right to signal the process.
#[derive(Debug)]
pub(super) struct Record {
    state: Mutex<State>,
    changed: Condvar,
    id: Pid,
    /// Whether the program leads a process group of its own.
    leads_group: bool,
    pub(super) started: Instant,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) lines: Lines,
    /// Set once the process is reaped; its number may then belong to another process.
    pub(super) end: Option<End>,
}

impl Record {
    pub(super) fn new(id: Pid, leads_group: bool) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { state, changed, id, leads_group, started: Instant::now() }
    }

    /// Locks the state. No holder calls code that panics, so a poisoned lock guards a whole value.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the state has what is `found` in it, at most until `deadline`; without one, indefinitely.
    pub(super) fn wait_until<T>(
        &self,
        deadline: Option<Instant>,
        mut found: impl FnMut(&State) -> Option<T>,
    ) -> Option<T> {
        let mut state = self.state();
        loop {
            if let Some(value) = found(&state) {
                return Some(value);
            }
            let left = match deadline {
                None => Duration::MAX,
                Some(deadline) => deadline.checked_duration_since(Instant::now())?,
            };
            // Poisoned or not, as in `state`.
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Signals the program and its process group, unless it has ended.
    pub(super) fn signal(&self, signal: Signal) {
        let state = self.state();
        if state.end.is_none() {
            self.signal_unfreed(signal);
        }
    }

    fn signal_unfreed(&self, signal: Signal) {
        // Fails only for processes that have ended or changed their user.
        let _ = if self.leads_group {
            kill_process_group(self.id, signal)
        } else {
            kill_process(self.id, signal)
        };
    }

    /// Reaps the program once it has ended, and kills the rest of its group.
    fn finish(&self, peak_memory: Option<u64>) {
        // Without the lock, so that the program can be signalled meanwhile. The wait below reports an error of this
        // one.
        let _ = waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let mut state = self.state();
        let at = self.started.elapsed();
        if self.leads_group {
            self.signal_unfreed(Signal::KILL);
        }
        let (termination, cpu) = match sys::wait_with_time(self.id) {
            Ok((status, cpu)) => (termination(status), cpu),
            // Another thread has waited for the child.
            Err(error) => {
                state.lines.push(at, Stream::Err, format!("its exit status is lost: {error}"));
                (Termination::Exit(255), Duration::ZERO)
            }
        };
        state.end = Some(End { termination, cpu, peak_memory, seconds: at.as_secs_f64() });
        self.changed.notify_all();
    }
}

fn termination(status: ExitStatus) -> Termination {
    match (status.code(), status.signal()) {
        (Some(code), _) => Termination::Exit(code),
        (None, signal) => Termination::Signal(signal.unwrap_or(0)),
    }
}

/// Descriptors of a program: its pipes, its end, its log.
pub(super) struct Watch {
    /// Readable when the program ends.
    pub(super) ended: OwnedFd,
    pub(super) log: Option<File>,
    sources: [Option<Source>; 2],
}

/// Output stream of the program.
struct Source {
    /// Non-blocking.
    pipe: File,
    stream: Stream,
    splitter: LineSplitter,
}

/// Largest pipe: what exceeds it was written after the program had ended.
const LARGEST_PIPE: usize = 1 << 20;
const CHUNK: usize = 64 << 10;
/// Interval of memory samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

impl Watch {
    /// Watches a process. `pipes` are its output and errors, `None` where they are not captured.
    pub(super) fn new(ended: OwnedFd, pipes: [Option<OwnedFd>; 2], log: Option<File>) -> io::Result<Self> {
        let open = |pipe: OwnedFd, stream| -> io::Result<Source> {
            rustix::io::ioctl_fionbio(&pipe, true)?;
            Ok(Source { pipe: pipe.into(), stream, splitter: LineSplitter::default() })
        };
        let [out, err] = pipes;
        let out = out.map(|pipe| open(pipe, Stream::Out)).transpose()?;
        let err = err.map(|pipe| open(pipe, Stream::Err)).transpose()?;
        Ok(Self { ended, log, sources: [out, err] })
    }

    /// Returns once the program has ended and its output is in the record.
    pub(super) fn follow(mut self, record: &Record) {
        let mut chunk = vec![0; CHUNK];
        let mut memory = Memory::of(record.id.as_raw_pid().unsigned_abs());
        loop {
            let ended = self.ended.as_fd();
            let [out, err] =
                self.sources.each_ref().map(|source| source.as_ref().map_or(ended, Source::as_fd));
            // If waiting for descriptors fails, `finish` still waits for the end.
            let Ok([is_over, has_out, has_err]) = ready_within([ended, out, err], SAMPLE_INTERVAL) else {
                break;
            };
            // Before its lines become visible: a reader of them may end the program.
            memory.sample();
            for (place, _) in [has_out, has_err].iter().enumerate().filter(|(_, ready)| **ready) {
                self.read(place, &mut chunk, record);
            }
            if is_over {
                break;
            }
        }
        // A process that left the group may hold a pipe open, so only what is readable now is read.
        for place in 0..self.sources.len() {
            let mut left = LARGEST_PIPE;
            while let Some(read @ 1..) = self.read(place, &mut chunk, record) {
                left = left.saturating_sub(read);
                if left == 0 {
                    break;
                }
            }
            self.close(place, record);
        }
        record.finish(memory.peak);
    }

    /// Reads once; returns the number of bytes, or `None` when nothing is readable.
    fn read(&mut self, place: usize, chunk: &mut [u8], record: &Record) -> Option<usize> {
        let source = self.sources[place].as_mut()?;
        match source.pipe.read(chunk) {
            Ok(read @ 1..) => {
                let mut texts = Vec::new();
                source.splitter.feed(&chunk[..read], |text| texts.push(text));
                let stream = source.stream;
                self.note(stream, texts, record);
                Some(read)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                None
            }
            Ok(0) | Err(_) => {
                self.close(place, record);
                None
            }
        }
    }

    fn close(&mut self, place: usize, record: &Record) {
        let Some(mut source) = self.sources[place].take() else { return };
        let mut texts = Vec::new();
        source.splitter.close(|text| texts.push(text));
        self.note(source.stream, texts, record);
    }

    fn note(&mut self, stream: Stream, texts: Vec<String>, record: &Record) {
        if texts.is_empty() {
            return;
        }
        let at = record.started.elapsed();
        let mut page = String::new();
        let mut state = record.state();
        for text in texts {
            page += &format!("{:>10.3} {stream} {text}\n", at.as_secs_f64());
            state.lines.push(at, stream, text);
        }
        drop(state);
        record.changed.notify_all();
        // A full disk ends the log, not the experiment.
        if self.log.as_mut().is_some_and(|log| log.write_all(page.as_bytes()).is_err()) {
            self.log = None;
        }
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
