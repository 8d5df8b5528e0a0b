//! Listeners and certificate of the broker, from its configuration.

use std::net::{SocketAddr, ToSocketAddrs};

use braid_broker::BrokerListener;
use braid_transport::{
    CertificateFiles, ClientAuth, ListenOptions, Listener, ListenerKind, ServerTls, ServerTlsOptions,
    Transport, is_self_signed_there, self_signed,
};

use super::StartError;
use crate::client::key_log;
use crate::config::{ClientAuthConfig, Config};

/// Certificate of the broker.
pub(super) struct Certificate {
    pub(super) tls: ServerTls,
    pub(super) fingerprint: String,
    /// Made by the broker: clients need it as a CA file.
    pub(super) is_self_signed: bool,
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
    let listeners = config.listeners.by_transport();
    listeners.iter().any(|(transport, addresses)| transport.is_encrypted() && !addresses.is_empty())
}

/// True if [`certificate`] writes to the data directory.
pub(super) fn makes_certificate(config: &Config) -> bool {
    let is_ours = config.tls.certificate.is_none() && config.tls.key.is_none();
    needs_certificate(config) && is_ours && !is_self_signed_there(&config.data_dir)
}

/// The certificate for TLS, secure WebSocket and QUIC; `None` when no listener needs one.
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
    let ca = || config.tls.client_ca.clone().ok_or(StartError::NoClientCa);
    let client_auth = match config.tls.client_auth {
        ClientAuthConfig::None => ClientAuth::None,
        ClientAuthConfig::Optional => ClientAuth::Optional { ca: ca()? },
        ClientAuthConfig::Required => ClientAuth::Required { ca: ca()? },
    };
    let fingerprint = files.fingerprint_sha256()?;
    let tls =
        ServerTls::new(ServerTlsOptions { client_auth, key_log: key_log(), ..ServerTlsOptions::new(files) })?;
    Ok(Some(Certificate { tls, fingerprint, is_self_signed }))
}

/// Binds every listener, or none if one of them fails.
pub(super) fn listeners(config: &Config, tls: Option<&ServerTls>) -> Result<Vec<BrokerListener>, StartError> {
    let mut options = ListenOptions { quic: config.quic_options(), ..ListenOptions::default() };
    // Room for the largest packet in one frame, as most clients send it.
    options.websocket.max_frame_bytes = config.mqtt.maximum_packet_size as usize + 5;
    options.websocket.origins = (!config.allow_anonymous).then(|| config.websocket.origins.clone());
    let mut listeners = Vec::new();
    for (transport, addresses) in config.listeners.by_transport() {
        let Some(kind) = kind(transport, tls) else { continue };
        for address in addresses {
            listeners.push(Listener::bind(kind.clone(), *address, &options)?.into());
        }
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
