//! Two namespaces, the links between them and the sockets at their ends.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use thiserror::Error;

use super::Options;
use crate::emulator::{LinkError, LinkSpec};
use crate::house::{HouseError, LinkEnd, LinkPlan, Topology, WireChoice};
use crate::wire;

const LEFT: &str = "left";
const RIGHT: &str = "right";
const PORT: u16 = 14_567;
/// Bytes that may wait for the receiver.
const WAITING: usize = 8 << 20;
/// The longest wait that does not look whether to stop.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How many of them nothing has to come in before all has come.
const QUIET: u32 = 4;
/// How long a connection may take to begin.
const PATIENCE: Duration = Duration::from_secs(5);
pub(super) const MTU: u16 = 1500;

/// Why a cell could not be run.
#[derive(Debug, Error)]
pub(super) enum CellError {
    #[error(transparent)]
    House(#[from] HouseError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("it was stopped")]
    Stopped,
}

/// What every cell is run with.
pub(super) struct Bench<'a> {
    pub(super) options: Options,
    pub(super) wire: WireChoice,
    pub(super) stop: &'a AtomicBool,
}

/// Links that run.
pub(super) struct Lab {
    topology: Topology,
}

impl Bench<'_> {
    /// How long a long cell lasts.
    pub(super) fn cell(&self) -> Duration {
        self.options.cell
    }

    /// How long a short one.
    pub(super) fn short_cell(&self) -> Duration {
        self.options.cell / 4
    }

    /// Whether to go on no more.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Sleeps, unless it is stopped.
    pub(super) fn sleep(&self, during: Duration) {
        let end = Instant::now() + during;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|_| !self.is_stopped()) {
            thread::sleep(left.min(LOOK));
        }
    }

    /// Calls `send` with 0, 1, 2 and so on, one each `spacing`, for as long as `during`; how often.
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

    /// Whether the wire can be had at all.
    pub(super) fn opens(&self) -> Result<(), CellError> {
        self.lay(&[("try", "")]).map(drop)
    }

    /// Lays links by name and text, all from the left to the right end.
    pub(super) fn lay(&self, links: &[(&str, &str)]) -> Result<Lab, CellError> {
        if self.is_stopped() {
            return Err(CellError::Stopped);
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
                mtu: MTU,
                keep_offloads: false,
            })
        };
        let plans = links.iter().map(plan).collect::<Result<_, CellError>>()?;
        let topology = Topology::build(&[LEFT.to_owned(), RIGHT.to_owned()], plans, self.wire)?;
        Ok(Lab { topology })
    }
}

/// The addresses of the left and the right end of link `number`.
fn addresses(number: u8) -> [Ipv4Addr; 2] {
    [2, 1].map(|host| Ipv4Addr::new(192, 168, 200 + number, host))
}

impl Lab {
    /// A UDP socket at each end of link `number`, connected with each other.
    pub(super) fn udp(&self, number: u8) -> Result<[UdpSocket; 2], CellError> {
        let [left, right] = addresses(number);
        let open = |end: &str, address| {
            self.at(end, move || {
                let socket = UdpSocket::bind((address, PORT))?;
                if sockopt::set_socket_recv_buffer_size_force(&socket, WAITING).is_err() {
                    sockopt::set_socket_recv_buffer_size(&socket, WAITING)?;
                }
                socket.set_read_timeout(Some(LOOK))?;
                Ok(socket)
            })
        };
        let sockets = [open(LEFT, left)?, open(RIGHT, right)?];
        sockets[0].connect((right, PORT))?;
        sockets[1].connect((left, PORT))?;
        Ok(sockets)
    }

    /// A TCP connection over link 0, the left end first.
    pub(super) fn tcp(&self) -> Result<[TcpStream; 2], CellError> {
        let [_, right] = addresses(0);
        let listener = self.at(RIGHT, move || TcpListener::bind((right, PORT)))?;
        let left = self.at(LEFT, move || TcpStream::connect_timeout(&(right, PORT).into(), PATIENCE))?;
        let streams = [left, listener.accept()?.0];
        for stream in &streams {
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(LOOK))?;
            // What is still on its way when it is closed is given up, or it would hold the namespace.
            sockopt::set_socket_linger(stream, Some(Duration::ZERO)).map_err(io::Error::from)?;
        }
        Ok(streams)
    }

    fn at<T: Send>(&self, end: &str, open: impl FnOnce() -> io::Result<T> + Send) -> Result<T, CellError> {
        let namespace = self.topology.end(end).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(namespace.run(open)??)
    }

    /// Offloads that are on.
    pub(super) fn offloads(&self) -> Vec<String> {
        self.topology.offloads()
    }

    /// Ends the links.
    pub(super) fn stop(self) -> Vec<LinkEnd> {
        self.topology.stop()
    }
}

/// A datagram that has come, and when.
pub(super) struct Came {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
}

/// Runs `send` while the datagrams that reach `receiver` are collected, until some time after the last.
pub(super) fn collect(receiver: &UdpSocket, send: impl FnOnce() -> io::Result<()>) -> io::Result<Vec<Came>> {
    let sent = AtomicBool::new(false);
    thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut came = Vec::new();
            let mut buffer = [0; 2048];
            let mut quiet = 0;
            loop {
                match receiver.recv(&mut buffer) {
                    Ok(length) => {
                        quiet = 0;
                        came.push(Came { at: Instant::now(), bytes: buffer[..length].to_vec() });
                    }
                    Err(error) if is_timeout(&error) => {
                        quiet = if sent.load(Ordering::Acquire) { quiet + 1 } else { 0 };
                        if quiet == QUIET {
                            return Ok(came);
                        }
                    }
                    // Refused: an answer to a packet that corruption had sent elsewhere.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) => return Err(error),
                }
            }
        });
        let outcome = send();
        sent.store(true, Ordering::Release);
        let came = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.and(came)
    })
}

pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}
