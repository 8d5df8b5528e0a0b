//! Client of the REST API of a running broker.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_access::http::{Endpoint, HttpClient, HttpError, HttpOptions, HttpProblem, SecretHeader};
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
    let response = client.get().await.map_err(|error| explained(&error))?;
    if response.status == 200 {
        return serde_json::from_slice(&response.body)
            .map_err(|error| format!("the response is not of this API: {error}"));
    }
    let problem: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let other = "this may not be the address of the API (http.api.listen, or else http.listen)";
    let detail = problem["detail"].as_str().unwrap_or(other);
    Err(format!("the broker answers {}: {detail}", response.status))
}

/// Failure of a request, with the remedy where no broker was reached.
fn explained(error: &HttpError) -> String {
    // With https the failure may be that of its certificate.
    let is_unreachable = matches!(error.problem, HttpProblem::Connect(_)) && error.url.starts_with("http:");
    let remedy = if is_unreachable {
        ": start the broker with --http 127.0.0.1:18083, or give the address of its API with --url"
    } else {
        ""
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_that_is_not_reached_is_to_be_started_with_http() {
        let error = |url: &str, problem| explained(&HttpError { url: url.into(), problem });
        let refused = || HttpProblem::Connect("cannot connect to 127.0.0.1:1: refused".to_owned());
        let said = error("http://127.0.0.1:1/", refused());
        assert!(said.contains("refused: start the broker with --http 127.0.0.1:18083"), "{said}");
        assert!(error("https://127.0.0.1:1/", refused()).ends_with("refused"));
        assert!(error("http://127.0.0.1:1/", HttpProblem::Busy).ends_with("too slow?"));
    }
}
