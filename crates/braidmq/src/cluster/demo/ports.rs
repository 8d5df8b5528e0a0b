//! Free TCP ports of this machine.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

/// Ports below those that systems give to outgoing connections: the port of a process that was killed is free until it
/// starts again.
const RANGE: RangeInclusive<u16> = 20_000..=31_999;

/// `COUNT` different ports of 127.0.0.1 that are free now. `start`: number at which the search begins, any.
///
/// # Errors
/// There are not so many.
pub(super) fn free<const COUNT: usize>(start: u16) -> Result<[u16; COUNT], String> {
    let count = RANGE.end() - RANGE.start() + 1;
    let all = (0..count).map(|step| {
        let offset = (u32::from(start) + u32::from(step)) % u32::from(count);
        RANGE.start() + u16::try_from(offset).unwrap_or(0)
    });
    // They stay open until all are found.
    let open: Vec<(u16, TcpListener)> = all
        .filter_map(|port| Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?)))
        .take(COUNT)
        .collect();
    let ports: Vec<u16> = open.iter().map(|(port, _)| *port).collect();
    ports.try_into().map_err(|_| {
        format!(
            "of the ports {} to {} fewer than {COUNT} are free: end other programs",
            RANGE.start(),
            RANGE.end()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A free port is not bound twice in a row: a process that another test starts holds a copy of the socket until it
    /// executes its program.
    #[test]
    fn ports_that_are_taken_are_passed_over() {
        let upward: Vec<u16> = RANGE.collect();
        let downward: Vec<u16> = RANGE.rev().collect();
        for order in [upward, downward] {
            let (port, _taken) = order
                .into_iter()
                .find_map(|port| Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?)))
                .unwrap();
            // Each number stands for the same port: the second wraps at the end of the range, the third before.
            let first = port - RANGE.start();
            let count = RANGE.end() - RANGE.start() + 1;
            for start in [first, first + count, u16::MAX] {
                let others: [u16; 3] = free(start).unwrap();
                assert!(!others.contains(&port), "{port} {others:?}");
                assert!(others.iter().all(|port| RANGE.contains(port)));
            }
        }
    }
}
