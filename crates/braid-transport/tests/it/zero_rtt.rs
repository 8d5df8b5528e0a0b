//! Early data on the simulated network, 100 ms of round trip: when it counts, and when not.

use std::io;
use std::time::Duration;

use braid_transport::quic::{QuicOptions, is_early_data_rejected};
use braid_transport::sim::{Connector, Direction, Host, Network};
use braid_transport::{
    ClientAuth, ConnectOptions, HandshakeError, Incoming, ListenOptions, Listener, ListenerKind, Read,
    ServerTls, connect,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::driven::Link;
use crate::ends::{next, read, write};
use crate::support::{Pki, address, bind, target};

const ROUND_TRIP: Duration = Duration::from_millis(100);

struct Scene {
    network: Network,
    device: Host,
    pki: Pki,
    server: ServerTls,
    listener: Listener,
}

impl Scene {
    fn new(change: impl FnOnce(&mut QuicOptions)) -> Self {
        Self::with_auth(|_| ClientAuth::None, change)
    }

    fn with_auth(auth: impl FnOnce(&Pki) -> ClientAuth, change: impl FnOnce(&mut QuicOptions)) -> Self {
        let (pki, network) = (Pki::new(), Network::new(1));
        let server = pki.server_with(auth(&pki));
        let mut options = ListenOptions::default();
        change(&mut options.quic);
        let listener = network.listen(server.clone(), &options).expect("listen");
        let device = network.host("device");
        device.change(|link| link.latency = ROUND_TRIP / 2);
        Self { network, device, pki, server, listener }
    }

    /// Connector that sends early data when it can.
    fn connector(&self) -> Connector {
        let tls = self.pki.client_with(|tls| tls.identity = Some(self.pki.issue("device", &["device"])));
        self.device.connector(address(&self.listener), tls, QuicOptions::client()).zero_rtt(true)
    }

    /// Accepts one connection, and sends back its first byte.
    async fn serve(&mut self) -> JoinHandle<Result<Link, HandshakeError>> {
        tokio::spawn(echo(self.listener.accept().await.expect("accept")))
    }

    /// Connects, sends a byte and waits for it to come back, then leaves. How long the connecting
    /// took, and all but the leaving.
    async fn visit(&mut self, connector: &Connector) -> (Duration, Duration) {
        let (connector, start) = (connector.clone(), Instant::now());
        let client = tokio::spawn(async move {
            let mut link = Link::from(connector.connect().await.expect("connect"));
            let connected = start.elapsed();
            write(&mut link, b"!").await.expect("write");
            assert_eq!(read(&mut link).await.expect("read"), b'!');
            (link, connected, start.elapsed())
        });
        let server = self.serve().await.await.expect("join").expect("handshake");
        let (link, connected, echoed) = client.await.expect("join");
        drop((link, server));
        (connected, echoed)
    }
}

async fn echo(incoming: Incoming) -> Result<Link, HandshakeError> {
    let mut link = Link::from(incoming.handshake().await?);
    let byte = read(&mut link).await?;
    write(&mut link, &[byte]).await?;
    Ok(link)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_has_its_answer_after_one_round_trip() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    let (connected, first) = scene.visit(&connector).await;
    assert!(connected >= ROUND_TRIP, "{connected:?}");
    assert!((2 * ROUND_TRIP..3 * ROUND_TRIP).contains(&first), "{first:?}");
    let (connected, again) = scene.visit(&connector).await;
    assert_eq!(connected, Duration::ZERO, "the link is there at once");
    println!("first echo at 100 ms round trip: {first:?}, with early data {again:?}");
    assert!((ROUND_TRIP..=ROUND_TRIP + Duration::from_millis(45)).contains(&again), "{again:?}");
    let (_, once_more) = scene.visit(&connector).await;
    assert!(once_more <= again + Duration::from_millis(1), "a resumed connection gives tickets too");
}

#[tokio::test(start_paused = true)]
async fn another_client_of_a_program_resumes_its_own_sessions_only() {
    let mut scene = Scene::new(|_| {});
    let tls = scene.pki.client_with(|tls| tls.identity = Some(scene.pki.issue("device", &["device"])));
    let connector =
        |tls| scene.device.connector(address(&scene.listener), tls, QuicOptions::client()).zero_rtt(true);
    let [shared, own] = [tls.clone(), tls.with_own_sessions()].map(connector);
    assert!(scene.visit(&shared).await.0 >= ROUND_TRIP);
    assert_eq!(scene.visit(&shared).await.0, Duration::ZERO);
    assert!(scene.visit(&own).await.0 >= ROUND_TRIP, "the tickets are those of another client");
    assert_eq!(scene.visit(&own).await.0, Duration::ZERO, "now it has some");
}

#[tokio::test(start_paused = true)]
async fn a_server_knows_what_came_early_and_when_it_counts() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    scene.visit(&connector).await;
    let (start, client) = (
        Instant::now(),
        tokio::spawn(async move {
            let mut link = Link::from(connector.connect().await.expect("connect"));
            assert!(link.is_early());
            write(&mut link, b"!").await.expect("write");
            assert_eq!(next(&mut link).await.expect("read"), (Read::Confirmed, None));
            assert!(!link.is_early());
            link
        }),
    );
    let mut link =
        Link::from(scene.listener.accept().await.expect("accept").handshake().await.expect("handshake"));
    assert!(link.is_early());
    assert_eq!(read(&mut link).await.expect("read"), b'!');
    assert_eq!(start.elapsed(), ROUND_TRIP / 2, "it is served with the first flight");
    assert!(link.is_early());
    assert_eq!(next(&mut link).await.expect("read"), (Read::Confirmed, None));
    assert_eq!(start.elapsed(), ROUND_TRIP * 3 / 2, "with the client's second flight");
    assert!(!link.is_early());
    drop(client.await.expect("join"));
}

// [BQ-60]
#[tokio::test(start_paused = true)]
async fn a_first_flight_that_is_sent_again_has_no_effect() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    scene.visit(&connector).await;
    let (recording, start) = (scene.device.record(), Instant::now());
    let (connected, _) = scene.visit(&connector).await;
    assert_eq!(connected, Duration::ZERO, "there was early data");
    let flight: Vec<_> = recording
        .datagrams()
        .into_iter()
        .filter(|datagram| datagram.direction == Direction::Up && datagram.at < start + ROUND_TRIP)
        .collect();

    // The connection is closed and forgotten; until then the copy would reach it.
    sleep(Duration::from_secs(60)).await;
    let attacker = scene.network.host("attacker");
    for datagram in &flight {
        attacker.send(datagram.to, &datagram.bytes);
    }
    let incoming = scene.listener.accept().await.expect("accept");
    assert!(incoming.peer_address().is_some_and(|address| address.ip().to_string() == "10.0.0.3"));
    let outcome = timeout(Duration::from_secs(60), incoming.handshake()).await;
    assert!(outcome.is_err(), "no stream of the copy may be seen: {outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn a_first_flight_that_is_sent_again_at_once_has_no_effect() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    scene.visit(&connector).await;
    let recording = scene.device.record();
    let client = tokio::spawn(async move {
        let mut link = Link::from(connector.connect().await.expect("connect"));
        write(&mut link, b"!").await.expect("write");
        link
    });
    let incoming = scene.listener.accept().await.expect("accept");
    let mut link = Link::from(incoming.handshake().await.expect("handshake"));
    assert_eq!(read(&mut link).await.expect("read"), b'!');
    let attacker = scene.network.host("attacker");
    for datagram in recording.datagrams() {
        attacker.send(datagram.to, &datagram.bytes);
    }
    let second = timeout(Duration::from_secs(60), async {
        let incoming = scene.listener.accept().await.expect("accept");
        incoming.handshake().await
    });
    assert!(second.await.is_err(), "no stream of the copy may be seen");
    let more = timeout(Duration::from_secs(1), read(&mut link)).await;
    assert!(more.is_err(), "nor bytes of it on the stream of the original: {more:?}");
    drop(client);
}

// [BQ-62]
#[tokio::test(start_paused = true)]
async fn a_client_is_told_that_its_early_data_was_not_taken() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    let patient = connector.clone().zero_rtt(false);
    scene.visit(&connector).await;
    // With a new certificate the server forgets its tickets.
    scene.server.reload().expect("reload");
    let accept = scene.serve();
    let client = async {
        let mut link = Link::from(connector.connect().await.expect("connect"));
        write(&mut link, b"!").await.expect("early");
        read(&mut link).await.expect_err("not taken")
    };
    let (server, error) = tokio::join!(accept, client);
    assert!(is_early_data_rejected(&error), "{error}");
    assert!(!is_early_data_rejected(&io::ErrorKind::ConnectionReset.into()));
    server.abort();
    let (connected, _) = scene.visit(&patient).await;
    assert!((ROUND_TRIP..2 * ROUND_TRIP).contains(&connected), "{connected:?}");
    let (connected, _) = scene.visit(&connector).await;
    assert_eq!(connected, Duration::ZERO, "there is a new ticket");
}

#[tokio::test(start_paused = true)]
async fn no_client_sends_early_data_to_a_server_that_does_not_accept_it() {
    for unwilling in
        [(|options| options.zero_rtt = false) as fn(&mut QuicOptions), |options| options.tickets = 0]
    {
        let mut scene = Scene::new(unwilling);
        let connector = scene.connector();
        for _ in 0..2 {
            let (connected, _) = scene.visit(&connector).await;
            assert!(connected >= ROUND_TRIP, "{connected:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn early_data_waits_where_certificates_are_asked_for() {
    let mut scene = Scene::with_auth(|pki| ClientAuth::Required { ca: pki.ca() }, |_| {});
    let connector = scene.connector();
    scene.visit(&connector).await;
    let (connected, echoed) = scene.visit(&connector).await;
    assert_eq!(connected, Duration::ZERO);
    assert!(echoed >= 2 * ROUND_TRIP, "{echoed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_gone_is_noticed() {
    let mut scene = Scene::new(|_| {});
    let connector = scene.connector();
    scene.visit(&connector).await;
    scene.device.change(|link| link.cut = true);
    let start = Instant::now();
    let mut link = Link::from(connector.connect().await.expect("early"));
    write(&mut link, b"!").await.expect("early");
    let error = read(&mut link).await.expect_err("there is no server");
    assert!(start.elapsed() <= Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(!is_early_data_rejected(&error), "{error}");
    drop(link);
    // Its close is lost as well.
    sleep(Duration::from_secs(60)).await;
    scene.device.change(|link| link.cut = false);
    let (connected, _) = scene.visit(&connector).await;
    assert!(connected >= ROUND_TRIP, "after that it waits for an answer: {connected:?}");
}

#[tokio::test]
async fn a_name_with_several_addresses_gets_its_early_data_where_the_ticket_is_from() {
    let pki = Pki::new();
    let mut listener = bind(ListenerKind::Quic(pki.server()));
    let target = target(listener.transport(), address(&listener));
    let quic = QuicOptions { zero_rtt: true, ..QuicOptions::client() };
    let (tls, options) = (pki.client(), ConnectOptions { quic, ..ConnectOptions::default() });
    for expected in [false, true] {
        let (target, tls, options) = (target.clone(), tls.clone(), options.clone());
        let client = tokio::spawn(async move {
            let mut link = Link::from(connect(&target, &tls, &options).await.expect("connect"));
            let is_early = link.is_early();
            write(&mut link, b"!").await.expect("write");
            assert_eq!(read(&mut link).await.expect("read"), b'!');
            is_early
        });
        let server = echo(listener.accept().await.expect("accept")).await.expect("handshake");
        assert_eq!(client.await.expect("join"), expected);
        drop(server);
    }
}
