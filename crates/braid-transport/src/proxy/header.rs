//! Header of the PROXY protocol, versions 1 and 2
//! ([specification](https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt)). Pure.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use thiserror::Error;

/// Upper bound of the bytes of a header, additional fields (TLV) of version 2 included.
pub const MAX_HEADER_BYTES: usize = 4096;

/// Upper bound of a line of version 1 with its CRLF (section 2.1).
const MAX_LINE: usize = 107;

const LINE_START: &[u8] = b"PROXY ";

/// Section 2.2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of version 2 before the addresses: signature, version and command, family and protocol, length.
const FIXED: usize = 16;

/// A whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Its bytes.
    pub length: usize,
    /// Address of the client. `None` for a connection of the proxy itself, such as a health check (`LOCAL`), and for
    /// one whose client has no address that the proxy can tell (`UNKNOWN`).
    pub client: Option<SocketAddr>,
}

/// Defect of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ProxyHeaderError {
    /// The first bytes are of neither version.
    #[error("there is no header: let the proxy send one, or switch the PROXY protocol of this listener off")]
    Missing,
    /// No line end within 107 bytes (version 1).
    #[error("the line has more than 107 bytes")]
    LineTooLong,
    /// A byte that is no printable ASCII, or CR or LF alone (version 1).
    #[error("the line has a byte that is not allowed")]
    LineByte,
    /// Neither TCP4, TCP6 nor UNKNOWN (version 1).
    #[error("the protocol is neither TCP4, TCP6 nor UNKNOWN")]
    Protocol,
    /// A wrong number of fields, or an address that is not of its family (version 1).
    #[error("an address is missing or wrong")]
    Address,
    /// No decimal number of 0 to 65535 without leading zeros (version 1).
    #[error("a port is missing or wrong")]
    Port,
    /// A version behind the signature that is not 2.
    #[error("version {0} is not known")]
    Version(u8),
    /// Neither LOCAL nor PROXY (version 2).
    #[error("command {0} is not known")]
    Command(u8),
    /// No TCP over IPv4 or IPv6, nor unspecified (version 2).
    #[error("family and protocol 0x{0:02X} are not TCP over IPv4 or IPv6")]
    Family(u8),
    /// Less bytes than the addresses take (version 2).
    #[error("{0} bytes are too few for the addresses")]
    TooShort(u16),
    /// More bytes than are taken (version 2).
    #[error("{0} bytes are too many, 4080 are taken: let the proxy send fewer additional fields")]
    TooLong(u16),
}

/// The header at the begin of `bytes`, `None` while it is not complete.
///
/// A defect is found as soon as the bytes show it, and stays whatever comes behind them.
///
/// # Errors
/// These bytes begin no header.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    if begin_alike(bytes, LINE_START) {
        parse_line(bytes)
    } else if begin_alike(bytes, SIGNATURE) {
        parse_binary(bytes)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

/// True if the shorter one is the begin of the other.
fn begin_alike(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(byte, expected)| byte == expected)
}

// === Version 1 ===

fn parse_line(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let mut has_cr = false;
    for (at, byte) in bytes.iter().enumerate().take(MAX_LINE) {
        match byte {
            b'\n' if has_cr => {
                let client = client_of_line(bytes.get(..at - 1).unwrap_or_default())?;
                return Ok(Some(ProxyHeader { length: at + 1, client }));
            }
            b'\r' if !has_cr => has_cr = true,
            b' '..=b'~' if !has_cr => {}
            _ => return Err(ProxyHeaderError::LineByte),
        }
    }
    if bytes.len() < MAX_LINE { Ok(None) } else { Err(ProxyHeaderError::LineTooLong) }
}

/// `line`: without its end.
fn client_of_line(line: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
    let line = str::from_utf8(line).map_err(|_| ProxyHeaderError::LineByte)?;
    let mut fields = line.split(' ').skip(1);
    let family = fields.next().unwrap_or_default();
    if family == "UNKNOWN" {
        // The rest of the line is ignored.
        return Ok(None);
    }
    if family != "TCP4" && family != "TCP6" {
        return Err(ProxyHeaderError::Protocol);
    }
    let (Some(source), Some(destination)) = (fields.next(), fields.next()) else {
        return Err(ProxyHeaderError::Address);
    };
    let address = |text: &str| match family {
        "TCP4" => text.parse::<Ipv4Addr>().map(Into::into).map_err(|_| ProxyHeaderError::Address),
        _ => text.parse::<Ipv6Addr>().map(Into::into).map_err(|_| ProxyHeaderError::Address),
    };
    let (source, _) = (address(source)?, address(destination)?);
    let (source_port, _) = (port(fields.next())?, port(fields.next())?);
    if fields.next().is_some() {
        return Err(ProxyHeaderError::Port);
    }
    Ok(Some(SocketAddr::new(source, source_port)))
}

fn port(text: Option<&str>) -> Result<u16, ProxyHeaderError> {
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let text = text.filter(|text| *text == "0" || !text.starts_with('0'));
    text.and_then(|text| text.parse().ok()).ok_or(ProxyHeaderError::Port)
}

// === Version 2 ===

/// Command in the lower half of the 13th byte.
const LOCAL: u8 = 0;
const PROXY: u8 = 1;

fn parse_binary(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let Some(command) = bytes.get(SIGNATURE.len()) else { return Ok(None) };
    let (version, command) = (command >> 4, command & 0x0F);
    if version != 2 {
        return Err(ProxyHeaderError::Version(version));
    }
    if command != LOCAL && command != PROXY {
        return Err(ProxyHeaderError::Command(command));
    }
    let Some(family) = bytes.get(SIGNATURE.len() + 1) else { return Ok(None) };
    // Source and destination, then their ports; what a health check has in their place is ignored.
    let needed = match (command, family) {
        (LOCAL, _) | (_, 0x00) => 0,
        (_, 0x11) => 2 * 4 + 2 * 2,
        (_, 0x21) => 2 * 16 + 2 * 2,
        (_, family) => return Err(ProxyHeaderError::Family(*family)),
    };
    let Some([high, low]) = bytes.get(SIGNATURE.len() + 2..FIXED) else { return Ok(None) };
    let announced = u16::from_be_bytes([*high, *low]);
    let length = FIXED + usize::from(announced);
    if usize::from(announced) < needed {
        return Err(ProxyHeaderError::TooShort(announced));
    }
    if length > MAX_HEADER_BYTES {
        return Err(ProxyHeaderError::TooLong(announced));
    }
    let Some(addresses) = bytes.get(FIXED..length) else { return Ok(None) };
    let client = match needed {
        0 => None,
        12 => source(addresses, |octets: [u8; 4]| Ipv4Addr::from(octets).into()),
        _ => source(addresses, |octets: [u8; 16]| Ipv6Addr::from(octets).into()),
    };
    Ok(Some(ProxyHeader { length, client }))
}

/// The source of addresses of `N` bytes.
fn source<const N: usize>(
    addresses: &[u8],
    from: impl FnOnce([u8; N]) -> std::net::IpAddr,
) -> Option<SocketAddr> {
    let ip = *addresses.first_chunk::<N>()?;
    let port = *addresses.get(2 * N..)?.first_chunk::<2>()?;
    Some(SocketAddr::new(from(ip), u16::from_be_bytes(port)))
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
