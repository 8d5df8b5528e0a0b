//! Memory of `braidmq serve` with low watermarks, under more load than they permit.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use crate::broker::braidmq;
use crate::serve::{Running, start_command};

const PUBLISHERS: usize = 16;
/// Messages of each publisher.
const MESSAGES: usize = 1000;
/// Size of each payload: 160 MB in all.
const SIZE: usize = 10_000;
const HIGH: u64 = 16 << 20;

/// An accepted connection of MQTT 3.1.1.
fn connect(address: &str, client_id: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let id = [&[0, u8::try_from(client_id.len()).unwrap()], client_id.as_bytes()].concat();
    let head = [0x10, u8::try_from(10 + id.len()).unwrap(), 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0];
    stream.write_all(&[&head[..], &id].concat()).unwrap();
    let mut connack = [0; 4];
    stream.read_exact(&mut connack).unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    stream
}

/// Likewise with a subscription of QoS 0, after its SUBACK.
fn subscribe(address: &str, client_id: &str, filter: &str) -> TcpStream {
    let mut stream = connect(address, client_id);
    let length = u8::try_from(filter.len()).unwrap();
    let packet = [&[0x82, 5 + length, 0, 1, 0, length], filter.as_bytes(), &[0]].concat();
    stream.write_all(&packet).unwrap();
    let mut suback = [0; 5];
    stream.read_exact(&mut suback).unwrap();
    assert_eq!(suback, [0x90, 3, 0, 1, 0]);
    stream
}

fn publish_all(address: &str, number: usize) {
    let mut stream = connect(address, &format!("publisher-{number}"));
    let remaining = 6 + SIZE;
    let length = [u8::try_from(remaining % 128).unwrap() | 0x80, u8::try_from(remaining / 128).unwrap()];
    let packet = [&[0x30], &length[..], &[0, 4], b"bulk", &vec![0; SIZE]].concat();
    for _ in 0..MESSAGES {
        stream.write_all(&packet).unwrap();
    }
}

/// Reads until each of `texts` has arrived, in this order.
fn read_until(stream: &mut TcpStream, texts: &[&str]) {
    let mut read = String::new();
    for text in texts {
        while !read.contains(text) {
            let mut bytes = [0; 1024];
            let length = stream.read(&mut bytes).unwrap();
            assert!(length > 0, "the broker closed the connection");
            read.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        read = read.split_once(text).unwrap().1.to_owned();
    }
}

/// A value of `/proc/PID/status`, in bytes.
fn memory(broker: &Running, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.0.id())).unwrap();
    let line = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "the memory of a process is read from /proc")]
fn more_than_it_may_hold_waits_with_the_publishers() {
    let data = tempfile::tempdir().unwrap();
    let mut command = braidmq(&["serve", "--tcp", "127.0.0.1:0", "--set", "sys.interval_secs=1"]);
    for limit in ["memory_low=8388608", &format!("memory_high={HIGH}"), "queued_bytes=1073741824"] {
        command.args(["--set", &format!("limits.{limit}")]);
    }
    let (broker, banner) = start_command(command.arg("--data-dir").arg(data.path()));
    let line = banner.iter().find(|line| line.contains("mqtt://")).unwrap();
    let address = line.rsplit('/').next().unwrap().to_owned();
    let mut slow = subscribe(&address, "slow", "bulk");
    let mut watch = subscribe(&address, "watch", "$SYS/broker/memory/#");
    let before = memory(&broker, "VmRSS");
    let publish = |number| {
        let address = address.clone();
        thread::spawn(move || publish_all(&address, number))
    };
    let publishers: Vec<_> = (0..PUBLISHERS).map(publish).collect();
    // All possible arrivals come within three intervals of the updates.
    read_until(&mut watch, &["publishers are held back", "used", "used", "used"]);
    assert!(publishers.iter().any(|publisher| !publisher.is_finished()));
    let mut left = PUBLISHERS * MESSAGES * (1 + 2 + 6 + SIZE);
    let mut bytes = vec![0; 1 << 16];
    while left > 0 {
        left -= slow.read(&mut bytes).unwrap();
    }
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    read_until(&mut watch, &["stateok"]);
    let most = memory(&broker, "VmHWM") - before;
    // The allocator keeps some of the freed memory.
    assert!(most < 3 * HIGH, "{most} bytes");
}
