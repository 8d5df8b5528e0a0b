//! QUIC connections to a broker, one for each TCP connection.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use msquic::{
    Addr, Api, Connection, ConnectionEvent, ConnectionRef, ConnectionShutdownFlags, CredentialConfig,
    SendFlags, Settings, Status, Stream, StreamEvent, StreamOpenFlags, StreamRef, StreamShutdownFlags,
    StreamStartFlags, ffi,
};

use crate::library::{Bytes, Library, handle_sent, send, set};
use crate::packets::{self, Packets};

/// Time that the broker has to acknowledge the rest, and to end the connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time without a packet after which a connection may move.
const QUIET: Duration = Duration::from_millis(30);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// TCP address of the relay; port 0 chooses one, which is printed.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Host name or address of the broker, which its certificate must have.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// UDP port of the broker.
    #[arg(long, value_name = "PORT", default_value_t = 14567)]
    port: u16,
    /// PEM file of trusted certificates; without it, no certificate is verified.
    #[arg(long, value_name = "FILE")]
    cafile: Option<PathBuf>,
    /// Streams of a connection.
    #[arg(long, value_enum, default_value = "one")]
    streams: Streams,
    /// Prefix of topics whose streams have the highest priority of msquic.
    #[arg(long, value_name = "TOPIC", requires = "streams")]
    urgent: Option<String>,
    /// File that keeps the ticket of the last connection: with it, the next one sends its first packets as 0-RTT.
    #[arg(long, value_name = "FILE")]
    ticket: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Streams {
    /// The control stream alone.
    One,
    /// The control stream, and one for each topic that is published to.
    Topic,
}

/// Relays until the process ends.
///
/// # Errors
/// One line: msquic cannot start, or the address cannot be listened on.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let library = open(args).map_err(|status| format!("cannot start msquic: {status}"))?;
    let listener = TcpListener::bind(args.listen)
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    println!("listening {}", listener.local_addr().map_err(|error| error.to_string())?.port());
    let live = Live::default();
    thread::scope(|scope| {
        let (library, live) = (&library, &live);
        scope.spawn(move || live.obey(io::stdin().lines()));
        for accepted in listener.incoming() {
            match accepted {
                Ok(tcp) => {
                    scope.spawn(move || {
                        if let Err(error) = Relayed::run(args, library, live, tcp) {
                            println!("failed {error}");
                        }
                    });
                }
                Err(error) => eprintln!("msquic-relay: cannot accept: {error}"),
            }
        }
    });
    Ok(())
}

fn open(args: &Args) -> Result<Library, Status> {
    let credential = match &args.cafile {
        Some(file) => CredentialConfig::new_client()
            .set_ca_certificate_file(file.display().to_string())
            .set_credential_flags(msquic::CredentialFlags::SET_CA_CERTIFICATE_FILE),
        None => CredentialConfig::new_client()
            .set_credential_flags(msquic::CredentialFlags::NO_CERTIFICATE_VALIDATION),
    };
    Library::open(Settings::new().set_IdleTimeoutMs(60_000).set_PeerBidiStreamCount(0), &credential)
}

/// Connections that a `move` is about.
#[derive(Default)]
struct Live {
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    bytes: Arc<Bytes>,
}

impl Live {
    fn obey(&self, lines: io::Lines<io::StdinLock<'static>>) {
        for line in lines.map_while(Result::ok) {
            let Some(Ok(wanted)) = line.strip_prefix("move ").map(str::parse) else {
                eprintln!("msquic-relay: {line:?} is not a command; the only one is \"move N\"");
                continue;
            };
            self.bytes.wait(wanted);
            for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).values() {
                match moved(connection) {
                    Ok(port) => println!("moved {port}"),
                    Err(status) => println!("not moved {status}"),
                }
            }
        }
    }
}

/// Continues from a port that the kernel chooses; the port.
fn moved(connection: &Connection) -> Result<u16, Status> {
    let received = || connection.get_stats_v2().map(|stats| stats.RecvTotalPackets);
    // Credit and probes may come after the last acknowledgement.
    let mut before = received()?;
    loop {
        thread::sleep(QUIET);
        match received()? {
            now if now == before => break,
            now => before = now,
        }
    }
    let before =
        connection.get_local_addr()?.as_socket().map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip());
    let address = Addr::from(SocketAddr::new(before, 0));
    unsafe { set(connection.as_raw(), ffi::QUIC_PARAM_CONN_LOCAL_ADDRESS, &address) }?;
    Ok(connection.get_local_addr()?.port())
}

/// An event that the thread of a connection waits for.
#[derive(PartialEq, Eq)]
enum Done {
    /// All of a stream has been acknowledged, or never will be.
    Stream,
    Connection,
}

/// One TCP connection and the QUIC connection that it becomes.
struct Relayed<'a> {
    args: &'a Args,
    bytes: Arc<Bytes>,
    connection: Arc<Connection>,
    /// Client's end, shared by all streams: whole packets are written.
    tcp: Arc<Mutex<TcpStream>>,
    done: Sender<Done>,
    control: Stream,
    of_topic: HashMap<Vec<u8>, Stream>,
    /// Topics of the PUBLISH packets of QoS 2, for their PUBREL.
    released: HashMap<[u8; 2], Vec<u8>>,
}

impl<'a> Relayed<'a> {
    fn run(args: &'a Args, library: &Library, live: &Live, mut tcp: TcpStream) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        tcp.set_nodelay(true).map_err(text)?;
        let (done, wait) = mpsc::channel();
        let back = Arc::new(Mutex::new(tcp.try_clone().map_err(text)?));
        let mut relayed = Self::open(args, library, &live.bytes, back, done)
            .map_err(|status| format!("cannot open a connection: {status}"))?;
        let id = relayed.connection.get_context() as u64;
        live.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(id, Arc::clone(&relayed.connection));
        let mut upward = Packets::default();
        let mut buffer = vec![0; 65_536];
        let mut started = false;
        let orderly = loop {
            let Ok(size) = tcp.read(&mut buffer) else { break false };
            if size == 0 {
                break true;
            }
            let sent = match args.streams {
                Streams::One => relayed.send(&relayed.control, &buffer[..size], SendFlags::ALLOW_0_RTT),
                Streams::Topic => {
                    upward.push(&buffer[..size]);
                    std::iter::from_fn(|| upward.next()).try_for_each(|packet| relayed.route(&packet))
                }
            };
            // The first bytes are there before the handshake begins, so that they travel with it as 0-RTT.
            let begun = if started {
                Ok(())
            } else {
                started = true;
                relayed.connection.start(&library.configuration, &args.host, args.port)
            };
            if sent.and(begun).is_err() {
                break false;
            }
        };
        live.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        relayed.end(started, orderly, &wait);
        Ok(())
    }

    fn open(
        args: &'a Args,
        library: &Library,
        bytes: &Arc<Bytes>,
        tcp: Arc<Mutex<TcpStream>>,
        done: Sender<Done>,
    ) -> Result<Self, Status> {
        let (ticket, ended, client) = (args.ticket.clone(), done.clone(), Arc::clone(&tcp));
        let handler = move |_: ConnectionRef, event: ConnectionEvent| {
            match event {
                ConnectionEvent::Connected { session_resumed, .. } => {
                    println!("connected resumed={session_resumed}")
                }
                ConnectionEvent::ShutdownInitiatedByTransport { status, error_code } => {
                    println!("closed by the transport: {status}, code {error_code}");
                }
                ConnectionEvent::ShutdownInitiatedByPeer { error_code } => {
                    println!("closed with {error_code}")
                }
                ConnectionEvent::ShutdownComplete { .. } => {
                    println!("ended");
                    let _ = client.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
                    let _ = ended.send(Done::Connection);
                }
                ConnectionEvent::ResumptionTicketReceived { resumption_ticket } => {
                    if let Some(Err(error)) = ticket.as_ref().map(|file| fs::write(file, resumption_ticket)) {
                        eprintln!("msquic-relay: cannot keep the ticket: {error}");
                    }
                }
                _ => {}
            }
            Ok(())
        };
        let connection = Arc::new(Connection::open(&library.registration, handler)?);
        if let Some(bytes) = args.ticket.as_ref().and_then(|file| fs::read(file).ok()) {
            let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let parameter = ffi::QUIC_PARAM_CONN_RESUMPTION_TICKET;
            unsafe { Api::set_param(connection.as_raw(), parameter, size, bytes.as_ptr().cast()) }?;
        }
        // Without its own buffer, msquic reports bytes as sent when they have been acknowledged.
        let mut settings = *Settings::new().as_ffi_ref();
        unsafe { settings.__bindgen_anon_1.IsSet.set_SendBufferingEnabled(1) };
        settings.set_SendBufferingEnabled(0);
        unsafe { set(connection.as_raw(), ffi::QUIC_PARAM_CONN_SETTINGS, &settings) }?;
        let control = stream(&connection, &tcp, &done, bytes)?;
        Ok(Self {
            args,
            bytes: Arc::clone(bytes),
            connection,
            tcp,
            done,
            control,
            of_topic: HashMap::new(),
            released: HashMap::new(),
        })
    }

    fn send(&self, stream: &Stream, bytes: &[u8], flags: SendFlags) -> Result<(), Status> {
        self.bytes.handle_sent(bytes.len());
        send(stream, bytes, flags).inspect_err(|_| self.bytes.handle_acknowledged(bytes.len()))
    }

    /// Sends a packet on the stream of its topic.
    fn route(&mut self, packet: &[u8]) -> Result<(), Status> {
        let topic = match packets::topic(packet) {
            Some(topic) => {
                if let Some(id) = packets::released_by(packet) {
                    self.released.insert(id, topic.to_vec());
                }
                topic.to_vec()
            }
            None => match packets::releases(packet).and_then(|id| self.released.remove(&id)) {
                Some(topic) => topic,
                None => return self.send(&self.control, packet, SendFlags::ALLOW_0_RTT),
            },
        };
        if !self.of_topic.contains_key(&topic) {
            let opened = stream(&self.connection, &self.tcp, &self.done, &self.bytes)?;
            if self.args.urgent.as_ref().is_some_and(|prefix| topic.starts_with(prefix.as_bytes())) {
                unsafe { set(opened.as_raw(), ffi::QUIC_PARAM_STREAM_PRIORITY, &u16::MAX) }?;
            }
            self.of_topic.insert(topic.clone(), opened);
        }
        match self.of_topic.get(&topic) {
            Some(stream) => self.send(stream, packet, SendFlags::NONE),
            None => Ok(()),
        }
    }

    /// Ends the streams with FIN where the client ended in order, and the connection.
    fn end(self, started: bool, orderly: bool, wait: &Receiver<Done>) {
        if started {
            let mut open = 0;
            for stream in self.of_topic.values().chain([&self.control]) {
                if orderly && stream.shutdown(StreamShutdownFlags::GRACEFUL, 0).is_ok() {
                    open += 1;
                }
            }
            while open > 0 && wait.recv_timeout(PATIENCE) == Ok(Done::Stream) {
                open -= 1;
            }
            self.connection.shutdown(ConnectionShutdownFlags::NONE, 0);
            while wait.recv_timeout(PATIENCE).is_ok_and(|done| done != Done::Connection) {}
        }
        let _ = self.tcp.lock().unwrap_or_else(PoisonError::into_inner).shutdown(Shutdown::Both);
        // Streams are closed before their connection.
        drop((self.of_topic, self.control));
    }
}

/// A bidirectional stream whose packets go to the TCP connection.
fn stream(
    connection: &Connection,
    tcp: &Arc<Mutex<TcpStream>>,
    done: &Sender<Done>,
    bytes: &Arc<Bytes>,
) -> Result<Stream, Status> {
    let (tcp, done, bytes) = (Arc::clone(tcp), done.clone(), Arc::clone(bytes));
    let mut downward = Packets::default();
    let handler = move |_: StreamRef, event: StreamEvent| {
        match event {
            StreamEvent::Receive { buffers, .. } => {
                buffers.iter().for_each(|buffer| downward.push(buffer.as_bytes()));
                let mut tcp = tcp.lock().unwrap_or_else(PoisonError::into_inner);
                for packet in downward.by_ref() {
                    // A client that has gone is noticed by the thread that reads from it.
                    let _ = tcp.write_all(&packet);
                }
            }
            // The broker ends the control stream together with the connection.
            StreamEvent::PeerSendAborted { error_code } => println!("stream reset with {error_code}"),
            StreamEvent::PeerReceiveAborted { error_code } => println!("stream stopped with {error_code}"),
            StreamEvent::SendComplete { client_context, .. } => {
                bytes.handle_acknowledged(unsafe { handle_sent(client_context) });
            }
            StreamEvent::SendShutdownComplete { .. } => {
                let _ = done.send(Done::Stream);
            }
            _ => {}
        }
        Ok(())
    };
    let stream = Stream::open(connection, StreamOpenFlags::NONE, handler)?;
    stream.start(StreamStartFlags::NONE)?;
    Ok(stream)
}
