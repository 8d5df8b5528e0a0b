//! TCP connections of the attacker.

use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use braid_transport::{ByteStream, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt, WriteHalf, copy, sink, split};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::attacker::Attacker;
use crate::target::HOST;

/// Local address of every attacker: limits per address do not count the well-behaved clients with them, and their
/// ports are others.
pub(crate) const LOCAL: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Time limit of an answer of the broker.
const ANSWER: Duration = Duration::from_secs(5);

/// Connects to the listener of a transport over TCP.
pub(crate) async fn connect(attacker: &Attacker, transport: Transport) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((LOCAL, 0).into())?;
    let stream = socket.connect(attacker.target.address(transport)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads until the end of the stream, or an error.
pub(crate) async fn read_to_end(stream: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(1..) = stream.read(&mut buffer).await {}
}

/// A connection on which bytes are written. What the broker sends is read and discarded, or not read.
pub(crate) struct RawClient {
    writer: WriteHalf<Box<dyn ByteStream>>,
    reader: JoinHandle<()>,
}

impl RawClient {
    /// Sends a CONNECT of MQTT and waits until it is accepted.
    ///
    /// # Errors
    /// The broker refuses, or does not answer in time.
    pub(crate) async fn connect(attacker: &Attacker, connect_packet: &[u8]) -> io::Result<Self> {
        let stream = connect_unread(attacker, connect_packet).await?;
        Ok(Self::over(Box::new(stream), true))
    }

    /// Begins to read and discard if `reads` is true.
    pub(crate) fn over(stream: Box<dyn ByteStream>, reads: bool) -> Self {
        let (mut reader, writer) = split(stream);
        let reader = tokio::task::spawn_local(async move {
            if reads {
                let _ = copy(&mut reader, &mut sink()).await;
            } else {
                pending::<()>().await;
            }
        });
        Self { writer, reader }
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// The broker has closed the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.reader.is_finished() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.writer.write_all(bytes).await
    }

    /// Waits until the broker closes the connection.
    ///
    /// # Errors
    /// Always: the connection has ended.
    pub(crate) async fn closed(&mut self) -> io::Result<()> {
        let _ = (&mut self.reader).await;
        Err(io::ErrorKind::ConnectionReset.into())
    }
}

impl Drop for RawClient {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Connection of an MQTT client after CONNACK, from which nothing more is read.
///
/// # Errors
/// The broker refuses, or does not answer in time.
pub(crate) async fn connect_unread(attacker: &Attacker, connect_packet: &[u8]) -> io::Result<TcpStream> {
    let mut stream = connect(attacker, Transport::Tcp).await?;
    stream.write_all(connect_packet).await?;
    let mut head = [0; 4];
    timeout(ANSWER, stream.read_exact(&mut head)).await??;
    if is_accepted(&head) { Ok(stream) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}

/// True if bytes begin with a CONNACK that accepts.
pub(crate) fn is_accepted(bytes: &[u8]) -> bool {
    matches!(bytes, [0x20, _, _, 0, ..])
}

/// The first bytes that a client of TLS or secure WebSocket sends: its ClientHello.
///
/// # Errors
/// Loopback has no free port, or the client sends nothing.
pub(crate) async fn client_hello(attacker: &Attacker, transport: Transport) -> io::Result<Vec<u8>> {
    let listener = TcpListener::bind((LOCAL, 0)).await?;
    let port = listener.local_addr()?.port();
    let to = braid_transport::Target { transport, host: HOST.to_owned(), port, path: "/mqtt".to_owned() };
    let address = listener.local_addr()?;
    let options = braid_transport::ConnectOptions::default();
    let mut hello = vec![0; 16_384];
    let accepted = async {
        let (mut stream, _) = listener.accept().await?;
        stream.read(&mut hello).await
    };
    let addresses = [address];
    tokio::select! {
        _ = braid_transport::connect_timed(&to, &addresses, &attacker.tls, &options) => {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
        length = accepted => {
            hello.truncate(length?);
            if hello.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(hello) }
        }
    }
}

/// HTTP request of a WebSocket client without its last empty line.
pub(crate) const UPGRADE_HEAD: &str = "GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Protocol: mqtt\r\n";

/// Connection after the upgrade to WebSocket.
///
/// # Errors
/// The broker refuses.
pub(crate) async fn upgraded(attacker: &Attacker) -> io::Result<TcpStream> {
    let mut stream = connect(attacker, Transport::Ws).await?;
    stream.write_all(format!("{UPGRADE_HEAD}\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let byte = timeout(ANSWER, stream.read_u8()).await??;
        answer.push(byte);
    }
    let is_upgraded = answer.starts_with(b"HTTP/1.1 101");
    if is_upgraded { Ok(stream) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
}
