//! A log behind TCP: the least that a durable broker does. The server answers CONNECT, appends each PUBLISH to one
//! file, and sends PUBACK once an fdatasync has covered its group; messages that arrive meanwhile are the next group.
//!
//! The server is a thread of this program, so that its processor time is not measured.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::load::packets::{CONNACK, Packet, Readable, push_puback, read_packets};

/// Token of the listener; clients have their index.
const LISTENER: Token = Token(usize::MAX);

/// A running log server; dropping it ends the thread and removes the file.
pub(crate) struct LogServer {
    pub(crate) address: SocketAddr,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    clients: Vec<Client>,
    file: File,
    /// Bytes of the next group.
    group: Vec<u8>,
}

struct Client {
    socket: TcpStream,
    carry: Vec<u8>,
    /// Answers that wait for the group commit.
    answers: Vec<u8>,
}

impl LogServer {
    /// Starts a server with its file in `directory`.
    ///
    /// # Errors
    /// No port, or the file cannot be made.
    pub(crate) fn start(directory: &Path) -> Result<Self, String> {
        let path = directory.join("served-log");
        let failed = |error: io::Error| format!("the log behind TCP: {error}");
        let mut listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0).into()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(failed)?;
        let file = File::create(&path).map_err(failed)?;
        let mut server = Server { poll, listener, clients: Vec::new(), file, group: Vec::new() };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = server.turn() {
                    // The clients notice the end of their connections.
                    eprintln!("# {}", failed(error));
                    return;
                }
            }
        });
        Ok(Self { address, path, stop, thread: Some(thread) })
    }
}

impl Drop for LogServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A failure was printed.
            let _ = thread.join();
        }
        // A remaining file is in a directory of benchmarks.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Server {
    /// Reads from all clients, commits a group, and answers.
    fn turn(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(20)))?;
        let mut buffer = vec![0; 64 * 1024];
        for event in &events {
            match event.token() {
                LISTENER => self.accept()?,
                Token(index) => {
                    if let Some(client) = self.clients.get_mut(index) {
                        client.take(&mut buffer, &mut self.group);
                    }
                }
            }
        }
        if !self.group.is_empty() {
            self.file.write_all(&self.group)?;
            self.file.sync_data()?;
            self.group.clear();
        }
        for client in self.clients.iter_mut().filter(|client| !client.answers.is_empty()) {
            // The socket has room for a few bytes per message of a window. A closed connection needs no answer.
            let _ = client.socket.write_all(&client.answers);
            client.answers.clear();
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((mut socket, _)) => {
                    socket.set_nodelay(true)?;
                    let token = Token(self.clients.len());
                    self.poll.registry().register(&mut socket, token, Interest::READABLE)?;
                    self.clients.push(Client { socket, carry: Vec::new(), answers: Vec::new() });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Client {
    /// Reads until the socket is empty or closed.
    fn take(&mut self, buffer: &mut [u8], group: &mut Vec<u8>) {
        loop {
            let answers = &mut self.answers;
            let state = read_packets(&mut self.socket, buffer, &mut self.carry, |packet| {
                keep(packet, answers, group);
                Ok(())
            });
            if state != Ok(Readable::More) {
                return;
            }
        }
    }
}

fn keep(packet: &Packet<'_>, answers: &mut Vec<u8>, group: &mut Vec<u8>) {
    match packet.publish() {
        Some(publish) => {
            group.extend_from_slice(packet.body);
            push_puback(answers, publish.packet_id);
        }
        None if packet.first == 0x10 => answers.extend_from_slice(&[CONNACK, 2, 0, 0]),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::LogServer;
    use crate::store::publishers::Publishers;

    #[test]
    fn acknowledged_messages_are_in_the_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let server = LogServer::start(directory.path()).expect("starts");
        let mut publishers = Publishers::connect(server.address, 4, 100).expect("connects");
        publishers.publish_all(50).expect("all acknowledged");
        let length = std::fs::metadata(&server.path).expect("a file").len();
        assert_eq!(length, 50 * (2 + "bench/00".len() as u64 + 2 + 100));
        drop(server);
        assert!(directory.path().read_dir().expect("readable").next().is_none(), "the file is left over");
    }
}
