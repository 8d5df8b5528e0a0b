//! Keys of the cluster: `[cluster]`.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::str::FromStr;

use braid_access::http::Endpoint;
use braid_cluster::{Name, Risk, ServerUrl};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::check::{range, refused};
use super::http::{parsed, text};
use super::{Config, ConfigError, StoreConfig};

/// Bytes that a message takes in the log beside its packet.
const OVERHEAD: u64 = braid_cluster::OVERHEAD as u64;

/// Cluster on NATS. It is in force when `nats` is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClusterConfig {
    /// Servers of NATS, `tls://HOST[:PORT]` or `nats://HOST[:PORT]`.
    #[serde(serialize_with = "texts", deserialize_with = "all_parsed")]
    pub(crate) nats: Vec<ServerUrl>,
    /// Name of the cluster.
    #[serde(serialize_with = "one_text", deserialize_with = "one_parsed")]
    pub(crate) name: Name,
    /// Name of this node; without it the host name.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text", deserialize_with = "parsed")]
    pub(crate) node: Option<Name>,
    /// Login by password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// File whose first line is the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) password_file: Option<PathBuf>,
    /// File with a JWT and its key, as `nsc` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<PathBuf>,
    /// PEM files with the authorities of the servers; empty: those of the system.
    pub(crate) ca: Vec<PathBuf>,
    /// PEM file with the certificate of this node, for servers that ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file with its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Monitoring ports of the servers, `http://HOST:PORT`.
    #[serde(serialize_with = "texts", deserialize_with = "all_parsed")]
    pub(crate) monitor: Vec<MonitorUrl>,
    /// Copies of each stream.
    pub(crate) replicas: usize,
    /// Streams of messages that are not urgent.
    pub(crate) shards: u16,
    /// Largest size of each stream of messages.
    pub(crate) log_bytes: u64,
    /// Address of this node for clients, `HOST[:PORT]`.
    pub(crate) address: ClientAddress,
    /// Settings of the servers that may lose messages, and are accepted.
    #[serde(serialize_with = "texts", deserialize_with = "all_parsed")]
    pub(crate) accept_risks: Vec<Risk>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            nats: Vec::new(),
            name: Name::of_braidmq(),
            node: None,
            user: None,
            password_file: None,
            credentials: None,
            ca: Vec::new(),
            certificate: None,
            key: None,
            monitor: Vec::new(),
            replicas: 3,
            shards: 1,
            log_bytes: 10 << 30,
            address: ClientAddress::default(),
            accept_risks: Vec::new(),
        }
    }
}

impl ClusterConfig {
    /// True if this broker is a node of a cluster.
    pub(crate) fn is_on(&self) -> bool {
        !self.nats.is_empty()
    }

    /// Checks the keys of this table.
    ///
    /// # Errors
    /// The first key that does not fit.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !self.is_on() {
            return match first_difference(self, &Self::default()) {
                Some(key) => {
                    let problem = "has no effect without cluster.nats: name the servers of NATS there, or remove this key";
                    Err(refused(&format!("cluster.{key}"), problem.to_owned()))
                }
                None => Ok(()),
            };
        }
        self.check_login()?;
        self.check_encryption()?;
        if ![1, 3, 5].contains(&self.replicas) {
            let problem = format!(
                "{} is no number of replicas: write 3 or 5, or 1 to lose all with one server",
                self.replicas
            );
            return Err(refused("cluster.replicas", problem));
        }
        range("cluster.shards", self.shards.into(), 1, 64)?;
        range("cluster.log_bytes", self.log_bytes, 1 << 20, 1 << 50)
    }

    fn check_login(&self) -> Result<(), ConfigError> {
        let (user, password) = (self.user.as_deref(), &self.password_file);
        let (key, problem) = match (user, password, &self.credentials) {
            (Some(""), ..) => ("cluster.user", "is empty: write the user, or remove this key"),
            (Some(_), _, Some(_)) => {
                ("cluster.credentials", "is a login too, beside cluster.user: remove one of both")
            }
            (Some(_), None, _) => {
                ("cluster.user", "has no password: name the file with it in cluster.password_file")
            }
            (None, Some(_), _) => ("cluster.password_file", "is of no user: set cluster.user"),
            _ => return Ok(()),
        };
        Err(refused(key, problem.to_owned()))
    }

    fn check_encryption(&self) -> Result<(), ConfigError> {
        let missing = match (&self.certificate, &self.key) {
            (Some(_), None) => Some(("cluster.certificate", "cluster.key")),
            (None, Some(_)) => Some(("cluster.key", "cluster.certificate")),
            _ => None,
        };
        if let Some((given, missing)) = missing {
            return Err(refused(
                given,
                format!("is half a pair: {missing} is missing; give both, or neither"),
            ));
        }
        let Some(plain) = self.nats.iter().find(|url| !url.is_encrypted()) else { return Ok(()) };
        // A server that asks for TLS gets it at a nats:// address too, but an impostor would not ask.
        let needs = if self.nats.iter().any(ServerUrl::is_encrypted) {
            "other servers are at tls://"
        } else if !self.ca.is_empty() {
            "cluster.ca is set"
        } else if self.certificate.is_some() {
            "cluster.certificate is set"
        } else {
            return Ok(());
        };
        let problem = format!("{plain} may be unencrypted, and {needs}: write tls:// there");
        Err(refused("cluster.nats", problem))
    }
}

impl Config {
    /// Checks `[cluster]`, and keys of other tables that it depends on.
    pub(super) fn check_cluster(&self) -> Result<(), ConfigError> {
        self.cluster.check()?;
        if !self.cluster.is_on() {
            return Ok(());
        }
        if let Some(key) = first_difference(&self.store, &StoreConfig::default()) {
            let problem = "[store] has no effect in a cluster, whose messages and sessions are in NATS: remove this key";
            return Err(refused(&format!("store.{key}"), problem.to_owned()));
        }
        let (log, packet) = (self.cluster.log_bytes, u64::from(self.mqtt.maximum_packet_size));
        if log < packet + OVERHEAD {
            let problem = format!(
                "{log} bytes hold no packet of mqtt.maximum_packet_size, which is {packet}: raise this key, or lower that one"
            );
            return Err(refused("cluster.log_bytes", problem));
        }
        Ok(())
    }
}

/// The first key whose value differs.
fn first_difference<T: Serialize>(one: &T, other: &T) -> Option<String> {
    let [one, other] = [one, other].map(|table| toml::Table::try_from(table).unwrap_or_default());
    let mut keys =
        one.iter().filter(|(key, value)| other.get(*key) != Some(value)).map(|(key, _)| key.clone());
    keys.next()
}

/// Address of a monitoring port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MonitorUrl(String);

impl FromStr for MonitorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let endpoint = Endpoint::parse(text, true).map_err(|error| error.to_string())?;
        if text.contains(['?', '#']) {
            return Err("the URL has a query: write http://HOST:PORT".to_owned());
        }
        Ok(Self(endpoint.to_string().trim_end_matches('/').to_owned()))
    }
}

impl Display for MonitorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Address in a Server Reference (MQTT 5, section 4.13), `HOST[:PORT]`; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct ClientAddress(String);

impl ClientAddress {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<ClientAddress> for String {
    fn from(ClientAddress(text): ClientAddress) -> Self {
        text
    }
}

impl TryFrom<String> for ClientAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon in brackets is of an IPv6 address.
            Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
            _ => (text.as_str(), None),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
        let is_host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(is_name),
        };
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        if text.is_empty() || (is_host && is_port) {
            Ok(Self(text))
        } else {
            Err(format!("{text:?} is no address for clients: write HOST or HOST:PORT"))
        }
    }
}

pub(super) fn one_text<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn one_parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn texts<T: Display, S: Serializer>(values: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(ToString::to_string))
}

fn all_parsed<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let texts = Vec::<String>::deserialize(deserializer)?;
    let parse = |text: &String| text.parse().map_err(serde::de::Error::custom);
    texts.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse::parse_text;

    /// The error of a configuration, with the line of its key.
    fn error(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let table = parse_text::<Config>(text, file.path());
        let checked = table.and_then(|table| {
            let config: Config = table.try_into().unwrap();
            config.check().map_err(|error| error.in_file(Some(file.path())))
        });
        checked.unwrap_err().to_string().replace(&file.path().display().to_string(), "FILE")
    }

    fn config(text: &str) -> Config {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn values_are_checked_with_their_lines() {
        for (keys, expected) in [
            ("nats = ['localhost:4222']", "FILE:2: \"localhost:4222\" does not begin with tls:// or nats://"),
            ("nats = [\n'tls://a',\n'tls://u:s3cret@b']", "FILE:2: the address has a user or a password"),
            ("nats = 'tls://a'", "FILE:2: invalid type: string"),
            ("name = 'a.b'", "FILE:2: \"a.b\" cannot be a name in a cluster"),
            ("node = ''", "FILE:2: \"\" cannot be a name in a cluster"),
            ("monitor = ['localhost:8222']", "FILE:2: the scheme of the URL is neither https nor http"),
            ("monitor = ['http://a:1/?k=s3cret']", "FILE:2: the URL has a query: write http://HOST:PORT"),
            ("monitor = ['http://u:s3cret@a']", "FILE:2: the URL has a user name or a password"),
            (
                "accept_risks = ['all']",
                "FILE:2: there is no risk \"all\": write unsynced, replicas, version or unchecked",
            ),
            ("address = 'a b'", "FILE:2: \"a b\" is no address for clients: write HOST or HOST:PORT"),
            ("shards = -1", "FILE:2: invalid value: integer `-1`"),
            ("password = 's3cret'", "FILE:2: unknown key `password`; did you mean `password_file`?"),
            ("node = 'a'", "FILE:2: cluster.node: has no effect without cluster.nats: name the servers"),
            (
                "accept_risks = ['version']",
                "FILE:2: cluster.accept_risks: has no effect without cluster.nats",
            ),
            ("nats = ['tls://a']\nuser = ''", "FILE:3: cluster.user: is empty"),
            ("nats = ['tls://a']\nuser = 'u'", "FILE:3: cluster.user: has no password"),
            ("nats = ['tls://a']\npassword_file = 'p'", "FILE:3: cluster.password_file: is of no user"),
            (
                "nats = ['tls://a']\nuser = 'u'\npassword_file = 'p'\ncredentials = 'c'",
                "FILE:5: cluster.credentials: is a login too, beside cluster.user: remove one of both",
            ),
            (
                "nats = ['tls://a']\nuser = 'u'\ncredentials = 'c'",
                "FILE:4: cluster.credentials: is a login too, beside cluster.user: remove one of both",
            ),
            (
                "nats = ['tls://a']\ncertificate = 'c'",
                "FILE:3: cluster.certificate: is half a pair: cluster.key is missing",
            ),
            (
                "nats = ['tls://a']\nkey = 'c'",
                "FILE:3: cluster.key: is half a pair: cluster.certificate is missing",
            ),
            (
                "nats = ['tls://a', 'nats://b:1']",
                "FILE:2: cluster.nats: nats://b:1 may be unencrypted, and other servers are at tls://: write tls:// there",
            ),
            ("nats = ['nats://b']\nca = ['c']", "nats://b may be unencrypted, and cluster.ca is set"),
            (
                "nats = ['nats://b']\ncertificate = 'c'\nkey = 'k'",
                "nats://b may be unencrypted, and cluster.certificate is set",
            ),
            (
                "nats = ['tls://a']\nreplicas = 0",
                "FILE:3: cluster.replicas: 0 is no number of replicas: write 3 or 5",
            ),
            ("nats = ['tls://a']\nreplicas = 2", "FILE:3: cluster.replicas: 2 is no number"),
            ("nats = ['tls://a']\nreplicas = 7", "FILE:3: cluster.replicas: 7 is no number"),
            (
                "nats = ['tls://a']\nshards = 0",
                "FILE:3: cluster.shards: 0 is out of range; it may be 1 to 64",
            ),
            (
                "nats = ['tls://a']\nshards = 65",
                "FILE:3: cluster.shards: 65 is out of range; it may be 1 to 64",
            ),
            ("nats = ['tls://a']\nlog_bytes = 1000", "FILE:3: cluster.log_bytes: 1000 is out of range"),
            (
                "nats = ['tls://a']\nlog_bytes = 268435455",
                "FILE:3: cluster.log_bytes: 268435455 bytes hold no packet of mqtt.maximum_packet_size, which is 268435455",
            ),
            (
                "nats = ['tls://a']\n[store]\ndurability = 'memory'",
                "FILE:4: store.durability: [store] has no effect in a cluster",
            ),
            (
                "nats = ['tls://a']\n[store]\ncache_bytes = 1048576",
                "FILE:4: store.cache_bytes: [store] has no effect",
            ),
        ] {
            let error = error(&format!("[cluster]\n{keys}\n"));
            assert!(error.contains(expected), "{keys}: {error}");
            assert!(!error.contains("s3cret") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn each_kind_of_login_and_encryption_is_accepted_and_printed() {
        for keys in [
            "",
            "nats = ['nats://127.0.0.1']\nreplicas = 1\nshards = 64\naddress = 'mqtt-1.example:8883'",
            "nats = ['tls://a', 'tls://b:1']\nuser = 'u'\npassword_file = 'p'\nca = ['c']\nnode = 'n'\nreplicas = 5",
            "nats = ['tls://a']\ncredentials = 'c'\nmonitor = ['http://a:8222', 'https://b/x']",
            "nats = ['tls://a']\ncertificate = 'c'\nkey = 'k'\naccept_risks = ['unsynced', 'replicas']",
        ] {
            let config = config(&format!("[cluster]\n{keys}\n"));
            assert!(config.check().is_ok(), "{keys}: {:?}", config.check());
            let printed = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<Config>(&printed).unwrap(), config, "{printed}");
        }
        // [store] keeps its meaning without a cluster.
        assert!(config("[store]\ndurability = 'memory'").check().is_ok());
    }

    #[test]
    fn the_example_for_machines_is_a_node() {
        let config = config(include_str!("../../../../deploy/braidmq.toml"));
        assert!(config.check().is_ok() && config.cluster.is_on(), "{:?}", config.check());
        // max_payload of deploy/nats/nats.conf, less what a message takes in NATS.
        assert!(include_str!("../../../../deploy/nats/nats.conf").contains("\nmax_payload: 8MB\n"));
        assert_eq!(u64::from(config.mqtt.maximum_packet_size), (8 << 20) - OVERHEAD);
    }

    #[test]
    fn addresses_for_clients_are_hosts_with_a_port_or_without() {
        let parse = |text: &str| ClientAddress::try_from(text.to_owned()).is_ok();
        for text in ["", "a", "a.example:1", "10.0.0.1:65535", "[::1]", "[::1]:8883"] {
            assert!(parse(text), "{text}");
        }
        for text in [":1", "a:", "a:0", "a:65536", "::1", "[::1", "[a]:1", "a b", "a,b", "mqtt://a", "a:1:2"]
        {
            assert!(!parse(text), "{text}");
        }
    }
}
