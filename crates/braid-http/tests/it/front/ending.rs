//! Graceful ends, and the seam of the automatic upgrade.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use braid_http::{Advice, AutoQuic, AutoQuicMode, Limits, Link, Observer, PathSample, Sent, Upgrade};
use braid_transport::http::TcpMetrics;
use h3::error::Code;

use super::support::{ANY, Ask, Client, Front, Upstream, VERSIONS, block_on};

#[test]
fn a_request_in_flight_is_answered_when_the_server_stops() {
    for version in VERSIONS {
        let (release, released) = mpsc::channel::<()>();
        let upstream = Upstream::start(move |_| {
            let _ = released.recv();
            b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone".to_vec()
        });
        let front = Front::start(Limits::default(), Some(upstream.address));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut client = runtime.block_on(Client::connect(&front, version));
        let asking = runtime.spawn(async move {
            let first = client.send(&Ask::get("/app")).await;
            // Those that are sent before GOAWAY has arrived are answered too.
            while client.send(&Ask::get("/live")).await.is_ok() {}
            first
        });
        upstream.request();
        let Front { server, address, dir: _dir } = front;
        let stopping = thread::spawn(move || server.stop());
        // The listener is closed at the beginning of the stop.
        while std::net::TcpStream::connect(address).is_ok() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        let first = runtime.block_on(asking).unwrap();
        assert_eq!(first.unwrap_or_else(|error| panic!("{version}: {error}")).body, "done");
        // The client's connection ends with its task.
        runtime.shutdown_background();
        stopping.join().unwrap();
    }
}

/// Upstream that sends `begin` for each request, and tells when its connection has ended.
fn waiting_upstream(begin: &'static [u8]) -> (SocketAddr, mpsc::Receiver<&'static str>) {
    let listener = TcpListener::bind(ANY).unwrap();
    let (address, (told, events)) = (listener.local_addr().unwrap(), mpsc::channel());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(begin).unwrap();
        told.send("asked").unwrap();
        // Also with an error: the front has closed it.
        let _ = stream.read_to_end(&mut Vec::new());
        told.send("ended").unwrap();
    });
    (address, events)
}

#[test]
fn a_request_ends_when_its_client_cancels_it_on_http3() {
    let parts: [&[u8]; 2] = [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nbegin"];
    for begin in parts {
        let (upstream, events) = waiting_upstream(begin);
        let front = Front::start(Limits::default(), Some(upstream));
        block_on(async {
            let Client::H3(mut send) = Client::connect(&front, "h3").await else { unreachable!("HTTP/3") };
            let mut stream = send.send_request(Ask::get("/app").request("h3", ())).await.unwrap();
            stream.finish().await.unwrap();
            if !begin.is_empty() {
                assert_eq!(stream.recv_response().await.unwrap().status(), 200);
                assert!(stream.recv_data().await.unwrap().is_some());
            }
            assert_eq!(events.recv().unwrap(), "asked");
            stream.stop_sending(Code::H3_REQUEST_CANCELLED);
            let events = tokio::task::spawn_blocking(move || events.recv_timeout(Duration::from_secs(20)));
            assert_eq!(events.await.unwrap(), Ok("ended"), "{}", begin.len());
            // The connection has other requests.
            let mut client = Client::H3(send);
            assert_eq!(client.send(&Ask::get("/live")).await.unwrap().status, 200);
        });
    }
}

/// Connections that a policy has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Whether it was QUIC and was measured, for each response.
    responses: Mutex<Vec<(bool, bool)>>,
    /// Responses on HTTP/3 that were complete.
    sent: AtomicUsize,
    ended: AtomicUsize,
}

/// Advertises HTTP/3 on TCP, withdraws it on QUIC, and ends each connection with its second response.
#[derive(Default)]
struct Policy(Arc<Seen>);

struct OneConnection {
    seen: Arc<Seen>,
    link: Link,
    responses: AtomicUsize,
}

impl OneConnection {
    fn is_measured(&self) -> bool {
        match self.link.sample() {
            Some(PathSample::Tcp(info)) => {
                info.snd_cwnd > 0 && !info.srtt.is_zero() && !info.min_rtt.is_zero()
            }
            Some(PathSample::Quic(stats)) => {
                stats.cwnd > 0
                    && stats.sent_packets > 0
                    && stats.received_datagrams > 0
                    && !stats.srtt.is_zero()
            }
            None => false,
        }
    }
}

impl Upgrade for Policy {
    fn connected(&self, link: Link) -> Box<dyn Observer> {
        assert!(link.is_encrypted && link.client.ip().is_loopback());
        link.wait_for_acknowledgements(true);
        Box::new(OneConnection { seen: Arc::clone(&self.0), link, responses: AtomicUsize::new(0) })
    }
}

impl Observer for OneConnection {
    fn advise(&self) -> Advice {
        let is_quic = self.link.is_quic();
        self.seen.responses.lock().unwrap().push((is_quic, self.is_measured()));
        let value = if is_quic { "clear" } else { "h3=\":1\"; ma=60" };
        let goaway = self.responses.fetch_add(1, Ordering::SeqCst) == 1;
        Advice { alt_svc: Some(value.parse().unwrap()), goaway }
    }

    fn sent(&self, response: Option<Sent>) {
        if response.is_some_and(|response| response.bytes > 0) {
            self.seen.sent.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn ended(&self) {
        assert!(!matches!(self.link.sample(), None | Some(PathSample::Tcp(TcpMetrics { delivered: 0, .. }))));
        self.seen.ended.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_policy_advertises_and_ends_connections() {
    let policy = Policy::default();
    let seen = Arc::clone(&policy.0);
    let front = Front::with_upgrade(Arc::new(policy));
    block_on(async {
        for (version, alt_svc) in VERSIONS.into_iter().zip(["h3=\":1\"; ma=60", "h3=\":1\"; ma=60", "clear"])
        {
            let mut client = Client::connect(&front, version).await;
            for _ in 0..2 {
                let answer = client.send(&Ask::get("/live")).await.unwrap();
                assert_eq!((answer.status.as_u16(), answer.header("alt-svc")), (200, alt_svc), "{version}");
            }
            // GOAWAY may arrive after a further request was sent, which is refused then.
            while client.send(&Ask::get("/live")).await.is_ok() {}
        }
    });
    front.server.stop();
    let responses = seen.responses.lock().unwrap();
    assert!(responses.iter().all(|(_, is_measured)| *is_measured), "{seen:?}");
    assert!(
        [false, true].iter().all(|kind| responses.iter().any(|(is_quic, _)| is_quic == kind)),
        "{seen:?}"
    );
    assert_eq!(seen.ended.load(Ordering::SeqCst), 3);
    // The last one may end with the connection.
    assert!(seen.sent.load(Ordering::SeqCst) >= 1);
}

#[test]
fn modes_without_measurements_advertise_to_all_or_to_none() {
    for (mode, port, expected) in [
        (AutoQuicMode::Always, None, Some("h3=\":PORT\"; ma=86400")),
        (AutoQuicMode::Always, Some(443), Some("h3=\":443\"; ma=86400")),
        (AutoQuicMode::Never, None, Some("clear")),
        (AutoQuicMode::Auto, None, None),
        (AutoQuicMode::AutoquicCompat, None, None),
    ] {
        let front = Front::with_upgrade(Arc::new(AutoQuic::new(mode, port, 1)));
        let expected = expected.map(|value| value.replace("PORT", &front.address.port().to_string()));
        block_on(async {
            for version in VERSIONS {
                let mut client = Client::connect(&front, version).await;
                // The second one is answered from memory; neither ends the connection.
                for _ in 0..2 {
                    let answer = client.send(&Ask::get("/live")).await.unwrap();
                    let alt_svc = answer.headers.get("alt-svc").map(|value| value.to_str().unwrap());
                    assert_eq!(alt_svc, expected.as_deref(), "{mode} {version}");
                }
            }
        });
    }
}

#[test]
fn without_encryption_nothing_is_advertised() {
    let front = Front::with(Limits::default(), None, |options| {
        (options.tls, options.http3) = (None, false);
        options.upgrade = Arc::new(AutoQuic::new(AutoQuicMode::Always, None, 1));
    });
    let answer = front.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("alt-svc"), "{answer}");
}
