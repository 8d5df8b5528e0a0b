//! Load on the servers of NATS themselves, by async-nats: the peer of each figure.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, Context};
use async_nats::{Client, Subscriber};
use braid_measure::Latencies;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::one_way::{OneWay, SIZE, numbered};
use super::testbed::{NODES, Testbed, server_name};

/// Name of the stream, and first token of its subjects.
pub(super) const STREAM: &str = "bench";
/// Time limit of an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Time between two tries.
const AGAIN: Duration = Duration::from_millis(200);

/// Connections to all servers, that of node n to its own.
pub(super) struct Nats {
    runtime: Runtime,
    clients: Vec<Client>,
    contexts: Vec<Context>,
}

/// Load on a stream.
#[derive(Clone, Copy)]
pub(super) struct StreamLoad {
    /// Unacknowledged messages of all publishers.
    pub(super) window: u32,
    /// Node of the first publisher.
    pub(super) first: usize,
    /// True with a consumer that reads the stream.
    pub(super) is_read: bool,
    pub(super) warm_up: Duration,
    pub(super) measured: Duration,
}

/// Acknowledgements of a load.
pub(super) struct Acknowledged {
    pub(super) rate: f64,
    pub(super) latencies: Latencies,
}

impl Nats {
    /// Connects with this number of threads.
    ///
    /// # Errors
    /// A server does not answer.
    pub(super) fn connect(testbed: &Testbed<'_>, threads: usize) -> Result<Self, String> {
        let mut builder =
            if threads > 1 { Builder::new_multi_thread() } else { Builder::new_current_thread() };
        let runtime =
            builder.worker_threads(threads).enable_all().build().map_err(|error| error.to_string())?;
        let (clients, contexts) = runtime.block_on(async {
            let connections = (0..NODES).map(|node| async_nats::connect(testbed.nats(node)));
            let clients = try_join_all(connections).await;
            let clients = clients.map_err(|error| format!("cannot connect to NATS: {error}"))?;
            let context =
                |client: &Client| jetstream::ContextBuilder::new().timeout(ANSWER).build(client.clone());
            // In the runtime, because a context has a task.
            let contexts: Vec<_> = clients.iter().map(context).collect();
            Ok::<_, String>((clients, contexts))
        })?;
        Ok(Self { runtime, clients, contexts })
    }

    /// Makes the stream, if there is none: three replicas in files, as the stream of messages has.
    ///
    /// # Errors
    /// JetStream refuses it.
    pub(super) fn make_stream(&self) -> Result<(), String> {
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec![format!("{STREAM}.>")],
            storage: StorageType::File,
            num_replicas: NODES,
            max_bytes: 2 << 30,
            allow_direct: true,
            ..Config::default()
        };
        let give_up = Instant::now() + ANSWER;
        self.runtime.block_on(async {
            // Refused while the servers do not know each other yet.
            while let Err(error) = self.context(0).get_or_create_stream(config.clone()).await {
                if Instant::now() > give_up {
                    return Err(format!("cannot make a stream: {error}"));
                }
                sleep(AGAIN).await;
            }
            Ok(())
        })
    }

    /// Makes the server of `node` the leader of the stream.
    ///
    /// # Errors
    /// The stream has another leader after ten seconds.
    pub(super) fn place_leader(&self, testbed: &Testbed<'_>, node: usize) -> Result<(), String> {
        let give_up = Instant::now() + ANSWER;
        let wanted = json!({ "placement": { "preferred": server_name(node) } });
        while testbed.leader(STREAM) != Some(node) {
            if Instant::now() > give_up {
                return Err(format!("{} does not become the leader of a stream", server_name(node)));
            }
            let subject = format!("STREAM.LEADER.STEPDOWN.{STREAM}");
            self.runtime.block_on(async {
                // Refused while there is no leader.
                let _ = self.context(node).request::<_, _, serde_json::Value>(subject, &wanted).await;
                sleep(AGAIN).await;
            });
        }
        Ok(())
    }

    /// Publishes to the stream and waits for each PubAck.
    ///
    /// # Errors
    /// A message is not acknowledged in time, or not read.
    pub(super) fn publish_to_stream(&self, load: StreamLoad) -> Result<Acknowledged, String> {
        self.runtime.block_on(async {
            let read = Arc::new(AtomicU64::new(0));
            let reader = match load.is_read {
                true => Some(tokio::spawn(self.reader(load.first + 1, Arc::clone(&read)).await?)),
                false => None,
            };
            let publishers = usize::try_from(load.window).unwrap_or(NODES).min(NODES);
            let from = Instant::now() + load.warm_up;
            let results = try_join_all((0..publishers).map(|index| {
                let window = load.window as usize / publishers
                    + usize::from(index < load.window as usize % publishers);
                publish(self.context(load.first + index), index, window, from..from + load.measured)
            }));
            let results = results.await?;
            let mut all = Latencies::with_resolution(Duration::from_nanos(1));
            results.iter().for_each(|(latencies, _)| all.add(latencies));
            let sent: u64 = results.iter().map(|(_, sent)| sent).sum();
            if let Some(reader) = reader {
                let give_up = Instant::now() + ANSWER;
                while read.load(Ordering::Relaxed) < sent && Instant::now() < give_up {
                    sleep(Duration::from_millis(5)).await;
                }
                reader.abort();
                if read.load(Ordering::Relaxed) < sent {
                    return Err(format!(
                        "{} messages of {sent} were read from the stream",
                        read.load(Ordering::Relaxed)
                    ));
                }
            }
            Ok(Acknowledged { rate: all.arrived() as f64 / load.measured.as_secs_f64(), latencies: all })
        })
    }

    /// Future that counts the new messages of the stream.
    async fn reader(
        &self,
        node: usize,
        read: Arc<AtomicU64>,
    ) -> Result<impl Future<Output = ()> + Send + use<>, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot read a stream: {error}");
        let stream = self.context(node).get_stream(STREAM).await.map_err(|error| failed(&error))?;
        let config = OrderedConfig { deliver_policy: DeliverPolicy::New, ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await.map_err(|error| failed(&error))?;
        let mut messages = consumer.messages().await.map_err(|error| failed(&error))?;
        Ok(async move {
            while let Some(Ok(_)) = messages.next().await {
                read.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn context(&self, node: usize) -> Context {
        self.contexts[node % NODES].clone()
    }

    // -- Core NATS ---------------------------------------------------------------------------------

    /// Latencies of single messages from a publisher at one server to a subscriber at another.
    ///
    /// # Errors
    /// A server ends the connection.
    pub(super) fn one_way(&self, from: usize, to: usize, load: &OneWay) -> Result<Latencies, String> {
        let client = &self.clients[from % NODES];
        self.runtime.block_on(async {
            let mut subscriber = self.subscribe(to).await?;
            let send = async |payload| {
                client.publish("live.one", payload).await.map_err(|error| format!("NATS: {error}"))
            };
            let receive = async || subscriber.next().await.map(|message| message.payload);
            load.run(send, receive).await
        })
    }

    /// Messages per second of one publisher and one subscriber at another server, with at most `window` on their way.
    ///
    /// # Errors
    /// No message arrives.
    pub(super) fn rate(
        &self,
        (from, to): (usize, usize),
        window: u64,
        warm_up: Duration,
        measured: Duration,
    ) -> Result<f64, String> {
        let client = self.clients[from % NODES].clone();
        self.runtime.block_on(async {
            let flow = Arc::new(Flow::default());
            let subscriber = self.subscribe(to).await?;
            // Until the other server knows of the subscription.
            self.clients[to % NODES].flush().await.map_err(|error| format!("NATS: {error}"))?;
            sleep(AGAIN).await;
            let receiving = tokio::spawn(Arc::clone(&flow).receive(subscriber));
            let sending = tokio::spawn(Arc::clone(&flow).send(client, window));
            sleep(warm_up).await;
            let (began, before) = (Instant::now(), flow.received.load(Ordering::Relaxed));
            sleep(measured).await;
            let messages = flow.received.load(Ordering::Relaxed) - before;
            let rate = messages as f64 / began.elapsed().as_secs_f64();
            flow.stop.store(true, Ordering::Relaxed);
            flow.progress.notify_one();
            receiving.abort();
            sending.await.map_err(|error| error.to_string())??;
            if messages == 0 { Err("no message came through NATS".to_owned()) } else { Ok(rate) }
        })
    }

    async fn subscribe(&self, node: usize) -> Result<Subscriber, String> {
        let subscriber = self.clients[node % NODES].subscribe("live.>").await;
        subscriber.map_err(|error| format!("NATS: {error}"))
    }
}

/// Publishes with `window` unacknowledged messages until the end of the period; returns the latencies of its PubAcks in
/// the period, and the number of all messages.
async fn publish(
    context: Context,
    index: usize,
    window: usize,
    period: std::ops::Range<Instant>,
) -> Result<(Latencies, u64), String> {
    let subject = format!("{STREAM}.{index:02}");
    let payload = Bytes::from(vec![b'x'; SIZE]);
    let (mut latencies, mut sent) = (Latencies::with_resolution(Duration::from_nanos(1)), 0);
    let mut pending = FuturesUnordered::new();
    loop {
        while pending.len() < window && Instant::now() < period.end {
            let began = Instant::now();
            let ack = context.publish(subject.clone(), payload.clone()).await;
            let ack = ack.map_err(|error| format!("JetStream: {error}"))?;
            pending.push(async move { ack.await.map(|_| began) });
            sent += 1;
        }
        match pending.next().await {
            None => return Ok((latencies, sent)),
            Some(Err(error)) => return Err(format!("JetStream, window {window}: {error}")),
            Some(Ok(began)) => {
                let now = Instant::now();
                if period.contains(&now) {
                    latencies.record(now - began);
                }
            }
        }
    }
}

/// Closed loop over core NATS.
#[derive(Default)]
struct Flow {
    received: AtomicU64,
    progress: Notify,
    stop: AtomicBool,
}

impl Flow {
    async fn send(self: Arc<Self>, client: Client, window: u64) -> Result<(), String> {
        let (payload, mut sent) = (numbered(0), 0_u64);
        while !self.stop.load(Ordering::Relaxed) {
            let on_their_way = sent.saturating_sub(self.received.load(Ordering::Relaxed));
            // Refilled when a quarter is free, as the MQTT publisher does.
            if on_their_way * 4 > window * 3 {
                // A lost message would keep its room for ever.
                if timeout(AGAIN, self.progress.notified()).await.is_err() {
                    sent = self.received.load(Ordering::Relaxed);
                }
                continue;
            }
            for _ in on_their_way..window {
                let published = client.publish("live.one", payload.clone()).await;
                published.map_err(|error| format!("NATS: {error}"))?;
                sent += 1;
            }
        }
        Ok(())
    }

    async fn receive(self: Arc<Self>, mut subscriber: Subscriber) {
        while subscriber.next().await.is_some() {
            let mut batch = 1;
            while subscriber.next().now_or_never().flatten().is_some() {
                batch += 1;
            }
            self.received.fetch_add(batch, Ordering::Relaxed);
            self.progress.notify_one();
        }
    }
}
