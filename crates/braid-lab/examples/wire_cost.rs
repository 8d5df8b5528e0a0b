//! Prints what a packet costs the emulator between two kernels: `cargo run --release --example wire_cost`. Packets wait
//! in the kernel before the link starts, so that no sleep and no other program is counted.

use std::error::Error;
use std::net::UdpSocket;
use std::process::Command;
use std::thread;

use braid_emulator::LinkSpec;
use braid_lab::testbed::{Entry, Namespace, enter};
use braid_lab::wire::{Options, PacketSocket, Tun, Wire, start};

/// Fewer than the wires let wait.
const PACKETS: u64 = 3000;
const ROUNDS: u32 = 5;
const LEFT: &str = "192.168.200.2";
const RIGHT: &str = "192.168.200.1";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    if let Entry::Ended(code) = enter()? {
        std::process::exit(code);
    }
    println!("{:>6} {:>8} {:>8}  {ROUNDS} rounds of {PACKETS} packets of 1400 bytes", "wire", "us", "lost");
    for kind in ["tun", "packet"] {
        let (mut micros, mut lost) = (f64::INFINITY, 0);
        for _ in 0..ROUNDS {
            let (cost, missing) = measure(kind)?;
            // The least: what is more is not ours.
            micros = micros.min(cost);
            lost += missing;
        }
        println!("{kind:>6} {micros:>8.2} {lost:>8}");
    }
    Ok(())
}

/// Microseconds of processor time per packet, and how many the wire did not take.
fn measure(kind: &str) -> Outcome<(f64, u64)> {
    let [left, right] = ["left", "right"].map(Namespace::create);
    let (left, right) = (left?, right?);
    let wires = match kind {
        "tun" => [tun(&left, "lq0l", LEFT)?, tun(&right, "lq0r", RIGHT)?],
        _ => [packet(&left, "lq0l", LEFT, [1, 2])?, packet(&right, "lq0r", RIGHT, [2, 1])?],
    };
    let receiver = right.run(|| UdpSocket::bind((RIGHT, 9)))??;
    let sender = left.run(|| UdpSocket::bind((LEFT, 0)))??;
    for _ in 0..PACKETS {
        sender.send_to(&[0; 1372], (RIGHT, 9))?;
    }
    let offered = PACKETS - wires[0].missed();
    let [left, right] = wires;
    let running = start(&LinkSpec::default(), 1, left, right, &Options::default())?;
    while running.counters()[0].sent.packets < offered {
        thread::yield_now();
    }
    let stopped = running.stop();
    drop(receiver);
    Ok((stopped.up.cpu_us_per_packet(), PACKETS - offered + stopped.up.unsent.packets))
}

fn tun(namespace: &Namespace, device: &str, address: &str) -> Outcome<Box<dyn Wire>> {
    namespace.run(|| {
        let tun = Tun::open(device)?;
        ip(&format!("addr add {address}/24 dev {device}"))?;
        ip(&format!("link set {device} up"))?;
        Ok(Box::new(tun) as Box<dyn Wire>)
    })?
}

fn packet(namespace: &Namespace, device: &str, address: &str, hosts: [u8; 2]) -> Outcome<Box<dyn Wire>> {
    let [own, peer] = hosts.map(|host| format!("02:00:00:00:00:0{host}"));
    namespace.run(|| {
        // Both ends in one namespace: what the program sends to one comes out of the other.
        ip(&format!("link add {device} address {own} type veth peer name {device}w"))?;
        ip(&format!("addr add {address}/24 dev {device}"))?;
        ip(&format!("link set {device}w arp off up"))?;
        ip(&format!("link set {device} up"))?;
        let theirs = if address == LEFT { RIGHT } else { LEFT };
        ip(&format!("neigh replace {theirs} lladdr {peer} dev {device} nud permanent"))?;
        Ok(Box::new(PacketSocket::open(&format!("{device}w"))?) as Box<dyn Wire>)
    })?
}

fn ip(arguments: &str) -> Outcome<()> {
    let status = Command::new("ip").args(arguments.split(' ')).status()?;
    if status.success() { Ok(()) } else { Err(format!("ip {arguments}: {status}").into()) }
}
