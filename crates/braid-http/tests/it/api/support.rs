//! A broker with the API over plain HTTP on loopback, and clients of both.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use braid_auth::acl::Decision;
use braid_auth::identity::{Attributes, Identity};
use braid_broker::cluster::Storage;
use braid_broker::{
    Action, Anonymous, Authenticate, Authentication, Authorize, Broker, BrokerConfig, Credential,
    Credentials, Expiry, Grant, Handle, LimitsConfig, Outcome, PermitAll, Refusal, SysConfig,
};
use braid_client::{Client, ClientTlsOptions, Messages};
use braid_http::{
    Api, ApiOptions, AutoQuic, Control, ControlError, ControlErrorKind, EventStreamLimits, Limits, MqttRoute,
    Priority, Roles, Route, RulesAnswer, RulesQuestion, RulesText, Server, ServerOptions, Services, User,
    router,
};
use braid_proto::packet::ClientId;
use braid_proto::reason::ReasonCode;
use braid_store::MemoryStore;
use braid_transport::http::WebSocketUpgrades;
use braid_transport::{
    ClientAuth, ListenOptions, Listener, ListenerKind, ServerTls, Transport, WebSocketOptions, self_signed,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Longest wait for an answer or an event. Below the interval of comments.
const SILENCE: Duration = Duration::from_secs(12);

/// Control of a process that has one user and one rule.
#[derive(Default)]
pub(super) struct TestControl {
    pub(super) users: Mutex<Vec<(String, String)>>,
    pub(super) rules: Mutex<String>,
    pub(super) reloads: AtomicUsize,
}

fn refused<T>(kind: ControlErrorKind, detail: &str) -> Result<T, ControlError> {
    Err(ControlError { kind, detail: detail.to_owned() })
}

impl Control for TestControl {
    fn config(&self) -> Result<Value, ControlError> {
        Ok(serde_json::json!({ "limits": { "connections": 5 } }))
    }

    fn priorities(&self) -> Vec<Priority> {
        vec![Priority { filter: "alarm/#".to_owned(), priority: 200 }]
    }

    fn users(&self) -> Result<Vec<User>, ControlError> {
        let user =
            |(name, _): &(String, String)| User { name: name.clone(), hash_kind: "argon2id".to_owned() };
        Ok(self.users.lock().unwrap().iter().map(user).collect())
    }

    fn set_user(&self, name: &str, password: &str) -> Result<bool, ControlError> {
        let mut users = self.users.lock().unwrap();
        let before = users.len();
        users.retain(|(other, _)| other != name);
        let is_replaced = users.len() < before;
        users.push((name.to_owned(), password.to_owned()));
        Ok(is_replaced)
    }

    fn remove_user(&self, name: &str) -> Result<(), ControlError> {
        let mut users = self.users.lock().unwrap();
        match users.iter().position(|(other, _)| other == name) {
            None => refused(ControlErrorKind::NotFound, "there is no such user"),
            Some(_) if users.len() == 1 => refused(ControlErrorKind::Conflict, "it is the only user"),
            Some(at) => {
                users.remove(at);
                Ok(())
            }
        }
    }

    fn rules(&self) -> Result<RulesText, ControlError> {
        let text = self.rules.lock().unwrap().clone();
        Ok(RulesText { file: "/etc/acl".to_owned(), format: "braidmq".to_owned(), text })
    }

    fn replace_rules(&self, text: &str) -> Result<(), ControlError> {
        if text.contains("wrong") {
            return refused(ControlErrorKind::Invalid, "/etc/acl:1: unknown word \"wrong\"");
        }
        text.clone_into(&mut self.rules.lock().unwrap());
        Ok(())
    }

    fn test_rules(&self, question: &RulesQuestion) -> Result<RulesAnswer, ControlError> {
        Ok(RulesAnswer { allowed: question.topic == "a", line: Some(1), rule: Some("allow".to_owned()) })
    }

    fn reload(&self) -> Result<Vec<String>, ControlError> {
        if self.reloads.fetch_add(1, Ordering::Relaxed) > 0 {
            return refused(ControlErrorKind::Invalid, "/etc/users:3: the hash is not valid");
        }
        Ok(vec!["users".to_owned()])
    }
}

/// Users `alice`, `bob`, `carol` (of the group `ops`) and `dave` with the passwords `right` and `also right`, and the
/// token `token` of `alice`. The user `slow` finds no authenticator.
#[derive(Debug, Default)]
pub(super) struct TestUsers {
    pub(super) asked: AtomicUsize,
    /// Former users, and former members of `ops`.
    pub(super) former: Mutex<Vec<&'static str>>,
    /// Users whose credential is revoked.
    pub(super) revoked: Arc<Mutex<Vec<&'static str>>>,
    pub(super) token_ends: Mutex<Option<Expiry>>,
}

#[derive(Debug)]
struct TestCredential(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Credential for TestCredential {
    fn is_revoked(&self) -> bool {
        self.1.lock().unwrap().contains(&self.0)
    }
}

/// Rules that permit everything and know former users.
#[derive(Debug, Default)]
pub(super) struct TestRules(pub(super) Mutex<Vec<&'static str>>);

impl Authorize for TestRules {
    fn decide(&self, identity: &Identity, client_id: &ClientId, action: Action<'_>) -> Decision {
        PermitAll.decide(identity, client_id, action)
    }

    fn is_revoked(&self, identity: &Identity) -> bool {
        self.0.lock().unwrap().iter().any(|user| identity.user() == Some(user))
    }
}

impl Authenticate for TestUsers {
    fn authenticate<'a>(&'a self, credentials: &'a Credentials<'a>) -> Authentication<'a> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let password = credentials.password.map(|password| &password[..]);
        let names = ["alice", "bob", "carol", "dave"];
        let named = names.into_iter().find(|name| credentials.user_name == Some(name));
        let is_former = |user: &str| self.former.lock().unwrap().contains(&user);
        let mut expiry = None;
        let user = match (credentials.user_name, password) {
            (Some(_), Some(b"right" | b"also right"))
                if named.is_some_and(|user| user == "carol" || !is_former(user)) =>
            {
                Ok(named.unwrap())
            }
            (None, Some(b"token")) => {
                expiry = *self.token_ends.lock().unwrap();
                match expiry.is_some_and(|expiry| expiry.left().is_zero()) {
                    true => Err(ReasonCode::NotAuthorized),
                    false => Ok("alice"),
                }
            }
            (Some("slow"), _) => Err(ReasonCode::ServerBusy),
            _ => Err(ReasonCode::BadUserNameOrPassword),
        };
        Box::pin(async move {
            // Others come meanwhile, as they do while a password is hashed.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let user = user.map_err(|reason| Refusal::new(reason, "refused"))?;
            let is_member = user == "carol" && !is_former(user);
            let groups = if is_member { vec!["ops".into()] } else { Vec::new() };
            let attributes = Attributes { user: Some(user.into()), groups, ..Attributes::default() };
            let identity = Identity::new(attributes).unwrap();
            let credential = TestCredential(user, self.revoked.clone());
            if credential.is_revoked() {
                return Err(Refusal::new(ReasonCode::NotAuthorized, "revoked"));
            }
            let credential = Some(Box::new(credential) as Box<dyn Credential>);
            Ok(Outcome::Accepted(Box::new(Grant { identity, expiry, credential, ..Grant::default() })))
        })
    }
}

pub(super) fn basic(user: &str, password: &str) -> (&'static str, String) {
    ("Authorization", format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

/// Differences between tests.
pub(super) struct Setup {
    pub(super) users: Option<Arc<TestUsers>>,
    pub(super) refuses_anonymous: Option<&'static str>,
    pub(super) rules: Arc<dyn Authorize>,
    pub(super) requests_per_sec: u32,
    pub(super) event_streams: usize,
    pub(super) limits: LimitsConfig,
    pub(super) http: Limits,
    pub(super) routes: Vec<Route>,
    pub(super) autoquic: Option<AutoQuic>,
}

impl Default for Setup {
    fn default() -> Self {
        let limits = LimitsConfig::default();
        Self {
            users: None,
            refuses_anonymous: None,
            rules: Arc::new(PermitAll),
            requests_per_sec: 1000,
            event_streams: 8,
            limits,
            http: Limits::default(),
            routes: Vec::new(),
            autoquic: None,
        }
    }
}

/// Running broker with the API.
pub(super) struct TestApi {
    pub(super) runtime: Runtime,
    pub(super) server: Option<Server>,
    pub(super) handle: Handle,
    pub(super) api: Api,
    pub(super) control: Arc<TestControl>,
    pub(super) tcp: SocketAddr,
    quic: SocketAddr,
    pub(super) http: SocketAddr,
    dir: TempDir,
}

impl TestApi {
    pub(super) fn start() -> Self {
        Self::with(Setup::default())
    }

    pub(super) fn with(setup: Setup) -> Self {
        let runtime = Runtime::new().unwrap();
        let inside = runtime.enter();
        let dir = tempfile::tempdir().unwrap();
        let pair = self_signed(dir.path(), &["127.0.0.1".to_owned()]).unwrap();
        let tls = ServerTls::load(pair, ClientAuth::None).unwrap();
        let options = ListenOptions::default();
        let origins = WebSocketOptions { origins: Some(Vec::new()), ..WebSocketOptions::default() };
        let (websocket, upgrades) = WebSocketUpgrades::listener(Transport::Ws, origins);
        let listeners = vec![
            Listener::bind(ListenerKind::Tcp, ANY, &options).unwrap(),
            Listener::bind(ListenerKind::Quic(tls), ANY, &options).unwrap(),
            websocket,
        ];
        let [tcp, quic] = [0, 1].map(|index: usize| listeners[index].local_addr().unwrap());
        let config = BrokerConfig {
            sys: SysConfig { interval_secs: 0 },
            limits: setup.limits,
            ..BrokerConfig::default()
        };
        let store = Arc::new(MemoryStore::new());
        let listeners = listeners.into_iter().map(Into::into).collect();
        let anonymous = Box::new(Anonymous::default());
        let broker =
            Broker::recover(config, anonymous, setup.rules, Storage::of(store), listeners, |_| {}).unwrap();
        let handle = broker.handle();
        runtime.spawn(broker.run(Duration::from_secs(5)));
        drop(inside);
        let control = Arc::new(TestControl::default());
        control.users.lock().unwrap().push(("alice".to_owned(), "right".to_owned()));
        let limits = Limits { drain: Duration::from_secs(30), ..setup.http };
        let options = ServerOptions { limits, ..ServerOptions::new(vec![ANY]) };
        let api = Api::new(ApiOptions {
            front: options.counters.clone(),
            control: control.clone(),
            authenticate: setup.users.map(|users| users as Arc<dyn Authenticate>),
            refuses_anonymous: setup.refuses_anonymous,
            roles: Roles {
                operators: vec!["alice".to_owned(), "group:ops".to_owned()],
                viewers: vec!["bob".to_owned()],
            },
            requests_per_sec: setup.requests_per_sec,
            event_streams: EventStreamLimits { total: setup.event_streams, per_client: 3 },
            autoquic: setup.autoquic,
            memory_low_bytes: 1000,
            memory_high_bytes: 2000,
        });
        api.serving(handle.clone());
        let counters = options.counters.clone();
        let (mqtt, api_route) = (Some(MqttRoute(upgrades)), Some(api.clone()));
        let services = Services { api: api_route, mqtt, counters, ..Services::default() };
        let router = router(services, &setup.routes, &options.limits).unwrap();
        let server = Server::start(&options, router).unwrap();
        let http = server.addresses()[0];
        Self { runtime, server: Some(server), handle, api, control, tcp, quic, http, dir }
    }

    /// Client over TCP with a session that stays.
    pub(super) fn tcp(&self, id: &str) -> (Client, Messages) {
        let builder = Client::builder(&format!("mqtt://{}", self.tcp)).client_id(id);
        let builder = builder.session_expiry(Duration::from_secs(600));
        self.runtime.block_on(builder.connect()).unwrap()
    }

    pub(super) fn quic(&self, id: &str) -> (Client, Messages) {
        let ca_files = vec![self.dir.path().join("cert.pem")];
        let tls = ClientTlsOptions { ca_files, ..ClientTlsOptions::default() };
        let builder = Client::builder(&format!("quic://{}", self.quic)).client_id(id).tls(tls);
        self.runtime.block_on(builder.connect()).unwrap()
    }

    pub(super) fn ask(&self, method: &str, path: &str) -> Answer {
        self.send(method, path, None, &[])
    }

    /// JSON of a successful GET.
    pub(super) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", &format!("/api/v1/{path}"));
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), "application/json");
        answer.json()
    }

    /// Request with a body of JSON.
    pub(super) fn put(&self, method: &str, path: &str, body: &Value) -> Answer {
        let json = [("Content-Type", "application/json".to_owned())];
        self.send(method, &format!("/api/v1/{path}"), Some(&body.to_string()), &json)
    }

    /// Status of the answer; `None` if the connection is closed without one.
    pub(super) fn try_ask(&self, method: &str, path: &str) -> Option<u16> {
        let mut reader = self.open(method, path, None, &[]);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        line.split(' ').nth(1)?.parse().ok()
    }

    pub(super) fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
        headers: &[(&str, String)],
    ) -> Answer {
        let mut reader = self.open(method, path, body, headers);
        let mut answer = Answer::head(&mut reader);
        reader.read_to_string(&mut answer.body).unwrap();
        answer
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&str>,
        headers: &[(&str, String)],
    ) -> BufReader<TcpStream> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        if headers.iter().all(|(name, _)| *name != "Connection") {
            request += "Connection: close\r\n";
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
        } else {
            request += "\r\n";
        }
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    /// First bytes that come back for these, on a connection with another protocol.
    pub(super) fn upgraded(&self, path: &str, headers: &[(&str, String)], sent: &[u8]) -> [u8; 6] {
        let mut reader = self.open("GET", path, None, headers);
        assert_eq!(Answer::head(&mut reader).status, 101);
        reader.get_mut().write_all(sent).unwrap();
        let mut received = [0; 6];
        reader.read_exact(&mut received).unwrap();
        received
    }

    /// Opens an event stream, and waits until it has begun.
    pub(super) fn events(&self, path: &str) -> EventStream {
        self.events_of(path, &[])
    }

    pub(super) fn events_of(&self, path: &str, headers: &[(&str, String)]) -> EventStream {
        let mut reader = self.open("GET", &format!("/api/v1/{path}"), None, headers);
        let head = Answer::head(&mut reader);
        assert_eq!((head.status, head.header("content-type")), (200, "text/event-stream"));
        let mut events = EventStream(reader);
        while events.line().is_some_and(|line| line != ":") {}
        events
    }
}

/// Response.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Answer {
    fn head(reader: &mut impl BufRead) -> Self {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Self { status, headers, body: String::new() }
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(other, _)| other == name).map_or("", |(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Checks the form of a refusal and returns its detail.
    pub(super) fn refusal(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!((&problem["type"], &problem["status"]), (&"about:blank".into(), &status.into()));
        assert!(!problem["title"].as_str().unwrap().is_empty());
        problem["detail"].as_str().unwrap().to_owned()
    }
}

/// Server-sent events of a response, whose chunks each have whole lines.
pub(super) struct EventStream(BufReader<TcpStream>);

impl EventStream {
    /// Next line; `None` at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.0.read_line(&mut line).unwrap_or_else(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => panic!("nothing arrives, nor an end"),
            _ => 0,
        });
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Next event with its data; `None` at the end.
    pub(super) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = None;
        loop {
            let line = self.line()?;
            if let Some(event) = line.strip_prefix("event: ") {
                name = Some(event.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name?, serde_json::from_str(data).unwrap()));
            }
        }
    }
}
