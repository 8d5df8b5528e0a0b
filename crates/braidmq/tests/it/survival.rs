//! Messages acknowledged by `braidmq serve` survive its process and a full disk, in order, QoS 2 exactly once.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use braid_client::{Client, Messages, Publication, QoS, ReasonCode, Reconnect, Subscribe};
use tokio::sync::watch;

use crate::broker::braidmq;
use crate::serve::{Running, signal, start_command};

const PUBLISHERS: usize = 3;
/// Messages of each publisher.
const MESSAGES: usize = 600;
/// Unacknowledged messages of each publisher.
const WINDOW: usize = 20;
const END: &str = "end";
/// Timeout of each step, exceeded only after a loss.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker that can be restarted at the same address.
struct Phoenix {
    directory: PathBuf,
    /// `HOST:PORT`.
    address: String,
    running: Running,
}

impl Phoenix {
    fn start(directory: &Path) -> Self {
        let (running, address) = start(directory, "127.0.0.1:0");
        Self { directory: directory.to_owned(), address, running }
    }

    /// Starts it again after it has ended by itself.
    fn start_again(&mut self) {
        (self.running, self.address) = start(&self.directory, &self.address);
    }

    fn kill(&mut self) {
        self.running.0.kill().unwrap();
        self.running.0.wait().unwrap();
        self.start_again();
    }

    /// Waits until it ends because its store failed; returns its output.
    fn failed(&mut self) -> String {
        let mut said = String::new();
        self.running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.running.0.wait().unwrap().code(), Some(74), "{said}");
        said
    }

    /// A client that reconnects soon and resumes its session.
    async fn client(&self, client_id: &str) -> (Client, Messages) {
        let pause = Duration::from_millis(20);
        Client::builder(&format!("mqtt://{}", self.address))
            .client_id(client_id)
            .clean_start(false)
            .session_expiry(Duration::from_secs(3600))
            .reconnect(Reconnect::Backoff { initial: pause, maximum: pause })
            .connect()
            .await
            .unwrap()
    }

    async fn subscriber(&self, client_id: &str) -> (Client, Messages) {
        let (client, messages) = self.client(client_id).await;
        for (filter, qos) in [("1/#", QoS::AtLeastOnce), ("2/#", QoS::ExactlyOnce)] {
            client.subscribe(Subscribe::to(filter).unwrap().qos(qos)).await.unwrap();
        }
        (client, messages)
    }
}

fn start(directory: &Path, address: &str) -> (Running, String) {
    let mut command = braidmq(&["serve", "--tcp", address, "--data-dir"]);
    let (mut running, banner) = start_command(command.arg(directory));
    let line = banner.iter().find(|line| line.contains("mqtt://"));
    let mut said = String::new();
    if line.is_none() {
        running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    }
    assert_eq!(said, "", "it does not start");
    (running, line.unwrap().rsplit('/').next().unwrap().to_owned())
}

/// All messages received on each topic until its end marker.
async fn collect(messages: &mut Messages, topics: usize) -> BTreeMap<String, Vec<String>> {
    let (mut all, mut ended) = (BTreeMap::<_, Vec<_>>::new(), 0);
    while ended < topics {
        let received = tokio::time::timeout(PATIENCE, messages.recv()).await;
        assert!(received.is_ok(), "some of {topics} topics do not end: {all:?}");
        let received = received.unwrap().unwrap();
        let text = String::from_utf8_lossy(&received.payload).trim_end().to_owned();
        let topic = all.entry(received.topic.as_str().to_owned()).or_default();
        ended += usize::from(text == END && topic.last().is_none_or(|last| last != END));
        topic.push(text);
    }
    all
}

fn publication(topic: &str, text: &str, qos: QoS) -> Publication {
    Publication::to(topic, text.to_owned()).unwrap().qos(qos)
}

/// Publishes increasing numbers to a topic of each QoS, and reports how many are acknowledged.
async fn publish(client: Client, name: usize, acknowledged: watch::Sender<usize>) {
    let mut waiting = VecDeque::new();
    for number in 0..MESSAGES {
        for (topic, qos) in [(format!("1/{name}"), QoS::AtLeastOnce), (format!("2/{name}"), QoS::ExactlyOnce)]
        {
            waiting.push_back(client.enqueue(publication(&topic, &number.to_string(), qos)).await.unwrap());
        }
        while waiting.len() > WINDOW {
            assert_eq!(waiting.pop_front().unwrap().await.unwrap(), ReasonCode::Success);
            acknowledged.send_modify(|acknowledged| *acknowledged += 1);
        }
    }
    for acknowledgement in waiting {
        assert_eq!(acknowledgement.await.unwrap(), ReasonCode::Success);
    }
    for (topic, qos) in [(format!("1/{name}"), QoS::AtLeastOnce), (format!("2/{name}"), QoS::ExactlyOnce)] {
        client.publish(publication(&topic, END, qos)).await.unwrap();
    }
}

/// Asserts that every published message arrived, in order on each topic; QoS 1 messages may be repeated.
fn assert_whole(who: &str, received: BTreeMap<String, Vec<String>>) {
    assert_eq!(received.len(), 2 * PUBLISHERS);
    let numbers = (0..MESSAGES).map(|number| number.to_string());
    let expected: Vec<_> = numbers.chain([END.to_owned()]).collect();
    for (topic, mut texts) in received {
        if topic.starts_with("1/") {
            let mut seen = std::collections::HashSet::new();
            texts.retain(|text| seen.insert(text.clone()));
        }
        assert_eq!(texts, expected, "{topic} at {who}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_says_what_came_back_how_long_it_took_and_how_much_memory_it_takes() {
    let directory = tempfile::tempdir().unwrap();
    let mut phoenix = Phoenix::start(directory.path());
    drop(phoenix.subscriber("away").await);
    phoenix.kill();
    signal(&phoenix.running, "-TERM");
    let mut said = String::new();
    phoenix.running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let line = said.lines().find(|line| line.contains("recovered from the store")).unwrap_or_default();
    for part in ["sessions=1 queued=0 retained=0", " took=", " memory_mib="] {
        assert!(line.contains(part), "{part} is not in\n{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_nothing_that_was_acknowledged_and_repeats_nothing_of_qos_2() {
    let directory = tempfile::tempdir().unwrap();
    let mut broker = Phoenix::start(directory.path());
    let (away, _) = broker.subscriber("away").await;
    away.disconnect().await.unwrap();
    let (_present, mut messages) = broker.subscriber("present").await;
    let present = tokio::spawn(async move { collect(&mut messages, 2 * PUBLISHERS).await });
    let (acknowledged, mut progress) = watch::channel(0);
    let mut publishing = tokio::task::JoinSet::new();
    for name in 0..PUBLISHERS {
        let (client, _) = broker.client(&format!("publisher-{name}")).await;
        publishing.spawn(publish(client, name, acknowledged.clone()));
    }
    for part in 1..=4 {
        // In the middle of the traffic, at four moments that differ from run to run.
        let some = part * 2 * PUBLISHERS * MESSAGES / 5;
        tokio::time::timeout(PATIENCE, progress.wait_for(|count| *count > some)).await.unwrap().unwrap();
        tokio::task::block_in_place(|| broker.kill());
    }
    publishing.join_all().await;
    assert_whole("present", present.await.unwrap());
    let (_away, mut messages) = broker.client("away").await;
    assert_whole("away", collect(&mut messages, 2 * PUBLISHERS).await);
}

const INSIDE: &str = "TEST_MAY_MOUNT";

/// True when the test `name` may mount. Otherwise it runs the test again in a namespace where it may, and returns after
/// that has passed.
pub(crate) fn may_mount(name: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    false
}

pub(crate) fn mount(directory: &Path, options: &str) {
    let status =
        Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(directory).status().unwrap();
    assert!(status.success());
}

/// The journal takes 16 MiB of it from the beginning.
const SMALL: &str = "size=24m";

#[test]
fn a_full_disk_stops_the_broker_and_loses_nothing_that_was_acknowledged() {
    const NAME: &str = "survival::a_full_disk_stops_the_broker_and_loses_nothing_that_was_acknowledged";
    if may_mount(NAME) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(fill_the_disk());
    }
}

async fn fill_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    mount(directory.path(), SMALL);
    let mut broker = Phoenix::start(directory.path());
    let (away, _) = broker.subscriber("away").await;
    away.disconnect().await.unwrap();
    let (client, _) = broker.client("publisher").await;
    let publisher = client.clone();
    let padding = " ".repeat(100_000);
    let publishing = tokio::spawn(async move {
        // More than fits: messages acknowledged later were sent again to the next broker.
        for number in 0..200 {
            publisher.publish(publication("1/0", &format!("{number}{padding}"), QoS::AtLeastOnce)).await?;
        }
        publisher.publish(publication("1/0", END, QoS::AtLeastOnce)).await
    });
    let said = tokio::task::block_in_place(|| broker.failed());
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("braidmq: the store in ") && last.contains("free space"), "{last}");
    assert!(said.contains("ERROR") && said.contains("nothing is acknowledged any more"), "{said}");
    mount(directory.path(), "remount,size=128m");
    broker.start_again();
    publishing.await.unwrap().unwrap();
    let (_away, mut messages) = broker.client("away").await;
    let mut received = collect(&mut messages, 1).await.remove("1/0").unwrap();
    received.dedup();
    let numbers = (0..200).map(|number| number.to_string());
    assert_eq!(received, numbers.chain([END.to_owned()]).collect::<Vec<_>>());
    drop(client);
}

/// The last durable message is being written when the disk is full, and its publisher does not wait for it any more.
#[test]
fn a_full_disk_is_noticed_without_a_waiting_publisher() {
    if may_mount("survival::a_full_disk_is_noticed_without_a_waiting_publisher") {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let directory = tempfile::tempdir().unwrap();
            mount(directory.path(), SMALL);
            let mut broker = Phoenix::start(directory.path());
            let (client, _) = broker.client("publisher").await;
            let payload = " ".repeat(1_000_000);
            // The client keeps its unsent messages until the broker is back.
            let publishing = tokio::spawn(async move {
                for number in 0..20 {
                    let retained = publication(&number.to_string(), &payload, QoS::AtMostOnce).retain(true);
                    client.publish(retained).await.unwrap();
                }
            });
            tokio::task::block_in_place(|| broker.failed());
            publishing.abort();
        });
    }
}
