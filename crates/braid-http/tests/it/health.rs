use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use braid_broker::{Anonymous, Broker, BrokerConfig, LimitsConfig, SysConfig};
use braid_http::{HealthServer, HealthState};
use braid_proto::packet::ClientId;
use braid_store::faults::FailingStore;
use braid_store::{
    Batch, Claim, Commit, Completion, LazyMessage, Lsn, MemoryStore, NextIds, Recover, Store, StoreError,
    StoredMessage,
};
use braid_transport::{ListenOptions, Listener, ListenerKind};
use serde_json::Value;
use tokio::runtime::Runtime;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Process of a broker: threads for clients, and one for HTTP.
struct Process {
    runtime: Runtime,
    state: HealthState,
    server: HealthServer,
}

impl Process {
    fn start() -> Self {
        let state = HealthState::default();
        let server = HealthServer::start(&[ANY], state.clone()).unwrap();
        Self { runtime: Runtime::new().unwrap(), state, server }
    }

    /// Builds a broker and runs it; returns its address.
    fn serve(&self, limits: LimitsConfig, store: Arc<dyn Store>) -> SocketAddr {
        let inside = self.runtime.enter();
        let listener = Listener::bind(ListenerKind::Tcp, ANY, &ListenOptions::default()).unwrap();
        let address = listener.local_addr().unwrap();
        let sys = SysConfig { interval_secs: 0 };
        let config = BrokerConfig { limits, sys, ..BrokerConfig::default() };
        let broker = Broker::build(config, Box::new(Anonymous::default()), store, vec![listener]).unwrap();
        self.state.serving(broker.handle().health_monitor());
        self.runtime.spawn(broker.run(Duration::from_secs(5)));
        drop(inside);
        address
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    /// The status code and the body of the answer to a GET.
    fn get(&self, path: &str) -> (u16, Value) {
        let (head, body) = self.ask("GET", path);
        assert!(head.contains("content-type: application/json"), "{head}");
        (code(&head), serde_json::from_str(&body).unwrap())
    }

    /// Repeats the request until the status is `status`, and returns that response.
    fn get_until(&self, status: &str) -> (u16, Value) {
        loop {
            let answer = self.get("/health");
            if answer.1["status"] == status {
                return answer;
            }
        }
    }

    /// Head and body of a response.
    fn ask(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address()).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }
}

fn code(head: &str) -> u16 {
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Sends CONNECT of MQTT 3.1.1 with these flags.
fn connect(address: SocketAddr, flags: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, flags, 0, 0, 0, 1, b'c']).unwrap();
    stream
}

/// Sends CONNECT with Clean Session and reads CONNACK.
fn connected(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address, 2);
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    stream
}

#[test]
fn a_running_broker_reports_its_health() {
    let process = Process::start();
    let address = process.serve(LimitsConfig::default(), Arc::new(MemoryStore::new()));
    let client = connected(address);
    for path in ["/health", "/ready", "/status", "/api/v5/status", "/live", "/health?verbose"] {
        let (code, body) = process.get(path);
        assert_eq!((code, &body["status"]), (200, &Value::from("ok")), "{path}");
    }
    let (_, mut body) = process.get("/health");
    let uptime = body.as_object_mut().unwrap().remove("uptime_secs").unwrap();
    assert!(uptime.is_u64(), "{uptime}");
    let expected = serde_json::json!({
        "status": "ok", "version": env!("CARGO_PKG_VERSION"), "store": "ok", "memory": "ok", "spool": "ok", "quic": "ok", "memory_used": 0,
        "connections": 1, "clients": 1,
    });
    assert_eq!(body, expected);
    drop(client);
}

#[test]
fn wrong_requests_are_refused() {
    let process = Process::start();
    for path in ["/", "/health/", "/metrics", "/HEALTH"] {
        let (head, body) = process.ask("GET", path);
        assert_eq!(code(&head), 404, "{path}");
        assert!(body.contains("/health"), "{body}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
        let (head, _) = process.ask(method, "/health");
        assert_eq!(code(&head), 405, "{method}");
        assert!(head.contains("allow: GET, HEAD"), "{head}");
    }
    let (head, body) = process.ask("HEAD", "/health");
    assert_eq!((code(&head), body.as_str()), (503, ""));
    let (get, body) = process.ask("GET", "/health");
    let length = format!("content-length: {}", body.len());
    assert!(head.contains(&length) && get.contains(&length), "{head}\n{get}");
    for expected in ["connection: close", "cache-control: no-store"] {
        assert!(get.contains(expected), "{get}");
    }
}

#[test]
fn idle_connections_do_not_keep_a_probe_from_its_answer() {
    let process = Process::start();
    let mut idle: Vec<_> = (0..100).map(|_| TcpStream::connect(process.address()).unwrap()).collect();
    assert_eq!(process.get("/live").0, 200);
    // The first of them was closed, and not by the timeout.
    idle[0].set_nonblocking(true).unwrap();
    let read = idle[0].read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(read, Ok(0) | Err(ErrorKind::ConnectionReset)), "{read:?}");
}

#[test]
fn an_address_in_use_is_named() {
    let process = Process::start();
    let error =
        HealthServer::start(&[ANY, process.address()], HealthState::default()).unwrap_err().to_string();
    assert!(error.contains(&process.address().to_string()) && error.contains("in use"), "{error}");
}

#[test]
fn the_port_is_closed_after_the_server_is_dropped() {
    let Process { server, .. } = Process::start();
    let address = server.addresses()[0];
    drop(server);
    while TcpStream::connect(address).is_ok() {}
}

/// Store that blocks recovery until the test lets it go on.
struct Slow {
    inner: MemoryStore,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Store for Slow {
    fn recover(&self, into: &mut dyn Recover) -> Result<NextIds, StoreError> {
        self.go_on.lock().unwrap().recv().unwrap();
        self.inner.recover(into)
    }

    fn claim(&self, client_id: &ClientId) -> Completion<Claim> {
        self.inner.claim(client_id)
    }

    fn commit(&self, batch: Batch) -> Commit {
        self.inner.commit(batch)
    }

    fn messages_of(&self, lsns: &[Lsn]) -> Completion<Vec<Option<StoredMessage>>> {
        self.inner.messages_of(lsns)
    }

    fn messages(&self, show: &mut dyn FnMut(Lsn, LazyMessage<'_>)) -> Result<(), StoreError> {
        self.inner.messages(show)
    }
}

#[test]
fn a_broker_that_reads_its_store_is_alive_and_not_ready() {
    let process = Process::start();
    let (go_on, held) = mpsc::channel();
    let store = Arc::new(Slow { inner: MemoryStore::new(), go_on: Mutex::new(held) });
    std::thread::scope(|scope| {
        scope.spawn(|| process.serve(LimitsConfig::default(), store));
        let (code, body) = process.get("/health");
        assert_eq!((code, &body["status"], &body["store"]), (503, &Value::from("starting"), &Value::Null));
        process.state.starting("read 5 of 10 messages".to_owned());
        let (code, body) = process.get("/ready");
        assert_eq!((code, &body["progress"]), (503, &Value::from("read 5 of 10 messages")));
        assert_eq!(process.get("/live").0, 200);
        go_on.send(()).unwrap();
    });
    let (code, body) = process.get("/health");
    assert_eq!((code, &body["status"], &body["progress"]), (200, &Value::from("ok"), &Value::Null));
}

#[test]
fn a_broker_whose_store_has_failed_says_why() {
    let process = Process::start();
    let store = FailingStore::after(0, MemoryStore::new());
    let address = process.serve(LimitsConfig::default(), Arc::new(store));
    // A session that outlives its connection.
    let _client = connect(address, 0);
    let (code, body) = process.get_until("failed");
    assert_eq!(code, 503);
    let reason = body["store"].as_str().unwrap();
    assert!(reason.starts_with("failed: ") && reason.contains("as this test wants"), "{reason}");
    assert_eq!(process.get("/live").0, 200);
    // Even after the broker is dropped.
    let Process { runtime, state, server } = process;
    drop(runtime);
    let process = Process { runtime: Runtime::new().unwrap(), state, server };
    assert_eq!(process.get("/health").1["status"], "failed");
}

#[test]
fn memory_above_its_limit_is_reported_until_it_is_freed() {
    let process = Process::start();
    let limits = LimitsConfig { memory_low: 100_000, memory_high: 200_000, ..LimitsConfig::default() };
    let address = process.serve(limits, Arc::new(MemoryStore::new()));
    let mut publisher = connected(address);
    // Most of a PUBLISH of two million bytes, which the broker reads though it is above its limit.
    publisher.write_all(&[0x30, 0x80, 0x89, 0x7A, 0, 1, b't']).unwrap();
    publisher.write_all(&vec![0; 1_000_000]).unwrap();
    let (code, body) = process.get_until("refusing");
    assert_eq!((code, &body["memory"]), (503, &Value::from("full: new connections are refused")));
    assert_eq!((&body["store"], process.get("/live").0), (&Value::from("ok"), 200));
    drop(publisher);
    assert_eq!(process.get_until("ok").0, 200);
}
