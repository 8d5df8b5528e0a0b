//! TCP sockets: their options, and connects to any address of a host.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

use crate::error::ConnectError;
use crate::race::race;

/// Bytes that the system takes beyond those in flight. Bytes that it holds have lost their priority; when it has few,
/// it asks for more in time.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 16 * 1024;

/// Silence before the first keep-alive probe, as before the PING of QUIC. Without Keep Alive of MQTT nothing else shows
/// that a peer has vanished.
const KEEPALIVE_TIME: Duration = Duration::from_secs(600);

/// Time from one probe to the next, and number of unanswered probes that end a connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEPALIVE_RETRIES: u32 = 3;

/// Options of TCP sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The congestion control of the socket by the system's name for it, such as `cubic` (Linux); `None` for the
    /// system's own choice.
    pub congestion: Option<Box<str>>,
}

impl TcpOptions {
    /// Checks before any connect whether sockets take these options, on one that is not connected.
    ///
    /// # Errors
    /// There is no such congestion control, or this process may not choose it.
    pub fn check(&self) -> Result<(), ConnectError> {
        let Some(name) = self.congestion.as_deref() else { return Ok(()) };
        let tried = TcpSocket::new_v4().or_else(|_| TcpSocket::new_v6());
        let Err(error) = tried.and_then(|socket| set_congestion(&SockRef::from(&socket), name)) else {
            return Ok(());
        };
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "this system has none of this name".to_owned(),
            io::ErrorKind::PermissionDenied => "only root may choose it here".to_owned(),
            io::ErrorKind::Unsupported => "it can be chosen on Linux only".to_owned(),
            _ => error.to_string(),
        };
        // The file exists on Linux only.
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        let allowed: Vec<String> =
            allowed.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let choice = match allowed.is_empty() {
            true => String::new(),
            false => format!(": choose one of {}", allowed.join(", ")),
        };
        Err(ConnectError::Other(format!("TCP congestion control {name:?}: {reason}{choice}")))
    }
}

/// A listening socket. An unspecified IPv6 address (`[::]`) takes IPv4 too.
pub(crate) fn listen(
    address: SocketAddr,
    accept_queue: u32,
    options: &TcpOptions,
) -> io::Result<TcpListener> {
    options.check().map_err(io::Error::other)?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Without it a restart waits for the connections of the last run to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    share_families(&socket, address)?;
    if let Some(name) = options.congestion.as_deref() {
        // Accepted sockets inherit it.
        set_congestion(&SockRef::from(&socket), name)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(accept_queue).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// Lets an IPv6 socket take IPv4 as well if its address is unspecified, whatever the system's default.
pub(crate) fn share_families(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    Ok(())
}

/// Accepts the next connection, and skips those that their peer has ended. An error is a shortage of this process
/// (descriptors, memory), worth a pause.
pub(crate) async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                tune(&stream);
                return Ok((stream, address));
            }
            Err(error) if is_caused_by_peer(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

fn is_caused_by_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// Connects to the first address of `host` that answers.
pub(crate) async fn dial(
    (host, port): (&str, u16),
    addresses: &[SocketAddr],
    options: &TcpOptions,
    local: Option<IpAddr>,
) -> Result<TcpStream, ConnectError> {
    options.check()?;
    let attempt = |address| async move {
        connect_one(address, options, local).await.map_err(|error| explain(&error, address))
    };
    let stream = race(reachable_from(local, host, addresses)?, attempt).await;
    let stream = stream.map_err(|last| ConnectError::unreachable(host, port, last))?;
    tune(&stream);
    Ok(stream)
}

async fn connect_one(
    address: SocketAddr,
    options: &TcpOptions,
    local: Option<IpAddr>,
) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    if let Some(name) = options.congestion.as_deref() {
        // Before the handshake: the first flight is under its control too.
        set_congestion(&SockRef::from(&socket), name)?;
    }
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(address).await
}

#[cfg(target_os = "linux")]
fn set_congestion(socket: &SockRef<'_>, name: &str) -> io::Result<()> {
    socket.set_tcp_congestion(name.as_bytes())
}

#[cfg(not(target_os = "linux"))]
fn set_congestion(_socket: &SockRef<'_>, _name: &str) -> io::Result<()> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

/// Sends small packets at once, keeps little unsent before urgent ones, and finds out when the peer has vanished. The
/// options fail only on a connection that has ended; the first read reports that.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
    let _ = socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
}

/// Addresses of `host`, in the order of the system's preference; never empty.
pub(crate) async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ConnectError> {
    let failed = |reason: String| ConnectError::Resolve { host: host.to_owned(), reason };
    let addresses: Vec<SocketAddr> =
        lookup_host((host, port)).await.map_err(|error| failed(error.to_string()))?.collect();
    if addresses.is_empty() { Err(failed("it has none".to_owned())) } else { Ok(addresses) }
}

/// Addresses of `host` that can be reached from `local`.
pub(crate) fn reachable_from(
    local: Option<IpAddr>,
    host: &str,
    addresses: &[SocketAddr],
) -> Result<Vec<SocketAddr>, ConnectError> {
    let mut addresses = addresses.to_vec();
    if let Some(local) = local {
        addresses.retain(|address| address.is_ipv4() == local.is_ipv4());
        if addresses.is_empty() {
            let reason = format!("none of its addresses is of the family of {local}");
            return Err(ConnectError::Resolve { host: host.to_owned(), reason });
        }
    }
    Ok(addresses)
}

fn explain(error: &io::Error, address: SocketAddr) -> io::Error {
    let reason = match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("nothing listens on {address}"),
        io::ErrorKind::TimedOut => format!("no answer from {address}"),
        _ => format!("{error} ({address})"),
    };
    io::Error::new(error.kind(), reason)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    async fn dial_here(
        port: u16,
        options: &TcpOptions,
        local: Option<IpAddr>,
    ) -> Result<TcpStream, ConnectError> {
        dial(("127.0.0.1", port), &[([127, 0, 0, 1], port).into()], options, local).await
    }

    /// Both ends of a new connection.
    async fn pair() -> [TcpStream; 2] {
        let options = TcpOptions::default();
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1, &options).expect("listen");
        let port = listener.local_addr().expect("address").port();
        let (accepted, dialled) = tokio::join!(accept(&listener), dial_here(port, &options, None));
        [accepted.expect("accept").0, dialled.expect("dial")]
    }

    #[tokio::test]
    async fn a_peer_that_has_vanished_is_noticed_on_either_side() {
        for stream in pair().await {
            let socket = SockRef::from(&stream);
            assert!(socket.keepalive().expect("option"));
            assert_eq!(socket.tcp_keepalive_time().expect("option"), KEEPALIVE_TIME);
            assert_eq!(socket.tcp_keepalive_interval().expect("option"), KEEPALIVE_INTERVAL);
            assert_eq!(socket.tcp_keepalive_retries().expect("option"), KEEPALIVE_RETRIES);
        }
    }

    #[tokio::test]
    async fn system_holds_few_unsent_bytes_on_either_side() {
        for stream in pair().await {
            assert_eq!(SockRef::from(&stream).tcp_notsent_lowat().expect("option"), UNSENT);
            assert!(stream.nodelay().expect("option"));
        }
    }

    #[tokio::test]
    async fn socket_has_the_requested_congestion_control_and_local_address() {
        // `reno` is built into every kernel and open to every user.
        let options = TcpOptions { congestion: Some("reno".into()) };
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1, &options).expect("listen");
        let port = listener.local_addr().expect("address").port();
        let local = IpAddr::from([127, 0, 0, 7]);
        let (accepted, dialled) = tokio::join!(accept(&listener), dial_here(port, &options, Some(local)));
        let (accepted, stream) = (accepted.expect("accept").0, dialled.expect("dial"));
        for stream in [&accepted, &stream] {
            let name = SockRef::from(stream).tcp_congestion().expect("option");
            assert_eq!(name.split(|byte| *byte == 0).next(), Some(&b"reno"[..]));
        }
        assert_eq!(stream.local_addr().expect("address").ip(), local);
    }

    #[tokio::test]
    async fn unknown_congestion_control_is_an_error_that_names_the_known_ones() {
        let options = TcpOptions { congestion: Some("warp".into()) };
        let error = dial_here(1, &options, None).await.expect_err("there is none of this name");
        let text = error.to_string();
        assert!(
            text.starts_with("TCP congestion control \"warp\": this system has none of this name"),
            "{text}"
        );
        assert!(text.contains("choose one of") && text.contains("reno"), "{text}");
        let error = listen(SocketAddr::from(([127, 0, 0, 1], 0)), 1, &options).expect_err("the same");
        assert_eq!(error.to_string(), text);
    }

    #[tokio::test]
    async fn local_address_of_another_family_is_an_error() {
        let local = Some(IpAddr::from(std::net::Ipv6Addr::LOCALHOST));
        let error = dial_here(1, &TcpOptions::default(), local).await.expect_err("another family");
        assert!(error.to_string().contains("none of its addresses is of the family of ::1"), "{error}");
    }
}
