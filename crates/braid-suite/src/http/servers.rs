//! The servers under test: nginx, and braidmq with and without TLS, with the same page and certificate.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::brokers::{Broker, Running};
use crate::callgrind;

/// Bytes of the page: those of nginx's own.
pub(super) const PAGE: usize = 612;

/// Time limit until a server listens, under valgrind too, and interval of checks.
const START: Duration = Duration::from_secs(60);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Nginx,
    Braidmq,
    BraidmqTls,
}

/// All servers, running. They end when it is dropped.
pub(super) struct Servers {
    nginx: Nginx,
    plain: (Running, u16),
    tls: (Running, u16),
    /// Names and versions of the programs.
    pub(super) versions: Vec<String>,
    home: TempDir,
}

impl Servers {
    /// Starts all; `is_counted` puts them under callgrind.
    ///
    /// # Errors
    /// One does not start.
    pub(super) fn start(broker: &Broker, nginx: &Path, is_counted: bool) -> Result<Self, String> {
        let home =
            TempDir::with_prefix("braidmq-bench-").map_err(|error| format!("no directory: {error}"))?;
        let pages = home.path().join("pages");
        let written = fs::create_dir(&pages).and_then(|()| fs::write(pages.join("index.html"), [b'x'; PAGE]));
        written.map_err(|error| format!("cannot write {}: {error}", pages.display()))?;
        let wrapper = |server| {
            if is_counted { callgrind::wrapper(&counts(home.path(), server)) } else { Vec::new() }
        };
        let [plain_port, tls_port, mqtts_port, nginx_port, nginx_tls_port] = free_ports()?;
        let serve = |server, port, arguments: &[&str]| {
            let is_tls = server == Server::BraidmqTls;
            let config = home.path().join(format!("{server:?}.toml"));
            let text = format!(
                "[http]\nlisten = [\"127.0.0.1:{port}\"]\ntls = {is_tls}\n[[http.route]]\npath = \"/\"\ndirectory = {:?}\n",
                pages.display().to_string()
            );
            fs::write(&config, text)
                .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
            let config = config.display().to_string();
            let broker = broker
                .variant("http", &[&["--config", &config], arguments].concat())
                .wrapped(wrapper(server));
            let running = broker.start()?;
            wait_for(port).map_err(|reason| format!("{reason}; its log: {}", running.last_words()))?;
            Ok::<_, String>((running, port))
        };
        let plain = serve(Server::Braidmq, plain_port, &[])?;
        // With a listener for TLS it makes a certificate, which nginx takes too.
        let mqtts = format!("127.0.0.1:{mqtts_port}");
        let tls = serve(Server::BraidmqTls, tls_port, &["--tls", &mqtts])?;
        let nginx = NginxSetup {
            program: nginx,
            home: home.path(),
            ports: [nginx_port, nginx_tls_port],
            certificate: tls.0.data_dir(),
        };
        let versions = vec![broker.version.clone(), nginx.version()];
        let nginx = nginx.start(&wrapper(Server::Nginx))?;
        if is_counted {
            [plain.0.pid(), tls.0.pid(), nginx.process.id()]
                .into_iter()
                .try_for_each(|pid| callgrind::control("--instr=on", pid))?;
        }
        Ok(Self { nginx, plain, tls, versions, home })
    }

    pub(super) fn pid(&self, server: Server) -> u32 {
        match server {
            Server::Nginx => self.nginx.process.id(),
            Server::Braidmq => self.plain.0.pid(),
            Server::BraidmqTls => self.tls.0.pid(),
        }
    }

    /// Address of the page.
    pub(super) fn url(&self, server: Server, is_tls: bool) -> String {
        let port = match server {
            Server::Nginx => self.nginx.ports[usize::from(is_tls)],
            Server::Braidmq => self.plain.1,
            Server::BraidmqTls => self.tls.1,
        };
        format!("{}://127.0.0.1:{port}/index.html", if is_tls { "https" } else { "http" })
    }

    /// File that callgrind writes for a server, and begin of the names of its dumps.
    pub(super) fn counts(&self, server: Server) -> PathBuf {
        counts(self.home.path(), server)
    }
}

fn counts(home: &Path, server: Server) -> PathBuf {
    home.join(format!("{server:?}.counts"))
}

/// nginx that is not started yet.
struct NginxSetup<'a> {
    program: &'a Path,
    home: &'a Path,
    /// Without TLS and with it.
    ports: [u16; 2],
    /// Directory with `cert.pem` and `key.pem`.
    certificate: PathBuf,
}

/// A running nginx, killed when it is dropped.
struct Nginx {
    process: Child,
    ports: [u16; 2],
}

impl NginxSetup<'_> {
    fn start(&self, wrapper: &[String]) -> Result<Nginx, String> {
        let (config, log) = (self.home.join("nginx.conf"), self.home.join("nginx.log"));
        fs::write(&config, self.text())
            .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
        let mut command = match wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(self.program);
                command
            }
            None => Command::new(self.program),
        };
        command.arg("-e").arg(&log).arg("-p").arg(self.home).arg("-c").arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        // Owned before the wait, so that a failure ends it.
        let nginx = Nginx { process, ports: self.ports };
        for port in self.ports {
            let words = |reason| format!("nginx: {reason}; {}", fs::read_to_string(&log).unwrap_or_default());
            wait_for(port).map_err(words)?;
        }
        Ok(nginx)
    }

    /// One process, the settings of Debian's file for sending, no log, and connections that last.
    fn text(&self) -> String {
        let (home, certificate, [plain, tls]) = (self.home.display(), self.certificate.display(), self.ports);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("  {name}_temp_path {home}/{name};\n"))
            .collect();
        format!(
            "daemon off;\nmaster_process off;\npid {home}/nginx.pid;\nerror_log {home}/nginx.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n  access_log off;\n{temporary}  sendfile on;\n  tcp_nopush on;\n  \
             types {{ text/html html; }}\n  \
             keepalive_requests 100000000;\n  root {home}/pages;\n  \
             ssl_certificate {certificate}/cert.pem;\n  ssl_certificate_key {certificate}/key.pem;\n  \
             server {{ listen 127.0.0.1:{plain}; }}\n  server {{ listen 127.0.0.1:{tls} ssl http2; }}\n}}\n"
        )
    }

    fn version(&self) -> String {
        // On standard error.
        let output = Command::new(self.program).arg("-v").stdin(Stdio::null()).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        text.unwrap_or_default().trim().trim_start_matches("nginx version: ").to_owned()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Both fail for a process that has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for a listener on a port of loopback.
fn wait_for(port: u16) -> Result<(), String> {
    let deadline = Instant::now() + START;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    while TcpStream::connect_timeout(&address, CHECK_INTERVAL).is_err() {
        if Instant::now() > deadline {
            return Err(format!("nothing listens on {address} after {START:?}"));
        }
        thread::sleep(CHECK_INTERVAL);
    }
    Ok(())
}

/// Ports that were free a moment ago, held until all are known.
fn free_ports<const N: usize>() -> Result<[u16; N], String> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let held = (0..N).map(|_| bind()).collect::<io::Result<Vec<_>>>();
    let ports = held.and_then(|held| held.iter().map(|socket| Ok(socket.local_addr()?.port())).collect());
    let ports: Vec<u16> = ports.map_err(|error| format!("no free TCP port on loopback: {error}"))?;
    ports.try_into().map_err(|_| "no free TCP port on loopback".to_owned())
}
