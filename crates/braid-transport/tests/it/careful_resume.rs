//! Connections on a path that an earlier one has measured (RFC 9959).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use braid_proto::stream::{Priority, StreamKey};
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Direction, Host, Network, Shaper};
use braid_transport::{Dir, ListenOptions, Read};
use tokio::io::ReadBuf;
use tokio::sync::watch;
use tokio::time::{Instant, interval};

use crate::driven::Link;
use crate::ends::write;
use crate::multi::{fill, write_now};
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
                        if matches!(next, Err(_) | Ok(Read::Closed)) {
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

/// A rate in datagrams per second.
fn shape(device: &Host, rate: f64, latency: Duration) {
    device.change(|link| link.latency = latency);
    device.change_one(Direction::Up, |link| link.shaper = Some(Shaper { rate, queue: 4000 }));
}

async fn open(link: &mut Link, priority: u16) -> StreamKey {
    let stream = poll_fn(|cx| link.poll_open(cx, Dir::Bidi)).await.expect("open");
    link.set_priority(stream, Priority::new(priority));
    stream
}

#[tokio::test(start_paused = true)]
async fn on_a_known_path_a_connection_is_soon_as_fast_as_the_one_before() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut sink = Sink::new(&network, &pki);
    let [device, other] = ["device", "other"].map(|name| network.host(name));
    shape(&device, FAST, LATENCY);
    shape(&other, FAST, LATENCY);
    for careful_resume in [true, false] {
        for gate in [true, false] {
            let options = QuicOptions { careful_resume, gate, ..QuicOptions::client() };
            let (first, _) = sink.carry(&device, &pki, &options, LENGTH).await;
            let (again, _) = sink.carry(&device, &pki, &options, LENGTH).await;
            // With a window that doubles it takes 1,100 ms with the gate, and 985 without.
            assert!(first < Duration::from_millis(970), "{first:?}");
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
    shape(&device, FAST, LATENCY);
    sink.carry(&device, &pki, &options, LENGTH).await;
    shape(&device, FAST / 10.0, LATENCY);
    let (_, resumed) = sink.carry(&device, &pki, &options, LENGTH / 8).await;
    let (_, fresh) = sink.carry(&device, &pki, &QuicOptions::client(), LENGTH / 8).await;
    assert!((fresh + 10_000..fresh * 2).contains(&resumed), "{resumed} {fresh}");
}

/// The first window of a stream (3.5 MiB) is less than a satellite link of 600 ms holds beside the credit that is due
/// after 2 MiB: bulk waits for it, and then writes as much as was in flight before.
#[tokio::test(start_paused = true)]
async fn urgent_bytes_are_taken_at_once_when_bulk_has_waited_for_credit() {
    let (pki, network) = (Pki::new(), Network::new(1));
    let mut sink = Sink::new(&network, &pki);
    let device = network.host("device");
    let options = QuicOptions::client();
    shape(&device, FAST / 2.0, Duration::from_millis(300));
    sink.carry(&device, &pki, &options, 2 * LENGTH).await;
    let connector = device.connector(sink.address, pki.client(), options);
    let mut link = Link::from(connector.connect().await.expect("a connection"));
    let [bulk, urgent] = [open(&mut link, 100).await, open(&mut link, 60_000).await];
    let (mut ticks, mut late) = (interval(Duration::from_millis(100)), Vec::new());
    for tick in 0..60 {
        ticks.tick().await;
        // Before the first round trip the server trusts the client with 128 KiB.
        if write_now(&mut link, urgent, &[1; 100]) != Poll::Ready(100) && tick > 10 {
            late.push(tick);
        }
        fill(&mut link, bulk);
    }
    let carried = sink.read.load(Ordering::Relaxed) - 2 * LENGTH as u64;
    assert!(carried > 5_000_000, "{carried}");
    assert!(late.is_empty(), "{late:?}");
}
