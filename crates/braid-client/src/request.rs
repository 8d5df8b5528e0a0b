//! What the application asks the connection's task for.

use braid_proto::message::Delivery;
use braid_proto::packet::UserProperties;
use braid_proto::reason::ReasonCode;
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
        /// `None`: nobody wants to know.
        waiter: Option<Waiter<ReasonCode>>,
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
    Unsubscribe {
        filters: Vec<TopicFilter>,
        user: UserProperties,
        waiter: Waiter<Vec<ReasonCode>>,
    },
    /// What the server has forgotten.
    Resubscribe(Subscribe),
}

impl Request {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Publish { waiter: Some(waiter), .. } => answer(waiter, Err(error)),
            Self::Publish { waiter: None, .. } => {}
            Self::Control(control) => control.fail(error),
        }
    }
}

impl Control {
    pub(crate) fn fail(self, error: Error) {
        match self {
            Self::Subscribe { waiter, .. } | Self::Unsubscribe { waiter, .. } => answer(waiter, Err(error)),
            Self::Resubscribe(_) => {}
        }
    }
}

/// Answers; who stopped waiting does not want to know.
pub(crate) fn answer<T>(waiter: Waiter<T>, result: Result<T, Error>) {
    let _ = waiter.send(result);
}
