//! How a link ends: what was written is delivered, each stream is finished, the connection closed.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use noq::{Connection, Endpoint, VarInt};
use tokio::time::timeout;

use super::stream::Stream;
use crate::quic::acknowledged::all_acknowledged;
use crate::quic::codes::code;
use crate::quic::shield::{Broken, Shield};

/// How long the peer may take to acknowledge our last bytes. [BQ-41]
const LINGER: Duration = Duration::from_secs(3);

/// How long a client's CONNECTION_CLOSE may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

pub(super) type Farewell = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send>>;

/// What a link ends with.
pub(super) struct Remains {
    pub(super) control: Stream,
    /// Those that are open.
    pub(super) data: Vec<Stream>,
    pub(super) connection: Connection,
    pub(super) endpoint: Option<Endpoint>,
}

impl Remains {
    /// Delivers what was written, finishes the streams and closes the connection.
    pub(super) fn farewell(mut self, close_code: u32, stop: Option<u8>) -> Farewell {
        Box::pin(Shield::new(async move {
            if let Some(reason) = stop {
                self.stop(VarInt::from_u32(reason.into()));
            }
            if timeout(LINGER, self.deliver()).await.is_err() {
                tracing::debug!("the peer did not acknowledge the last bytes in time");
            }
            self.connection.close(code(close_code), b"");
            if let Some(endpoint) = self.endpoint.take() {
                // The process may end next, and the close frame has to leave before it does.
                let _ = timeout(FAREWELL, endpoint.wait_all_draining()).await;
            }
        }))
    }

    /// STOP_SENDING on every stream: nothing is read any more, and the peer may know why.
    fn stop(&mut self, reason: VarInt) {
        self.control.stop(reason);
        for stream in &mut self.data {
            stream.stop(reason);
        }
    }

    /// Waits until the peer has acknowledged everything, then sends the ends of the streams by
    /// themselves: some clients drop the data that arrives together with it. [BQ-31]
    async fn deliver(&mut self) {
        let Some(mut send) = self.control.send.take() else { return };
        all_acknowledged(&mut send, &self.connection).await;
        for stream in &mut self.data {
            stream.finish();
        }
        if send.finish().is_ok() {
            let _ = send.stopped().await;
        }
    }
}
