//! Tests of the limit on the way to a socket.

use super::*;

/// Lengths of the datagrams that have arrived at the client.
fn arrived(client: &std::net::UdpSocket) -> Vec<usize> {
    let mut buffer = [0; 2000];
    std::iter::from_fn(|| client.recv(&mut buffer).ok()).collect()
}

#[tokio::test]
async fn datagrams_above_the_limit_leave_when_it_allows() {
    let client = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("bind");
    client.set_nonblocking(true).expect("option");
    let address = client.local_addr().expect("address");
    let socket = Socket::system(std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("bind")).expect("socket");
    let limit = AmplificationLimit::default();
    limit.set_socket(&Arc::new(socket));
    let mut validated = None;
    let connection = limit.connection(address, false);
    let send = |validated: &mut Option<SocketAddr>, first: u8, count: usize| {
        let mut contents = vec![0; 1200 * count];
        contents[0] = first;
        let (ecn, segment_size, src_ip) = (None, Some(1200), None);
        let batch = Transmit { destination: address, ecn, contents: &contents, segment_size, src_ip };
        limit.pass(validated, &batch).map_or(0, |batch| batch.contents.len() / 1200)
    };
    let receive = |length: usize| {
        let mut datagram = vec![0; length];
        datagram[0] = 0xC0;
        limit.handle_received(address, &datagram);
    };
    receive(1300);
    assert_eq!(send(&mut validated, 0xC0, 4), 3, "the fourth is deferred");
    receive(299);
    assert!(arrived(&client).is_empty());
    receive(1);
    assert_eq!(arrived(&client), [1200], "deferred once");

    assert_eq!(send(&mut validated, 0x40, 1), 0, "a short header is no way around the limit");
    assert!(arrived(&client).is_empty());
    connection.validate();
    assert_eq!(arrived(&client), [1200]);
    for first in [0xC0, 0x40] {
        assert_eq!(send(&mut validated, first, 10), 10);
    }
    drop(connection);
    assert_eq!(send(&mut None, 0xC0, 1), 0, "the connection has ended");
}
