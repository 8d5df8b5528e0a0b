//! Client of the REST API of a running broker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_access::http::{Endpoint, HttpClient, HttpOptions, SecretHeader};
use braid_access::read_file;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Exit code when the broker does not answer as it should.
const FAILED: u8 = 1;

/// Largest response, in bytes.
const MAX_RESPONSE: usize = 16 << 20;

/// Longest file with a password or token, in bytes.
const MAX_SECRET: usize = 16 << 10;

/// Options that name the broker and the user.
#[derive(clap::Args, Debug)]
pub(crate) struct ApiArgs {
    /// Address of the broker's API: that of http.api.listen, or else of http.listen
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:18083")]
    url: String,
    /// Log in as this user, with --password-file
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// File whose first line is the password
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    /// File whose first line is a JSON Web Token
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities that the broker's certificate is checked against [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// Runs a command, and prints the line of its failure.
pub(crate) fn run(command: impl Future<Output = Result<(), String>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => Err(format!("the system refuses an event queue: {error}")),
    };
    let Err(message) = outcome else { return ExitCode::SUCCESS };
    eprintln!("braidmq: {}", crate::printable::printable(&message));
    ExitCode::from(FAILED)
}

impl ApiArgs {
    /// Client of a resource below `/api/v1/`.
    pub(crate) fn client(&self, path: &str) -> Result<HttpClient, String> {
        let url = format!("{}/api/v1/{path}", self.url.trim_end_matches('/'));
        let endpoint = Endpoint::parse(&url, false).map_err(|error| format!("--url: {error}"))?;
        let mut options = HttpOptions::new(endpoint);
        options.max_body = MAX_RESPONSE;
        options.tls.ca_files = self.ca.iter().cloned().collect();
        let value = match (&self.user, &self.password_file, &self.token_file) {
            (Some(user), Some(file), _) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{}", first_line(file)?))))
            }
            (_, _, Some(file)) => Some(format!("Bearer {}", first_line(file)?)),
            _ => None,
        };
        options.headers.extend(value.map(|value| SecretHeader { name: "Authorization".to_owned(), value }));
        HttpClient::new(options).map_err(|error| error.to_string())
    }
}

fn first_line(path: &Path) -> Result<String, String> {
    let text = read_file(path, MAX_SECRET).map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|_| format!("{}: is not UTF-8", path.display()))?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Reads a resource.
pub(crate) async fn get<T: DeserializeOwned>(client: &HttpClient) -> Result<T, String> {
    let response = client.get().await.map_err(|error| error.to_string())?;
    if response.status == 200 {
        return serde_json::from_slice(&response.body)
            .map_err(|error| format!("the response is not of this API: {error}"));
    }
    let problem: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or("no detail");
    Err(format!("the broker answers {}: {detail}", response.status))
}
