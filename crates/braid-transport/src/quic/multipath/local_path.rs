//! Local ends of paths: interfaces and addresses of a client, and UDP sockets there.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// Local end of a path of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocalPath {
    /// Name of an interface, as the system has it.
    Interface(Box<str>),
    /// Address of this machine. The routes of the system decide about the interface.
    Address(IpAddr),
}

impl LocalPath {
    /// The path of this text: an IP address, or the name of an interface.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Interface(text.into()), Self::Address)
    }

    /// A socket at the path for datagrams to `server`, bound to its address.
    ///
    /// On Linux a socket at a named interface is bound to the interface as well, or the routes of the system would send
    /// all datagrams out of the preferred one. That needs no privileges since Linux 5.7.
    ///
    /// # Errors
    /// There is no such interface or address, or no route from it to the server.
    pub(in crate::quic) fn open(&self, server: SocketAddr) -> io::Result<UdpSocket> {
        match self {
            Self::Address(address) if address.is_ipv4() != server.is_ipv4() => {
                let reason = format!("{server} is of another family");
                Err(failed(self, io::ErrorKind::AddrNotAvailable, &reason))
            }
            Self::Address(address) => {
                let socket = UdpSocket::bind(SocketAddr::new(*address, 0));
                socket.map_err(|error| failed(self, error.kind(), &error.to_string()))
            }
            Self::Interface(name) => {
                let at = at_interface(name, server);
                at.map_err(|error| failed(self, error.kind(), &reason(&error, name)))
            }
        }
    }

    /// Tests whether this machine has the interface, or the address.
    ///
    /// # Errors
    /// There is none. The text names the path.
    pub fn check(&self) -> io::Result<()> {
        let family = match self {
            Self::Address(IpAddr::V6(_)) => Domain::IPV6,
            Self::Address(IpAddr::V4(_)) | Self::Interface(_) => Domain::IPV4,
        };
        let socket = Socket::new(family, Type::DGRAM, Some(Protocol::UDP))?;
        let no_address = "this machine does not have the address";
        match self {
            Self::Address(address) => {
                let bound = socket.bind(&SocketAddr::new(*address, 0).into());
                bound.map_err(|error| failed(self, error.kind(), no_address))
            }
            Self::Interface(name) => {
                let bound = bind_device(&socket, name);
                bound.map_err(|error| failed(self, error.kind(), &reason(&error, name)))
            }
        }
    }
}

impl fmt::Display for LocalPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// A socket at the address from which the interface sends to the server.
fn at_interface(name: &str, server: SocketAddr) -> io::Result<UdpSocket> {
    let open = |address: SocketAddr| {
        let socket = Socket::new(Domain::for_address(server), Type::DGRAM, Some(Protocol::UDP))?;
        bind_device(&socket, name)?;
        socket.bind(&address.into())?;
        Ok::<UdpSocket, io::Error>(socket.into())
    };
    let any = match server {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    // A connect of UDP sends nothing, and shows the address.
    let probe = open(SocketAddr::new(any, 0))?;
    probe.connect(server)?;
    let address = probe.local_addr()?.ip();
    drop(probe);
    open(SocketAddr::new(address, 0))
}

#[cfg(target_os = "linux")]
fn bind_device(socket: &Socket, name: &str) -> io::Result<()> {
    socket.bind_device(Some(name.as_bytes()))
}

#[cfg(not(target_os = "linux"))]
fn bind_device(_socket: &Socket, _name: &str) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn reason(error: &io::Error, name: &str) -> String {
    match error.kind() {
        io::ErrorKind::Unsupported => {
            "names of interfaces are known on Linux only: give its address".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "this kernel lets only root bind to an interface: give its address".to_owned()
        }
        _ if error.raw_os_error() == Some(libc::ENODEV) => format!("there is no interface {name:?}"),
        _ => error.to_string(),
    }
}

fn failed(local: &LocalPath, kind: io::ErrorKind, reason: &str) -> io::Error {
    io::Error::new(kind, format!("path {local}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, server: &str) -> String {
        LocalPath::parse(text).open(server.parse().expect("an address")).expect_err("it fails").to_string()
    }

    #[test]
    fn a_socket_has_the_address_of_its_path() {
        let server = SocketAddr::from(([127, 0, 0, 1], 9));
        let at = |text| LocalPath::parse(text).open(server).expect("a socket").local_addr().expect("bound");
        assert_eq!(at("127.0.0.7").ip(), IpAddr::from([127, 0, 0, 7]));
        #[cfg(target_os = "linux")]
        assert_eq!(at("lo").ip(), IpAddr::from([127, 0, 0, 1]));
    }

    #[test]
    fn errors_name_the_path() {
        assert_eq!(error("::1", "127.0.0.1:9"), "path ::1: 127.0.0.1:9 is of another family");
        #[cfg(target_os = "linux")]
        {
            assert_eq!(error("nowhere0", "127.0.0.1:9"), "path nowhere0: there is no interface \"nowhere0\"");
            assert!(LocalPath::parse("lo").check().is_ok());
            let text = LocalPath::parse("198.51.100.7").check().expect_err("not ours").to_string();
            assert_eq!(text, "path 198.51.100.7: this machine does not have the address");
        }
    }
}
