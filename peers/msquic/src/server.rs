//! TCP connections to a broker, one for each QUIC connection: packets of all streams follow one another, and
//! acknowledgements leave on the stream of their request.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use msquic::{
    Addr, BufferRef, CertificateFile, Connection, ConnectionEvent, ConnectionRef, ConnectionShutdownFlags,
    Credential, CredentialConfig, Listener, ListenerEvent, SendFlags, ServerResumptionLevel, Settings,
    Status, StatusCode, Stream, StreamEvent, StreamRef, ffi,
};

use crate::library::{ALPN, Library, handle_sent, send};
use crate::packets::{self, Packets};

/// Streams that a client may have open, as with EMQX.
const STREAMS: u16 = 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// UDP port of the relay.
    #[arg(long, value_name = "PORT", default_value_t = 14567)]
    port: u16,
    /// TCP address of the broker.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:1883")]
    broker: SocketAddr,
    /// PEM file of the certificate.
    #[arg(long, value_name = "FILE")]
    cert: PathBuf,
    /// PEM file of its key.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

/// Relays until the process ends.
///
/// # Errors
/// One line: msquic cannot start, or the port cannot be listened on.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let said = |status: Status| format!("cannot listen on port {}: {status}", args.port);
    let library = Arc::new(open(args).map_err(|status| format!("cannot start msquic: {status}"))?);
    let (of_connections, broker) = (Arc::clone(&library), args.broker);
    let listener = Listener::open(&library.registration, move |_, event| match event {
        ListenerEvent::NewConnection { connection, .. } => {
            connection.set_configuration(&of_connections.configuration)?;
            let tcp =
                dial(broker).inspect_err(|error| eprintln!("msquic-relay: no broker at {broker}: {error}"));
            accept(&connection, tcp.map_err(|_| Status::from(StatusCode::QUIC_STATUS_CONNECTION_REFUSED))?);
            Ok(())
        }
        ListenerEvent::StopComplete { .. } => Ok(()),
    })
    .map_err(said)?;
    let address = Addr::from(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), args.port));
    listener.start(&[BufferRef::from(ALPN)], Some(&address)).map_err(said)?;
    println!("listening {}", args.port);
    loop {
        thread::park();
    }
}

fn open(args: &Args) -> Result<Library, Status> {
    let file = |path: &PathBuf| path.display().to_string();
    let certificate = Credential::CertificateFile(CertificateFile::new(file(&args.key), file(&args.cert)));
    let settings = Settings::new()
        .set_IdleTimeoutMs(60_000)
        .set_PeerBidiStreamCount(STREAMS)
        .set_ServerResumptionLevel(ServerResumptionLevel::ResumeOnly);
    Library::open(settings, &CredentialConfig::new().set_credential(certificate))
}

fn dial(broker: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(broker)?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Streams of a connection, in the order in which they came: the first one is the control stream.
#[derive(Default)]
struct Streams {
    open: Vec<Handle>,
    /// Streams of the last PUBLISH packets, by their packet identifiers.
    asked: HashMap<[u8; 2], Handle>,
}

/// Stream that stays open as long as its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Handle(ffi::HQUIC);

// msquic's handles may be used from any thread.
unsafe impl Send for Handle {}

impl Streams {
    fn handle_packet(&mut self, from: Handle, packet: &[u8]) {
        if let Some(id) = packets::asked_by(packet) {
            self.asked.insert(id, from);
        }
    }

    /// Stream of an answer to a PUBLISH; the control stream for all else.
    fn of(&mut self, packet: &[u8]) -> Option<Handle> {
        let asked = packets::answered_by(packet).and_then(|id| self.asked.get(&id));
        asked.or(self.open.first()).copied()
    }
}

fn accept(connection: &ConnectionRef, tcp: TcpStream) {
    let streams = Arc::new(Mutex::new(Streams::default()));
    let tcp = Arc::new(tcp);
    let (read, answers) = (Arc::clone(&tcp), Arc::clone(&streams));
    let handle = Handle(unsafe { connection.as_raw() });
    thread::spawn(move || downward(handle, &read, &answers));
    connection.set_callback_handler(move |connection: ConnectionRef, event: ConnectionEvent| {
        match event {
            ConnectionEvent::PeerStreamStarted { stream, .. } => {
                let handle = Handle(unsafe { stream.as_raw() });
                streams.lock().unwrap_or_else(PoisonError::into_inner).open.push(handle);
                upward(&stream, handle, &tcp, &streams);
            }
            ConnectionEvent::ShutdownComplete { .. } => {
                let _ = tcp.shutdown(Shutdown::Both);
                let streams = std::mem::take(&mut *streams.lock().unwrap_or_else(PoisonError::into_inner));
                streams.open.into_iter().for_each(|handle| drop(unsafe { Stream::from_raw(handle.0) }));
                drop(unsafe { Connection::from_raw(connection.as_raw()) });
            }
            _ => {}
        }
        Ok(())
    });
}

/// Relays the packets of a stream to the broker.
fn upward(stream: &StreamRef, handle: Handle, tcp: &Arc<TcpStream>, streams: &Arc<Mutex<Streams>>) {
    let (tcp, streams) = (Arc::clone(tcp), Arc::clone(streams));
    let mut packets = Packets::default();
    stream.set_callback_handler(move |_: StreamRef, event: StreamEvent| {
        match event {
            StreamEvent::Receive { buffers, .. } => {
                buffers.iter().for_each(|buffer| packets.push(buffer.as_bytes()));
                for packet in packets.by_ref() {
                    // The other direction goes on while this write waits.
                    streams.lock().unwrap_or_else(PoisonError::into_inner).handle_packet(handle, &packet);
                    // A broker that has gone is noticed by the thread that reads from it.
                    let _ = (&*tcp).write_all(&packet);
                }
            }
            StreamEvent::SendComplete { client_context, .. } => {
                unsafe { handle_sent(client_context) };
            }
            _ => {}
        }
        Ok(())
    });
}

/// Relays the packets of the broker to their streams, until either end closes.
fn downward(connection: Handle, mut tcp: &TcpStream, streams: &Mutex<Streams>) {
    let mut packets = Packets::default();
    let mut buffer = vec![0; 65_536];
    while let Ok(size @ 1..) = tcp.read(&mut buffer) {
        packets.push(&buffer[..size]);
        for packet in packets.by_ref() {
            let mut streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(handle) = streams.of(&packet) {
                let stream = ManuallyDrop::new(unsafe { Stream::from_raw(handle.0) });
                let _ = send(&stream, &packet, SendFlags::NONE);
            }
        }
    }
    // Without streams the connection has been closed, and its handle with it.
    let streams = streams.lock().unwrap_or_else(PoisonError::into_inner);
    if !streams.open.is_empty() {
        let connection = ManuallyDrop::new(unsafe { Connection::from_raw(connection.0) });
        connection.shutdown(ConnectionShutdownFlags::NONE, 0);
    }
}
