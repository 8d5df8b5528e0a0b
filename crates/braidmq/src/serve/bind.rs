//! Listeners and certificate of the broker, from its configuration.

use std::net::{SocketAddr, ToSocketAddrs};

use braid_broker::BrokerListener;
use braid_transport::http::WebSocketUpgrades;
use braid_transport::proxy::ProxyOptions;
use braid_transport::{
    CertificateError, CertificateFiles, ClientAuth, ListenOptions, Listener, ListenerKind, ServerTls,
    ServerTlsOptions, TlsVersion, Transport, WebSocketOptions, self_signed,
};

use super::StartError;
use crate::client::key_log;
use crate::config::{AdditionalCertificate, ClientAuthConfig, Config, ListenerConfig, MinTlsVersion};

/// Certificate of the broker.
pub(super) struct Certificate {
    pub(super) tls: ServerTls,
    /// TLS with the client policies of listeners, in their order; `None` for those with the usual one.
    by_listener: Vec<Option<ServerTls>>,
    pub(super) fingerprint: String,
    /// Made by the broker: clients need it as a CA file.
    pub(super) is_self_signed: bool,
}

impl Certificate {
    fn all(&self) -> impl Iterator<Item = &ServerTls> {
        std::iter::once(&self.tls).chain(self.by_listener.iter().flatten())
    }

    /// Reads all files again, and changes nothing. To call what is returned puts them in force.
    pub(super) fn begin_reload(&self) -> Result<impl FnOnce(), CertificateError> {
        let all = self.all().map(ServerTls::begin_reload).collect::<Result<Vec<_>, _>>()?;
        Ok(|| all.into_iter().for_each(|put_in_force| put_in_force()))
    }
}

/// Parses the `HOST:PORT` addresses of an option. A name is resolved to all of its addresses.
pub(super) fn addresses(option: &'static str, given: &[String]) -> Result<Vec<SocketAddr>, StartError> {
    let mut all = Vec::new();
    for text in given {
        let refused = |problem: String| StartError::Address { option, given: text.clone(), problem };
        if text.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            return Err(refused(
                "write it as HOST:PORT, for example 127.0.0.1:1883 or [::1]:1883".to_owned(),
            ));
        }
        let resolved = text.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
        for address in resolved {
            if !all.contains(&address) {
                all.push(address);
            }
        }
    }
    Ok(all)
}

fn needs_certificate(config: &Config) -> bool {
    config.addresses().any(|(transport, _)| transport.is_encrypted()) || config.http.uses_common_certificate()
}

/// True if [`certificate`] writes to the data directory.
pub(super) fn makes_certificate(config: &Config) -> bool {
    let is_ours = config.tls.certificate.is_none() && config.tls.key.is_none();
    needs_certificate(config) && is_ours && !CertificateFiles::are_in(&config.data_dir)
}

/// The certificate for TLS, secure WebSocket, QUIC and HTTP; `None` when no listener needs one.
pub(super) fn certificate(config: &Config) -> Result<Option<Certificate>, StartError> {
    if !needs_certificate(config) {
        return Ok(None);
    }
    let (files, is_self_signed) = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => {
            (CertificateFiles { certificate: certificate.clone(), key: key.clone() }, false)
        }
        (None, None) => {
            let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
            (self_signed(&config.data_dir, &names)?, true)
        }
        (Some(_), None) => return Err(StartError::HalfPair { missing: "key" }),
        (None, Some(_)) => return Err(StartError::HalfPair { missing: "certificate" }),
    };
    let fingerprint = files.fingerprint_sha256()?;
    let by_listener = config.listener.iter().map(|listener| {
        let is_own = listener.client_auth.is_some() || listener.client_ca.is_some();
        is_own.then(|| tls(config, &files, Some(listener))).transpose()
    });
    let by_listener = by_listener.collect::<Result<_, _>>()?;
    Ok(Some(Certificate { tls: tls(config, &files, None)?, by_listener, fingerprint, is_self_signed }))
}

/// TLS with the client policy of a listener, or with the usual one.
fn tls(
    config: &Config,
    files: &CertificateFiles,
    listener: Option<&ListenerConfig>,
) -> Result<ServerTls, StartError> {
    let own_ca = listener.and_then(|listener| listener.client_ca.clone());
    let ca = || own_ca.or_else(|| config.tls.client_ca.clone()).ok_or(StartError::NoClientCa);
    let client_auth =
        match listener.and_then(|listener| listener.client_auth).unwrap_or(config.tls.client_auth) {
            ClientAuthConfig::None => ClientAuth::None,
            ClientAuthConfig::Optional => ClientAuth::Optional { ca: ca()? },
            ClientAuthConfig::Required => ClientAuth::Required { ca: ca()? },
        };
    // A listener that asks for no certificates has no use for revocation lists.
    let crl = if client_auth == ClientAuth::None && listener.is_some() {
        Vec::new()
    } else {
        config.tls.crl.clone()
    };
    Ok(ServerTls::new(ServerTlsOptions {
        files: files.clone(),
        additional: additional(config),
        client_auth,
        crl,
        min_version: min_version(config),
        alpn: config.tls.alpn.clone(),
        key_log: key_log(),
    })?)
}

/// Certificates that clients ask for by name.
pub(super) fn additional(config: &Config) -> Vec<CertificateFiles> {
    let pair = |one: &AdditionalCertificate| CertificateFiles {
        certificate: one.certificate.clone(),
        key: one.key.clone(),
    };
    config.tls.additional.iter().map(pair).collect()
}

pub(super) fn min_version(config: &Config) -> TlsVersion {
    match config.tls.min_version {
        MinTlsVersion::Tls12 => TlsVersion::V1_2,
        MinTlsVersion::Tls13 => TlsVersion::V1_3,
    }
}

fn websocket(config: &Config) -> WebSocketOptions {
    WebSocketOptions {
        // Room for the largest packet in one frame, as most clients send it.
        max_frame_bytes: config.mqtt.maximum_packet_size as usize + 5,
        origins: (!config.allow_anonymous).then(|| config.websocket.origins.clone()),
        ..WebSocketOptions::default()
    }
}

/// Adds the listener of WebSocket connections to the HTTP front, if it serves them, and returns their sender.
pub(super) fn upgrades(config: &Config, listeners: &mut Vec<BrokerListener>) -> Option<WebSocketUpgrades> {
    if !config.http.serves_mqtt() {
        return None;
    }
    let transport = if config.http.tls { Transport::Wss } else { Transport::Ws };
    let (listener, sender) = WebSocketUpgrades::listener(transport, websocket(config));
    listeners.push(BrokerListener { listener, policy: config.http.mqtt_policy() });
    Some(sender)
}

/// Binds every listener, or none if one of them fails.
pub(super) fn listeners(
    config: &Config,
    certificate: Option<&Certificate>,
) -> Result<Vec<BrokerListener>, StartError> {
    let (quic, websocket) = (config.quic_options()?, websocket(config));
    let options = ListenOptions { quic, websocket, ..ListenOptions::default() };
    let usual = certificate.map(|certificate| &certificate.tls);
    let mut listeners = Vec::new();
    for (transport, addresses) in config.listeners.by_transport() {
        let Some(kind) = kind(transport, usual) else { continue };
        for address in addresses {
            listeners.push(Listener::bind(kind.clone(), *address, &options)?.into());
        }
    }
    for (index, listener) in config.listener.iter().enumerate() {
        let own = certificate.and_then(|certificate| certificate.by_listener.get(index)?.as_ref());
        let Some(kind) = kind(listener.transport.into(), own.or(usual)) else { continue };
        let proxies = listener.proxies()?;
        let mut options = options.clone();
        options.proxy = (!proxies.is_empty()).then_some(ProxyOptions { trusted: proxies });
        if !listener.streams {
            (options.quic.bidi_streams, options.quic.uni_streams) = (1, 0);
        }
        let bound = Listener::bind(kind, listener.bind, &options)?;
        listeners.push(BrokerListener { listener: bound, policy: listener.policy() });
    }
    Ok(listeners)
}

/// `None` for a transport that has no address, or needs a certificate where there is none.
fn kind(transport: Transport, tls: Option<&ServerTls>) -> Option<ListenerKind> {
    Some(match transport {
        Transport::Tcp => ListenerKind::Tcp,
        Transport::Ws => ListenerKind::Ws,
        Transport::Tls => ListenerKind::Tls(tls?.clone()),
        Transport::Wss => ListenerKind::Wss(tls?.clone()),
        Transport::Quic => ListenerKind::Quic(tls?.clone()),
        Transport::Mem => return None,
    })
}
