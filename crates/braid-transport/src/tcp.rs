//! TCP sockets: how ours are set up, and reaching a host by any of its addresses.

use std::io;
use std::net::SocketAddr;

#[cfg(target_os = "linux")]
use socket2::SockRef;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream, lookup_host};

use crate::error::ConnectError;
use crate::race::race;

/// Bytes that the system takes beyond those on their way. What it holds has lost its priority; what
/// it has too little of, it asks for in time.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 16 * 1024;

/// A listening socket. An unspecified IPv6 address (`[::]`) takes IPv4 too.
pub(crate) fn listen(address: SocketAddr, backlog: u32) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Without it a restart waits for the connections of the last run to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    share_families(&socket, address)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// Decides for an IPv6 socket whether IPv4 comes in as well, instead of leaving it to the system.
pub(crate) fn share_families(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    Ok(())
}

/// Takes the next connection. Connections that were gone before we saw them are skipped; what is
/// returned is the process's own trouble (no descriptors, no memory) and worth a pause.
pub(crate) async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                tune(&stream);
                return Ok((stream, address));
            }
            Err(error) if is_peers_fault(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_peers_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Connects to the first address of `host` that answers.
pub(crate) async fn dial(host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let attempt =
        |address| async move { TcpStream::connect(address).await.map_err(|error| explain(&error, address)) };
    let stream = race(resolve(host, port).await?, attempt).await.map_err(|reason| {
        ConnectError::Unreachable { host: host.to_owned(), port, reason: reason.unwrap_or_default() }
    })?;
    tune(&stream);
    Ok(stream)
}

/// Small packets leave at once, and what is urgent does not wait behind much. Both fail only for a
/// connection that is already gone; the first read will say so.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = SockRef::from(stream).set_tcp_notsent_lowat(UNSENT);
}

/// All addresses of `host`, in the order of the system's preference; never empty.
pub(crate) async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
    let addresses: Vec<SocketAddr> =
        lookup_host((host, port)).await.map_err(|error| failed(error.to_string()))?.collect();
    if addresses.is_empty() { Err(failed("it has none".to_owned())) } else { Ok(addresses) }
}

fn explain(error: &io::Error, address: SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nothing listens on {address}"),
        io::ErrorKind::TimedOut => format!("no answer from {address}"),
        _ => format!("{error} ({address})"),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn little_waits_unsent_in_the_system_on_either_side() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1).expect("listen");
        let port = listener.local_addr().expect("address").port();
        let (accepted, dialled) = tokio::join!(accept(&listener), dial("127.0.0.1", port));
        for stream in [accepted.expect("accept").0, dialled.expect("dial")] {
            assert_eq!(SockRef::from(&stream).tcp_notsent_lowat().expect("option"), UNSENT);
            assert!(stream.nodelay().expect("option"));
        }
    }
}
