//! Memory of an idle QUIC connection, on either side.
//!
//! `cargo run --release -p braid-transport --example idle_quic [CONNECTIONS]`. The clients run in a
//! process of their own, so that each side's memory is its own. Linux only.

use std::error::Error;
use std::future::poll_fn;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use braid_proto::stream::StreamKey;
use braid_transport::{
    ClientAuth, ClientTls, ClientTlsOptions, ConnectOptions, HandshakeError, Link, ListenOptions, Listener,
    ListenerKind, ServerTls, Target, Transport, connect, self_signed,
};
use tokio::io::{AsyncBufReadExt, BufReader, ReadBuf};

type Outcome = Result<(), Box<dyn Error>>;

/// Pause in which the memory of the handshakes is given back.
const SETTLE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => serve(2000).await,
        [count] => serve(count.parse()?).await,
        [port, ca, count] => dial(port.parse()?, ca.into(), count.parse()?).await,
        _ => Err("one argument: the number of connections".into()),
    }
}

async fn serve(count: usize) -> Outcome {
    let directory = std::env::temp_dir().join(format!("idle-quic-{}", std::process::id()));
    let files = self_signed(&directory, &["localhost".to_owned()])?;
    let ca = files.certificate.clone();
    let tls = ServerTls::load(files, ClientAuth::None)?;
    let address = "127.0.0.1:0".parse()?;
    let mut listener = Listener::bind(ListenerKind::Quic(tls), address, &ListenOptions::default())?;
    let port = listener.local_addr().ok_or("no address")?.port();
    let mut child = Command::new(std::env::current_exe()?)
        .args([port.to_string(), ca.display().to_string(), count.to_string()])
        .stdin(Stdio::piped())
        .spawn()?;
    let before = resident()?;
    let start = Instant::now();
    let mut handshakes = tokio::task::JoinSet::new();
    for _ in 0..count {
        let incoming = listener.accept().await?;
        handshakes.spawn(async move {
            let mut link = incoming.handshake().await?;
            // Unread bytes keep a buffer of many packets in memory.
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            poll_fn(|cx| link.poll_read(cx, &mut buffer, &mut |_| true)).await?;
            Ok::<_, HandshakeError>(link)
        });
    }
    let links = handshakes.join_all().await.into_iter().collect::<Result<Vec<Link>, _>>()?;
    println!("{count} connections in {:.1} s", start.elapsed().as_secs_f64());
    tokio::time::sleep(SETTLE).await;
    report("server", before, links.len())?;
    drop(child.stdin.take());
    child.wait()?;
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

async fn dial(port: u16, ca: PathBuf, count: usize) -> Outcome {
    let tls = ClientTls::new(ClientTlsOptions { ca_files: vec![ca], ..ClientTlsOptions::default() });
    let target =
        Target { transport: Transport::Quic, host: "localhost".to_owned(), port, path: String::new() };
    let (before, mut links) = (resident()?, Vec::new());
    for _ in 0..count {
        let mut link = connect(&target, &tls, &ConnectOptions::default()).await?;
        introduce(&mut link).await?;
        links.push(link);
    }
    tokio::time::sleep(SETTLE).await;
    report("client", before, links.len())?;
    // Stays until the server is done measuring.
    let mut rest = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut rest).await?;
    std::process::exit(0);
}

/// The server learns of the control stream with its first byte.
async fn introduce(link: &mut Link) -> Outcome {
    poll_fn(|cx| link.poll_write(cx, StreamKey::CONTROL, &[IoSlice::new(b"!")])).await?;
    Ok(())
}

fn report(side: &str, before: usize, count: usize) -> Outcome {
    let after = resident()?;
    let each = after.saturating_sub(before) / count.max(1);
    println!("{side}: {:.1} KB per idle connection", each as f64 / 1024.0);
    Ok(())
}

/// Bytes of this process in memory.
fn resident() -> Result<usize, Box<dyn Error>> {
    let status = std::fs::read_to_string(Path::new("/proc/self/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kilobytes: usize = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kilobytes * 1024)
}
