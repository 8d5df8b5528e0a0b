//! How a link ends: what was written is delivered, the peer is stopped, each stream is finished, the
//! connection closed. All of it by one deadline, whatever the peer does.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::time::Duration;

use noq::{Connection, Endpoint, SendStream, VarInt};
use tokio::time::{Instant, timeout, timeout_at};

use super::stream::Stream;
use crate::link::Close;
use crate::quic::codes::code;
use crate::quic::drain::all_acknowledged;
use crate::quic::panic_guard::{Broken, Shield};

/// How long the peer may take to acknowledge our last bytes, where no deadline was set. [BQ-41]
pub(super) const LINGER: Duration = Duration::from_secs(3);

/// How long a client's CONNECTION_CLOSE may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) type Closing = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send>>;

/// What a link ends with.
pub(super) struct Remains {
    pub(super) control: Stream,
    /// Those that are open.
    pub(super) data: Vec<Stream>,
    pub(super) connection: Connection,
    pub(super) endpoint: Option<Endpoint>,
    /// In which time the peer has what was written on the control stream, as far as the path allows.
    pub(super) settles: Duration,
}

impl Remains {
    /// Delivers what was written, stops the peer and finishes the streams, as far as that can be done
    /// by `deadline`; then closes the connection.
    pub(super) fn closing(mut self, close: Close, deadline: Instant) -> Closing {
        Box::pin(Shield::new(async move {
            if timeout_at(deadline, self.deliver(close.stop, deadline)).await.is_err() {
                tracing::debug!("the peer did not acknowledge the last bytes in time");
            }
            self.connection.close(code(close.code), b"");
            if let Some(endpoint) = self.endpoint.take() {
                // The process may end next, and the close frame has to leave before it does.
                let _ = timeout(FAREWELL, endpoint.wait_all_draining()).await;
            }
        }))
    }

    async fn deliver(&mut self, stop: Option<u8>, deadline: Instant) {
        let Some(mut send) = self.control.send.take() else { return };
        let is_acknowledged = self.say_last_words(&mut send, stop, deadline).await;
        if is_acknowledged {
            self.data.iter_mut().for_each(Stream::finish);
        }
        if send.finish().is_ok() {
            let _ = send.stopped().await;
        }
        // Data streams that are not finished have something to say until the deadline.
        if self.data.iter().any(|stream| stream.send.is_some() && stream.written > 0) {
            pending::<()>().await;
        }
    }

    /// Waits until everything is acknowledged, so that the ends of the streams travel by themselves:
    /// some clients drop the data that arrives together with it. [BQ-31] In the midst of it the peer is
    /// stopped. False if that takes longer than half of the time there is: the rest is for the ends.
    /// Of a control stream that has filled the peer's window it is never known.
    async fn say_last_words(&mut self, send: &mut SendStream, stop: Option<u8>, deadline: Instant) -> bool {
        let Self { control, data, connection, settles, .. } = self;
        let mut acknowledged = pin!(all_acknowledged(send, connection));
        // A client that finds STOP_SENDING in the packet with its DISCONNECT sees the former first, and
        // may never look at the latter. Until then nothing is read, so the peer's flow control bounds
        // what it sends. [BQ-41]
        let first_words = (*settles).min(half(deadline));
        let is_early = timeout(first_words, &mut acknowledged).await.is_ok();
        if let Some(reason) = stop.map(u32::from).map(VarInt::from_u32) {
            control.stop(reason);
            data.iter_mut().for_each(|stream| stream.stop(reason));
        }
        is_early || timeout(half(deadline), acknowledged).await.is_ok()
    }
}

/// Half of the time until then.
fn half(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / 2
}
