//! Connections on a path that an earlier one has measured (RFC 9959).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Host, Network, Shaper};
use braid_transport::{ListenOptions, Read};
use tokio::io::ReadBuf;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use crate::driven::Link;
use crate::ends::write;
use crate::support::{Pki, address};

const LATENCY: Duration = Duration::from_millis(50);

/// Datagrams per second of 100 Mbit/s.
const FAST: f64 = 8600.0;

const LENGTH: usize = 4 << 20;

/// Server that reads all connections.
struct Sink {
    address: SocketAddr,
    /// Bytes that were read.
    read: Arc<AtomicU64>,
    changed: watch::Receiver<()>,
}

impl Sink {
    fn new(network: &Network, pki: &Pki) -> Self {
        let server = network.host("server");
        let mut listener = server.listen(pki.server(), &ListenOptions::default()).expect("a listener");
        let (address, read) = (address(&listener), Arc::new(AtomicU64::new(0)));
        let (change, changed) = watch::channel(());
        let count = Arc::clone(&read);
        tokio::spawn(async move {
            loop {
                let mut link =
                    Link::from(listener.accept().await.expect("incoming").handshake().await.expect("a link"));
                link.set_trusted();
                let (count, change) = (Arc::clone(&count), change.clone());
                tokio::spawn(async move {
                    let mut bytes = vec![0; 64 << 10];
                    loop {
                        let mut buffer = ReadBuf::new(&mut bytes);
                        let next = poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await;
                        if !matches!(next, Ok(Read::Bytes(_))) {
                            return;
                        }
                        count.fetch_add(buffer.filled().len() as u64, Ordering::Relaxed);
                        change.send_replace(());
                    }
                });
            }
        });
        Self { address, read, changed }
    }

    /// Time in which a new connection carries `length` bytes, and the most that were on their way at once.
    async fn carry(
        &mut self,
        from: &Host,
        pki: &Pki,
        options: &QuicOptions,
        length: usize,
    ) -> (Duration, u64) {
        let connector = from.connector(self.address, pki.client(), options.clone());
        let mut link = Link::from(connector.connect().await.expect("a connection"));
        let (begun, read) = (Instant::now(), self.read.load(Ordering::Relaxed));
        let sent = from.counters(Direction::Up).bytes;
        let writing = tokio::spawn(async move {
            write(&mut link, &vec![7; length]).await.expect("write");
            link
        });
        let (mut most, mut ticks) = (0, interval(Duration::from_millis(10)));
        loop {
            let arrived = self.read.load(Ordering::Relaxed) - read;
            most = most.max((from.counters(Direction::Up).bytes - sent).saturating_sub(arrived));
            if arrived >= length as u64 {
                let took = begun.elapsed();
                drop(writing.await.expect("a link"));
                return (took, most);
            }
            tokio::select! {
                changed = self.changed.changed() => changed.expect("the server lives"),
                _ = ticks.tick() => {}
            }
        }
    }
}

fn shape(device: &Host, rate: f64) {
    device.change(|link| link.latency = LATENCY);
    device.change_one(Direction::Up, |link| link.shaper = Some(Shaper { rate, queue: 4000 }));
}

#[tokio::test(start_paused = true)]
async fn on_a_known_path_a_connection_is_soon_as_fast_as_the_one_before() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut sink = Sink::new(&network, &pki);
    let [device, other] = ["device", "other"].map(|name| network.host(name));
    shape(&device, FAST);
    shape(&other, FAST);
    for careful_resume in [true, false] {
        for gate in [true, false] {
            let options = QuicOptions { careful_resume, gate, ..QuicOptions::client() };
            let (first, _) = sink.carry(&device, &pki, &options, LENGTH).await;
            let (again, _) = sink.carry(&device, &pki, &options, LENGTH).await;
            let is_sooner = again < first * 9 / 10;
            assert_eq!(is_sooner, careful_resume, "{first:?} {again:?}");
            let (elsewhere, _) = sink.carry(&other, &pki, &options, LENGTH).await;
            assert!(elsewhere > first * 9 / 10, "another local address: {first:?} {elsewhere:?}");
        }
    }
}

/// Half of the window would be a queue of half a second.
#[tokio::test(start_paused = true)]
async fn on_a_path_that_has_become_slower_an_eighth_of_its_window_is_sent() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut sink = Sink::new(&network, &pki);
    let device = network.host("device");
    let options = QuicOptions::client();
    shape(&device, FAST);
    sink.carry(&device, &pki, &options, LENGTH).await;
    shape(&device, FAST / 10.0);
    let (_, resumed) = sink.carry(&device, &pki, &options, LENGTH / 8).await;
    let (_, fresh) = sink.carry(&device, &pki, &QuicOptions::client(), LENGTH / 8).await;
    assert!((fresh..fresh * 2).contains(&resumed), "{resumed} {fresh}");
}
