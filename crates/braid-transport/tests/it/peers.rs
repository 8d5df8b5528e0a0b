//! QUIC clients that were made to break servers: the advisories of docs/advisories.md, and peers that break rules of
//! RFC 9000 which cost nothing to break.

use std::future::poll_fn;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_proto::stream::StreamKey;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Host, Network, Policer, Recording};
use braid_transport::{HandshakeError, ListenOptions, Listener, Read};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep as wait, timeout};

use crate::driven::Link;
use crate::ends::{next, read, write};
use crate::forger::{Forger, Frames};
use crate::initial::{MIN_SIZE, initial, parameter, source_connection_id, varint};
use crate::noq_peer;
use crate::support::{Pki, address};

const LIMIT: Duration = Duration::from_secs(120);

/// Least payload of a packet that is full, or nearly so.
pub(crate) const FULL: usize = 1_000;

/// Shakes hands with all clients, and hands over what came of it.
fn serve(mut listener: Listener) -> mpsc::UnboundedReceiver<Result<Link, HandshakeError>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move { sender.send(incoming.handshake().await.map(Link::from)) });
        }
    });
    receiver
}

/// RUSTSEC-2026-0037 (CVE-2026-31812): transport parameters of one Initial caused a panic.
#[tokio::test(start_paused = true)]
async fn no_transport_parameters_of_an_initial_cause_a_panic() {
    const IDS: [u64; 24] = [
        0x00,
        0x01,
        0x02,
        0x03,
        0x04,
        0x05,
        0x06,
        0x07,
        0x08,
        0x09,
        0x0A,
        0x0B,
        0x0C,
        0x0D,
        0x0E,
        0x0F,
        0x10,
        0x11,
        0x20,
        0x3E,
        0x2AB2,
        0xFF04_DE1B,
        0x9F81_A176,
        0x3D7F_9112_0401,
    ];
    let values: [&[u8]; 12] = [
        &[],
        &[0],
        &[1],
        &[0x40],
        &[0x80, 0, 0],
        &[0xC0],
        &[0x3F],
        &[0x7F, 0xFF],
        &[0xFF; 8],
        &[0xBF, 0xFF, 0xFF, 0xFF],
        &[0xFF; 21],
        &[0; 64],
    ];
    let (pki, network) = (Pki::new(), Network::new(1));
    let quic = QuicOptions { retry_above: usize::MAX, ..QuicOptions::server() };
    let listener =
        network.listen(pki.server(), &ListenOptions { quic, ..ListenOptions::default() }).expect("listen");
    let to = address(&listener);
    let mut outcomes = serve(listener);
    let own = source_connection_id();
    let usual = [
        &own,
        &parameter(0x0B, &varint(25)),
        &parameter(0x0E, &varint(8)),
        &parameter(0x01, &varint(30_000)),
    ]
    .map(Vec::as_slice)
    .concat();
    let mut cases: Vec<Vec<u8>> = (0..=usual.len()).map(|end| usual[..end].to_vec()).collect();
    for id in IDS {
        for value in values {
            cases.push([own.as_slice(), &parameter(id, value)].concat());
            // Its length is that of more bytes than there are.
            cases.push([own.as_slice(), &varint(id), &varint(value.len() as u64 + 1), value].concat());
        }
        cases.push([own.as_slice(), &parameter(id, &[1]), &parameter(id, &[1])].concat());
    }
    let count = cases.len();
    for parameters in cases {
        // From a port of its own each, that does not answer.
        network.host("attacker").send(to, &initial(&pki, MIN_SIZE, parameters));
    }
    let (mut failed, mut refused) = (0, 0);
    for _ in 0..count {
        match timeout(LIMIT * 30, outcomes.recv()).await.expect("an outcome").expect("a server") {
            Ok(_) => panic!("a client that has never answered"),
            Err(HandshakeError::Quic(text)) if text.contains("transport parameter") => refused += 1,
            Err(HandshakeError::Quic(_)) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    println!("{refused} of {count} were refused, {failed} never answered");
    assert!(refused > count / 3 && failed > 0, "{refused} of {count}");
    let connector = network.host("device").connector(to, pki.client(), QuicOptions::client());
    let mut link = Link::from(connector.connect().await.expect("connect"));
    write(&mut link, b"!").await.expect("write");
    let mut server = outcomes.recv().await.expect("an outcome").expect("a usual client");
    assert_eq!(read(&mut server).await.expect("read"), b'!');
}

/// RUSTSEC-2026-0340: a `min_ack_delay` above the delay that the path suggests caused a panic.
#[tokio::test(start_paused = true)]
async fn a_large_min_ack_delay_on_a_short_path_is_harmless() {
    // In ms, and in us.
    let parameters = vec![(0x0B, 200), (0xFF04_DE1B, 100_000)];
    let Forged { mut send, mut receive, mut server, .. } = Forged::connect(parameters).await;
    for _ in 0..200 {
        write(&mut server, &[7; 3000]).await.expect("write");
        let mut answer = vec![0; 3000];
        receive.read_exact(&mut answer).await.expect("read");
        send.write_all(b"!").await.expect("write");
        assert_eq!(read(&mut server).await.expect("read"), b'!');
    }
}

/// RUSTSEC-2026-0185: fragments with gaps between them cost far more memory than their bytes. A peer that is trusted
/// may have more of large ones, but not many in a packet.
#[tokio::test(start_paused = true)]
async fn fragments_with_gaps_end_the_connection() {
    type Forge = fn(usize, &mut [u8]);
    let small: Forge = |number, payload| {
        for (at, frame) in payload.chunks_exact_mut(8).take(125).enumerate() {
            frame.copy_from_slice(&one_byte(1 + 2 * (125 * number + at)));
        }
    };
    let cases: [(bool, Forge, std::ops::Range<usize>); 5] = [
        (false, small, 10..200),
        (true, small, 10..200),
        (true, |number, payload| payload[..8].copy_from_slice(&one_byte(1 + 2 * number)), 1_000..2_000),
        (true, |number, payload| large(2000 * (number + 1), payload), 4_096..6_000),
        // The library may lose bytes of a stream that is read without order.
        (
            true,
            |number, payload| match number {
                0..2_000 => large(2000 * (number + 1), payload),
                2_000..2_010 => (0..23).for_each(|at| {
                    payload[8 * at..8 * (at + 1)].copy_from_slice(&one_byte(1 + 2 * at));
                }),
                _ => {}
            },
            2_000..3_000,
        ),
    ];
    for (is_trusted, forge, expected) in cases {
        let Forged { connection, frames, mut server, .. } = Forged::connect(Vec::new()).await;
        if is_trusted {
            server.set_trusted();
        }
        let packets = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&packets);
        frames.set(move |payload: &mut [u8]| {
            if payload.len() >= FULL {
                forge(count.fetch_add(1, Ordering::Relaxed), payload);
            }
        });
        send_packets(&connection);
        let error = timeout(Duration::from_secs(10), end(&mut server)).await.expect("an end");
        let packets = packets.load(Ordering::Relaxed);
        println!("{error} after {packets} packets");
        assert!(expected.contains(&packets), "{packets}");
        timeout(LIMIT, connection.closed()).await.expect("closed by the server");
    }
}

/// The library loses bytes of a stream that is read without order when a frame fills many gaps at once: they are
/// missed.
#[tokio::test(start_paused = true)]
async fn bytes_that_the_library_has_lost_end_the_connection() {
    let Forged { connection, frames, mut server, .. } = Forged::connect(Vec::new()).await;
    server.set_trusted();
    let packets = AtomicUsize::new(0);
    frames.set(move |payload: &mut [u8]| match packets.fetch_add(1, Ordering::Relaxed) {
        _ if payload.len() < FULL => {}
        number @ 0..2_000 => large(2000 * (number + 1), payload),
        // Few of them in each packet.
        number @ 2_000..2_025 => (0..20).for_each(|at| {
            payload[8 * at..8 * (at + 1)].copy_from_slice(&one_byte(1 + 2 * (20 * (number - 2_000) + at)));
        }),
        _ => large(0, payload),
    });
    send_packets(&connection);
    let start = Instant::now();
    let error = timeout(LIMIT, end(&mut server)).await.expect("an end");
    let took = start.elapsed();
    println!("{error} after {took:?}");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
    assert!((Duration::from_secs(30)..LIMIT).contains(&took), "{took:?}");
}

/// Has as many packets leave as the server takes.
pub(crate) fn send_packets(connection: &noq::Connection) {
    for _ in 0..8 {
        let connection = connection.clone();
        tokio::spawn(async move {
            let Ok((mut send, _receive)) = connection.open_bi().await else { return };
            while send.write_all(&[0; 1 << 16]).await.is_ok() {}
        });
    }
    // Signs of life.
    let connection = connection.clone();
    tokio::spawn(async move {
        while connection.close_reason().is_none() {
            wait(Duration::from_secs(1)).await;
            let _ = connection.open_uni().await;
        }
    });
}

/// The end of a link that reads on.
pub(crate) async fn end(server: &mut Link) -> std::io::Error {
    loop {
        match next(server).await {
            Ok((read, _)) => assert_ne!(read, Read::Closed, "an end in order"),
            Err(error) => return error,
        }
    }
}

/// STREAM frame with one byte of the first data stream at an offset.
pub(crate) fn one_byte(offset: usize) -> [u8; 8] {
    let [a, b, c, d] = offset_of(offset);
    // With offset and length; stream 4.
    [0x0E, 4, a, b, c, d, 1, 7]
}

/// STREAM frame of the first data stream at an offset, to the end of the packet.
fn large(offset: usize, payload: &mut [u8]) {
    payload.fill(7);
    payload[..2].copy_from_slice(&[0x0C, 4]);
    payload[2..6].copy_from_slice(&offset_of(offset));
}

fn offset_of(offset: usize) -> [u8; 4] {
    (u32::try_from(offset).expect("small") | 2 << 30).to_be_bytes()
}

/// Connection of a forger whose first byte the server has read.
pub(crate) struct Forged {
    pub(crate) device: Host,
    pub(crate) connection: noq::Connection,
    pub(crate) frames: Arc<Frames>,
    /// Both halves of the control stream.
    pub(crate) send: noq::SendStream,
    receive: noq::RecvStream,
    /// The server's end.
    pub(crate) server: Link,
    /// Datagrams from and to the server.
    recording: Recording,
}

impl Forged {
    /// `parameters`: transport parameters in place of the usual ones, by id.
    pub(crate) async fn connect(parameters: Vec<(u64, u64)>) -> Self {
        Self::connect_with(parameters, noq::TransportConfig::default()).await
    }

    pub(crate) async fn connect_with(parameters: Vec<(u64, u64)>, transport: noq::TransportConfig) -> Self {
        let (pki, network) = (Pki::new(), Network::new(1));
        let host = network.host("server");
        let listener = host.listen(pki.server(), &ListenOptions::default()).expect("listen");
        let (to, recording) = (address(&listener), host.record());
        let mut outcomes = serve(listener);
        let forger = Forger::new(&pki, parameters);
        let frames = Arc::clone(&forger.frames);
        let device = network.host("device");
        let endpoint = noq_peer::endpoint(&device, None);
        let mut config = noq::ClientConfig::new(Arc::new(forger));
        config.transport_config(Arc::new(transport));
        let connection =
            endpoint.connect_with(config, to, "localhost").expect("connect").await.expect("handshake");
        let (mut send, receive) = connection.open_bi().await.expect("stream");
        send.write_all(b"!").await.expect("write");
        let mut server = outcomes.recv().await.expect("an outcome").expect("handshake");
        assert_eq!(read(&mut server).await.expect("read"), b'!');
        Self { device, connection, frames, send, receive, server, recording }
    }
}

/// RFC 9000, 13.1: an acknowledgement of a packet that was not sent ends the connection.
#[tokio::test(start_paused = true)]
async fn an_acknowledgement_of_what_was_not_sent_ends_the_connection() {
    let mut forged = Forged::connect(Vec::new()).await;
    forged.frames.set(|payload: &mut [u8]| {
        // ACK of packet 1,000,000 alone.
        payload[..8].copy_from_slice(&[0x02, 0x80, 0x0F, 0x42, 0x40, 0, 0, 0]);
    });
    forged.send.write_all(&[0; 100]).await.expect("write");
    let error = timeout(LIMIT, async { while next(&mut forged.server).await.is_ok() {} });
    error.await.expect("an end");
    let error = next(&mut forged.server).await.expect_err("the end");
    assert!(error.to_string().contains("unsent packet"), "{error}");
    assert!(timeout(LIMIT, forged.connection.closed()).await.is_ok(), "closed by the server");
}

/// A peer that lets the server send without bounds and acknowledges nothing: the server takes what the gate lets it
/// hold, and repeats ever less of it.
#[tokio::test(start_paused = true)]
async fn huge_windows_without_acknowledgements_cost_a_bounded_buffer() {
    // initial_max_data, and initial_max_stream_data of all kinds.
    let parameters = [0x04, 0x05, 0x06, 0x07].map(|id| (id, (1 << 62) - 1)).to_vec();
    let mut forged = Forged::connect(parameters).await;
    let device = forged.device.clone();
    device.change_one(Direction::Up, |link| link.loss = 1.0);
    let before = device.counters(Direction::Down).packets;
    let mut taken = 0;
    let piece = vec![0; 1 << 16];
    let slices = [IoSlice::new(&piece)];
    let mut write_on = async || {
        let written = poll_fn(|cx| forged.server.poll_write(cx, StreamKey::CONTROL, &slices));
        timeout(Duration::from_secs(60), written).await
    };
    // Until nothing more is taken, or the connection ends because nothing is heard of the peer.
    while let Ok(Ok(written)) = write_on().await {
        taken += written;
    }
    let sent = device.counters(Direction::Down).packets - before;
    println!("{taken} bytes taken, {sent} packets sent");
    assert!(taken <= 128 << 10, "{taken} bytes");
    assert!(sent <= 100, "{sent} packets");
}

/// Packets with one byte of a stream each: the server acknowledges every other one, and the bytes come in order.
#[tokio::test(start_paused = true)]
async fn one_byte_in_each_packet_costs_no_more_packets_than_it_brings() {
    const BYTES: u64 = 20_000;
    let Forged { device, send, server, .. } = &mut Forged::connect(Vec::new()).await;
    let counters = |direction| device.counters(direction).packets;
    let before = (counters(Direction::Up), counters(Direction::Down));
    for number in 0..BYTES {
        let byte = number.to_be_bytes()[7];
        send.write_all(&[byte]).await.expect("write");
        assert_eq!(read(server).await.expect("read"), byte);
    }
    let received = server.load_counts().received;
    assert!((BYTES..BYTES + 100).contains(&received), "{received}");
    let (up, down) = (counters(Direction::Up) - before.0, counters(Direction::Down) - before.1);
    println!("{up} packets up, {down} down");
    assert!(up >= BYTES && down <= up / 2 + up / 100, "{up} packets up, {down} down");
}

/// Packets full of PATH_CHALLENGE frames: the server answers each packet with one, of 1,200 bytes [RFC 9000, 8.2.2].
#[tokio::test(start_paused = true)]
async fn challenges_of_the_path_cost_one_response_for_each_packet() {
    let mut forged = Forged::connect(Vec::new()).await;
    forged.frames.set(|payload: &mut [u8]| {
        for (number, frame) in (0..).zip(payload.chunks_exact_mut(9)) {
            frame[0] = 0x1A;
            frame[1..].copy_from_slice(&u64::to_be_bytes(number));
        }
    });
    let device = forged.device.clone();
    let counters = |direction| (device.counters(direction).packets, device.counters(direction).bytes);
    let before = (counters(Direction::Up), counters(Direction::Down));
    for _ in 0..100 {
        forged.send.write_all(&[0; 1000]).await.expect("write");
        wait(Duration::from_millis(1)).await;
    }
    let (up, down) = (counters(Direction::Up), counters(Direction::Down));
    let (up, down) = ((up.0 - before.0.0, up.1 - before.0.1), (down.0 - before.1.0, down.1 - before.1.1));
    println!("{up:?} packets and bytes up, {down:?} down");
    assert!(up.0 >= 90 && down.0 <= up.0 && down.1 <= up.0 * 1_200, "{up:?} up, {down:?} down");
    let more = timeout(Duration::from_secs(5), next(&mut forged.server)).await;
    assert!(more.is_err(), "the connection lives, without more bytes");
}

/// A peer that acknowledges what it has lost as well. The library leaves out packet numbers, and one of these ends the
/// connection (RFC 9000, 21.4).
#[tokio::test(start_paused = true)]
async fn hidden_losses_end_the_connection() {
    let mut forged = Forged::connect(Vec::new()).await;
    let device = forged.device.clone();
    device.change_one(Direction::Down, |link| link.loss = 0.3);
    let link = device.clone();
    forged.frames.set(move |payload: &mut [u8]| {
        // ACK of all packets but the last ones, among them those of the handshake.
        let largest = u16::try_from(link.counters(Direction::Down).packets).expect("few").saturating_sub(3);
        let [a, b] = (largest | 1 << 14).to_be_bytes();
        // The smallest packets have no room for it.
        if let Some(frame) = payload.first_chunk_mut() {
            *frame = [0x02, a, b, 0, 0, a, b];
        }
    });
    let piece = vec![0; 1 << 16];
    let slices = [IoSlice::new(&piece)];
    let mut written = 0;
    // The client sends its acknowledgements with something.
    while forged.send.write_all(&[0; 10]).await.is_ok() {
        wait(Duration::from_millis(1)).await;
        let wrote = poll_fn(|cx| forged.server.poll_write(cx, StreamKey::CONTROL, &slices));
        match timeout(Duration::from_millis(1), wrote).await {
            Ok(Ok(size)) => written += size,
            Ok(Err(_)) => break,
            Err(_) => {}
        }
        assert!(written < 16 << 20, "{written} bytes are taken as delivered");
    }
    let error = end(&mut forged.server).await;
    println!("{written} bytes, then: {error}");
    assert!(error.to_string().contains("unsent packet"), "{error}");
}

/// A client that overruns a policer, and asks for no acknowledgements: answers wait for the next token, and no longer
/// than `max_ack_delay`. A message leaves at once.
#[tokio::test(start_paused = true)]
async fn answers_wait_for_a_policer_that_is_overrun() {
    const MESSAGE: usize = 100;
    let mut forged = Forged::connect(Vec::new()).await;
    forged.device.change_one(Direction::Up, |link| link.policer = Some(Policer { rate: 29.0, burst: 5 }));
    let packets = AtomicUsize::new(0);
    forged.frames.set(move |payload: &mut [u8]| {
        let number = packets.fetch_add(1, Ordering::Relaxed);
        if let Some(frame) = payload.first_chunk_mut() {
            *frame = one_byte(number);
        }
    });
    let Forged { send, server, .. } = &mut forged;
    let begun = Instant::now();
    for _ in 0..1_000 {
        send.write_all(&[0; 10]).await.expect("write");
        // The server takes in what has come.
        let _ = timeout(Duration::from_millis(9), next(server)).await;
    }
    write(server, &[7; MESSAGE]).await.expect("write");
    let written = Instant::now();

    let mut datagrams = forged.recording.datagrams();
    datagrams.sort_by_key(|datagram| datagram.at);
    let last = datagrams.last().expect("many");
    assert!(last.direction == Direction::Up && last.at == written && last.bytes.len() > MESSAGE, "a message");
    let (mut since, mut delays) = (None, Vec::new());
    for datagram in datagrams.iter().filter(|datagram| datagram.at > begun + Duration::from_secs(3)) {
        match datagram.direction {
            Direction::Down => _ = since.get_or_insert(datagram.at),
            Direction::Up => delays.extend(since.take().map(|since| datagram.at - since)),
        }
    }
    delays.sort_unstable();
    let (median, longest) = (delays[delays.len() / 2], delays[delays.len() - 1]);
    println!("{} answers, {median:?}, {longest:?} at most", delays.len());
    assert!(median >= Duration::from_millis(15) && longest <= Duration::from_millis(25), "{delays:?}");
}
