//! A front with a directory and an upstream, and clients of each version.

use std::fs;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use braid_http::{Limits, Route, RouteTarget, Server, ServerOptions, Services, Upgrade, router};
use braid_transport::http::{Http3Connection, HttpStream, connect_http, connect_http3};
use braid_transport::quic::QuicOptions;
use braid_transport::{ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, ServerTls, self_signed};
use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;

pub(super) const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(super) const VERSIONS: [&str; 3] = ["http/1.1", "h2", "h3"];

/// Server with TLS and HTTP/3, with routes `/files` and those of a test.
pub(super) struct Front {
    pub(super) dir: TempDir,
    pub(super) server: Server,
    pub(super) address: SocketAddr,
}

impl Front {
    pub(super) fn start(limits: Limits, upstream: Option<SocketAddr>) -> Self {
        Self::with(limits, upstream, |_| {})
    }

    /// `change` has the last word about the options.
    pub(super) fn with(
        limits: Limits,
        upstream: Option<SocketAddr>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        fs::create_dir_all(files.join("sub")).unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let pair = self_signed(dir.path(), &names).unwrap();
        let mut options = ServerOptions::new(vec![ANY]);
        options.tls = Some(ServerTls::load(pair, ClientAuth::None).unwrap());
        (options.http3, options.limits) = (true, limits);
        change(&mut options);
        let mut routes = vec![Route::new("/files", RouteTarget::Directory(files))];
        if let Some(upstream) = upstream {
            let target = RouteTarget::Upstream(format!("http://{upstream}").parse().unwrap());
            routes.push(Route::new("/app", target));
        }
        let router = router(Services::default(), &routes, &options.limits).unwrap();
        let server = Server::start(&options, router).unwrap();
        let address = server.addresses()[0];
        Self { dir, server, address }
    }

    pub(super) fn with_upgrade(upgrade: Arc<dyn Upgrade>) -> Self {
        Self::with(Limits::default(), None, |options| options.upgrade = upgrade)
    }

    pub(super) fn plain(limits: Limits, upstream: Option<SocketAddr>) -> Self {
        Self::with(limits, upstream, |options| (options.tls, options.http3) = (None, false))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("files").join(name)
    }

    fn tls(&self, alpn: &str) -> ClientTls {
        ClientTls::new(ClientTlsOptions {
            ca_files: vec![self.dir.path().join("cert.pem")],
            alpn: vec![alpn.to_owned()],
            ..ClientTlsOptions::default()
        })
    }

    pub(super) async fn tcp(&self, alpn: &str) -> HttpStream {
        let options = ConnectOptions::default();
        connect_http("localhost", &[self.address], Some(&self.tls(alpn)), &options).await.unwrap()
    }

    pub(super) async fn quic(&self) -> Http3Connection {
        let options = ConnectOptions { quic: QuicOptions::http3_client(), ..ConnectOptions::default() };
        connect_http3("localhost", &[self.address], &self.tls("h3"), &options).await.unwrap()
    }

    /// Sends one request on a connection of its own. An error is a broken response.
    pub(super) async fn send(&self, version: &str, request: &Ask) -> Result<Answer, String> {
        Client::connect(self, version).await.send(request).await
    }

    /// Everything that the server sends for these bytes, on a plain server.
    pub(super) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        // The server may close before it has read all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// Status of a response as text.
pub(super) fn status(answer: &str) -> u16 {
    answer.strip_prefix("HTTP/1.1 ").map_or(0, |rest| rest[..3].parse().unwrap())
}

/// Tests whether a response as text is one problem with its status and nothing else, and tells no secrets of the
/// server.
pub(super) fn is_problem(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let detail = body["detail"].as_str().unwrap_or_default();
    head.to_ascii_lowercase().contains("\r\ncontent-type: application/problem+json\r\n")
        && body["status"] == status(answer)
        && !detail.is_empty()
        && !["hyper", "/tmp", "127.0.0.1", ".rs", "os error"].iter().any(|word| detail.contains(word))
}

/// Request of a test.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) host: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    /// Without a declared length, if it is not empty.
    pub(super) body: Bytes,
}

impl Ask {
    pub(super) fn new(method: &'static str, path: &str) -> Self {
        let (path, body) = (path.to_owned(), Bytes::new());
        Self { method, host: "localhost", path, headers: Vec::new(), body }
    }

    pub(super) fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    pub(super) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(super) fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn request<B>(&self, version: &str, body: B) -> Request<B> {
        let mut request = Request::builder().method(self.method);
        if version == "http/1.1" {
            request = request.uri(&self.path).header("host", self.host);
        } else {
            request = request.uri(format!("https://{}{}", self.host, self.path));
        }
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(body).unwrap()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

type H3Send = h3::client::SendRequest<braid_transport::http::Http3Open, Bytes>;

/// Connection of a client.
pub(super) enum Client {
    H1(http1::SendRequest<Full<Bytes>>),
    H2(http2::SendRequest<Full<Bytes>>),
    H3(H3Send),
}

impl Client {
    pub(super) async fn connect(front: &Front, version: &str) -> Self {
        match version {
            "http/1.1" => {
                let io = TokioIo::new(front.tcp(version).await.io);
                let (send, connection) = http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::H1(send)
            }
            "h2" => {
                let io = TokioIo::new(front.tcp(version).await.io);
                let (send, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
                tokio::spawn(connection);
                Self::H2(send)
            }
            _ => {
                let (mut driver, send) = h3::client::new(front.quic().await).await.unwrap();
                tokio::spawn(async move { driver.wait_idle().await });
                Self::H3(send)
            }
        }
    }

    pub(super) async fn send(&mut self, ask: &Ask) -> Result<Answer, String> {
        let body = Full::new(ask.body.clone());
        let said = |error: hyper::Error| error.to_string();
        match self {
            Self::H1(send) => {
                let _ = send.ready().await;
                read(send.send_request(ask.request("http/1.1", body)).await.map_err(said)?).await
            }
            Self::H2(send) => {
                let _ = send.ready().await;
                read(send.send_request(ask.request("h2", body)).await.map_err(said)?).await
            }
            Self::H3(send) => h3_send(send, ask).await.map_err(|error| error.to_string()),
        }
    }
}

async fn read(response: Response<Incoming>) -> Result<Answer, String> {
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    Ok(Answer { status: head.status, headers: head.headers, body })
}

async fn h3_send(send: &mut H3Send, ask: &Ask) -> Result<Answer, h3::error::StreamError> {
    let mut stream = send.send_request(ask.request("h3", ())).await?;
    // The server may answer without the body, and stop the stream.
    if !ask.body.is_empty() && stream.send_data(ask.body.clone()).await.is_err() {
        // Its response tells why.
    } else {
        let _ = stream.finish().await;
    }
    let (head, ()) = stream.recv_response().await?.into_parts();
    let mut body = Vec::new();
    while let Some(mut data) = stream.recv_data().await? {
        body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
    }
    Ok(Answer { status: head.status, headers: head.headers, body: body.into() })
}

/// Upstream that gives each request's head and body to the test, and answers by `respond`.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    pub(super) requests: Receiver<String>,
}

impl Upstream {
    /// `respond`: gets the request line; what it returns is sent as it is, then the connection is closed.
    pub(super) fn start(respond: impl Fn(&str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind(ANY).unwrap();
        let (address, (told, requests)) = (listener.local_addr().unwrap(), channel());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let Some(request) = read_request(&stream) else { continue };
                let line = request.lines().next().unwrap_or_default().to_owned();
                if told.send(request).is_err() {
                    return;
                }
                // The front may have gone.
                let _ = stream.write_all(&respond(&line));
            }
        });
        Self { address, requests }
    }

    pub(super) fn request(&self) -> String {
        self.requests.recv().unwrap().to_ascii_lowercase()
    }
}

/// Head and, after an empty line, the decoded body.
fn read_request(stream: &TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    if lower.contains("transfer-encoding: chunked") {
        loop {
            let mut size = String::new();
            reader.read_line(&mut size).ok()?;
            let size = usize::from_str_radix(size.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            reader.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
    Some(head + &String::from_utf8_lossy(&body))
}

/// A future of `h3` traits, which have `poll` functions only.
pub(super) async fn open_bidi(
    opener: &mut braid_transport::http::Http3Open,
) -> braid_transport::http::Http3Bidi<Bytes> {
    poll_fn(|cx| h3::quic::OpenStreams::<Bytes>::poll_open_bidi(opener, cx)).await.unwrap()
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
