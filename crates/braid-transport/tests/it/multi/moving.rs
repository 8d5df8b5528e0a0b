//! Another address while the connection goes on.

use braid_transport::Listener;
use braid_transport::quic::PathClass;
use braid_transport::sim::{Datagram, Direction, Policer};
use futures_util::FutureExt;
use tokio::time::Instant;

use super::*;
use crate::driven::Link;

// [BQ-70]
#[tokio::test(start_paused = true)]
async fn the_servers_view_of_the_client_follows_it() {
    let mut scene = Scene::new().await;
    let before = scene.server.peer().address.expect("known");
    let (key, mut send, mut recv) = scene.open().await;
    scene.device.rebind_nat();
    send.write_all(b"from elsewhere").await.expect("write");
    let mut told = Vec::new();
    for _ in 0..2 {
        told.push(next(&mut scene.server).await.0);
    }
    let after = scene.server.peer().address.expect("known");
    assert_ne!(before, after);
    assert_eq!(
        told,
        [Read::Bytes(key), Read::Moved(after)],
        "nothing but the validation came after the bytes"
    );
    write(&mut scene.server, key, b"found").await;
    recv.read_exact(&mut [0; 5]).await.expect("read");
    sleep(A_WHILE).await;
    assert!(next(&mut scene.server).now_or_never().is_none(), "it is told once");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_does_not_answer_is_not_believed() {
    let mut scene = Scene::new().await;
    let before = scene.server.peer().address;
    scene.device.rebind_nat();
    scene.device.change_one(Direction::Down, |link| link.cut = true);
    scene.send.write_all(b"PINGREQ").await.expect("write");
    assert_eq!(next(&mut scene.server).await.0, Read::Bytes(StreamKey::CONTROL));
    sleep(Duration::from_secs(1)).await;
    scene.send.write_all(b"PINGREQ").await.expect("write");
    assert_eq!(next(&mut scene.server).await.0, Read::Bytes(StreamKey::CONTROL));
    assert!(next(&mut scene.server).now_or_never().is_none());
    assert_eq!(scene.server.peer().address, before);
}

// [BQ-70]
#[tokio::test(start_paused = true)]
async fn an_address_that_answers_late_is_believed_then() {
    let mut scene = Scene::new().await;
    let before = scene.server.peer().address;
    let (key, mut send, mut recv) = scene.open().await;
    scene.device.rebind_nat();
    // Longer than the library's validation takes.
    scene.device.change_one(Direction::Down, |link| link.cut = true);
    let mut told = Vec::new();
    for round in 0..400 {
        send.write_all(&[b'?'; 400]).await.expect("write");
        sleep(Duration::from_millis(50)).await;
        while let Some((read, _)) = next(&mut scene.server).now_or_never() {
            told.extend((!matches!(read, Read::Bytes(_))).then_some(read));
        }
        if round == 64 {
            assert_eq!(told, [], "nothing comes from there");
            scene.device.change_one(Direction::Down, |link| link.cut = false);
        }
    }
    let after = scene.server.peer().address.expect("known");
    assert_ne!(before, Some(after));
    assert_eq!(told, [Read::Moved(after)]);
    write(&mut scene.server, key, b"found").await;
    recv.read_exact(&mut [0; 5]).await.expect("read");
}

/// The library gives up after some three seconds, and knows no PATH_RESPONSE that comes later.
// [BQ-70]
#[tokio::test(start_paused = true)]
async fn a_response_that_comes_too_late_ends_no_validation() {
    let mut scene = Scene::new().await;
    let (key, mut send, mut recv) = scene.open().await;
    scene.device.rebind_nat();
    scene.device.change_one(Direction::Down, |link| link.latency = Duration::from_millis(3200));
    let mut told = Vec::new();
    for round in 0..200 {
        send.write_all(&[b'?'; 100]).await.expect("write");
        sleep(Duration::from_millis(50)).await;
        while let Some((read, _)) = next(&mut scene.server).now_or_never() {
            told.extend((!matches!(read, Read::Bytes(_))).then_some(read));
        }
        if round == 70 {
            assert_eq!(told, [], "nothing has come in time");
            scene.device.change_one(Direction::Down, |link| link.latency = Duration::ZERO);
        }
    }
    assert_eq!(told, [Read::Moved(scene.server.peer().address.expect("known"))]);
    write(&mut scene.server, key, b"found").await;
    timeout(A_MINUTE, recv.read_exact(&mut [0; 5])).await.expect("the address is validated").expect("read");
}

/// Behind a policer, and while nothing is acknowledged, the gate keeps packets back for 200 ms.
#[tokio::test(start_paused = true)]
async fn a_client_with_a_closed_gate_answers_a_challenge_at_once() {
    let (pki, network) = (Pki::new(), Network::new(3));
    let mut listener = network.listen(pki.server(), &ListenOptions::default()).expect("listen");
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(20));
    device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
    let connector = device.connector(address(&listener), pki.client(), QuicOptions::client());
    let client = tokio::spawn(async move {
        let mut client = Link::from(connector.connect().await.expect("connect"));
        write(&mut client, StreamKey::CONTROL, &[7; 300_000]).await;
        client
    });
    let mut server = accept(&mut listener).await.await.expect("join").expect("handshake");
    let mut read = 0;
    while read < 300_000 {
        read += next(&mut server).await.1.len();
    }
    let mut client = client.await.expect("join");
    let class = client.gate_state().expect("a gate").class;
    assert_eq!(class, PathClass::Policed);
    device.change_one(Direction::Down, |link| link.cut = true);
    let writing = tokio::spawn(async move {
        loop {
            write(&mut client, StreamKey::CONTROL, &[7; 280]).await;
            sleep(Duration::from_millis(10)).await;
        }
    });
    sleep(Duration::from_secs(1)).await;
    while next(&mut server).now_or_never().is_some() {}
    device.rebind_nat();
    let recording = device.record();
    device.change_one(Direction::Down, |link| link.cut = false);
    while !matches!(next(&mut server).await.0, Read::Moved(_)) {}
    let datagrams = recording.datagrams();
    // Until it is answered nothing else comes.
    let is_down = |datagram: &&Datagram| datagram.direction == Direction::Down;
    let challenge = datagrams.iter().find(is_down).expect("a challenge").at;
    let response = datagrams.iter().find(|datagram| is_response(datagram) && datagram.at > challenge);
    writing.abort();
    let passed = response.expect("a response").at - challenge;
    assert!(passed < Duration::from_millis(30), "{passed:?}");
}

/// Padded, as PATH_RESPONSE of the client is.
fn is_response(datagram: &Datagram) -> bool {
    datagram.direction == Direction::Up && datagram.bytes.len() >= 1200
}

/// Bytes of the datagrams in this direction.
fn bytes<'a>(datagrams: impl IntoIterator<Item = &'a Datagram>, direction: Direction) -> usize {
    let datagrams = datagrams.into_iter().filter(|datagram| datagram.direction == direction);
    datagrams.map(|datagram| datagram.bytes.len()).sum()
}

/// RFC 9000, 8.2.1.
#[tokio::test(start_paused = true)]
async fn a_few_bytes_from_a_new_address_are_enough_for_a_challenge_within_the_limit() {
    let mut scene = Scene::new().await;
    let (_key, mut send, _recv) = scene.open().await;
    drive(&mut scene.server, sleep(A_WHILE)).await;
    scene.device.rebind_nat();
    let (recording, begun) = (scene.device.record(), Instant::now());
    send.write_all(b"?").await.expect("write");
    while !matches!(next(&mut scene.server).await.0, Read::Moved(_)) {}
    let passed = begun.elapsed();
    assert!(passed < Duration::from_millis(20), "{passed:?}");
    let datagrams = recording.datagrams();
    let before = datagrams.split(is_response).next().expect("a part");
    let (sent, received) = (bytes(before, Direction::Up), bytes(before, Direction::Down));
    assert!((1..=3 * sent).contains(&received), "{received} bytes for {sent}");
}

/// A client that is connected sends from one address after the other, and gets nothing of the answers, as if it had
/// forged them.
#[tokio::test(start_paused = true)]
async fn addresses_that_a_client_forges_get_three_times_its_bytes_at_most() {
    let mut scene = Scene::new().await;
    let (_key, mut send, _recv) = scene.open().await;
    drive(&mut scene.server, sleep(A_WHILE)).await;
    scene.device.change_one(Direction::Down, |link| link.cut = true);
    let recording = scene.device.network().host("server").record();
    for round in 0..50 {
        if round % 2 == 0 {
            scene.device.rebind_nat();
        } else {
            scene.device.rebind_nat_port();
        }
        send.write_all(b"?").await.expect("write");
        while let Ok((read, _)) = timeout(Duration::from_millis(3), next(&mut scene.server)).await {
            assert!(matches!(read, Read::Bytes(_)), "{read:?}");
        }
    }
    let datagrams = recording.datagrams();
    let (sent, received) = (bytes(&datagrams, Direction::Up), bytes(&datagrams, Direction::Down));
    assert!((1..=3 * received).contains(&sent), "{sent} bytes for {received}");
}

/// The library never repeats a PATH_RESPONSE.
#[tokio::test(start_paused = true)]
async fn a_lost_path_response_is_repeated_soon() {
    let network = Network::new(3);
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(10));
    let (mut server, mut client, _listener) = links(&network, &device).await;
    sleep(A_WHILE).await;
    device.rebind_nat();
    let begun = Instant::now();
    let writing = tokio::spawn(async move {
        loop {
            write(&mut client, StreamKey::CONTROL, &[7; 400]).await;
            sleep(Duration::from_millis(40)).await;
        }
    });
    sleep(Duration::from_millis(15)).await;
    device.change_one(Direction::Up, |link| link.cut = true);
    sleep(Duration::from_millis(10)).await;
    device.change_one(Direction::Up, |link| link.cut = false);
    while !matches!(next(&mut server).await.0, Read::Moved(_)) {}
    writing.abort();
    let passed = begun.elapsed();
    assert!(passed < Duration::from_millis(400), "{passed:?}");
}

// [BQ-70]
#[tokio::test(start_paused = true)]
async fn a_client_moves_to_another_socket_and_its_streams_with_it() {
    let network = Network::new(3);
    let (mut server, mut client, _listener) = links(&network, &network.host("device")).await;
    let before = server.peer().address;
    for _ in 0..5 {
        client.rebind(None).expect("rebind");
        write(&mut client, StreamKey::CONTROL, b"?").await;
        assert_eq!(next(&mut server).await.1, b"?");
        assert_eq!(next(&mut server).await.0, Read::Moved(server.peer().address.expect("known")));
    }
    assert_ne!(server.peer().address, before);
    assert_eq!(server.rebind(None).expect_err("only a client moves").kind(), io::ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn all_that_is_on_its_way_to_the_old_socket_of_a_client_arrives() {
    let network = Network::new(3);
    let device = network.host("device");
    let (mut server, mut client, _listener) = links(&network, &device).await;
    sleep(A_WHILE).await;
    device.change_one(Direction::Down, |link| link.latency = Duration::from_millis(50));
    let begun = Instant::now();
    for byte in [b"1", b"2", b"3"] {
        write(&mut server, StreamKey::CONTROL, byte).await;
        sleep(Duration::from_millis(5)).await;
    }
    client.rebind(None).expect("rebind");
    for byte in [b"1", b"2", b"3"] {
        assert_eq!(next(&mut client).await.1, byte);
    }
    // Nothing that the server sends to the new address can have come by now.
    let passed = begun.elapsed();
    assert!(passed < Duration::from_millis(65), "{passed:?}");
}

#[tokio::test]
async fn a_client_moves_to_another_real_socket() {
    let pki = Pki::new();
    let mut listener: Listener = crate::support::bind(braid_transport::ListenerKind::Quic(pki.server()));
    let (mut server, mut client) = crate::support::pair(&mut listener, &pki.client()).await;
    let before = server.peer.address;
    client.io.0.rebind(Some(crate::support::loopback())).expect("rebind");
    write(&mut client.io.0, StreamKey::CONTROL, b"?").await;
    let after = loop {
        match next(&mut server.io.0).await.0 {
            Read::Moved(address) => break address,
            read => assert_eq!(read, Read::Bytes(StreamKey::CONTROL)),
        }
    };
    assert_ne!(Some(after), before);
}
