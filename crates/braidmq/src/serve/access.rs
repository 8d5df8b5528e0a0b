//! Access control of the broker, from its configuration.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use braid_access::hook::{Hook, HookOptions};
use braid_access::http::{Endpoint, HttpClient, HttpOptions, SecretHeader};
use braid_access::remote_keys::RemoteKeysOptions;
use braid_access::{
    AccessControl, AclFile, Certificates, Chain, FileError, HashPool, KeyFileKind, Link, Tokens, Users,
    read_file,
};
use braid_auth::bans::BanFileError;
use braid_auth::jwt::{ClaimCheck, ConnectValue, JwtOptions};
use thiserror::Error;

use crate::config::{AuthenticatorConfig, Config, HttpConfig, JwtConfig};

/// Length of the key of unknown users' salts.
const KEY_BYTES: usize = 32;

/// File of that key in the data directory.
const KEY_FILE: &str = "scram-key";

/// Longest header value, and longest key file, in bytes.
const MAX_SECRET_BYTES: usize = 16 << 10;

/// Refusal of the keys of access control: one line.
#[derive(Debug, Error)]
pub(crate) enum AccessError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("authenticator {number} ({kind}): {problem}")]
    Authenticator { number: usize, kind: &'static str, problem: String },
    #[error("{path}:{line}: {error}", path = .path.display(), line = .error.line)]
    Bans { path: PathBuf, error: BanFileError },
    #[error("{path}: the key cannot be made: {source}", path = .path.display())]
    Key { path: PathBuf, source: std::io::Error },
}

/// Tests whether [`open`] writes to the data directory.
pub(super) fn makes_key(config: &Config) -> bool {
    let is_password = |one: &AuthenticatorConfig| matches!(one, AuthenticatorConfig::Password(_));
    config.authenticator.iter().any(is_password)
}

/// Reads all files, and fetches keys, of the configured authenticators and rules.
pub(super) async fn open(config: &Config) -> Result<AccessControl, AccessError> {
    let pool = HashPool::default();
    let mut links = Vec::new();
    for (number, one) in (1..).zip(&config.authenticator) {
        let refused = |kind| move |problem: String| AccessError::Authenticator { number, kind, problem };
        links.push(match one {
            AuthenticatorConfig::Password(password) => {
                let key = unknown_user_key(&config.data_dir)?;
                Link::Password(Users::open(&password.file, pool.clone(), key)?)
            }
            AuthenticatorConfig::Jwt(jwt) => {
                Link::Token(Arc::new(tokens(jwt).await.map_err(refused("jwt"))?))
            }
            AuthenticatorConfig::X509(x509) => {
                Link::Certificate(Certificates { user: x509.user, client_id: x509.client_id })
            }
            AuthenticatorConfig::Http(http) => Link::Http(Arc::new(hook(http).map_err(refused("http"))?)),
        });
    }
    let list = config.acl.file.clone().map(|path| AclFile { path, format: config.acl.format });
    Ok(AccessControl::open(Chain::new(links, config.allow_anonymous), list)?)
}

/// The key of the data directory, which is made at the first start, and anew if its file has another length.
fn unknown_user_key(data_dir: &Path) -> Result<[u8; KEY_BYTES], AccessError> {
    let path = data_dir.join(KEY_FILE);
    let failed = |source| AccessError::Key { path: path.clone(), source };
    std::fs::create_dir_all(data_dir).map_err(failed)?;
    if path.try_exists().map_err(failed)? {
        let stored = read_file(&path, MAX_SECRET_BYTES)?;
        if let Ok(key) = <[u8; KEY_BYTES]>::try_from(stored.as_slice()) {
            return Ok(key);
        }
        // Nothing depends on one that was cut off. Left as it is, salts of unknown users would differ from start to
        // start, and those of known ones would not.
        tracing::warn!(
            "{} has {} bytes in place of {KEY_BYTES}: it is made anew",
            path.display(),
            stored.len()
        );
    }
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|error| failed(std::io::Error::other(error)))?;
    write_secret(&path, data_dir, &key).map_err(failed)?;
    Ok(key)
}

/// Writes a file for its owner only; a crash leaves the whole file or none.
fn write_secret(path: &Path, directory: &Path, secret: &[u8]) -> std::io::Result<()> {
    let mut whole = tempfile::Builder::new().prefix(".braidmq-").tempfile_in(directory)?;
    whole.write_all(secret)?;
    whole.as_file().set_permissions(Permissions::from_mode(0o600))?;
    whole.as_file().sync_all()?;
    whole.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

async fn tokens(config: &JwtConfig) -> Result<Tokens, String> {
    let options = jwt_options(config)?;
    let JwtConfig { secret_file, public_key_file, jwks_file, jwks_url, .. } = config;
    let file = |path, kind| Tokens::from_file(path, kind, options.clone()).map_err(|error| error.to_string());
    match (secret_file, public_key_file, jwks_file, jwks_url) {
        (Some(path), None, None, None) => file(path, KeyFileKind::Secret),
        (None, Some(path), None, None) => file(path, KeyFileKind::Pem),
        (None, None, Some(path), None) => file(path, KeyFileKind::Jwks),
        (None, None, None, Some(url)) => {
            let mut http = http_options(url, config.jwks_ca.as_deref(), false)?;
            http.max_body = braid_access::remote_keys::MAX_KEYS_BODY;
            let client = HttpClient::new(http).map_err(|error| error.to_string())?;
            let remote = RemoteKeysOptions {
                refresh: Duration::from_secs(config.refresh_secs),
                max_stale: Duration::from_secs(config.max_stale_secs),
            };
            Tokens::from_url(client, remote, options).await.map_err(|error| error.to_string())
        }
        _ => Err("name one of secret_file, public_key_file, jwks_file and jwks_url".to_owned()),
    }
}

fn jwt_options(config: &JwtConfig) -> Result<JwtOptions, String> {
    let claim = |name: &str| (!name.is_empty()).then(|| name.into());
    let check = |(claim, value): (&str, &str)| {
        let value = ConnectValue::parse(value).map_err(|error| format!("checks.{claim}: {error}"))?;
        Ok(ClaimCheck { claim: claim.into(), value })
    };
    Ok(JwtOptions {
        issuer: config.issuer.clone(),
        audience: (!config.audience.is_empty()).then(|| config.audience.clone()),
        leeway_secs: config.leeway_secs,
        require_expiry: config.require_expiry,
        required: config.required.clone(),
        checks: config
            .checks
            .iter()
            .map(|(claim, value)| check((claim, value)))
            .collect::<Result<_, String>>()?,
        user_claim: claim(&config.user_claim),
        client_id_claim: claim(&config.client_id_claim),
        groups_claim: claim(&config.groups_claim),
        permissions_claim: claim(&config.permissions_claim),
        mountpoint_claim: claim(&config.mountpoint_claim),
    })
}

fn hook(config: &HttpConfig) -> Result<Hook, String> {
    let mut http = http_options(&config.url, config.ca.as_deref(), config.allow_plain_http)?;
    http.timeout = Duration::from_millis(config.timeout_ms);
    for (name, path) in &config.header_files {
        let value = read_file(path, MAX_SECRET_BYTES).map_err(|error| error.to_string())?;
        let value =
            String::from_utf8(value).map_err(|_| format!("{}: the value is not UTF-8", path.display()))?;
        http.headers.push(SecretHeader { name: name.clone(), value: value.trim().to_owned() });
    }
    for (name, variable) in &config.header_env {
        let value = std::env::var(variable).map_err(|_| {
            format!("header_env.{name}: the environment variable {variable} is not set, or not UTF-8")
        })?;
        http.headers.push(SecretHeader { name: name.clone(), value });
    }
    let options =
        HookOptions { cache: Duration::from_secs(config.cache_secs), cache_entries: config.cache_entries };
    let client = HttpClient::new(http).map_err(|error| error.to_string())?;
    Hook::new(client, options).map_err(|error| error.to_string())
}

fn http_options(url: &str, ca: Option<&Path>, allow_plain_http: bool) -> Result<HttpOptions, String> {
    let endpoint = Endpoint::parse(url, allow_plain_http).map_err(|error| error.to_string())?;
    let mut options = HttpOptions::new(endpoint);
    options.tls.ca_files = ca.map(Path::to_owned).into_iter().collect();
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// With a key for each start, the salt of a user that is none would change, and so tell that it is none.
    #[test]
    fn the_key_of_unknown_users_outlasts_starts_whatever_its_file_was() {
        for before in [None, Some(0), Some(KEY_BYTES - 1), Some(KEY_BYTES + 1)] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join(KEY_FILE);
            if let Some(length) = before {
                fs::write(&path, vec![7; length]).unwrap();
            }
            let key = unknown_user_key(directory.path()).unwrap();
            assert_eq!(unknown_user_key(directory.path()).unwrap(), key, "{before:?}");
            assert_eq!(fs::read(&path).unwrap(), key);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
        }
    }
}
