//! State of the cluster, asked again and again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use braid_access::http::{Endpoint, HttpClient, HttpOptions};
use braid_cluster::ClusterOptions;
use braid_cluster::status::ClusterStatus;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Time for an answer of a process.
const ANSWER: Duration = Duration::from_secs(2);

/// Time for the state of the cluster: longer than a server takes to find that there is no majority.
const STATUS: Duration = Duration::from_secs(15);

/// Last answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Processes that answered the last question, by name: connections of a broker, 0 for a NATS server.
    pub(super) answers: BTreeMap<String, u64>,
    /// State of the cluster and the time at which it was told.
    pub(super) status: Option<(Arc<ClusterStatus>, Instant)>,
}

/// Part of the overview of a broker.
#[derive(Deserialize)]
struct Overview {
    connections: Connections,
}

#[derive(Deserialize)]
struct Connections {
    total: u64,
}

/// Source of answers, until it is dropped.
pub(super) struct Watch {
    facts: Arc<Mutex<Facts>>,
    /// Dropped to stop them.
    _tasks: JoinSet<()>,
}

/// A process to be asked: its name, and the URL that tells its state.
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) url: String,
}

impl Watch {
    /// # Errors
    /// A URL is none.
    pub(super) fn start(options: ClusterOptions, asked: Vec<Asked>) -> Result<Self, String> {
        let facts = Arc::new(Mutex::new(Facts::default()));
        let mut tasks = JoinSet::new();
        for Asked { name, url } in asked {
            let client = http_client(&url)?;
            let facts = Arc::clone(&facts);
            tasks.spawn(async move {
                loop {
                    let answer = ask(&client).await;
                    match answer {
                        Some(connections) => drop(lock(&facts).answers.insert(name.clone(), connections)),
                        None => drop(lock(&facts).answers.remove(&name)),
                    }
                    sleep(LOOK).await;
                }
            });
        }
        let of_status = Arc::clone(&facts);
        tasks.spawn(async move {
            loop {
                if let Ok(Ok(status)) = timeout(STATUS, ClusterStatus::ask(&options, &|_| ())).await {
                    lock(&of_status).status = Some((Arc::new(status), Instant::now()));
                }
                sleep(LOOK).await;
            }
        });
        Ok(Self { facts, _tasks: tasks })
    }

    pub(super) fn facts(&self) -> Facts {
        lock(&self.facts).clone()
    }
}

/// A poisoned lock is safe to use: each answer is written whole.
fn lock(facts: &Mutex<Facts>) -> MutexGuard<'_, Facts> {
    facts.lock().unwrap_or_else(PoisonError::into_inner)
}

fn http_client(url: &str) -> Result<HttpClient, String> {
    let endpoint = Endpoint::parse(url, false).map_err(|error| error.to_string())?;
    let options = HttpOptions { timeout: ANSWER, ..HttpOptions::new(endpoint) };
    HttpClient::new(options).map_err(|error| error.to_string())
}

/// Connections of a broker, 0 of another process; `None`: it does not answer, or is not well.
async fn ask(client: &HttpClient) -> Option<u64> {
    let answer = client.get().await.ok().filter(|answer| answer.status == 200)?;
    let overview = serde_json::from_slice::<Overview>(&answer.body);
    Some(overview.map_or(0, |overview| overview.connections.total))
}

/// Tests once whether a URL answers with 200.
pub(super) async fn is_well(url: &str) -> bool {
    match http_client(url) {
        Ok(client) => ask(&client).await.is_some(),
        Err(_) => false,
    }
}
