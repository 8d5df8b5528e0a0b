//! What the application asks the connection's task for.

use braid_proto::message::Delivery;
use braid_proto::packet::{PacketId, UserProperties};
use braid_proto::reason::ReasonCode;
use braid_proto::stream::LogicalStream;
use braid_proto::topic::TopicFilter;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::subscribe::Subscribe;

/// Who waits for an answer.
pub(crate) type Waiter<T> = oneshot::Sender<Result<T, Error>>;

#[derive(Debug)]
pub(crate) enum Request {
    Publish {
        delivery: Delivery,
        /// Where it is to go.
        stream: LogicalStream,
        /// `None`: nobody wants to know.
        waiter: Option<Waiter<ReasonCode>>,
    },
    /// A message that an earlier connection, or a stream that has ended, left unacknowledged.
    Resend {
        id: PacketId,
        delivery: Delivery,
        /// Its lane.
        stream: LogicalStream,
    },
    Control(Control),
}

/// A request that a packet of its own answers.
#[derive(Debug)]
pub(crate) enum Control {
    Subscribe {
        subscribe: Subscribe,
        waiter: Waiter<Vec<ReasonCode>>,
    },
    Unsubscribe(Unsubscribe),
    /// What the server has forgotten, or keeps on another stream.
    Resubscribe(Subscribe),
}

/// One UNSUBSCRIBE for the filters of each stream, one after the other.
#[derive(Debug)]
pub(crate) struct Unsubscribe {
    /// What is still to be answered.
    pub(crate) filters: Vec<TopicFilter>,
    /// How many of them, from the first, the packet on its way has.
    pub(crate) asked: usize,
    /// The answers so far.
    pub(crate) codes: Vec<ReasonCode>,
    pub(crate) user: UserProperties,
    pub(crate) waiter: Waiter<Vec<ReasonCode>>,
}

impl Request {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Publish { waiter: Some(waiter), .. } => answer(waiter, Err(error)),
            // Who waits for what was sent is told by the ledger.
            Self::Publish { waiter: None, .. } | Self::Resend { .. } => {}
            Self::Control(control) => control.fail(error),
        }
    }
}

impl Control {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Subscribe { waiter, .. } | Self::Unsubscribe(Unsubscribe { waiter, .. }) => {
                answer(waiter, Err(error));
            }
            Self::Resubscribe(_) => {}
        }
    }
}

/// Answers; who stopped waiting does not want to know.
pub(crate) fn answer<T>(waiter: Waiter<T>, result: Result<T, Error>) {
    let _ = waiter.send(result);
}
