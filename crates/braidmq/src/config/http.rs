//! Keys of the HTTP front: `[http]` and `[[http.route]]`.

use std::fmt::Display;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use braid_broker::{ListenerPolicy, MountpointTemplate};
use braid_http::{AutoQuicMode, Limits, Route, RouteTarget, Upstream};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::check::{range, refused};
use super::{Config, ConfigError};

/// HTTP front. No address is listened on by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FrontConfig {
    /// Addresses, `HOST:PORT` with an IP address as host; TCP and, with HTTP/3, UDP.
    pub(crate) listen: Vec<SocketAddr>,
    /// Whether connections are encrypted; without it addresses are on loopback.
    pub(crate) tls: bool,
    /// Certificate and key; without them those of `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Whether HTTP/3 is served, if connections are encrypted.
    pub(crate) http3: bool,
    /// Host names of requests to loopback addresses, beside `localhost`.
    pub(crate) hosts: Vec<String>,
    pub(crate) limits: FrontLimits,
    /// Users, as `NAME` or `group:NAME`, that may do everything by the API.
    pub(crate) operators: Vec<String>,
    /// Users that may read by the API.
    pub(crate) viewers: Vec<String>,
    pub(crate) api: ApiConfig,
    pub(crate) mqtt: MqttConfig,
    pub(crate) autoquic: AutoQuicConfig,
    /// Routes: `[[http.route]]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) route: Vec<RouteConfig>,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            tls: false,
            certificate: None,
            key: None,
            http3: true,
            hosts: Vec::new(),
            limits: FrontLimits::default(),
            operators: Vec::new(),
            viewers: Vec::new(),
            api: ApiConfig::default(),
            mqtt: MqttConfig::default(),
            autoquic: AutoQuicConfig::default(),
            route: Vec::new(),
        }
    }
}

/// Limits of the front and its threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FrontLimits {
    pub(crate) threads: usize,
    pub(crate) connections: usize,
    pub(crate) connections_per_address: usize,
    /// Requests in flight on a connection of HTTP/2 or 3.
    pub(crate) streams: u32,
    pub(crate) head_bytes: usize,
    pub(crate) uri_bytes: usize,
    pub(crate) body_bytes: u64,
    pub(crate) head_secs: u64,
    pub(crate) body_secs: u64,
    pub(crate) idle_secs: u64,
    pub(crate) upstream_secs: u64,
}

impl Default for FrontLimits {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            threads: 1,
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            streams: limits.streams,
            head_bytes: limits.head_bytes,
            uri_bytes: limits.uri_bytes,
            body_bytes: limits.body_bytes,
            head_secs: limits.head_timeout.as_secs(),
            body_secs: limits.body_timeout.as_secs(),
            idle_secs: limits.idle_timeout.as_secs(),
            upstream_secs: limits.upstream_timeout.as_secs(),
        }
    }
}

/// Access to the API, and its limits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApiConfig {
    /// Addresses of API, dashboard and metrics; without them they are at those of the routes.
    pub(crate) listen: Vec<SocketAddr>,
    /// Whether clients of this machine are operators where there is no authenticator.
    pub(crate) anonymous: bool,
    /// Requests of one address in a second.
    pub(crate) requests_per_sec: u32,
    /// Event streams of all clients.
    pub(crate) event_streams: usize,
    /// Event streams of one address, and of one user.
    pub(crate) event_streams_per_client: usize,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            anonymous: true,
            requests_per_sec: 50,
            event_streams: 64,
            event_streams_per_client: 16,
        }
    }
}

/// MQTT over WebSocket on the front, at `/mqtt`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MqttConfig {
    /// Whether it is served.
    pub(crate) enabled: bool,
    /// Whether clients without credentials may connect; absent: as `allow_anonymous` says, or not if
    /// `http.api.anonymous` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) anonymous: Option<bool>,
    /// Tag that rules of the access control list refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<Box<str>>,
    /// Name space of the clients. It may be absent only while no `[[listener]]` has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mountpoint: Option<FrontMountpoint>,
}

impl Default for MqttConfig {
    fn default() -> Self {
        Self { enabled: true, anonymous: None, tag: None, mountpoint: None }
    }
}

/// Mountpoint of `/mqtt`; an empty text for clients that are meant to have none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct FrontMountpoint(Option<MountpointTemplate>);

impl TryFrom<String> for FrontMountpoint {
    type Error = <MountpointTemplate as TryFrom<String>>::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let template = (!text.is_empty()).then(|| MountpointTemplate::try_from(text));
        template.transpose().map(Self)
    }
}

impl From<FrontMountpoint> for String {
    fn from(FrontMountpoint(template): FrontMountpoint) -> Self {
        template.map_or_else(Self::new, Into::into)
    }
}

/// Automatic upgrade to HTTP/3.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AutoQuicConfig {
    #[serde(with = "ModeName")]
    pub(crate) mode: AutoQuicMode,
    /// UDP port that clients reach HTTP/3 on, if it is not the one that is listened on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<NonZeroU16>,
}

/// Names of the modes.
#[derive(Serialize, Deserialize)]
#[serde(remote = "AutoQuicMode", rename_all = "kebab-case")]
enum ModeName {
    Auto,
    Always,
    Never,
    AutoquicCompat,
}

/// Route to a directory or another server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouteConfig {
    pub(crate) path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathBuf>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "text",
        deserialize_with = "parsed"
    )]
    pub(crate) upstream: Option<Upstream>,
    /// Whether pages of other origins may write there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) cross_origin: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

pub(super) fn text<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

pub(super) fn parsed<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

impl FrontConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        for (key, value, least, most) in [
            ("threads", limits.threads as u64, 1, 64),
            ("connections", limits.connections as u64, 1, u64::MAX),
            ("connections_per_address", limits.connections_per_address as u64, 1, u64::MAX),
            ("streams", limits.streams.into(), 1, 65_535),
            ("head_bytes", limits.head_bytes as u64, 8192, 65_536),
            ("uri_bytes", limits.uri_bytes as u64, 64, 65_000),
            ("body_bytes", limits.body_bytes, 0, u64::MAX),
            ("head_secs", limits.head_secs, 1, 3600),
            ("body_secs", limits.body_secs, 1, 3600),
            ("idle_secs", limits.idle_secs, 1, 86_400),
            ("upstream_secs", limits.upstream_secs, 1, 86_400),
        ] {
            range(&format!("http.limits.{key}"), value, least, most)?;
        }
        range("http.api.requests_per_sec", self.api.requests_per_sec.into(), 1, 1_000_000)?;
        range("http.api.event_streams", self.api.event_streams as u64, 0, 65_536)?;
        let per_client = self.api.event_streams_per_client as u64;
        range("http.api.event_streams_per_client", per_client, 0, 65_536)?;
        for (key, names) in [("http.operators", &self.operators), ("http.viewers", &self.viewers)] {
            if names.iter().any(|name| name.is_empty() || name == "group:") {
                return Err(refused(key, "a name is empty: write a user, or group:NAME".to_owned()));
            }
        }
        let missing = match (&self.certificate, &self.key) {
            (Some(_), None) => Some("http.key"),
            (None, Some(_)) => Some("http.certificate"),
            _ => None,
        };
        if let Some(missing) = missing {
            return Err(refused(missing, "is missing: give certificate and key, or neither".to_owned()));
        }
        if self.certificate.is_some() && !self.tls {
            return Err(refused("http.certificate", "there is none without http.tls = true".to_owned()));
        }
        self.check_addresses()?;
        self.routes()?;
        self.check_effect()
    }

    /// Refuses keys without effect.
    fn check_effect(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty()
            && let Some(route) = self.route.first()
        {
            let problem = "nothing is served without http.listen: add an address, or remove the route";
            return Err(refused(&format!("http.route {}", route.path), problem.to_owned()));
        }
        let is_chosen = match self.autoquic.mode {
            AutoQuicMode::Always | AutoQuicMode::AutoquicCompat => Some("http.autoquic.mode"),
            AutoQuicMode::Auto | AutoQuicMode::Never => self.autoquic.port.map(|_| "http.autoquic.port"),
        };
        let missing = match (self.listen.is_empty(), self.tls, self.http3) {
            (true, ..) => "http.listen: add an address",
            (_, false, _) => "http.tls: set it to true",
            (_, _, false) => "http.http3: set it to true",
            _ => return Ok(()),
        };
        match is_chosen {
            Some(key) => {
                let problem = format!("there is no HTTP/3 to offer without {missing}, or remove this key");
                Err(refused(key, problem))
            }
            None => Ok(()),
        }
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        for (key, listen) in [("http.listen", &self.listen), ("http.api.listen", &self.api.listen)] {
            let exposed = listen.iter().find(|one| !one.ip().to_canonical().is_loopback());
            if let (false, Some(address)) = (self.tls, exposed) {
                let problem = format!(
                    "{address} is not on loopback, and nothing is encrypted: set http.tls = true, or listen on 127.0.0.1"
                );
                return Err(refused(key, problem));
            }
        }
        let is_common = |one: &SocketAddr, other: &SocketAddr| {
            let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
            one.port() == other.port() && one.port() != 0 && (is_any || one.ip() == other.ip())
        };
        match self.api.listen.iter().find(|one| self.listen.iter().any(|other| is_common(one, other))) {
            Some(address) => Err(refused(
                "http.api.listen",
                format!(
                    "{address} is an address of http.listen too: choose another port, or leave the key out"
                ),
            )),
            None => Ok(()),
        }
    }

    /// True if there is any address.
    pub(crate) fn is_on(&self) -> bool {
        !self.listen.is_empty() || !self.api.listen.is_empty()
    }

    /// True if pages of routes have the origin of the API.
    pub(crate) fn routes_share_origin(&self) -> bool {
        !self.route.is_empty() && !self.listen.is_empty() && self.api.listen.is_empty()
    }

    /// The routes, in the order of the file.
    pub(crate) fn routes(&self) -> Result<Vec<Route>, ConfigError> {
        self.route.iter().map(RouteConfig::route).collect()
    }

    pub(crate) fn limits(&self, drain_secs: u64) -> Limits {
        let limits = &self.limits;
        Limits {
            connections: limits.connections,
            connections_per_address: limits.connections_per_address,
            streams: limits.streams,
            head_bytes: limits.head_bytes,
            uri_bytes: limits.uri_bytes,
            body_bytes: limits.body_bytes,
            head_timeout: Duration::from_secs(limits.head_secs),
            body_timeout: Duration::from_secs(limits.body_secs),
            idle_timeout: Duration::from_secs(limits.idle_secs),
            upstream_timeout: Duration::from_secs(limits.upstream_secs),
            drain: Duration::from_secs(drain_secs),
        }
    }

    /// True if MQTT is served at `/mqtt` of each address.
    pub(crate) fn serves_mqtt(&self) -> bool {
        self.is_on() && self.mqtt.enabled
    }

    /// Addresses with MQTT at `/mqtt`.
    pub(super) fn mqtt_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let all = self.listen.iter().chain(&self.api.listen).copied();
        all.filter(|_| self.mqtt.enabled)
    }

    /// Policy of the clients of `/mqtt`.
    pub(crate) fn mqtt_policy(&self) -> ListenerPolicy {
        let MqttConfig { anonymous, tag, mountpoint, .. } = &self.mqtt;
        ListenerPolicy {
            // `None`: as `allow_anonymous` says.
            anonymous: anonymous.or((!self.api.anonymous).then_some(false)),
            tag: tag.clone(),
            mountpoint: mountpoint.as_ref().and_then(|mountpoint| mountpoint.0.clone()),
            ..ListenerPolicy::default()
        }
    }

    /// True if the certificate of `[tls]` is used.
    pub(crate) fn uses_common_certificate(&self) -> bool {
        self.tls && self.certificate.is_none() && self.is_on()
    }
}

impl Config {
    /// Refuses to leave open which name space clients of `/mqtt` have while those of a listener have one: without a
    /// mountpoint a user of that listener would reach all tenants.
    pub(super) fn check_front_mountpoint(&self) -> Result<(), ConfigError> {
        if !self.http.serves_mqtt() || self.http.mqtt.mountpoint.is_some() {
            return Ok(());
        }
        let mounted = |listener: &super::ListenerConfig| Some((listener.bind, listener.mountpoint.clone()?));
        let Some((bind, mountpoint)) = self.listener.iter().find_map(mounted) else { return Ok(()) };
        let problem = format!(
            "is missing: clients of listener {bind} have the mountpoint {mountpoint:?}, and at /mqtt of the HTTP front they \
             would be outside of it; set a mountpoint, \"\" for none, or http.mqtt.enabled=false",
            mountpoint = mountpoint.as_str()
        );
        Err(refused("http.mqtt.mountpoint", problem))
    }
}

impl RouteConfig {
    fn route(&self) -> Result<Route, ConfigError> {
        let place = format!("http.route {}", self.path);
        let target = match (&self.directory, &self.upstream) {
            (Some(directory), None) => RouteTarget::Directory(directory.clone()),
            (None, Some(upstream)) => RouteTarget::Upstream(upstream.clone()),
            _ => {
                return Err(refused(&place, "name either a directory or an upstream".to_owned()));
            }
        };
        let route = Route { cross_origin: self.cross_origin, ..Route::new(&*self.path, target) };
        route.check().map_err(|error| refused(&place, error.to_string()))?;
        Ok(route)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        match toml::from_str::<FrontConfig>(text) {
            Ok(config) => config.check().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_front_without_anonymous_operators_has_no_anonymous_clients() {
        for (text, expected) in [
            ("", None),
            ("api.anonymous = false", Some(false)),
            ("mqtt.anonymous = false", Some(false)),
            ("mqtt.anonymous = true", Some(true)),
            ("api.anonymous = false\nmqtt.anonymous = true", Some(true)),
        ] {
            let policy = toml::from_str::<FrontConfig>(text).unwrap().mqtt_policy();
            assert_eq!(policy.anonymous, expected, "{text}");
        }
    }

    #[test]
    fn mqtt_has_the_mountpoint_and_the_tag_of_the_configuration() {
        for (text, mountpoint, tag) in [
            ("", None, None),
            ("mqtt.mountpoint = ''", None, None),
            ("mqtt.mountpoint = 'users/%u/'\nmqtt.tag = 'web'", Some("users/%u/"), Some("web")),
        ] {
            let config = toml::from_str::<FrontConfig>(text).unwrap();
            let policy = config.mqtt_policy();
            assert_eq!(policy.mountpoint.as_ref().map(MountpointTemplate::as_str), mountpoint, "{text}");
            assert_eq!(policy.tag.as_deref(), tag, "{text}");
            let again = toml::from_str::<FrontConfig>(&toml::to_string(&config).unwrap()).unwrap();
            assert_eq!(again, config, "an empty mountpoint stays a choice");
        }
        assert!(error("mqtt.mountpoint = 'acme'").contains("a mountpoint must end with '/'"));
    }

    #[test]
    fn the_front_says_which_mountpoint_clients_have_where_a_listener_has_one() {
        let check = |mountpoint: &str, http: &str| {
            let listener = "[[listener]]\ntransport = 'tcp'\nbind = '127.0.0.1:1'\n";
            let text = format!("{listener}{mountpoint}\n[http]\n{http}\n");
            let config = toml::from_str::<Config>(&text).unwrap();
            config.check().map_err(|error| error.to_string())
        };
        let mounted = "mountpoint = 'users/%u/'";
        for http in ["listen = ['127.0.0.1:2']", "api.listen = ['127.0.0.1:2']"] {
            let error = check(mounted, http).unwrap_err();
            assert!(
                error.starts_with("http.mqtt.mountpoint: is missing: clients of listener 127.0.0.1:1 have")
                    && error.ends_with("set a mountpoint, \"\" for none, or http.mqtt.enabled=false")
                    && !error.contains('\n'),
                "{error}"
            );
            for more in ["mqtt.mountpoint = ''", "mqtt.mountpoint = 'web/'", "mqtt.enabled = false"] {
                assert_eq!(check(mounted, &format!("{http}\n{more}")), Ok(()));
            }
            assert_eq!(check("", http), Ok(()));
        }
        assert_eq!(check(mounted, ""), Ok(()), "there is no front");
    }

    #[test]
    fn values_are_checked() {
        for (text, expected) in [
            ("listen = ['0.0.0.0:1']", "http.listen: 0.0.0.0:1 is not on loopback"),
            ("api.listen = ['[::]:1']", "http.api.listen: [::]:1 is not on loopback"),
            (
                "tls = true\nlisten = ['0.0.0.0:1']\napi.listen = ['127.0.0.1:2', '127.0.0.1:1']",
                "http.api.listen: 127.0.0.1:1 is an address of http.listen too",
            ),
            ("tls = true\ncertificate = 'a'", "http.key: is missing"),
            ("certificate = 'a'\nkey = 'b'", "http.certificate: there is none without http.tls"),
            (
                "limits.head_bytes = 100",
                "http.limits.head_bytes: 100 is out of range; it may be 8192 to 65536",
            ),
            ("operators = ['']", "http.operators: a name is empty"),
            ("viewers = ['group:']", "http.viewers: a name is empty"),
            ("api.requests_per_sec = 0", "http.api.requests_per_sec: 0 is out of range"),
            ("api.event_streams = 70000", "http.api.event_streams: 70000 is out of range"),
            (
                "api.event_streams_per_client = 70000",
                "http.api.event_streams_per_client: 70000 is out of range",
            ),
            (
                "autoquic.mode = 'on'",
                "unknown variant `on`, expected one of `auto`, `always`, `never`, `autoquic-compat`",
            ),
            ("autoquic.port = 0", "expected a nonzero u16"),
            ("[[route]]\npath = '/a'", "http.route /a: name either a directory or an upstream"),
            ("[[route]]\npath = '/api/x'\ndirectory = 'd'", "is a path of the broker's own"),
            ("[[route]]\npath = '/a'\nupstream = 'https://a'", "write http://HOST:PORT"),
            ("[[route]]\npath = '/a'\nupstraem = 'x'", "unknown field"),
            (
                "[[route]]\npath = '/a'\ndirectory = '/b'",
                "http.route /a: nothing is served without http.listen: add an address, or remove the route",
            ),
            ("autoquic.mode = 'always'", "there is no HTTP/3 to offer without http.listen"),
            (
                "listen = ['127.0.0.1:1']\nautoquic.mode = 'always'",
                "http.autoquic.mode: there is no HTTP/3 to offer without http.tls: set it to true, or remove this key",
            ),
            (
                "listen = ['127.0.0.1:1']\ntls = true\nhttp3 = false\nautoquic.mode = 'autoquic-compat'",
                "http.autoquic.mode: there is no HTTP/3 to offer without http.http3",
            ),
            (
                "listen = ['127.0.0.1:1']\nautoquic.port = 443",
                "http.autoquic.port: there is no HTTP/3 to offer without http.tls",
            ),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
        let text = "listen = ['127.0.0.1:1']\n[[route]]\npath = '/a'\nupstream = 'http://localhost:1'\ncross_origin = true\n";
        let config: FrontConfig = toml::from_str(text).unwrap();
        assert!(config.check().is_ok());
        for text in
            ["autoquic.mode = 'never'", "listen = ['127.0.0.1:1']\ntls = true\nautoquic.mode = 'always'"]
        {
            assert!(toml::from_str::<FrontConfig>(text).unwrap().check().is_ok(), "{text}");
        }
        assert!(config.routes().unwrap()[0].cross_origin);
        assert_eq!(toml::from_str::<FrontConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
}
