use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use braid_proto::packet::Connect;
use fastrand::Rng;

use super::plan::Clients;
use crate::emqtt::{Identity, Randomness, TopicTemplate};

/// Unique among the messages of a process.
static UNIQUE: AtomicU64 = AtomicU64::new(1);

/// Names of one client, and its source of random numbers.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    /// Number of the client, from 1 plus `-n`.
    pub(super) number: u64,
    pub(super) client_id: String,
    username: Option<String>,
    random: Rng,
}

impl ClientIdentity {
    /// `address`: the client's local address, one of several, which its Client Identifier then has.
    pub(super) fn new(clients: &Clients, number: u64, address: Option<IpAddr>) -> Self {
        let mut random = Rng::new();
        let mut ids = clients.ids.clone();
        if let Some(address) = address {
            ids.host = address.to_string();
        }
        let client_id = ids.client_id(number, random.u32(1..));
        let username = clients.credentials.as_ref().map(|credentials| credentials.username.clone());
        Self { number, client_id, username, random }
    }

    /// Values of the placeholders in topics and payloads.
    pub(super) fn placeholder_values(&self) -> Identity<'_> {
        Identity { number: self.number, client_id: &self.client_id, username: self.username.as_deref() }
    }

    /// A topic with its placeholders filled.
    pub(super) fn fill(&mut self, template: &TopicTemplate, sequence: u64) -> String {
        let identity =
            Identity { number: self.number, client_id: &self.client_id, username: self.username.as_deref() };
        template.fill(identity, sequence, |most| self.random.u64(1..=most))
    }

    pub(super) fn connect(&self, clients: &Clients) -> Connect {
        let mut connect = Connect::new(clients.version, self.client_id.as_str());
        connect.clean_start = clients.clean_start;
        connect.keep_alive = clients.keep_alive;
        if let Some(credentials) = &clients.credentials {
            connect.user_name = Some(credentials.username.as_str().into());
            connect.password.clone_from(&credentials.password);
        }
        if clients.version.is_v5() {
            connect.properties.session_expiry = clients.session_expiry;
            connect.properties.maximum_packet_size = clients.maximum_packet_size;
        }
        connect
    }

    /// Uniform random number from the first to the second.
    pub(super) fn between(&mut self, (least, most): (Duration, Duration)) -> Duration {
        let span = most.saturating_sub(least);
        least + span.mul_f64(self.random.f64())
    }
}

impl Randomness for ClientIdentity {
    fn unique(&mut self) -> u64 {
        UNIQUE.fetch_add(1, Ordering::Relaxed)
    }

    fn append(&mut self, out: &mut Vec<u8>, len: usize) {
        let start = out.len();
        out.resize(start + len, 0);
        self.random.fill(&mut out[start..]);
    }
}
