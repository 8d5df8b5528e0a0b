//! A server of NATS: its configuration, its process, and its monitoring port.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use braid_torture::Process;
use serde_json::Value;

use super::network::{Member, NODES};

/// Port of the clients of NATS.
pub(crate) const PORT: u16 = 4222;
/// Port of the monitoring.
pub(crate) const MONITOR: u16 = 8222;
/// Port of the other servers.
const ROUTES: u16 = 6222;
/// Time limit of a question to the monitoring port.
const PATIENCE: Duration = Duration::from_secs(2);
/// Part of the names of streams with messages: `<cluster>-m-<shard>`.
const MESSAGES: &str = "-m-";

/// Server of a node across its processes.
pub(crate) struct Server {
    pub(crate) node: usize,
    program: PathBuf,
    configuration: PathBuf,
    log: PathBuf,
    pub(crate) process: Process,
}

impl Server {
    /// Writes the configuration of the server with its store in `store`; the server does not run.
    pub(crate) fn new(node: usize, program: &Path, home: &Path, store: &Path) -> Result<Self, String> {
        let name = Member::Server(node).to_string();
        let configuration = home.join(format!("{name}.conf"));
        fs::write(&configuration, text(node, store))
            .map_err(|error| format!("{}: {error}", configuration.display()))?;
        let log = home.join(format!("{name}.log"));
        Ok(Self { node, program: program.to_owned(), configuration, log, process: Process::default() })
    }

    /// Starts the server by a command that takes the program as its next argument.
    pub(crate) fn start(&mut self, mut entry: Command) -> Result<(), String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        entry.arg(&self.program).arg("-c").arg(&self.configuration);
        entry.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = entry.spawn().map_err(|error| format!("cannot start {entry:?}: {error}"))?;
        self.process = child.into();
        Ok(())
    }

    fn monitor(&self, path: &str) -> Result<String, String> {
        let address = (Member::Server(self.node).address(), MONITOR).into();
        ask(address, path)
            .map_err(|error| format!("{} does not answer {path}: {error}", Member::Server(self.node)))
    }

    /// True if the server is well: with `streams`, its replicas have caught up too.
    pub(crate) fn is_healthy(&self, streams: bool) -> bool {
        let path = if streams { "/healthz" } else { "/healthz?js-server-only=true" };
        self.monitor(path).is_ok_and(|answer| is_ok(&answer))
    }

    /// Name of the server that leads the first stream of messages, or all servers if there is no stream.
    pub(crate) fn leader(&self) -> Option<usize> {
        leader(&self.monitor("/jsz?accounts=1&streams=1").ok()?)
    }
}

/// Configuration of the server of a node.
fn text(node: usize, store: &Path) -> String {
    let address = Member::Server(node).address();
    let routes: Vec<_> = (0..NODES.len())
        .map(|other| format!("\"nats://{}:{ROUTES}\"", Member::Server(other).address()))
        .collect();
    format!(
        "server_name: {}\nlisten: \"{address}:{PORT}\"\nhttp: \"{address}:{MONITOR}\"\nmax_payload: 8MB\n\
         jetstream {{ store_dir: {store:?}, sync_interval: always, max_mem: 64MB, max_file: 64GB }}\n\
         cluster {{ name: torture, listen: \"{address}:{ROUTES}\", routes: [{}] }}\n",
        NODES[node],
        routes.join(", ")
    )
}

/// Answer to a GET, head included.
fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_ok(answer: &str) -> bool {
    answer.split(' ').nth(1) == Some("200") && answer.contains("\"ok\"")
}

/// Leader in an answer of `/jsz`, by the name of its node.
fn leader(answer: &str) -> Option<usize> {
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let body: Value = serde_json::from_str(body).ok()?;
    let streams = body["account_details"].as_array().into_iter().flatten();
    let streams = streams.filter_map(|account| account["stream_detail"].as_array()).flatten();
    let name = |stream: &&Value| stream["name"].as_str().unwrap_or_default().to_owned();
    // The stream of urgent messages comes after those with a number.
    let of_messages = streams.filter(|stream| name(stream).contains(MESSAGES)).min_by_key(name);
    let leader = match of_messages {
        Some(stream) => &stream["cluster"]["leader"],
        None => &body["meta_cluster"]["leader"],
    };
    NODES.iter().position(|node| leader == node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_syncs_each_write_and_knows_all_others() {
        let text = text(1, Path::new("/x/store"));
        assert!(text.starts_with("server_name: b\nlisten: \"10.99.0.12:4222\"\n"), "{text}");
        for part in ["store_dir: \"/x/store\", sync_interval: always", "max_payload: 8MB", "10.99.0.13:6222"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn the_leader_is_that_of_the_messages_or_else_of_the_servers() {
        let answer = |body: &str| format!("HTTP/1.0 200 OK\r\n\r\n{body}");
        let meta = r#""meta_cluster":{"leader":"c"}"#;
        assert_eq!(leader(&answer(&format!("{{{meta}}}"))), Some(2));
        let streams = r#""account_details":[{"name":"$G","stream_detail":[
            {"name":"x-s","cluster":{"leader":"a"}},{"name":"x-m-urgent","cluster":{"leader":"a"}},{"name":"x-m-0","cluster":{"leader":"b"}}]}]"#;
        assert_eq!(leader(&answer(&format!("{{{meta},{streams}}}"))), Some(1));
        assert_eq!(leader(&answer(&format!("{{{meta},{}}}", streams.replace("\"b\"", "\"\"")))), None);
        for wrong in ["", "{}", "{\"meta_cluster\":{\"leader\":\"z\"}}"] {
            assert_eq!(leader(&answer(wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn only_a_good_answer_is_good() {
        assert!(is_ok("HTTP/1.0 200 OK\r\n\r\n{\"status\":\"ok\"}"));
        assert!(!is_ok("HTTP/1.0 503 Service Unavailable\r\n\r\n{\"status\":\"ok\"}"));
        assert!(!is_ok("HTTP/1.0 200 OK\r\n\r\n{\"status\":\"unavailable\"}"));
    }
}
