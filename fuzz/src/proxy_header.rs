//! Body of the fuzz target for headers of the PROXY protocol. It panics on a failure.

use braid_transport::proxy::{MAX_HEADER_BYTES, ProxyHeader, parse_proxy_header};

/// A result does not depend on how many bytes are there when it is found, and a client is found again in a header that
/// is written for it.
pub fn proxy_header(data: &[u8]) {
    let whole = parse_proxy_header(data);
    for end in 0..data.len().min(MAX_HEADER_BYTES + 1) {
        let part = parse_proxy_header(&data[..end]);
        match whole {
            Ok(Some(header)) if end < header.length => assert_eq!(part, Ok(None), "{end} bytes"),
            Ok(_) => assert_eq!(part, whole, "{end} bytes"),
            Err(_) => assert!(part == whole || part == Ok(None), "{end} bytes: {part:?} is not {whole:?}"),
        }
    }
    match whole {
        Ok(Some(ProxyHeader { length, client })) => {
            assert!(length <= data.len() && length <= MAX_HEADER_BYTES);
            if let Some(client) = client {
                let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
                let (ip, port) = (client.ip(), client.port());
                let line = format!("PROXY {family} {ip} {ip} {port} {port}\r\n");
                let again = ProxyHeader { length: line.len(), client: Some(client) };
                assert_eq!(parse_proxy_header(line.as_bytes()), Ok(Some(again)));
            }
        }
        Ok(None) => assert!(data.len() < MAX_HEADER_BYTES),
        Err(_) => {}
    }
}
