//! Memory of idle connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use braid_measure::process::Memory;
use serde::Serialize;

use super::load::session::{accepted, open};
use super::system::of_broker;

/// Connections opened before their answers are awaited: below every broker's listen(2) queue.
const AT_ONCE: u32 = 100;
/// Time without a change after which memory counts as settled.
const SETTLED: Duration = Duration::from_secs(1);
/// Time limit for settling.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measurements of the idle case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct IdleResult {
    pub(crate) connections: u32,
    pub(crate) before: Memory,
    pub(crate) after: Memory,
    /// Growth of the resident set per connection, bytes.
    pub(crate) rss_per_connection: f64,
    /// Growth of the proportional set per connection, bytes.
    pub(crate) pss_per_connection: f64,
    /// Connections accepted per second.
    pub(crate) connect_rate: f64,
}

/// Opens `connections`, waits until the broker's memory has settled, reads it, closes them.
///
/// # Errors
/// A connection was refused or closed, or the broker has ended.
pub(crate) fn run(connections: u32, address: SocketAddr, pid: u32) -> Result<IdleResult, String> {
    let before = settled(pid)?;
    let mut open_ones = Vec::new();
    let started = Instant::now();
    let mut opened = 0;
    while opened < connections {
        let until = connections.min(opened + AT_ONCE);
        let first = open_ones.len();
        for index in opened..until {
            open_ones.push(open(address, &format!("bench-idle-{index}"), true)?);
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
    Ok(IdleResult {
        connections,
        before,
        after,
        rss_per_connection: per_connection(after.rss, before.rss),
        pss_per_connection: per_connection(after.pss, before.pss),
        connect_rate,
    })
}

/// Memory of process `pid` once it has settled.
///
/// # Errors
/// The broker has ended.
pub(crate) fn settled(pid: u32) -> Result<Memory, String> {
    let read = || of_broker(Memory::of(pid));
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

/// Checks that a connection is open: a broker that closes idle connections must not look small.
fn still_open(socket: &mut std::net::TcpStream) -> Result<(), String> {
    let refused = |error: std::io::Error| error.to_string();
    socket.set_nonblocking(true).map_err(refused)?;
    match socket.peek(&mut [0]) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
        Ok(0) => Err("the broker closed an idle connection".to_owned()),
        Ok(_) => Err("the broker sent bytes to an idle connection".to_owned()),
        Err(error) => Err(format!("an idle connection failed: {error}")),
    }
}
