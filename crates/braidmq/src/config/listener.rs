//! Keys of listeners with a policy of their own: `[[listener]]`.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;

use braid_broker::{ListenerPolicy, MountpointTemplate};
use braid_transport::Transport;
use braid_transport::proxy::Network;
use serde::{Deserialize, Serialize};

use super::{ClientAuthConfig, Config, ConfigError};

/// Listener with a policy of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListenerConfig {
    /// Transport of its bytes.
    pub(crate) transport: ListenerTransport,
    /// Address, `HOST:PORT` with an IP address as host.
    pub(crate) bind: SocketAddr,
    /// Tag that rules of the access control list refer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<Box<str>>,
    /// Whether clients without credentials may connect; absent: as `allow_anonymous` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) anonymous: Option<bool>,
    /// Whether clients may ask for priorities.
    #[serde(default = "yes")]
    pub(crate) priorities: bool,
    /// Whether clients may open data streams on QUIC.
    #[serde(default = "yes")]
    pub(crate) streams: bool,
    /// Connections at a time; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connections: Option<NonZeroU64>,
    /// Name space of the clients; `%u` and `%c` stand for user name and Client Identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mountpoint: Option<MountpointTemplate>,
    /// Addresses of proxies, whose connections begin with a header of the PROXY protocol.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) proxy_trusted: Vec<String>,
    /// Client certificates; absent: as `tls.client_auth` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_auth: Option<ClientAuthConfig>,
    /// PEM file with the authorities of client certificates; absent: as `tls.client_ca` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_ca: Option<PathBuf>,
}

const fn yes() -> bool {
    true
}

/// Transport of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListenerTransport {
    Tcp,
    Tls,
    Ws,
    Wss,
    Quic,
}

impl From<ListenerTransport> for Transport {
    fn from(transport: ListenerTransport) -> Self {
        match transport {
            ListenerTransport::Tcp => Self::Tcp,
            ListenerTransport::Tls => Self::Tls,
            ListenerTransport::Ws => Self::Ws,
            ListenerTransport::Wss => Self::Wss,
            ListenerTransport::Quic => Self::Quic,
        }
    }
}

impl ListenerConfig {
    pub(crate) fn policy(&self) -> ListenerPolicy {
        ListenerPolicy {
            tag: self.tag.clone(),
            anonymous: self.anonymous,
            ignores_priorities: !self.priorities,
            connections: self.connections.map(NonZeroU64::get),
            mountpoint: self.mountpoint.clone(),
        }
    }

    /// Addresses of the proxies.
    pub(crate) fn proxies(&self) -> Result<Vec<Network>, ConfigError> {
        let parse = |text: &String| text.parse().map_err(|problem| self.refused("proxy_trusted", problem));
        self.proxy_trusted.iter().map(parse).collect()
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let is_quic = self.transport == ListenerTransport::Quic;
        let is_encrypted = Transport::from(self.transport).is_encrypted();
        self.proxies()?;
        if is_quic && !self.proxy_trusted.is_empty() {
            let problem = "the PROXY protocol is for transports over TCP; remove the key".to_owned();
            return Err(self.refused("proxy_trusted", problem));
        }
        if !is_quic && !self.streams {
            return Err(self.refused("streams", "only QUIC has data streams; remove the key".to_owned()));
        }
        if !is_encrypted && (self.client_auth.is_some() || self.client_ca.is_some()) {
            let problem =
                "there are no certificates without TLS; remove the key, or use tls, wss or quic".to_owned();
            return Err(self.refused("client_auth", problem));
        }
        Ok(())
    }

    fn refused(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Refused { place: format!("listener {} {key}", self.bind), problem }
    }
}

impl Config {
    /// Transports and addresses of all listeners.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (Transport, SocketAddr)> {
        let plain = self.listeners.by_transport().into_iter();
        let plain = plain.flat_map(|(transport, all)| all.iter().map(move |address| (transport, *address)));
        plain.chain(self.listener.iter().map(|one| (one.transport.into(), one.bind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_has_a_mountpoint_or_its_error_names_the_rule() {
        let parse = |text: &str| {
            toml::from_str::<ListenerConfig>(&format!(
                "transport = \"tcp\"\nbind = \"127.0.0.1:1\"\nmountpoint = \"{text}\"\n"
            ))
        };
        let policy = parse("users/%u/").expect("a mountpoint").policy();
        assert_eq!(policy.mountpoint.as_ref().map(MountpointTemplate::as_str), Some("users/%u/"));
        for (text, problem) in [
            ("acme", "a mountpoint must end with '/'"),
            ("", "a mountpoint must not be empty"),
            ("$SYS/", "a mountpoint must not begin with '$'"),
            ("a/#/", "a mountpoint must not contain the wildcards '+' or '#'"),
            ("users-%u/", "%u and %c must stand alone between slashes in a mountpoint, as in tenants/%u/"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(problem) && error.contains("line 3"), "{error}");
        }
    }
}
