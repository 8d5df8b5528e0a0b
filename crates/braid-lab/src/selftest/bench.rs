//! Bench of the selftest: links between two namespaces, the sockets at their ends, and the findings.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::Options;
use super::validity::{Doubt, lateness_bound, validity};
use crate::testbed::{LinkEnd, LinkPlan, Topology, WireChoice};
use crate::wire;
use braid_emulator::LinkSpec;

const LEFT: &str = "left";
const RIGHT: &str = "right";
const PORT: u16 = 14_567;
/// Receive buffer of each socket, bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Interval of checks whether to stop.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Number of silent intervals after which all packets have arrived.
const QUIET: u32 = 4;
/// Limit of a TCP connect.
const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const MTU: u16 = 1500;

/// Failure of a cell.
pub(super) type CellError = Box<dyn std::error::Error>;

/// Parameters of all cells.
pub(super) struct Bench<'a> {
    pub(super) options: Options,
    pub(super) wire: WireChoice,
    pub(super) stop: &'a AtomicBool,
}

/// Running links.
pub(super) struct Lab(Topology);

impl Bench<'_> {
    /// Duration of a long cell.
    pub(super) fn cell(&self) -> Duration {
        self.options.cell
    }

    /// Duration of a short cell.
    pub(super) fn short_cell(&self) -> Duration {
        self.options.cell / 4
    }

    /// Whether the test must end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps for `during`; returns early when stopped.
    pub(super) fn sleep(&self, during: Duration) {
        let end = Instant::now() + during;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|_| !self.is_stopped()) {
            thread::sleep(left.min(POLL_INTERVAL));
        }
    }

    /// Calls `send` with 0, 1, 2 and so on, once per `spacing`, for `during`; returns the number of calls.
    pub(super) fn pace(
        &self,
        during: Duration,
        spacing: Duration,
        mut send: impl FnMut(u32) -> io::Result<()>,
    ) -> io::Result<u32> {
        let start = Instant::now();
        let mut count = 0;
        while spacing * count < during && !self.is_stopped() {
            if let Some(ahead) = (spacing * count).checked_sub(start.elapsed()) {
                self.sleep(ahead);
            }
            send(count)?;
            count += 1;
        }
        Ok(count)
    }

    /// Whether the wire can be opened.
    pub(super) fn opens(&self) -> Result<(), CellError> {
        self.lay(&[("try", "")]).map(drop)
    }

    /// Creates links by name and text, all from the left to the right end.
    pub(super) fn lay(&self, links: &[(&str, &str)]) -> Result<Lab, CellError> {
        if self.is_stopped() {
            return Err("it was stopped".into());
        }
        let Options { seed, realtime, .. } = self.options;
        let plan = |&(name, text): &(&str, &str)| {
            Ok(LinkPlan {
                name: name.to_owned(),
                left: LEFT.to_owned(),
                right: RIGHT.to_owned(),
                shape: Some(text.parse::<LinkSpec>()?),
                seed,
                options: wire::Options { realtime, ..wire::Options::default() },
                rule: None,
                tcp: None,
                mtu: MTU,
                keep_offloads: false,
            })
        };
        let plans = links.iter().map(plan).collect::<Result<_, CellError>>()?;
        let topology = Topology::build(&[LEFT.to_owned(), RIGHT.to_owned()], plans, self.wire)?;
        Ok(Lab(topology))
    }
}

/// Addresses of the left and the right end of link `number`.
fn addresses(number: u8) -> [Ipv4Addr; 2] {
    [2, 1].map(|host| Ipv4Addr::new(192, 168, 200 + number, host))
}

impl Lab {
    /// UDP sockets at the ends of link `number`, connected with each other.
    pub(super) fn udp(&self, number: u8) -> Result<[UdpSocket; 2], CellError> {
        let [left, right] = addresses(number);
        let open = |end: &str, address| {
            self.at(end, move || {
                let socket = UdpSocket::bind((address, PORT))?;
                if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
                    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER)?;
                }
                socket.set_read_timeout(Some(POLL_INTERVAL))?;
                Ok(socket)
            })
        };
        let sockets = [open(LEFT, left)?, open(RIGHT, right)?];
        sockets[0].connect((right, PORT))?;
        sockets[1].connect((left, PORT))?;
        Ok(sockets)
    }

    /// TCP connection over link 0, the left end first.
    pub(super) fn tcp(&self) -> Result<[TcpStream; 2], CellError> {
        let [_, right] = addresses(0);
        let listener = self.at(RIGHT, move || TcpListener::bind((right, PORT)))?;
        let left = self.at(LEFT, move || TcpStream::connect_timeout(&(right, PORT).into(), PATIENCE))?;
        let streams = [left, listener.accept()?.0];
        for stream in &streams {
            stream.set_read_timeout(Some(POLL_INTERVAL))?;
            stream.set_write_timeout(Some(POLL_INTERVAL))?;
            // Closing discards unsent data, which would keep the namespace alive.
            sockopt::set_socket_linger(stream, Some(Duration::ZERO)).map_err(io::Error::from)?;
        }
        Ok(streams)
    }

    fn at<T: Send>(&self, end: &str, open: impl FnOnce() -> io::Result<T> + Send) -> Result<T, CellError> {
        let namespace = self.0.end(end).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(namespace.run(open)??)
    }

    /// Enabled offloads.
    pub(super) fn offloads(&self) -> Vec<String> {
        self.0.offloads()
    }

    /// Stops the links.
    pub(super) fn stop(self) -> Vec<LinkEnd> {
        self.0.stop()
    }
}

/// Received datagram, with its time.
pub(super) struct Datagram {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
}

/// Runs `send` and collects the datagrams that reach `receiver`, until it has been silent for a while.
pub(super) fn collect(
    receiver: &UdpSocket,
    send: impl FnOnce() -> io::Result<()>,
) -> io::Result<Vec<Datagram>> {
    let sent = AtomicBool::new(false);
    thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut received = Vec::new();
            let mut buffer = [0; 2048];
            let mut quiet = 0;
            loop {
                match receiver.recv(&mut buffer) {
                    Ok(length) => {
                        quiet = 0;
                        received.push(Datagram { at: Instant::now(), bytes: buffer[..length].to_vec() });
                    }
                    Err(error) if is_timeout(&error) => {
                        quiet = if sent.load(Ordering::Acquire) { quiet + 1 } else { 0 };
                        if quiet == QUIET {
                            return Ok(received);
                        }
                    }
                    // Refused: the answer to a packet whose address was corrupted.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error),
                }
            }
        });
        let outcome = send();
        sent.store(true, Ordering::Release);
        let received = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.and(received)
    })
}

pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

// === Findings ===

/// Figures by name, the unit last, and doubts about the machine.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) refused: Vec<Doubt>,
    pub(super) figures: BTreeMap<String, f64>,
    /// Limit in place of the [`lateness_bound`].
    pub(super) lateness: Option<Duration>,
}

impl Findings {
    pub(super) fn figure(&mut self, name: &str, value: f64) {
        self.figures.insert(name.to_owned(), value);
    }

    pub(super) fn refuse(&mut self, doubt: impl Into<Doubt>) {
        self.refused.push(doubt.into());
    }

    /// Refuses unless `holds`.
    pub(super) fn expect(&mut self, holds: bool, reason: impl FnOnce() -> String) {
        if !holds {
            self.refuse(reason());
        }
    }

    /// Limit of the lateness of a link with `delay`.
    pub(super) fn bound(&self, delay: Duration) -> Duration {
        self.lateness.unwrap_or_else(|| lateness_bound(delay))
    }

    /// Adds the doubts about the links.
    pub(super) fn check_links(&mut self, links: &[LinkEnd], delay: Duration) {
        for link in links {
            let doubts = validity(&link.stopped, self.bound(delay));
            self.refused.extend(doubts.into_iter().map(|doubt| doubt.at(format_args!("{} ", link.name))));
        }
    }
}
