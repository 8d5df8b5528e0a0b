//! Grid of networks: regret of the selector against the better protocol of each, as the simulation has it.

use std::fmt::Write;

use braid_select::{Mode, Protocol};

use crate::client::{Recording, run};
use crate::network::{IMPAIRMENTS, Impairment, Link};

const TURNS: usize = 60;
const SECONDS: u64 = 1800;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Udp {
    Open,
    Blocked,
    /// To 1 Mbit/s.
    Policed,
}

struct Cell {
    loss: f64,
    rtt_ms: f64,
    mbit: f64,
    impairment: Impairment,
    udp: Udp,
    tcp: f64,
    quic: f64,
    ours: f64,
    compat: f64,
    flaps: usize,
    chosen: Protocol,
}

impl Cell {
    fn best(&self) -> f64 {
        if self.udp == Udp::Blocked { self.tcp } else { self.tcp.min(self.quic) }
    }

    fn regret(&self, cost: f64) -> f64 {
        let worst = if self.udp == Udp::Blocked { self.tcp + 0.25 } else { self.tcp.max(self.quic) };
        (cost - self.best()) / (worst - self.best())
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for loss in [0.0, 0.001, 0.01, 0.05, 0.1, 0.3] {
        for rtt_ms in [0.2, 10.0, 50.0, 150.0] {
            for mbit in [1.0, 10.0, 100.0] {
                for impairment in IMPAIRMENTS {
                    let link = || Link::new(rtt_ms / 1e3, mbit * 1e6 / 8.0, loss, impairment);
                    let tcp = Recording::new(Protocol::Tcp, link(), TURNS, 1);
                    for udp in [Udp::Open, Udp::Blocked, Udp::Policed] {
                        let quic = match udp {
                            Udp::Open => Some(link()),
                            Udp::Blocked => None,
                            Udp::Policed => Some(link().policed(125_000.0)),
                        };
                        let quic = quic.map(|link| Recording::new(Protocol::Quic, link, TURNS, 1));
                        let ours = run(Mode::Auto, &tcp, quic.as_ref(), SECONDS);
                        let compat = run(Mode::AutoquicCompat, &tcp, quic.as_ref(), SECONDS);
                        cells.push(Cell {
                            loss,
                            rtt_ms,
                            mbit,
                            impairment,
                            udp,
                            tcp: tcp.cost,
                            quic: quic.map_or(f64::INFINITY, |quic| quic.cost),
                            flaps: ours.flaps(),
                            chosen: ours.chosen,
                            ours: ours.cost,
                            compat: compat.cost,
                        });
                    }
                }
            }
        }
    }
    cells
}

/// Mean and 95th percentile.
fn spread(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values.iter().sum::<f64>() / values.len() as f64, values[values.len() * 95 / 100])
}

#[test]
fn report() {
    let cells = cells();
    let mut text = String::new();
    for cell in &cells {
        let Cell { loss, rtt_ms, mbit, impairment, udp, tcp, quic, ours, compat, flaps, chosen } = cell;
        writeln!(
            text,
            "{loss:<6} {rtt_ms:>5} {mbit:>4} {impairment:?} {udp:?} tcp {:.1} quic {:.1} ours {:.1} compat {:.1} {flaps} {chosen} r {:.2}",
            tcp * 1e3, quic * 1e3, ours * 1e3, compat * 1e3, cell.regret(*ours),
        )
        .unwrap();
    }
    println!("{text}");
    for (name, cost) in [
        ("ours", (|cell| cell.ours) as fn(&Cell) -> f64),
        ("compat", |cell| cell.compat),
        ("always TCP", |cell| cell.tcp),
        ("always QUIC", |cell| if cell.udp == Udp::Blocked { cell.tcp + 0.005 } else { cell.quic }),
    ] {
        let (mean, p95) = spread(cells.iter().map(|cell| cell.regret(cost(cell))).collect());
        let relative = spread(cells.iter().map(|cell| cost(cell) / cell.best() - 1.0).collect());
        let clear: Vec<f64> = cells
            .iter()
            .filter(|cell| {
                cell.udp != Udp::Blocked
                    && (cell.tcp - cell.quic).abs() > (0.15 * cell.tcp.max(cell.quic)).max(0.01)
            })
            .map(|cell| cell.regret(cost(cell)))
            .collect();
        let n = clear.len();
        println!("{name}: regret {mean:.4} {p95:.4} relative {relative:?} clear {n} {:?}", spread(clear));
    }
    let worse = cells.iter().filter(|cell| cell.ours > (cell.tcp * 1.05).max(cell.tcp + 0.02)).count();
    println!("worse than always TCP: {worse}, flaps {:?}", cells.iter().map(|cell| cell.flaps).max());
}
