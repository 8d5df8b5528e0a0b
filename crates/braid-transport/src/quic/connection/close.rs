//! Close of a link: the last bytes are delivered, the peer is stopped, the streams are finished, the connection is
//! closed. All of it by one deadline, whatever the peer does.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use noq::{Connection, Endpoint, SendStream, VarInt};
use tokio::time::{Instant, timeout, timeout_at};

use super::stream::Stream;
use crate::quic::codes::code;
use crate::quic::drain::all_acknowledged;
use crate::quic::panic_guard::{Broken, PanicGuard};
use crate::transport::Close;

/// Time for the peer to acknowledge the last bytes, where no deadline was set. [BQ-41]
pub(super) const LINGER: Duration = Duration::from_secs(3);

/// Time for a client's CONNECTION_CLOSE to leave.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A close in progress.
pub(super) type Closing = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send>>;

/// Parts of a link that its close needs.
pub(super) struct ClosingLink {
    pub(super) control: Stream,
    /// The open data streams.
    pub(super) data: Vec<Stream>,
    pub(super) connection: Connection,
    pub(super) endpoint: Option<Endpoint>,
    /// Time in which the peer has what was written on the control stream, as far as the path allows.
    pub(super) delivery_time: Duration,
}

impl ClosingLink {
    /// Delivers what was written, stops the peer and finishes the streams, as far as that can be done by `deadline`;
    /// then closes the connection.
    pub(super) fn close(mut self, close: Close, deadline: Instant) -> Closing {
        Box::pin(PanicGuard::new(async move {
            if timeout_at(deadline, self.deliver(close.stop, deadline)).await.is_err() {
                tracing::debug!("the peer did not acknowledge the last bytes in time");
            }
            self.connection.close(code(close.code), b"");
            if let Some(endpoint) = self.endpoint.take() {
                // The process may end next, and the close frame has to leave before it does.
                let _ = timeout(CLOSE_LIMIT, endpoint.wait_all_draining()).await;
            }
        }))
    }

    async fn deliver(&mut self, stop: Option<u8>, deadline: Instant) {
        let Some(mut send) = self.control.send.take() else { return };
        if self.drain(&mut send, stop, deadline).await {
            self.data.iter_mut().for_each(Stream::finish);
        }
        if send.finish().is_ok() {
            let _ = send.stopped().await;
        }
        // Data streams that are not finished have bytes to send until the deadline.
        if self.data.iter().any(|stream| stream.send.is_some() && stream.written > 0) {
            pending::<()>().await;
        }
    }

    /// Waits until everything is acknowledged, so that the FINs travel by themselves: some clients drop the bytes that
    /// arrive together with one. [BQ-31] Meanwhile the peer is stopped. False if that takes longer than half of the
    /// time that is left: the rest is for the FINs. Of a control stream that has filled the peer's window it is never
    /// known.
    async fn drain(&mut self, send: &mut SendStream, stop: Option<u8>, deadline: Instant) -> bool {
        let Self { control, data, connection, delivery_time, .. } = self;
        let mut acknowledged = pin!(all_acknowledged(send, connection));
        // A client that finds STOP_SENDING in the packet with its DISCONNECT handles the former first, and may never
        // read the latter. Until then nothing is read, so the peer's flow control bounds what it sends. [BQ-41]
        let before_stop = (*delivery_time).min(half(deadline));
        let is_acknowledged = timeout(before_stop, &mut acknowledged).await.is_ok();
        if let Some(reason) = stop.map(u32::from).map(VarInt::from_u32) {
            control.stop(reason);
            data.iter_mut().for_each(|stream| stream.stop(reason));
        }
        is_acknowledged || timeout(half(deadline), acknowledged).await.is_ok()
    }
}

/// Half of the time until the deadline.
fn half(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / 2
}
