//! Graceful ends, and the seam of the automatic upgrade.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use braid_http::{Advice, Exchange, Limits, PathSample, Upgrade};
use hyper::Version;

use super::support::{Ask, Client, Front, Upstream, VERSIONS, block_on};

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
            (first, client.send(&Ask::get("/live")).await)
        });
        upstream.request();
        let Front { server, address, dir: _dir } = front;
        let stopping = thread::spawn(move || server.stop());
        // The listener is closed at the beginning of the stop.
        while std::net::TcpStream::connect(address).is_ok() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        let (first, second) = runtime.block_on(asking).unwrap();
        assert_eq!(first.unwrap_or_else(|error| panic!("{version}: {error}")).body, "done");
        assert!(second.is_err(), "{version}: {second:?}");
        // The client's connection ends with its task.
        runtime.shutdown_background();
        stopping.join().unwrap();
    }
}

/// Advertises HTTP/3 on TCP, withdraws it on QUIC, and ends each connection with its second response.
#[derive(Default)]
struct Policy {
    seen: Mutex<Vec<(u64, Version, bool)>>,
    closed: AtomicUsize,
}

impl Upgrade for Policy {
    fn advise(&self, exchange: &Exchange<'_>) -> Advice {
        assert!(exchange.is_encrypted && exchange.client.ip().is_loopback());
        assert_eq!(exchange.authority, Some("localhost"));
        let is_measured = match exchange.path() {
            Some(PathSample::Tcp(info)) => info.snd_cwnd > 0 && !info.srtt.is_zero(),
            Some(PathSample::Quic(stats)) => {
                stats.cwnd > 0 && stats.sent_packets > 0 && !stats.srtt.is_zero()
            }
            None => false,
        };
        let mut seen = self.seen.lock().unwrap();
        seen.push((exchange.connection, exchange.version, is_measured));
        let count = seen.iter().filter(|(connection, ..)| *connection == exchange.connection).count();
        let value = if exchange.version == Version::HTTP_3 { "clear" } else { "h3=\":1\"; ma=60" };
        Advice { alt_svc: Some(value.parse().unwrap()), goaway: count == 2 }
    }

    fn closed(&self, _: u64) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_policy_advertises_and_ends_connections() {
    let policy = Arc::new(Policy::default());
    let front = Front::with_upgrade(Arc::<Policy>::clone(&policy));
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
    let seen = policy.seen.lock().unwrap();
    assert!(seen.iter().all(|(.., is_measured)| *is_measured), "{seen:?}");
    let versions = [Version::HTTP_11, Version::HTTP_2, Version::HTTP_3];
    for version in versions {
        assert!(seen.iter().any(|(_, seen, _)| *seen == version), "{seen:?}");
    }
    assert_eq!(policy.closed.load(Ordering::SeqCst), 3);
}
