//! Memory of connections that do nothing.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::load::{accepted, open};
use super::usage::Memory;

/// Connections opened before their answers are awaited: below every broker's accept backlog.
const AT_ONCE: u32 = 100;
/// Memory counts as settled when it has not changed for this long.
const SETTLED: Duration = Duration::from_secs(1);
/// Memory is taken as it is after this long.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the idle case measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Idled {
    pub(super) connections: u32,
    pub(super) before: Memory,
    pub(super) after: Memory,
    /// Growth of the resident set per connection, bytes.
    pub(super) rss_per_connection: f64,
    /// Growth of the proportional set per connection, bytes.
    pub(super) pss_per_connection: f64,
    /// Connections accepted per second.
    pub(super) connect_rate: f64,
}

/// Opens `connections`, waits until the broker's memory stands still, reads it, closes them.
///
/// # Errors
/// A connection was refused or closed, or the broker is gone.
pub(super) fn run(connections: u32, address: SocketAddr, pid: u32) -> Result<Idled, String> {
    let before = settled(pid)?;
    let mut open_ones = Vec::new();
    let started = Instant::now();
    let mut opened = 0;
    while opened < connections {
        let until = connections.min(opened + AT_ONCE);
        let first = open_ones.len();
        for index in opened..until {
            open_ones.push(open(address, &format!("bench-idle-{index}"))?);
        }
        for socket in &mut open_ones[first..] {
            accepted(socket).map_err(|reason| format!("after {opened} connections: {reason}"))?;
        }
        opened = until;
    }
    let connect_rate = f64::from(connections) / started.elapsed().as_secs_f64();
    let after = settled(pid)?;
    for socket in &mut open_ones {
        still_open(socket)?;
    }
    let per_connection =
        |after: u64, before: u64| after.saturating_sub(before) as f64 / f64::from(connections);
    Ok(Idled {
        connections,
        before,
        after,
        rss_per_connection: per_connection(after.rss, before.rss),
        pss_per_connection: per_connection(after.pss, before.pss),
        connect_rate,
    })
}

/// The memory once it stands still.
pub(super) fn settled(pid: u32) -> Result<Memory, String> {
    let read = || Memory::of(pid).map_err(|error| format!("the broker is gone: {error}"));
    let started = Instant::now();
    let (mut memory, mut since) = (read()?, started);
    while since.elapsed() < SETTLED && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(100));
        let now = read()?;
        if now != memory {
            (memory, since) = (now, Instant::now());
        }
    }
    Ok(memory)
}

/// A broker that closes what it cannot hold must not look small.
fn still_open(socket: &mut std::net::TcpStream) -> Result<(), String> {
    let refused = |error: std::io::Error| error.to_string();
    socket.set_nonblocking(true).map_err(refused)?;
    match socket.peek(&mut [0]) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Ok(0) => Err("the broker closed an idle connection".to_owned()),
        Ok(_) => Err("the broker sent something to an idle connection".to_owned()),
        Err(error) => Err(format!("an idle connection failed: {error}")),
    }
}
