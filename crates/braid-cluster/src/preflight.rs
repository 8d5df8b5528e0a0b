//! Check of the NATS servers before the start: settings that would lose what was acknowledged, and clocks.
//!
//! A client of NATS is not told these settings. The monitoring port of each server tells them.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use braid_access::http::{Endpoint, HttpClient, HttpOptions};
use serde::Deserialize;

use crate::error::{ClusterError, Risk};
use crate::layout::{Dimensions, Layout};

/// First version whose replicas sync together, with the repairs that Jepsen's tests of 2.12 led to.
pub const OLDEST: Version = Version([2, 15, 2]);

/// Difference of clocks from which on a node is refused: expiry is told in seconds of the wall clock.
pub(crate) const CLOCKS_APART: Duration = Duration::from_secs(60);

/// Replicas from which on one server may be lost.
const REPLICAS: usize = 3;

/// Version of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub [u32; 3]);

impl Version {
    /// The version of a text such as `2.15.2` or `2.16.0-RC.1`; `None` for others.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split('-').next()?;
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let version = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(Self(version))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// Facts about one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its name.
    pub server: String,
    /// Its version.
    pub version: String,
    /// Each write is synced before it is acknowledged.
    pub syncs_always: bool,
    /// Servers of its cluster, as its JetStream knows them.
    pub servers: usize,
    /// Bytes that all its streams together may have on disk; 0: it does not tell.
    pub storage: u64,
    /// Its wall clock.
    pub now: SystemTime,
}

/// Part of the answer of `/varz`.
#[derive(Deserialize)]
struct Varz {
    server_name: Option<String>,
    server_id: String,
    version: String,
    now: String,
    jetstream: Option<VarzJetStream>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VarzJetStream {
    config: JetStreamConfig,
    meta: Meta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JetStreamConfig {
    sync_always: bool,
    max_storage: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Meta {
    cluster_size: usize,
}

impl ServerFacts {
    /// Asks the monitoring port of a server, such as `http://127.0.0.1:8222`. `ca_files` are the authorities for `https`;
    /// empty: those of the system.
    ///
    /// # Errors
    /// The port does not answer, or is no monitoring port.
    pub async fn ask(monitor: &str, ca_files: &[PathBuf]) -> Result<Self, ClusterError> {
        let endpoint = Endpoint::parse(&format!("{}/varz", monitor.trim_end_matches('/')), true)?;
        let mut options = HttpOptions { max_body: 4 << 20, ..HttpOptions::new(endpoint) };
        options.tls.ca_files = ca_files.to_vec();
        let client = HttpClient::new(options)?;
        let answer = client.get().await?;
        let refused = |reason: String| ClusterError::NoMonitor { url: monitor.to_owned(), reason };
        if answer.status != 200 {
            return Err(refused(format!("status {}", answer.status)));
        }
        Self::parse(&answer.body).map_err(refused)
    }

    fn parse(varz: &[u8]) -> Result<Self, String> {
        let varz: Varz = serde_json::from_slice(varz).map_err(|error| error.to_string())?;
        let now: jiff::Timestamp = varz.now.parse().map_err(|error: jiff::Error| error.to_string())?;
        let jetstream = varz.jetstream.unwrap_or_default();
        Ok(Self {
            server: varz.server_name.unwrap_or(varz.server_id),
            version: varz.version,
            syncs_always: jetstream.config.sync_always,
            servers: jetstream.meta.cluster_size,
            storage: jetstream.config.max_storage,
            now: now.into(),
        })
    }

    /// Tests whether messages are safe on this server at `now`, with streams of so many replicas. `accepted`: risks
    /// that are taken.
    ///
    /// # Errors
    /// The first problem that is not accepted.
    pub fn check(&self, replicas: usize, now: SystemTime, accepted: &[Risk]) -> Result<(), ClusterError> {
        let risk = |risk: Risk, problem: String| match accepted.contains(&risk) {
            true => Ok(()),
            false => Err(risk_error(&self.server, risk, problem)),
        };
        if Version::parse(&self.version).is_none_or(|version| version < OLDEST) {
            let problem = format!("runs nats-server {}: install {OLDEST} or later", self.version);
            risk(Risk::Version, problem)?;
        }
        if !self.syncs_always {
            let problem = "acknowledges before its disk has the message: set `sync_interval: always` in the jetstream part of \
                           its configuration"
                .to_owned();
            risk(Risk::Unsynced, problem)?;
        }
        if self.servers < REPLICAS {
            let problem = format!("is one of {} servers: run three", self.servers.max(1));
            risk(Risk::Replicas, problem)?;
        }
        if replicas < REPLICAS {
            risk(Risk::Replicas, format!("is to hold {replicas} replicas: set cluster.replicas = 3"))?;
        }
        let (apart, is_ahead) = match self.now.duration_since(now) {
            Ok(apart) => (apart, true),
            Err(error) => (error.duration(), false),
        };
        if apart >= CLOCKS_APART {
            return Err(ClusterError::Clock { server: self.server.clone(), apart, is_ahead });
        }
        Ok(())
    }

    /// Tests whether the shards fit on the disk of this server when each is as large as it may be. Without room for
    /// them the servers make streams with fewer replicas, or none.
    ///
    /// # Errors
    /// They do not fit.
    pub fn check_room(&self, layout: &Layout) -> Result<(), ClusterError> {
        let Dimensions { replicas, log_bytes, .. } = layout.dimensions();
        let shards = layout.parts();
        // Servers have equal shares of the replicas.
        let copies = (shards * replicas).div_ceil(self.servers.max(1)).max(1) as u64;
        let needed = log_bytes.saturating_mul(copies);
        if self.storage == 0 || needed <= self.storage {
            return Ok(());
        }
        let (server, storage, most) = (self.server.clone(), self.storage, self.storage / copies);
        Err(ClusterError::Storage { server, storage, shards, log_bytes, needed, most })
    }
}

/// The error for servers about which nothing is known.
pub(crate) fn unchecked() -> ClusterError {
    let problem = "do not tell a client whether they sync each write: name their monitoring ports in cluster.monitor, such \
                   as \"http://127.0.0.1:8222\""
        .to_owned();
    risk_error("NATS servers", Risk::Unchecked, problem)
}

fn risk_error(server: &str, risk: Risk, problem: String) -> ClusterError {
    ClusterError::Unsafe { server: server.to_owned(), problem, risk, loss: risk.loss() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        for (text, expected) in [
            ("2.15.2", Some([2, 15, 2])),
            ("2.16.0-RC.1", Some([2, 16, 0])),
            ("2.15", None),
            ("2.15.2.1", None),
            ("v2.15.2", None),
            ("", None),
        ] {
            assert_eq!(Version::parse(text), expected.map(Version), "{text}");
        }
        assert!(Version([2, 9, 99]) < OLDEST && Version([3, 0, 0]) > OLDEST);
    }

    fn facts() -> ServerFacts {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let (server, version) = ("n1".to_owned(), OLDEST.to_string());
        ServerFacts { server, version, syncs_always: true, servers: 3, storage: 40 << 30, now }
    }

    fn layout() -> Layout {
        Layout::new("c".parse().unwrap(), Dimensions { shards: 3, replicas: 3, log_bytes: 10 << 30 })
    }

    #[test]
    fn what_may_lose_messages_is_refused_unless_it_is_accepted() {
        let now = facts().now;
        assert!(facts().check(3, now, &[]).is_ok());
        let cases = [
            (
                ServerFacts { version: "2.12.1".into(), ..facts() },
                3,
                Risk::Version,
                "install 2.15.2 or later",
            ),
            (ServerFacts { syncs_always: false, ..facts() }, 3, Risk::Unsynced, "sync_interval: always"),
            (ServerFacts { servers: 0, ..facts() }, 3, Risk::Replicas, "one of 1 servers: run three"),
            (ServerFacts { servers: 2, ..facts() }, 3, Risk::Replicas, "one of 2 servers: run three"),
            (facts(), 1, Risk::Replicas, "cluster.replicas = 3"),
        ];
        for (facts, replicas, risk, expected) in cases {
            let error = facts.check(replicas, now, &[]).unwrap_err().to_string();
            let flag = format!("--accept-cluster-risk {risk} to go on, if {}", risk.loss());
            assert!(error.starts_with("n1 ") && error.contains(expected) && error.contains(&flag), "{error}");
            assert!(facts.check(replicas, now, &[risk]).is_ok());
            let others: Vec<_> = Risk::ALL.into_iter().filter(|other| *other != risk).collect();
            assert!(facts.check(replicas, now, &others).is_err());
        }
    }

    #[test]
    fn clocks_may_differ_by_a_minute() {
        let facts = facts();
        for (secs, expected) in [(59, None), (60, Some("60 s ahead")), (3600, Some("3600 s ahead"))] {
            let error = facts.check(3, facts.now - Duration::from_secs(secs), &Risk::ALL);
            let error = error.err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{secs}");
            assert!(expected.is_none_or(|expected| error.unwrap().contains(expected)), "{secs}");
        }
        let error = facts.check(3, facts.now + Duration::from_secs(90), &[]).unwrap_err().to_string();
        assert_eq!(error, "the clock of n1 is 90 s behind: set both by NTP");
    }

    #[test]
    fn all_shards_fit_on_the_disk() {
        for (servers, storage, fits) in [
            (3, 40 << 30, true),
            (3, (40 << 30) - 1, false),
            (6, 20 << 30, true),
            (6, 19 << 30, false),
            (5, 30 << 30, true),
            (5, 29 << 30, false),
            (3, 0, true),
        ] {
            let facts = ServerFacts { servers, storage, ..facts() };
            assert_eq!(facts.check_room(&layout()).is_ok(), fits, "{servers} {storage}");
        }
        let error = ServerFacts { storage: 4000, ..facts() }.check_room(&layout()).unwrap_err();
        let expected = "the streams of n1 may have 4000 bytes, and 4 shards of 10737418240 may need 42949672960: set max_file: \
                        42949672960 or more in the jetstream part of its configuration, or lower cluster.log_bytes to 1000";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn facts_are_those_of_the_monitoring_port() {
        let varz = br#"{"server_id": "ABC", "server_name": "n1", "version": "2.15.2", "now": "2026-11-26T11:00:00.5Z", "x": 1,
            "jetstream": {"config": {"sync_always": true, "max_memory": 1, "max_storage": 9}, "meta": {"cluster_size": 3}}}"#;
        let facts = ServerFacts::parse(varz).unwrap();
        assert_eq!((&*facts.server, facts.syncs_always, facts.servers, facts.storage), ("n1", true, 3, 9));
        let since = facts.now.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since, Duration::from_millis(1_795_690_800_500));
        let bare = br#"{"server_id": "ABC", "version": "2.15.2", "now": "2026-11-26T11:00:00Z"}"#;
        let facts = ServerFacts::parse(bare).unwrap();
        assert_eq!((&*facts.server, facts.syncs_always, facts.servers, facts.storage), ("ABC", false, 0, 0));
        for text in ["", "{}", "[]", r#"{"server_id": "a", "version": "2", "now": "yesterday"}"#] {
            assert!(ServerFacts::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
