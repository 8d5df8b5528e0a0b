//! A link in memory with a limited rate, which counts bytes and can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use braid_transport::ByteStream;
use braid_transport::mem::{self, Connector};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

use super::{only_stream, wait};

/// Relay between clients and a listener in memory.
pub(crate) struct Relay {
    /// For the clients.
    pub(crate) connector: Connector,
    sent: Arc<AtomicUsize>,
    cut: Arc<Notify>,
}

impl Relay {
    /// A relay to the listener of `to` that takes this many bytes per second from each client.
    pub(crate) fn start(to: Connector, rate: usize) -> Self {
        let (mut listener, connector) = mem::listener();
        let relay = Self { connector, sent: Arc::default(), cut: Arc::default() };
        let (sent, cut) = (relay.sent.clone(), relay.cut.clone());
        tokio::spawn(async move {
            while let Ok(incoming) = listener.accept().await {
                let Ok(link) = incoming.handshake().await else { continue };
                let Ok(server) = to.connect().await else { return };
                let (sent, cut) = (sent.clone(), cut.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = pump(only_stream(link), only_stream(server), rate, &sent) => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        relay
    }

    /// Bytes that clients have sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Cuts all links.
    pub(crate) fn cut(&self) {
        self.cut.notify_waiters();
    }
}

async fn pump(client: Box<dyn ByteStream>, server: Box<dyn ByteStream>, rate: usize, sent: &AtomicUsize) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let received = AtomicUsize::new(0);
    tokio::select! {
        () = copy(from_client, to_server, Some(rate), sent) => {}
        () = copy(from_server, to_client, None, &received) => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    rate: Option<usize>,
    sent: &AtomicUsize,
) {
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(len @ 1..) = from.read(&mut buffer).await {
        sent.fetch_add(len, Ordering::Relaxed);
        if let Some(rate) = rate {
            wait(Duration::from_micros(len as u64 * 1_000_000 / rate as u64)).await;
        }
        if to.write_all(&buffer[..len]).await.is_err() {
            return;
        }
    }
}
