use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};

use braid_bench::http::{
    Counts, Expectation, Extent, HttpLoad, HttpSummary, Progress, Protocol, Request, Route, Timeouts, run,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Load of `requests` on a server by one client, five in flight.
pub(super) fn load(server: SocketAddr, protocol: Protocol, requests: u64) -> HttpLoad {
    HttpLoad {
        route: Route::plain(server, protocol),
        request: Request::get(&format!("http://{server}/a")).expect("a URL"),
        clients: 1,
        threads: 1,
        concurrent: 5,
        extent: Extent::Requests(requests),
        rate: None,
        timeouts: Timeouts::default(),
        expectation: Expectation::default(),
        alternative: None,
    }
}

/// Runs a load to its end.
pub(super) async fn measure(load: HttpLoad) -> HttpSummary {
    let progress = Progress::new(load.threads);
    let summary = run(load, progress.clone(), pending()).await.expect("threads");
    assert_eq!(progress.done(), summary.requests.done);
    summary
}

/// Counts of a run in which `ok` requests got a status 2xx, `bad` one of 5xx, and `errored` none.
pub(super) fn counts(ok: u64, bad: u64, errored: u64) -> Counts {
    Counts {
        total: ok + bad + errored,
        started: ok + bad + errored,
        done: ok + bad,
        succeeded: ok,
        failed: bad + errored,
        errored,
        status: [ok, 0, 0, bad],
        connections: 1,
        ..Counts::default()
    }
}

/// Answer to a request.
pub(super) enum Reply {
    /// Writes this.
    Bytes(Vec<u8>),
    /// Writes this byte by byte.
    Dribble(&'static str),
    /// Reads on.
    Silence,
    /// Closes the connection.
    Close,
}

/// Server of HTTP/1.1, whose answer to request `n` of a connection, from 1, is `reply(n)`.
pub(super) async fn http1(reply: fn(usize) -> Reply) -> SocketAddr {
    serve(move |io| answer(io, reply)).await
}

/// Server that handles each connection by a future.
pub(super) async fn serve<F>(handle: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            tokio::spawn(handle(io));
        }
    });
    address
}

async fn answer(mut io: TcpStream, reply: fn(usize) -> Reply) {
    let (mut unread, mut number, mut buffer) = (Vec::new(), 0, [0; 4096]);
    while let Ok(read @ 1..) = io.read(&mut buffer).await {
        unread.extend_from_slice(&buffer[..read]);
        while let Some(end) = unread.windows(4).position(|window| window == b"\r\n\r\n") {
            unread.drain(..end + 4);
            number += 1;
            // A client that is gone has its counts already.
            let _ = match reply(number) {
                Reply::Bytes(bytes) => io.write_all(&bytes).await,
                Reply::Dribble(text) => dribble(&mut io, text).await,
                Reply::Silence => Ok(()),
                Reply::Close => return,
            };
        }
    }
}

async fn dribble(io: &mut TcpStream, text: &str) -> std::io::Result<()> {
    for byte in text.bytes() {
        io.write_all(&[byte]).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}
