//! The application's ends of a client: [`Client`] for requests, [`Messages`] for received messages.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use braid_proto::connection::SendError;
use braid_proto::packet::UserProperties;
use braid_proto::reason::ReasonCode;
use braid_proto::stream::StreamPolicy;
use braid_proto::topic::TopicFilter;
use tokio::sync::{oneshot, watch};

use crate::datagrams::DatagramStatistics;
use crate::error::Error;
use crate::events::Events;
use crate::publication::Publication;
use crate::receive_queue::Received;
use crate::send_queue::{ConnectionRequest, Control, NotTaken, Request, Unsubscribe, Waiter};
use crate::state::{Channels, now};
use crate::subscribe::Subscribe;

/// State that [`Client`] and [`Messages`] share. Dropping the last of them closes the connection.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) channels: Arc<Channels>,
    pub(crate) policy: StreamPolicy,
    pub(crate) ended: watch::Receiver<Option<Result<(), Error>>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.channels.received.close();
    }
}

/// An MQTT client: publishes, subscribes, and stays connected. Cloning is cheap.
///
/// Messages arrive at the [`Messages`] that were made with it. Requests wait in a queue until they can be sent, also
/// while there is no connection: first subscriptions, then messages by their priority, those of one priority and
/// stream in their order. Each priority has room of its own in the queue, whose size the builder sets. While it is
/// full, methods wait.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) handle: Arc<Handle>,
}

impl Client {
    /// Publishes a message. Resolves with QoS 0 when the message is written to the link, with QoS 1 and 2 when the
    /// server's last acknowledgement has arrived, across reconnects if need be.
    ///
    /// Returns `Success` or `NoMatchingSubscribers`.
    ///
    /// # Errors
    /// The server refused the message or cannot take it, a QoS 0 message was lost with the connection, the
    /// message expired, or the client is closed.
    pub async fn publish(&self, publication: Publication) -> Result<ReasonCode, Error> {
        self.enqueue(publication).await?.await
    }

    /// Queues a message, waits for room if need be, and returns a future that resolves as [`Client::publish`] does. The
    /// message is published even if that future is dropped.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub async fn enqueue(&self, publication: Publication) -> Result<Acknowledgement, Error> {
        let (waiter, answer) = oneshot::channel();
        self.request(self.to_publish(publication, Some(waiter))).await?;
        Ok(Acknowledgement { answer })
    }

    /// Queues a message if there is room now. The outcome is not reported.
    ///
    /// # Errors
    /// [`Error::QueueFull`] and [`Error::Closed`].
    pub fn try_publish(&self, publication: Publication) -> Result<(), Error> {
        self.handle.channels.requests.try_send(self.to_publish(publication, None)).map_err(|why| match why {
            NotTaken::Full => Error::QueueFull,
            NotTaken::Closed => Error::Closed,
        })
    }

    fn to_publish(&self, publication: Publication, waiter: Option<Waiter<ReasonCode>>) -> Request {
        let is_unreliable = publication.is_unreliable;
        let (delivery, placement) = publication.into_delivery(&self.handle.policy, now());
        Request::Publish { delivery, stream: placement.stream, waiter, is_unreliable }
    }

    /// Subscribes and waits for SUBACK: one code per filter, the granted QoS or the reason for a refusal. Subscriptions
    /// are restored after a reconnect if the server has lost them.
    ///
    /// # Errors
    /// The server granted none of the filters or does not support the request, or the client is closed.
    pub async fn subscribe(&self, subscribe: Subscribe) -> Result<Vec<ReasonCode>, Error> {
        let (waiter, answer) = oneshot::channel();
        self.request(Request::Control(Control::Subscribe { subscribe, waiter })).await?;
        answer.await.unwrap_or(Err(Error::Closed))
    }

    /// Unsubscribes and waits for UNSUBACK: one code per filter.
    ///
    /// # Errors
    /// A filter breaks a rule of MQTT 4.7, or the client is closed.
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
        self.handle.channels.requests.send(request).await.map_err(|_| self.why_closed())
    }

    fn why_closed(&self) -> Error {
        match &*self.handle.ended.borrow() {
            Some(Err(error)) => error.clone(),
            _ => Error::Closed,
        }
    }

    /// Ends the connection gracefully. Earlier requests are sent and answered first or, with QoS 0, have arrived,
    /// within the builder's `disconnect_timeout`. Then DISCONNECT follows, and the server discards the Will. Without a
    /// connection, queued requests fail.
    ///
    /// # Errors
    /// The error that kept the client without a connection.
    pub async fn disconnect(&self) -> Result<(), Error> {
        self.handle.channels.received.close();
        self.closed().await
    }

    /// Waits until the client is closed.
    ///
    /// # Errors
    /// The error that closed it, if it was not [`Client::disconnect`].
    pub async fn closed(&self) -> Result<(), Error> {
        let mut ended = self.handle.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or(Ok(())),
            // The runtime has dropped the driver.
            Err(_) => Err(Error::Closed),
        }
    }

    /// Number of bytes that were taken from the queue and wait for the link: the progress of a large message.
    pub fn unwritten(&self) -> usize {
        self.handle.channels.unwritten.load(Ordering::Relaxed)
    }

    /// Number of messages in datagrams so far; see [`Builder::datagrams`](crate::Builder::datagrams).
    pub fn datagrams(&self) -> DatagramStatistics {
        self.handle.channels.datagrams.snapshot()
    }

    /// Moves the connection to a new local port, such as after a change of the network. Session, streams and inflight
    /// messages survive. QUIC only. [BQ-70]
    ///
    /// # Errors
    /// There is no connection, it is not QUIC, or the operating system gives no port.
    pub async fn rebind(&self) -> Result<(), Error> {
        self.ask_connection(ConnectionRequest::Rebind).await
    }

    /// Moves the connection to a link over the other transport, QUIC or TLS, once that is established. Session and
    /// inflight messages move along; [`ConnectionEvent::Moving`](crate::ConnectionEvent::Moving) tells when. Clients of
    /// `auto://` URLs only.
    ///
    /// # Errors
    /// There is no connection, or the URL names the transport.
    pub async fn change_transport(&self) -> Result<(), Error> {
        self.ask_connection(ConnectionRequest::Move).await
    }

    /// Authenticates again, and has the server prove itself again; messages flow meanwhile. For credentials that
    /// expire: the server counts their validity from then on.
    ///
    /// # Errors
    /// The builder has no [`scram`](crate::Builder::scram), there is no connection, or one of both does not accept the
    /// other, which ends the connection.
    pub async fn reauthenticate(&self) -> Result<(), Error> {
        self.ask_connection(ConnectionRequest::Reauthenticate).await
    }

    async fn ask_connection(&self, request: ConnectionRequest) -> Result<(), Error> {
        let (waiter, answer) = oneshot::channel();
        let not_connected = Error::Send(SendError::NotConnected);
        if !self.handle.channels.requests.ask_connection(request, waiter) {
            return Err(not_connected);
        }
        answer.await.unwrap_or(Err(not_connected))
    }

    /// Events of the connection, beginning with the last one if there was any.
    pub fn events(&self) -> Events {
        self.handle.channels.events.subscribe()
    }
}

/// Future of a message that was queued; resolves as [`Client::publish`] does.
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

/// Received messages, in their order.
///
/// While the application is slower than the server, up to the builder's `receive_queue` messages wait here. Then the
/// client stops reading from every stream that carries messages, and with them from the acknowledgements there; only
/// streams of QUIC on which it publishes alone are read on. A task that receives messages should therefore not await
/// `publish` unless few messages arrive: use [`Client::enqueue`], or another task.
///
/// When this is dropped, further messages are acknowledged and discarded.
#[derive(Debug)]
pub struct Messages {
    pub(crate) handle: Arc<Handle>,
}

impl Messages {
    /// Waits for the next message. `None`: the client is closed and all messages are taken. Taking a message of QoS 1
    /// or 2 acknowledges it, unless the builder asked for
    /// [`manual_acknowledgement`](crate::Builder::manual_acknowledgement).
    ///
    /// Cancel safe: a message that is not returned is not lost.
    pub async fn recv(&mut self) -> Option<Received> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// Takes the next message if there is one.
    pub fn try_recv(&mut self) -> Option<Received> {
        self.handle.channels.received.try_take()
    }

    /// Poll form of [`Messages::recv`], for hand-written futures and streams.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.handle.channels.received.poll_take(cx)
    }

    /// Acknowledges this message and all that arrived before it, because MQTT acknowledges in order. Only needed with
    /// [`manual_acknowledgement`](crate::Builder::manual_acknowledgement).
    pub fn acknowledge(&self, message: &Received) {
        if let Some(receipt) = message.receipt {
            self.handle.channels.received.acknowledge(receipt);
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.handle.channels.received.stop_listening();
    }
}
