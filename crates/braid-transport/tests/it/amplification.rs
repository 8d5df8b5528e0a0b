//! An address that is not validated gets at most three times the bytes that came from it (RFC 9000, 8.1).

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Datagram, Direction, Host, Network, Recording};
use braid_transport::{ListenOptions, Listener, ServerTls};
use tokio::time::{Instant, sleep, timeout};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::initial::{MIN_SIZE, initial, source_connection_id};
use crate::support::{Pki, address};

/// The largest datagram of an Ethernet.
const MAX_SIZE: usize = 1472;

/// A server whose certificate chain is about this long.
fn server(pki: &Pki, chain: usize) -> ServerTls {
    let files = pki.issue("server", &["localhost"]);
    let mut text = fs::read_to_string(&files.certificate).expect("read");
    let ca = fs::read_to_string(pki.ca()).expect("read");
    // Base64 has four characters for three bytes.
    while text.len() * 3 / 4 < chain {
        text += &ca;
    }
    fs::write(&files.certificate, text).expect("write");
    ServerTls::load(files, braid_transport::ClientAuth::None).expect("load")
}

fn listen(network: &Network, tls: ServerTls, retry_above: usize) -> Listener {
    let quic = QuicOptions { retry_above, ..QuicOptions::server() };
    network.listen(tls, &ListenOptions { quic, ..ListenOptions::default() }).expect("listen")
}

/// Sends `answer` to each client for its first byte.
fn serve(mut listener: Listener, answer: &'static [u8]) {
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            tokio::spawn(async move {
                let Ok(mut link) = incoming.handshake().await.map(Link::from) else { return };
                let _ = read(&mut link).await;
                let _ = write(&mut link, answer).await;
                std::future::pending::<()>().await;
            });
        }
    });
}

/// Lengths of the datagrams to each address, in the order of their sending.
fn answers(recording: &Recording) -> HashMap<SocketAddr, Vec<usize>> {
    let mut answers = HashMap::<_, Vec<_>>::new();
    for datagram in recording.datagrams() {
        if datagram.direction == Direction::Up {
            answers.entry(datagram.to).or_default().push(datagram.bytes.len());
        }
    }
    answers
}

#[tokio::test(start_paused = true)]
async fn one_initial_of_any_size_is_answered_within_the_limit() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = listen(&network, server(&pki, 10_000), usize::MAX);
    let (to, host) = (address(&listener), network.host("server"));
    serve(listener, b"");
    let recording = host.record();
    let mut sizes = HashMap::new();
    for size in MIN_SIZE..=MAX_SIZE {
        let attacker = network.host(&format!("attacker {size}"));
        let from = attacker.send(to, &initial(&pki, size, source_connection_id()));
        sizes.insert(from.expect("a port"), size);
    }
    // Long enough for each probe timeout of the server.
    sleep(Duration::from_secs(120)).await;
    let answers = answers(&recording);
    assert_eq!(answers.len(), sizes.len(), "each was answered");
    for (from, answers) in answers {
        let (size, sent) = (sizes[&from], answers.iter().sum::<usize>());
        assert!(sent <= 3 * size, "{sent} bytes for {size}: {answers:?}");
        assert!(sent > 3 * size - MIN_SIZE, "what is permitted is used: {answers:?} for {size}");
    }
}

/// Types of the packets in a datagram; `None` for one with a short header, which is the last.
fn packets(mut bytes: &[u8]) -> Vec<Option<u8>> {
    fn number(bytes: &mut &[u8]) -> usize {
        let length = 1 << (bytes[0] >> 6);
        let (value, rest) = bytes.split_at(length);
        *bytes = rest;
        value.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)) & !(3 << (8 * length - 2))
    }
    let mut types = Vec::new();
    while let Some(first) = bytes.first() {
        if first & 0x80 == 0 {
            types.push(None);
            break;
        }
        let kind = (first >> 4) & 3;
        types.push(Some(kind));
        bytes = &bytes[5..];
        for _ in 0..2 {
            bytes = &bytes[1 + usize::from(bytes[0])..];
        }
        if kind == 0 {
            let token = number(&mut bytes);
            bytes = &bytes[token..];
        }
        let length = number(&mut bytes);
        bytes = &bytes[length..];
    }
    types
}

/// Checks the limit up to the first Handshake packet of the client, the only one, that reaches the server. Returns the
/// bytes up to there: received and sent.
fn check(datagrams: &[Datagram], seed: u64) -> (usize, usize) {
    const HANDSHAKE: Option<u8> = Some(2);
    let mut arrivals: Vec<_> =
        datagrams.iter().filter(|datagram| datagram.direction == Direction::Down).collect();
    arrivals.sort_by_key(|datagram| datagram.at);
    let validated = arrivals.iter().find(|datagram| packets(&datagram.bytes).contains(&HANDSHAKE));
    let validated = validated.map(|datagram| datagram.at);
    let (mut received, mut sent) = (0, 0);
    for datagram in datagrams.iter().filter(|datagram| datagram.direction == Direction::Up) {
        if validated.is_some_and(|validated| datagram.at >= validated) {
            break;
        }
        sent += datagram.bytes.len();
        let arrived = arrivals.iter().filter(|arrival| arrival.at <= datagram.at);
        received = arrived.map(|arrival| arrival.bytes.len()).sum();
        assert!(sent <= 3 * received, "seed {seed}: {sent} bytes for {received}");
    }
    (received, sent)
}

#[tokio::test(start_paused = true)]
async fn handshakes_under_loss_are_completed_within_the_limit() {
    let pki = Pki::new();
    let tls = server(&pki, 10_000);
    let mut total = (0, 0);
    for seed in 0..40 {
        let network = Network::new(seed);
        let listener = listen(&network, tls.clone(), usize::MAX);
        let to = address(&listener);
        serve(listener, b"!");
        let recording = network.host("server").record();
        let device = network.host("device");
        // Only the device's link loses, so that the server has what was sent to it.
        device.change(|link| (link.latency, link.loss) = (Duration::from_millis(20), 0.25));
        let connector = device.connector(to, pki.client(), QuicOptions::client());
        let visit = timeout(Duration::from_secs(120), async {
            loop {
                // A connect gives up after five seconds.
                let Ok(mut link) = connector.connect().await.map(Link::from) else { continue };
                if write(&mut link, b"!").await.is_ok() && read(&mut link).await.is_ok() {
                    return;
                }
            }
        });
        visit.await.expect("a visit in spite of the loss");
        let datagrams = recording.datagrams();
        let ports = datagrams.iter().filter(|datagram| datagram.direction == Direction::Up);
        let ports: std::collections::HashSet<_> = ports.map(|datagram| datagram.to).collect();
        // With several attempts it is not known which datagram came from which.
        if ports.len() == 1 {
            let (received, sent) = check(&datagrams, seed);
            total = (total.0 + received, total.1 + sent);
        }
    }
    assert!(total.1 > 2 * total.0 && total.0 > 20 * MIN_SIZE, "the limit was reached: {total:?}");
}

/// The first flight of a client with early data is larger than a multiple of a datagram, and the server has more to say
/// than it may.
#[tokio::test(start_paused = true)]
async fn an_answer_to_early_data_leaves_within_the_limit_and_arrives() {
    static ANSWER: [u8; 30_000] = [7; 30_000];
    let (pki, network) = (Pki::new(), Network::new(1));
    let listener = listen(&network, pki.server(), usize::MAX);
    let to = address(&listener);
    serve(listener, &ANSWER);
    let device = network.host("device");
    device.change(|link| link.latency = Duration::from_millis(50));
    let connector = device.connector(to, pki.client(), QuicOptions::client()).zero_rtt(true);
    for size in [0, 100, 200, 300, 400, 600, 800] {
        let recording = network.host("server").record();
        let start = Instant::now();
        let mut link = Link::from(connector.connect().await.expect("connect"));
        assert_eq!(link.is_early(), size > 0);
        write(&mut link, &vec![7; size + 1]).await.expect("write");
        for _ in 0..ANSWER.len() {
            assert_eq!(read(&mut link).await.expect("read"), 7);
        }
        if size > 0 {
            let (received, sent) = check(&recording.datagrams(), 1);
            assert!(received >= MIN_SIZE && sent > 2 * received, "{sent} for {received}");
            println!("{} bytes after {size} early ones: {:?}", ANSWER.len(), start.elapsed());
            assert!(start.elapsed() < Duration::from_millis(700), "{:?}", start.elapsed());
        }
        drop(link);
        sleep(Duration::from_secs(60)).await;
    }
}

/// Duration of a handshake with `to`.
async fn handshake(device: &Host, pki: &Pki, to: SocketAddr) -> Duration {
    let connector = device.connector(to, pki.client(), QuicOptions::client());
    let start = Instant::now();
    let mut link = Link::from(connector.connect().await.expect("connect"));
    let took = start.elapsed();
    write(&mut link, b"!").await.expect("write");
    read(&mut link).await.expect("read");
    took
}

#[tokio::test(start_paused = true)]
async fn the_limit_costs_ordinary_handshakes_no_round_trip() {
    let round_trip = Duration::from_millis(100);
    // Measured with the limit taken out: after a Retry too the library begins with three datagrams.
    for (chain, retry_above, expected) in
        [(500, 9, 1), (2_500, 9, 1), (5_000, 9, 2), (10_000, 9, 2), (2_500, 0, 2), (5_000, 0, 3)]
    {
        let (pki, network) = (Pki::new(), Network::new(1));
        let listener = listen(&network, server(&pki, chain), retry_above);
        let to = address(&listener);
        serve(listener, b"!");
        let device = network.host("device");
        device.change(|link| link.latency = round_trip / 2);
        let took = handshake(&device, &pki, to).await;
        println!("chain of {chain} bytes, retry above {retry_above}: {took:?}");
        // The pacer may add a few milliseconds.
        assert!((round_trip * expected..round_trip * expected + round_trip / 2).contains(&took), "{took:?}");
    }
}
