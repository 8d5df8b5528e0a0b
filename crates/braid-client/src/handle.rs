//! What the application holds of a client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use braid_proto::connection::Unsendable;
use braid_proto::packet::UserProperties;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamPolicy;
use braid_proto::topic::TopicFilter;
use tokio::sync::{oneshot, watch};

use crate::builder::Builder;
use crate::driver::now;
use crate::error::Error;
use crate::events::{EventLog, Events};
use crate::inbox::Inbox;
use crate::publication::Publication;
use crate::queue::{NotTaken, SendQueue};
use crate::request::{Control, Request, Unsubscribe, Waiter};
use crate::subscribe::Subscribe;

/// What [`Client`] and [`Messages`](crate::Messages) share. The last one to go closes the connection.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) requests: Arc<SendQueue>,
    pub(crate) policy: StreamPolicy,
    pub(crate) unwritten: Arc<AtomicUsize>,
    pub(crate) ended: watch::Receiver<Option<Result<(), Error>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// An MQTT client: publishes, subscribes, and stays connected. Cloning is cheap.
///
/// Messages arrive at the [`Messages`](crate::Messages) that were made with it. Requests wait in a queue until they
/// can be sent, also while there is no connection: first subscriptions, then messages by their priority, those of
/// one priority and stream in their order. Each priority has room of its own in the queue, whose size the builder
/// sets; once it is used up, methods wait for room.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

impl Client {
    /// Begins to describe a client of the server at `url`:
    /// `mqtt://`, `mqtts://` (TLS), `ws://`, `wss://` (WebSocket) or `quic://`, then `user:password@` if there
    /// is one, the host, and `:port` unless it is the usual one (1883, 8883, 8083, 8084, 14567). WebSocket URLs
    /// may have a path, `/mqtt` by default.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// Publishes a message and waits until it is done: with QoS 0 it is written to the link, with QoS 1 and 2
    /// the server's last acknowledgement is in, across reconnects if need be.
    ///
    /// Returns `Success` or `NoMatchingSubscribers`.
    ///
    /// # Errors
    /// The server refused the message or cannot take it, a QoS 0 message was lost with the connection, the
    /// message expired, or the client is closed.
    pub async fn publish(&self, publication: Publication) -> Result<ReasonCode, Error> {
        self.enqueue(publication).await?.await
    }

    /// Queues a message, waiting for room if need be, and returns what [`Client::publish`] would wait for:
    /// await it, or drop it and the message is published all the same.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn enqueue(&self, publication: Publication) -> Result<Acknowledgement, Error> {
        let (waiter, answer) = oneshot::channel();
        self.request(self.to_publish(publication, Some(waiter))).await?;
        Ok(Acknowledgement { answer })
    }

    /// Queues a message if there is room now. What becomes of it is not told.
    ///
    /// # Errors
    /// [`Error::QueueFull`] and [`Error::Closed`].
    pub fn try_publish(&self, publication: Publication) -> Result<(), Error> {
        self.handle.requests.try_send(self.to_publish(publication, None)).map_err(|why| match why {
            NotTaken::Full => Error::QueueFull,
            NotTaken::Closed => Error::Closed,
        })
    }

    fn to_publish(&self, publication: Publication, waiter: Option<Waiter<ReasonCode>>) -> Request {
        let (delivery, placement) = publication.into_delivery(&self.handle.policy, now());
        Request::Publish { delivery, stream: placement.stream, waiter }
    }

    /// Subscribes and waits for the answer: one code per filter, the granted QoS or why not. Subscriptions are
    /// restored after a reconnect if the server has forgotten them.
    ///
    /// # Errors
    /// The server granted none of the filters or cannot do what was asked, or the client is closed.
    pub async fn subscribe(&self, subscribe: Subscribe) -> Result<Vec<ReasonCode>, Error> {
        let (waiter, answer) = oneshot::channel();
        self.request(Request::Control(Control::Subscribe { subscribe, waiter })).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Ends subscriptions and waits for the answer: one code per filter.
    ///
    /// # Errors
    /// A filter is none, or the client is closed.
    pub async fn unsubscribe<'a>(
        &self,
        filters: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<ReasonCode>, Error> {
        let filters = filters.into_iter().map(TopicFilter::parse).collect::<Result<Vec<_>, _>>()?;
        if filters.is_empty() {
            return Ok(Vec::new()); // [MQTT-3.10.3-2]
        }
        let (waiter, answer) = oneshot::channel();
        let user = UserProperties::new();
        let unsubscribe = Unsubscribe { filters, asked: 0, codes: Vec::new(), user, waiter };
        self.request(Request::Control(Control::Unsubscribe(unsubscribe))).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    async fn request(&self, request: Request) -> Result<(), Error> {
        self.handle.requests.send(request).await.map_err(|_| self.why_closed())
    }

    fn why_closed(&self) -> Error {
        match &*self.handle.ended.borrow() {
            Some(Err(error)) => error.clone(),
            _ => Error::Closed,
        }
    }

    /// Ends the connection gracefully: what was requested before is sent and answered or, with QoS 0, has arrived, as
    /// long as that takes no longer than the builder's `disconnect_timeout`; then DISCONNECT, and the server discards the
    /// Will. Without
    /// a connection, what is queued is given up.
    ///
    /// # Errors
    /// Why there was no connection to end.
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.handle.inbox.close();
        self.closed().await
    }

    /// Waits until the client is closed by whatever it may be.
    ///
    /// # Errors
    /// What closed it, if it was not [`Client::disconnect`].
    pub async fn closed(&self) -> Result<(), Error> {
        let mut ended = self.handle.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            Err(_) => Err(Error::Closed), // The runtime is shutting down.
        }
    }

    /// How many bytes were taken from the queue and wait for the link: the progress of a large message.
    pub fn unwritten(&self) -> usize {
        self.handle.unwritten.load(Ordering::Relaxed)
    }

    /// Moves the connection to a new local port, such as after a change of the network: session, streams and what
    /// is on its way survive. Only QUIC can do that. [BQ-70]
    ///
    /// # Errors
    /// There is no connection, it is not QUIC, or the system gives no port.
    pub async fn rebind(&self) -> Result<(), Error> {
        let (waiter, answer) = oneshot::channel();
        let not_connected = Error::Unsendable(Unsendable::NotConnected);
        if !self.handle.requests.rebind(waiter) {
            return Err(not_connected);
        }
        answer.await.unwrap_or(Err(not_connected))
    }

    /// The events of the connection, beginning with the last one if there was any.
    pub fn events(&self) -> Events {
        self.handle.events.subscribe()
    }
}

/// Resolves when a message is done, as [`Client::publish`] does.
#[derive(Debug)]
pub struct Acknowledgement {
    answer: oneshot::Receiver<Result<ReasonCode, Error>>,
}

impl Future for Acknowledgement {
    type Output = Result<ReasonCode, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(cx).map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}
