//! Connection IDs of a listener that name it, as a balancer sees them on the way.

use std::collections::BTreeSet;

use braid_transport::ListenOptions;
use braid_transport::quic::{QuicHeader, QuicLb, QuicLbKey, QuicOptions};
use braid_transport::sim::{Direction, Network};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::support::{Pki, address};

/// Source Connection ID of a packet with a long header.
fn source(datagram: &[u8]) -> &[u8] {
    let rest = &datagram[6 + usize::from(datagram[5])..];
    &rest[1..1 + usize::from(rest[0])]
}

/// The balancer finds the server in every packet but the client's first ones: also after a Retry, and after each move
/// of the client, for which the server gave an ID in a NEW_CONNECTION_ID frame.
#[tokio::test(start_paused = true)]
async fn every_connection_id_of_a_server_names_it() {
    let key = QuicLbKey::from([9; 16]);
    // In the clear, four passes with both middles, a single pass, and the shortest and longest IDs.
    for (server_id, nonce_length, key) in [
        ("0102", 6, None),
        ("01020304", 5, Some(key.clone())),
        ("010203", 5, Some(key.clone())),
        ("0102030405060708", 8, Some(key.clone())),
        ("01", 4, Some(key.clone())),
        ("0102030405060708090a0b0c0d0e0f", 4, Some(key)),
    ] {
        let lb = QuicLb::new(5, server_id.parse().expect("server ID"), nonce_length, key).expect("in range");
        let (format, server_id) = (lb.format().clone(), Some(lb.server_id()));
        let (pki, network) = (Pki::new(), Network::new(1));
        let quic = QuicOptions { quic_lb: Some(lb), retry_above: 0, ..QuicOptions::server() };
        let options = ListenOptions { quic, ..ListenOptions::default() };
        let mut listener = network.listen(pki.server(), &options).expect("listen");
        let device = network.host("device");
        let recording = device.record();
        let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
        let client = tokio::spawn(async move {
            let mut client = Link::from(connector.connect().await.expect("connect"));
            write(&mut client, b"!").await.expect("write");
            client
        });
        let mut server =
            Link::from(listener.accept().await.expect("accept").handshake().await.expect("handshake"));
        let mut client = client.await.expect("join");
        assert_eq!(read(&mut server).await.expect("read"), b'!');
        for _ in 0..3 {
            client.rebind(None).expect("rebind");
            write(&mut client, b"?").await.expect("write");
            assert_eq!(read(&mut server).await.expect("read"), b'?');
        }

        let (mut retries, mut random, mut used) = (0, BTreeSet::new(), BTreeSet::new());
        for datagram in recording.datagrams() {
            let bytes = &*datagram.bytes;
            match (datagram.direction, QuicHeader::parse(bytes).expect("QUIC")) {
                (Direction::Down, QuicHeader::Long { .. }) => {
                    assert_eq!(format.server_id(source(bytes)), server_id);
                    retries += u32::from(bytes[0] & 0xF0 == 0xF0);
                }
                (Direction::Up, header @ QuicHeader::Long { destination }) => {
                    if format.server_of(header) != server_id {
                        random.insert(destination.to_vec());
                    }
                }
                (Direction::Up, header @ QuicHeader::Short { rest }) => {
                    assert_eq!(format.server_of(header), server_id);
                    used.insert(rest[..format.id_length()].to_vec());
                }
                (Direction::Down, QuicHeader::Short { .. }) => {}
            }
        }
        assert_eq!((retries, random.len()), (1, 1), "only the first packet's ID is the client's own");
        assert!(used.len() >= 4, "one ID for each address: {used:x?}");
    }
}
