//! Client side of TLS: verification of servers, and the client's own certificate.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError as CertificateDefect, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error,
    RootCertStore, SignatureScheme, SupportedProtocolVersion,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::keylog::KeyFile;
use super::{ALPN_HTTP, ALPN_MQTT, provider, quic_provider};
use crate::certificate::{CertificateFiles, add_roots, read_certificates, read_private_key};
use crate::error::{CertificateError, ConnectError};
use crate::transport::Transport;

/// Verification of servers, and the client's identity. The default trusts the system's CAs.
#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    /// PEM files with the trusted authorities, in place of the system's.
    pub ca_files: Vec<PathBuf>,
    /// The client's own certificate, for servers that ask for one.
    pub identity: Option<CertificateFiles>,
    /// Does not check the name in the certificate. With `ca_files` one of these must have signed it; without them any
    /// certificate is trusted. Only for tests then: an attacker in between can read and change everything.
    pub insecure: bool,
    /// The name that the server's certificate must have, in place of the target's host.
    pub server_name: Option<String>,
    /// The application protocols to offer, in place of `mqtt` on QUIC, none on TLS and
    /// `http/1.1` on secure WebSocket.
    pub alpn: Vec<String>,
    /// File to append the secrets of all sessions to, in the format of `SSLKEYLOGFILE`. A reader of it can decrypt all
    /// traffic. If it cannot be written, the log says so, and connections work.
    pub key_log: Option<PathBuf>,
}

/// Tickets of [`ClientTls::with_own_sessions`], enough for one server.
const OWN_SESSIONS: usize = 8;

/// A client's TLS configuration. Clones share it, and with it the sessions to resume.
///
/// Files are read on the first secure connection, so a plain one needs none of them.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    options: ClientTlsOptions,
    /// Configuration whose files this one uses; `None` if it reads them itself.
    base: Option<ClientTls>,
    mqtt: OnceLock<Arc<ClientConfig>>,
    http: OnceLock<Arc<ClientConfig>>,
    quic: OnceLock<Arc<ClientConfig>>,
    /// Like `quic`, with its sessions, and early data.
    quic_early: OnceLock<Arc<ClientConfig>>,
    key_log: OnceLock<Arc<KeyFile>>,
    /// The addresses that sessions to resume came from.
    resumable: Mutex<HashMap<(String, u16), SocketAddr>>,
}

impl ClientTls {
    /// A configuration that is checked when it is first used, or by [`check`](Self::check).
    #[must_use]
    pub fn new(options: ClientTlsOptions) -> Self {
        Self { shared: Arc::new(Shared { options, ..Shared::default() }) }
    }

    /// Configuration with these files and options, and sessions of its own: another client of the same program.
    #[must_use]
    pub fn with_own_sessions(&self) -> Self {
        let (options, base) = (self.shared.options.clone(), Some(self.clone()));
        Self { shared: Arc::new(Shared { options, base, ..Shared::default() }) }
    }

    /// Reads the files now, so that a wrong one is known before anything is connected.
    ///
    /// # Errors
    /// A file cannot be read or used; the message names it.
    pub fn check(&self) -> Result<(), CertificateError> {
        self.quic().map(drop)
    }

    /// The configuration for QUIC: TLS 1.3, and nothing but MQTT unless options say otherwise.
    pub(crate) fn quic(&self) -> Result<Arc<ClientConfig>, CertificateError> {
        let versions = &[&rustls::version::TLS13];
        self.config(|shared| &shared.quic, quic_provider, versions, Some(ALPN_MQTT))
    }

    /// As [`quic`](Self::quic), with early data if there is a session to resume.
    pub(crate) fn quic_early(&self) -> Result<Arc<ClientConfig>, CertificateError> {
        let slot = &self.shared.quic_early;
        if let Some(config) = slot.get() {
            return Ok(Arc::clone(config));
        }
        let mut config = ClientConfig::clone(&*self.quic()?);
        config.enable_early_data = true;
        Ok(Arc::clone(slot.get_or_init(|| Arc::new(config))))
    }

    /// Address of the last QUIC connection with `host` and `port`. Early data goes to no other: it is sent before any
    /// answer.
    pub(crate) fn resumable(&self, host: &str, port: u16) -> Option<SocketAddr> {
        self.resumable_by_target().get(&(host.to_owned(), port)).copied()
    }

    pub(crate) fn set_resumable(&self, host: &str, port: u16, address: SocketAddr) {
        self.resumable_by_target().insert((host.to_owned(), port), address);
    }

    pub(crate) fn forget_resumable(&self, host: &str, port: u16) {
        self.resumable_by_target().remove(&(host.to_owned(), port));
    }

    fn resumable_by_target(&self) -> MutexGuard<'_, HashMap<(String, u16), SocketAddr>> {
        // Poisoning is harmless: each change is one insertion or removal.
        self.shared.resumable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The application protocols that QUIC offers, for messages.
    pub(crate) fn quic_alpn(&self) -> String {
        let alpn = &self.shared.options.alpn;
        if alpn.is_empty() { ALPN_MQTT.to_owned() } else { alpn.join(", ") }
    }

    /// The client's side of a TLS handshake.
    pub(crate) async fn connect<T: AsyncRead + AsyncWrite + Unpin>(
        &self,
        io: T,
        host: &str,
        transport: Transport,
    ) -> Result<TlsStream<T>, ConnectError> {
        let (slot, alpn): (Slot, _) = if transport.is_websocket() {
            (|shared| &shared.http, Some(ALPN_HTTP))
        } else {
            (|shared| &shared.mqtt, None)
        };
        let config = self.config(slot, provider, rustls::ALL_VERSIONS, alpn)?;
        self.warn_if_insecure(host);
        let name = self.server_name(host);
        let name =
            ServerName::try_from(name).map_err(|_| ConnectError::ServerName(name.to_owned()))?.to_owned();
        TlsConnector::from(config).connect(name, io).await.map_err(|error| io_error(host, &error))
    }

    /// The name that the server must prove to have.
    pub(crate) fn server_name<'a>(&'a self, host: &'a str) -> &'a str {
        self.shared.options.server_name.as_deref().unwrap_or(host)
    }

    /// Warns if the connection can be read by an attacker in between.
    pub(crate) fn warn_if_insecure(&self, host: &str) {
        let options = &self.shared.options;
        if options.insecure && options.ca_files.is_empty() {
            tracing::warn!(host, "the server's certificate is NOT verified (insecure): for tests only");
        }
    }

    fn config(
        &self,
        slot: Slot,
        provider: fn() -> Arc<CryptoProvider>,
        versions: &[&'static SupportedProtocolVersion],
        alpn: Option<&str>,
    ) -> Result<Arc<ClientConfig>, CertificateError> {
        let own = slot(&self.shared);
        if let Some(config) = own.get() {
            return Ok(Arc::clone(config));
        }
        if let Some(base) = &self.shared.base {
            let mut config = ClientConfig::clone(&*base.config(slot, provider, versions, alpn)?);
            config.resumption = Resumption::in_memory_sessions(OWN_SESSIONS);
            return Ok(Arc::clone(own.get_or_init(|| Arc::new(config))));
        }
        let options = &self.shared.options;
        let mut config = client_config(options, provider(), versions)?;
        if let Some(path) = &options.key_log {
            let file = self.shared.key_log.get_or_init(|| Arc::new(KeyFile::open(path)));
            config.key_log = Arc::<KeyFile>::clone(file);
        }
        config.alpn_protocols = if options.alpn.is_empty() {
            alpn.into_iter().map(|name| name.as_bytes().to_vec()).collect()
        } else {
            options.alpn.iter().map(|name| name.as_bytes().to_vec()).collect()
        };
        Ok(Arc::clone(own.get_or_init(|| Arc::new(config))))
    }
}

/// Place of one of the configurations.
type Slot = fn(&Shared) -> &OnceLock<Arc<ClientConfig>>;

fn client_config(
    options: &ClientTlsOptions,
    provider: Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ClientConfig, CertificateError> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| CertificateError::config(&error))?;
    let builder = if options.insecure {
        let with_roots = |roots: RootCertStore| {
            let issuers = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
            issuers.build().map_err(|error| CertificateError::config(&error))
        };
        let issuers =
            (!options.ca_files.is_empty()).then(|| roots(options).and_then(with_roots)).transpose()?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(UnnamedServer { provider, issuers }))
    } else {
        builder.with_root_certificates(roots(options)?)
    };
    identify(builder, options.identity.as_ref())
}

fn identify(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: Option<&CertificateFiles>,
) -> Result<ClientConfig, CertificateError> {
    let Some(files) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = read_certificates(&files.certificate)?;
    let key = read_private_key(&files.key)?;
    builder.with_client_auth_cert(chain, key).map_err(|error| match error {
        Error::InconsistentKeys(_) => CertificateError::mismatch(files),
        error => CertificateError::unusable(&files.key, &error),
    })
}

fn roots(options: &ClientTlsOptions) -> Result<RootCertStore, CertificateError> {
    let mut roots = RootCertStore::empty();
    for path in &options.ca_files {
        add_roots(&mut roots, path)?;
    }
    if options.ca_files.is_empty() {
        let native = rustls_native_certs::load_native_certs();
        let (added, _ignored) = roots.add_parsable_certificates(native.certs);
        if added == 0 {
            let reason =
                native.errors.first().map_or_else(|| "none are installed".to_owned(), ToString::to_string);
            return Err(CertificateError(format!(
                "no CA certificates found on this system ({reason}): give the server's CA with --cafile"
            )));
        }
    }
    Ok(roots)
}

// === Errors ===

/// Error of a handshake: tokio-rustls wraps TLS errors in I/O errors.
fn io_error(host: &str, error: &io::Error) -> ConnectError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(tls) => tls_error(host, tls),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            ConnectError::tls(host, "the server closed the connection; is this its TLS port?")
        }
        None => ConnectError::tls(host, error),
    }
}

pub(crate) fn tls_error(host: &str, error: &Error) -> ConnectError {
    use CertificateDefect as Defect;
    let wrong_name = |reason| ConnectError::WrongName { host: host.to_owned(), reason };
    let expired = |reason| {
        ConnectError::Other(format!(
            "the certificate of {host} is not valid at this time ({reason}): renew it, or check the clock"
        ))
    };
    let defect = match error {
        Error::InvalidCertificate(defect) => defect,
        Error::InvalidMessage(_) => {
            return ConnectError::tls(host, "the answer is not TLS; is this the port of a plain listener?");
        }
        error => return ConnectError::tls(host, error),
    };
    match defect {
        Defect::UnknownIssuer | Defect::BadSignature => ConnectError::NotTrusted(host.to_owned()),
        Defect::NotValidForName => wrong_name("the certificate does not name it".to_owned()),
        Defect::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            wrong_name("it has no names".to_owned())
        }
        Defect::NotValidForNameContext { presented, .. } => wrong_name(presented.join(", ")),
        Defect::Expired | Defect::ExpiredContext { .. } => expired("it has expired"),
        Defect::NotValidYet | Defect::NotValidYetContext { .. } => expired("it begins later"),
        defect => ConnectError::tls(host, format_args!("certificate: {defect}")),
    }
}

// === Insecure ===

/// Verifier for `insecure`: accepts a certificate with any name whose key the peer proves to own.
#[derive(Debug)]
struct UnnamedServer {
    provider: Arc<CryptoProvider>,
    /// Authorities of which one must have signed the certificate; `None`: any issuer is accepted.
    issuers: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for UnnamedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateDefect::{NotValidForName, NotValidForNameContext};
        let Some(issuers) = &self.issuers else { return Ok(ServerCertVerified::assertion()) };
        match issuers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last, after signatures and dates.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
