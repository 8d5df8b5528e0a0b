//! `braidmq bench http` beside h2load, on nginx: equal counts and bytes. Rates and costs are printed, not compared.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::install::search_path;
use super::tally::Tally;

/// Time limit until nginx listens, and interval of checks.
const START_LIMIT: Duration = Duration::from_secs(10);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of the page: those of nginx's own.
const PAGE: usize = 612;
const LOAD: [&str; 8] = ["-n", "20000", "-c", "20", "-t", "2", "-m", "10"];
const REQUESTS: u64 = 20_000;
const CONNECTIONS: u64 = 20;
/// Bytes in which connections of HTTP/2 may differ: SETTINGS, their acknowledgements, WINDOW_UPDATE.
const FRAMES: u64 = 200;
/// Bytes of a response in which HTTP/2 may differ: the Huffman code of `Date`, by the second.
const DATE: u64 = 1;

/// Version of HTTP under test: name of the case, its option of both programs, and its index in [`Nginx::ports`].
const VERSIONS: [(&str, &[&str], usize); 2] = [("http1", &["--h1"], 0), ("http2", &[], 1)];

/// Runs the cases whose name holds `only`.
pub(super) fn run(binary: &Path, home: &Path, only: &str, tally: &mut Tally) {
    let name = |version: &str| format!("http-load/{version}");
    let selected: Vec<_> =
        VERSIONS.into_iter().filter(|(version, ..)| name(version).contains(only)).collect();
    if selected.is_empty() {
        return;
    }
    let nginx = match Nginx::start(&home.join("nginx")) {
        Ok(nginx) => nginx,
        Err(reason) => return tally.fail("http-load", &reason),
    };
    for (version, options, port) in selected {
        let started = Instant::now();
        let url = format!("http://127.0.0.1:{}/", nginx.ports[port]);
        match compare(binary, options, &url) {
            Ok(rates) => {
                println!("# {version}: {rates}");
                tally.pass(&name(version), started.elapsed());
            }
            Err(reason) => tally.fail(&name(version), &reason),
        }
    }
}

/// Runs both programs; a line with their rates and costs if their results are equal.
fn compare(binary: &Path, options: &[&str], url: &str) -> Result<String, String> {
    let mut theirs = Command::new("h2load");
    theirs.env("PATH", search_path());
    let mut ours = Command::new(binary);
    ours.args(["bench", "http"]);
    let theirs = Results::of(theirs.args(LOAD).args(options).arg(url))?;
    let ours = Results::of(ours.args(LOAD).args(options).arg(url))?;
    ours.check(&theirs, options.contains(&"--h1"))?;
    let (rates, costs) = (ours.rate / theirs.rate, ours.cpu_us / theirs.cpu_us);
    Ok(format!(
        "braidmq {:.0} req/s, h2load {:.0} req/s, ratio {rates:.2}; CPU of a request {:.1} us and {:.1} us, ratio {costs:.2}",
        ours.rate, theirs.rate, ours.cpu_us, theirs.cpu_us
    ))
}

/// Results in the lines of h2load.
#[derive(Debug, PartialEq)]
struct Results {
    requests: String,
    status: String,
    /// Bytes: all, of header fields, of bodies.
    traffic: [u64; 3],
    rate: f64,
    /// CPU time of a request in microseconds.
    cpu_us: f64,
}

impl Results {
    fn of(command: &mut Command) -> Result<Self, String> {
        let before = cpu_of_children();
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{command:?}: {}: {}", output.status, errors.trim_end()));
        }
        let cpu_us = (cpu_of_children() - before) / REQUESTS as f64 * 1e6;
        Self::parse(&text, cpu_us)
            .ok_or_else(|| format!("{command:?} printed other lines than h2load's: {text}"))
    }

    fn parse(text: &str, cpu_us: f64) -> Option<Self> {
        let line = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let rate = line("finished in ")?.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()?;
        // Rounded numbers with units are followed by the exact ones: 8.11MB (8500000).
        let traffic = line("traffic: ")?.split('(').filter_map(|word| word.split_once(')')?.0.parse().ok());
        let traffic = traffic.collect::<Vec<u64>>().try_into().ok()?;
        let (requests, status) = (line("requests: ")?.to_owned(), line("status codes: ")?.to_owned());
        Some(Self { requests, status, traffic, rate, cpu_us })
    }

    fn check(&self, other: &Self, is_http1: bool) -> Result<(), String> {
        let expected =
            "20000 total, 20000 started, 20000 done, 20000 succeeded, 0 failed, 0 errored, 0 timeout";
        if self.requests != expected || other.requests != expected || self.status != other.status {
            return Err(format!("the counts are not those of a whole run: {self:?}, h2load: {other:?}"));
        }
        let [all, headers, bodies] = self.traffic;
        let [all_theirs, headers_theirs, bodies_theirs] = other.traffic;
        let of_headers = if is_http1 { 0 } else { DATE * REQUESTS };
        let slack = if is_http1 { 0 } else { FRAMES * CONNECTIONS + of_headers };
        let is_equal = headers.abs_diff(headers_theirs) <= of_headers && bodies == bodies_theirs;
        if bodies != REQUESTS * PAGE as u64 || !is_equal || all.abs_diff(all_theirs) > slack {
            return Err(format!("the bytes differ: {self:?}, h2load: {other:?}"));
        }
        Ok(())
    }
}

/// CPU time in seconds of the processes that this one has waited for, in steps of 10 ms; see proc(5).
fn cpu_of_children() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program stands in parentheses, and may hold spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// A running nginx with a page for HTTP/1.1 and HTTP/2, killed when it is dropped.
struct Nginx {
    /// The one for HTTP/1.1, and the one for HTTP/2.
    ports: [u16; 2],
    process: Child,
}

impl Nginx {
    fn start(directory: &Path) -> Result<Self, String> {
        let pages = directory.join("pages");
        let written =
            fs::create_dir_all(&pages).and_then(|()| fs::write(pages.join("index.html"), vec![b'x'; PAGE]));
        written.map_err(|error| format!("{}: {error}", pages.display()))?;
        let ports = free_ports().map_err(|error| format!("no free TCP port on loopback: {error}"))?;
        let config = directory.join("nginx.conf");
        fs::write(&config, text(directory, ports))
            .map_err(|error| format!("{}: {error}", config.display()))?;
        let log = directory.join("error.log");
        let mut command = Command::new("nginx");
        command
            .env("PATH", search_path())
            .arg("-e")
            .arg(&log)
            .arg("-p")
            .arg(directory)
            .arg("-c")
            .arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        let mut nginx = Self { ports, process };
        nginx.wait_until_ready(&log)?;
        Ok(nginx)
    }

    fn wait_until_ready(&mut self, log: &Path) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        while Instant::now() < deadline {
            thread::sleep(CHECK_INTERVAL);
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("nginx ended with {status}; its log is {}", log.display()));
            }
            let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            if self
                .ports
                .iter()
                .all(|port| TcpStream::connect_timeout(&address(*port), CHECK_INTERVAL).is_ok())
            {
                return Ok(());
            }
        }
        Err(format!("nginx does not listen after {START_LIMIT:?}; its log is {}", log.display()))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Ports that were free a moment ago, held until both are known.
fn free_ports() -> std::io::Result<[u16; 2]> {
    let held = [TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?];
    Ok([held[0].local_addr()?.port(), held[1].local_addr()?.port()])
}

/// One process that writes nothing outside of its directory, and keeps connections for all requests.
fn text(directory: &Path, [http1, http2]: [u16; 2]) -> String {
    let directory = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("  {name}_temp_path {directory}/{name};\n"))
        .collect();
    format!(
        "daemon off;\nmaster_process off;\npid {directory}/nginx.pid;\nerror_log {directory}/error.log;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n{temporary}  keepalive_requests 1000000;\n  root {directory}/pages;\n  \
         server {{ listen 127.0.0.1:{http1}; }}\n  server {{ listen 127.0.0.1:{http2} http2; }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "\
starting benchmark...

finished in 249.34ms, 40105.88 req/s, 32.51MB/s
requests: 20000 total, 20000 started, 20000 done, 20000 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 20000 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 16.21MB (17000000) total, 3.57MB (3740000) headers (space savings 0.00%), 11.67MB (12240000) data
";

    #[test]
    fn results_are_those_of_the_lines() {
        let found = Results::parse(LINES, 7.5).unwrap();
        assert_eq!((found.traffic, found.rate), ([17_000_000, 3_740_000, 12_240_000], 40105.88));
        assert_eq!(found.check(&found, true), Ok(()));
        assert_eq!(Results::parse("starting benchmark...", 7.5), None);
    }

    #[test]
    fn differences_are_failures() {
        let right = Results::parse(LINES, 7.5).unwrap();
        let changed = |from: &str, to: &str| Results::parse(&LINES.replace(from, to), 7.5).unwrap();
        let is_refused = |other: &Results, is_http1| other.check(&right, is_http1).is_err();
        assert!(is_refused(&changed("20000 succeeded", "19999 succeeded"), false));
        assert!(is_refused(&changed("20000 2xx", "19999 2xx"), false));
        assert!(is_refused(&changed("(12240000)", "(12240001)"), false));
        assert!(is_refused(&changed("(3740000)", "(3740001)"), true));
        assert!(!is_refused(&changed("(3740000)", "(3760000)"), false));
        assert!(is_refused(&changed("(3740000)", "(3760001)"), false));
        assert!(is_refused(&changed("(17000000)", "(17000001)"), true));
        assert!(!is_refused(&changed("(17000000)", "(17024000)"), false));
        assert!(is_refused(&changed("(17000000)", "(17024001)"), false));
    }
}
