//! Server side of TLS: configurations from files, replaced as a whole on reload.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::danger::ClientCertVerifier;
use rustls::server::{Acceptor, ServerSessionMemoryCache, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::keylog::KeyFile;
use super::{ALPN_HTTP, ALPN_MQTT, provider};
use crate::certificate::{CertificateFiles, add_roots, read_certificates, read_private_key};
use crate::error::{CertificateError, HandshakeError};
use crate::transport::Transport;

/// Sessions a server remembers for resumption; each costs some hundred bytes.
const SESSIONS: usize = 1024;

/// Authentication of clients by certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// No request for a certificate.
    #[default]
    None,
    /// Request; a client that sends a certificate must have it signed by this CA.
    Optional {
        /// PEM file with the authorities.
        ca: PathBuf,
    },
    /// Without a certificate signed by this CA there is no connection.
    Required {
        /// PEM file with the authorities.
        ca: PathBuf,
    },
}

/// Certificate of a server, and its demands on clients.
#[derive(Clone, Debug)]
pub struct ServerTlsOptions {
    /// The server's certificate.
    pub files: CertificateFiles,
    /// Authentication of clients.
    pub client_auth: ClientAuth,
    /// File to append the secrets of all sessions to, in the format of `SSLKEYLOGFILE`. A reader of it can decrypt all
    /// traffic. If it cannot be written, the log says so, and connections work.
    pub key_log: Option<PathBuf>,
}

/// TLS of a server. Clones share one configuration, so one [`reload`](Self::reload) reaches every listener that was
/// bound with a clone.
#[derive(Clone, Debug)]
pub struct ServerTls {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ServerTlsOptions,
    key_log: Option<Arc<KeyFile>>,
    /// A std lock: it is held for a pointer's copy, never across an await.
    current: RwLock<Configs>,
}

/// One rustls configuration per application protocol. rustls refuses a client that offers other
/// protocols than ours; on TCP we would rather ignore them, so the choice is made per client.
#[derive(Clone, Debug)]
struct Configs {
    any: Arc<ServerConfig>,
    mqtt: Arc<ServerConfig>,
    http: Arc<ServerConfig>,
    quic: Arc<ServerConfig>,
}

impl ServerTls {
    /// Reads the files; sessions' secrets are not logged.
    ///
    /// # Errors
    /// A file cannot be read or used; the message names it.
    pub fn load(files: CertificateFiles, client_auth: ClientAuth) -> Result<Self, CertificateError> {
        Self::new(ServerTlsOptions { files, client_auth, key_log: None })
    }

    /// Reads the files.
    ///
    /// # Errors
    /// A certificate, key or CA file cannot be read or used; the message names it.
    pub fn new(options: ServerTlsOptions) -> Result<Self, CertificateError> {
        let key_log = options.key_log.as_deref().map(|path| Arc::new(KeyFile::open(path)));
        let current = RwLock::new(Configs::load(&options, key_log.as_ref())?);
        Ok(Self { shared: Arc::new(Shared { options, key_log, current }) })
    }

    /// Reads the same files again. Handshakes that begin from now on see the new certificate;
    /// connections that exist stay as they are.
    ///
    /// # Errors
    /// A file cannot be read or used; the configuration in use stays.
    pub fn reload(&self) -> Result<(), CertificateError> {
        let shared = &*self.shared;
        let configs = Configs::load(&shared.options, shared.key_log.as_ref())?;
        // Poisoning is harmless: the configurations are replaced as a whole.
        *shared.current.write().unwrap_or_else(PoisonError::into_inner) = configs;
        Ok(())
    }

    /// Files of certificate and key.
    #[must_use]
    pub fn files(&self) -> &CertificateFiles {
        &self.shared.options.files
    }

    /// True if clients are asked for a certificate.
    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.shared.options.client_auth != ClientAuth::None
    }

    /// The configuration for QUIC: TLS 1.3, and nothing but MQTT.
    pub(crate) fn quic(&self) -> Arc<ServerConfig> {
        self.current().quic
    }

    /// The server's side of a TLS handshake: names the application protocol if the client offers it, else none.
    pub(crate) async fn accept(
        &self,
        io: TcpStream,
        transport: Transport,
    ) -> Result<TlsStream<TcpStream>, HandshakeError> {
        let Configs { any, mqtt, http, .. } = self.current();
        let (alpn, named) = if transport.is_websocket() { (ALPN_HTTP, http) } else { (ALPN_MQTT, mqtt) };
        let start = LazyConfigAcceptor::new(Acceptor::default(), io).await.map_err(refused)?;
        let offered = start.client_hello().alpn();
        let offers_it = offered.is_some_and(|mut offered| offered.any(|name| name == alpn.as_bytes()));
        start.into_stream(if offers_it { named } else { any }).await.map_err(refused)
    }

    fn current(&self) -> Configs {
        // As in `reload`.
        self.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Configs {
    fn load(options: &ServerTlsOptions, key_log: Option<&Arc<KeyFile>>) -> Result<Self, CertificateError> {
        let ServerTlsOptions { files, client_auth, .. } = options;
        let config = |versions| -> Result<ServerConfig, CertificateError> {
            let mut config = server_config(files, client_auth, versions)?;
            if let Some(key_log) = key_log {
                config.key_log = Arc::<KeyFile>::clone(key_log);
            }
            Ok(config)
        };
        let base = config(rustls::ALL_VERSIONS)?;
        let with_alpn = |name: &str| {
            let mut config = base.clone();
            config.alpn_protocols = vec![name.as_bytes().to_vec()];
            Arc::new(config)
        };
        let mut quic = config(&[&rustls::version::TLS13])?;
        quic.alpn_protocols = vec![ALPN_MQTT.as_bytes().to_vec()];
        Ok(Self {
            mqtt: with_alpn(ALPN_MQTT),
            http: with_alpn(ALPN_HTTP),
            any: Arc::new(base),
            quic: Arc::new(quic),
        })
    }
}

fn server_config(
    files: &CertificateFiles,
    client_auth: &ClientAuth,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ServerConfig, CertificateError> {
    let chain = read_certificates(&files.certificate)?;
    let key = read_private_key(&files.key)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(|error| CertificateError::config(&error))?;
    let builder = match client_verifier(client_auth)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => CertificateError::mismatch(files),
        rustls::Error::InvalidCertificate(_) => CertificateError::unusable(&files.certificate, &error),
        error => CertificateError::unusable(&files.key, &error),
    })?;
    // A new store each time: a session that began under another CA must not be resumed under this one.
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    Ok(config)
}

fn client_verifier(auth: &ClientAuth) -> Result<Option<Arc<dyn ClientCertVerifier>>, CertificateError> {
    let (ca, optional) = match auth {
        ClientAuth::None => return Ok(None),
        ClientAuth::Optional { ca } => (ca, true),
        ClientAuth::Required { ca } => (ca, false),
    };
    let mut roots = RootCertStore::empty();
    add_roots(&mut roots, ca)?;
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    builder.build().map(Some).map_err(|error| CertificateError::unusable(ca, &error))
}

/// Error of a handshake: tokio-rustls wraps TLS errors in I/O errors.
fn refused(error: std::io::Error) -> HandshakeError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => HandshakeError::Tls(tls.to_string()),
        None => HandshakeError::Io(error),
    }
}
