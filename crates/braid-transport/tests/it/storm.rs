//! Many clients at once, each of which costs the server processor time.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_transport::Listener;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Host, Network};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::driven::Link;
use crate::ends::{read, write};
use crate::support::{Pki, address};

const CLIENTS: u32 = 300;

/// Processor time of a handshake and of a message: all handshakes take longer than a client waits for its own.
const HANDSHAKE: Duration = Duration::from_millis(25);
const MESSAGE: Duration = Duration::from_millis(1);

/// Processor of the server, which does one thing at a time, in the order in which tasks ask for it.
#[derive(Clone)]
struct Processor(Arc<Semaphore>);

impl Processor {
    async fn work(&self, time: Duration) {
        let _turn = self.0.acquire().await.expect("never closed");
        pass(time).await;
    }
}

/// Waits on virtual time.
async fn pass(time: Duration) {
    let _ = timeout(time, pending::<()>()).await;
}

/// Handshakes that were begun, and those of them that failed.
#[derive(Default)]
struct Handshakes {
    begun: AtomicUsize,
    failed: AtomicUsize,
}

/// Shakes hands with all clients, and sends each byte back.
fn serve(mut listener: Listener) -> Arc<Handshakes> {
    let (processor, counts) = (Processor(Arc::new(Semaphore::new(1))), Arc::new(Handshakes::default()));
    let counted = Arc::clone(&counts);
    tokio::spawn(async move {
        while let Ok(incoming) = listener.accept().await {
            let (processor, counts) = (processor.clone(), Arc::clone(&counted));
            tokio::spawn(async move {
                processor.work(HANDSHAKE).await;
                counts.begun.fetch_add(1, Ordering::Relaxed);
                let Ok(link) = incoming.handshake().await else {
                    counts.failed.fetch_add(1, Ordering::Relaxed);
                    return;
                };
                let mut link = Link::from(link);
                while let Ok(byte) = read(&mut link).await {
                    processor.work(MESSAGE).await;
                    if write(&mut link, &[byte]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    counts
}

/// Sends a byte and waits until it is back. How long that took.
async fn exchange(link: &mut Link) -> Duration {
    let start = Instant::now();
    write(link, b"!").await.expect("write");
    assert_eq!(read(link).await.expect("read"), b'!');
    start.elapsed()
}

/// Connects, after ever longer pauses if need be. `share`: that of the pause that is not random, 0.5 to 1.
async fn connect(device: &Host, pki: &Pki, server: SocketAddr, share: f64) -> Link {
    let connector = device.connector(server, pki.client(), QuicOptions::client());
    let mut pause = Duration::from_secs(1);
    loop {
        if let Ok(link) = connector.connect().await {
            return Link::from(link);
        }
        pass(pause.mul_f64(share)).await;
        pause *= 2;
    }
}

#[tokio::test(start_paused = true)]
async fn clients_at_once_are_all_connected_and_keep_no_message_waiting() {
    let (pki, network) = (Arc::new(Pki::new()), Network::new(1));
    let listener = network.listen(pki.server(), &Default::default()).expect("listen");
    let server = address(&listener);
    let handshakes = serve(listener);
    let mut established = connect(&network.host("established"), &pki, server, 1.0).await;
    exchange(&mut established).await;

    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (device, pki) = (network.host(&format!("client {n}")), Arc::clone(&pki));
        clients.spawn(async move {
            let mut link = connect(&device, &pki, server, 0.5 + f64::from(n) / f64::from(2 * CLIENTS)).await;
            exchange(&mut link).await;
            link
        });
    }
    let all = clients.join_all();
    tokio::pin!(all);
    let mut longest = Duration::ZERO;
    let links = loop {
        tokio::select! {
            links = &mut all => break links,
            () = sleep(Duration::from_millis(50)) => longest = longest.max(exchange(&mut established).await),
        }
    };
    assert_eq!(links.len(), CLIENTS as usize);
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (begun, failed) = (count(&handshakes.begun), count(&handshakes.failed));
    assert_eq!(failed, 0, "{begun} were begun: work was done for clients that had given up");
    assert!(longest < Duration::from_millis(250), "a message of an established client took {longest:?}");
}
