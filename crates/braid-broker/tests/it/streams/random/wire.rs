//! Connection of a client: many streams, or one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use braid_proto::packet::Packet;
use braid_proto::stream::StreamKey;

use crate::support::{CONTROL, Client, Ended, Lanes};

pub(super) enum Wire {
    Quic(Lanes),
    /// Model of TCP and TLS.
    Memory(Client),
}

/// Result of reading a stream.
pub(super) enum Look {
    Nothing,
    Packet(Packet),
    /// The stream has ended, or the link.
    End,
}

impl Wire {
    pub(super) async fn send(&mut self, stream: StreamKey, packet: Packet) {
        match self {
            Self::Quic(lanes) => lanes.send(stream, &packet),
            Self::Memory(client) => client.send(packet).await,
        }
    }

    /// The next packet of a stream, if it is there.
    pub(super) async fn look(&mut self, stream: StreamKey) -> Look {
        let found = match self {
            Self::Quic(lanes) => at_once(lanes.next(stream)).await,
            Self::Memory(client) if stream == CONTROL => at_once(client.next()).await,
            Self::Memory(_) => None,
        };
        match found {
            None => Look::Nothing,
            Some(None) => Look::End,
            Some(Some(packet)) => Look::Packet(packet),
        }
    }

    pub(super) fn lanes(&mut self) -> Option<&mut Lanes> {
        if let Self::Quic(lanes) = self { Some(lanes) } else { None }
    }

    /// The broker has handled a DISCONNECT.
    pub(super) async fn closed(self) {
        match self {
            Self::Quic(lanes) => drop(lanes.expect_closed().await),
            Self::Memory(mut client) => client.expect_end().await,
        }
    }

    /// Reason for the end of the link, after a read found it.
    pub(super) async fn why(&mut self) -> Result<(), String> {
        match self {
            Self::Quic(lanes) => lanes.expect_closed().await,
            Self::Memory(_) => Ok(()),
        }
    }

    /// End of a stream, after a read found it.
    pub(super) async fn ended(&mut self, stream: StreamKey) -> Ended {
        self.lanes().expect("one stream has no others").expect_ended(stream).await
    }
}

/// Output of a future that is ready without waiting.
pub(super) async fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
