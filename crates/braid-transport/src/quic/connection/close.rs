//! Close of a link: the last bytes are delivered, the peer is stopped, the streams are finished, the connection is
//! closed. All of it by one deadline, whatever the peer does.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use braid_proto::stream::StreamKey;
use noq_proto::{Side, VarInt};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::stream::{self, Stream};
use crate::quic::codes::code;
use crate::quic::io::{Connection, Event};
use crate::transport::Close;

/// Time for the peer to acknowledge the last bytes, where no deadline was set. [BQ-41]
pub(super) const LINGER: Duration = Duration::from_secs(3);

/// Time for a client's CONNECTION_CLOSE to leave.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A close in progress.
pub(super) type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Parts of a link that its close needs.
pub(super) struct ClosingLink {
    pub(super) control: Stream,
    /// The open data streams.
    pub(super) data: Vec<Stream>,
    pub(super) connection: Box<Connection>,
    /// Time in which the peer has what was written on the control stream, as far as the path allows.
    pub(super) delivery_time: Duration,
}

impl ClosingLink {
    /// Delivers what was written, stops the peer and finishes the streams, as far as that can be done by `deadline`;
    /// then closes the connection.
    pub(super) fn close(mut self, close: Close, deadline: Instant) -> Closing {
        Box::pin(async move {
            if timeout_at(deadline, self.deliver(close.stop, deadline)).await.is_err() {
                tracing::debug!("the peer did not acknowledge the last bytes in time");
            }
            let mut connection = self.connection;
            connection.close(code(close.code));
            match connection.side() {
                Side::Client => {
                    // The process may end next, and the close frame has to leave before it does.
                    let told = connection.drive(|connection| connection.is_draining().then_some(()));
                    let _ = timeout(CLOSE_LIMIT, told).await;
                }
                // Sends the close frame.
                Side::Server => connection.drive(|_| Some(())).await,
            }
            if !connection.is_drained()
                && let Ok(runtime) = Handle::try_current()
            {
                runtime.spawn(connection.drained());
            }
        })
    }

    async fn deliver(&mut self, stop: Option<u8>, deadline: Instant) {
        self.connection.discard_all();
        if !self.control.is_sending {
            return;
        }
        if self.drain(stop, deadline).await {
            self.data.iter_mut().for_each(|stream| stream.finish(&mut self.connection));
        }
        let control = self.control.id();
        if self.connection.finish(control).is_ok() {
            self.connection.drive(|connection| connection.is_send_over(control).then_some(())).await;
        }
        // Data streams that are not finished have bytes to send until the deadline.
        if self.data.iter().any(|stream| stream.is_sending && stream.written > 0) {
            self.connection.drive(|connection| connection.error().map(drop)).await;
        }
    }

    /// Waits until everything is acknowledged, so that the FINs travel by themselves: some clients drop the bytes that
    /// arrive together with one. [BQ-31] Meanwhile the peer is stopped. False if that takes longer than half of the
    /// time that is left: the rest is for the FINs. Of a control stream that has filled the peer's window it is never
    /// known.
    async fn drain(&mut self, stop: Option<u8>, deadline: Instant) -> bool {
        // A client that finds STOP_SENDING in the packet with its DISCONNECT handles the former first, and may never
        // read the latter. [BQ-41] Until then what it sends is dropped, and flow control bounds it.
        let before_stop = self.delivery_time.min(half(deadline));
        let is_acknowledged = timeout(before_stop, acknowledged(&mut self.connection)).await.is_ok();
        if let Some(reason) = stop.map(u32::from).map(VarInt::from_u32) {
            self.control.stop(&mut self.connection, reason);
            self.data.iter_mut().for_each(|stream| stream.stop(&mut self.connection, reason));
        }
        is_acknowledged || timeout(half(deadline), acknowledged(&mut self.connection)).await.is_ok()
    }
}

/// Resolves when no byte written on any stream is unacknowledged, when the peer has stopped the control stream, or when
/// the connection is lost. No stream can be written afterwards.
///
/// The library keeps the number of unacknowledged bytes to itself; but a write finds room in a window of one byte once
/// there are none. An empty one that was taken would send an empty frame, so it is tried with a window of none first,
/// and the event of room tells.
async fn acknowledged(connection: &mut Connection) {
    let control = stream::id(StreamKey::CONTROL);
    connection.set_send_window(0);
    if connection.poll_room(control).is_ready() {
        return;
    }
    connection.set_send_window(1);
    connection
        .drive_to(|event| match event {
            Event::Writable(id) | Event::Stopped(id, _) => id == control,
            event => event == Event::Lost,
        })
        .await;
}

/// Half of the time until the deadline.
fn half(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()) / 2
}
