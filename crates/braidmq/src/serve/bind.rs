use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use braid_transport::{
    CertificateFiles, ClientAuth, ListenOptions, Listener, ListenerKind, ServerTls, ServerTlsOptions,
    is_self_signed_there, self_signed,
};

use super::StartError;
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

const fn needs_certificate(config: &Config) -> bool {
    let listeners = &config.listeners;
    !(listeners.tls.is_empty() && listeners.wss.is_empty() && listeners.quic.is_empty())
}

/// Whether [`certificate`] writes to the data directory.
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
    let tls = ServerTls::new(ServerTlsOptions { files, client_auth, key_log: key_log() })?;
    Ok(Some(Certificate { tls, fingerprint, is_self_signed }))
}

/// The file for the secrets of TLS sessions that `SSLKEYLOGFILE` names, as in browsers and curl.
fn key_log() -> Option<PathBuf> {
    std::env::var_os("SSLKEYLOGFILE").filter(|name| !name.is_empty()).map(PathBuf::from)
}

/// Binds every listener, or none if one of them fails.
pub(super) fn listeners(config: &Config, tls: Option<&ServerTls>) -> Result<Vec<Listener>, StartError> {
    let mut options = ListenOptions { quic: config.quic_options(), ..ListenOptions::default() };
    // Room for the largest packet in one frame, as most clients send it.
    options.websocket.max_frame_bytes = config.mqtt.maximum_packet_size as usize + 5;
    options.websocket.origins = (!config.allow_anonymous).then(|| config.websocket.origins.clone());
    let addresses = &config.listeners;
    let mut listeners = Vec::new();
    let mut bind = |kind: ListenerKind, addresses: &[SocketAddr]| -> Result<(), StartError> {
        for address in addresses {
            listeners.push(Listener::bind(kind.clone(), *address, &options)?);
        }
        Ok(())
    };
    bind(ListenerKind::Tcp, &addresses.tcp)?;
    bind(ListenerKind::Ws, &addresses.ws)?;
    if let Some(tls) = tls {
        bind(ListenerKind::Tls(tls.clone()), &addresses.tls)?;
        bind(ListenerKind::Wss(tls.clone()), &addresses.wss)?;
        bind(ListenerKind::Quic(tls.clone()), &addresses.quic)?;
    }
    Ok(listeners)
}
