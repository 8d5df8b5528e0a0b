//! Packet logs of a link, and their replay.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use braid_emulator::{Direction, set_ecn};
use braid_lab::wire::{Options, Stopped, VerdictLog, start};

use crate::link::link;
use crate::packets::{answer, tcp, udp};
use crate::wire_memory::{memory_wire, until};

/// Packet `n` of those that go up.
fn packet(n: u16) -> Vec<u8> {
    if n.is_multiple_of(3) { tcp(6, n, 1883, 0x12, &[7; 300]) } else { udp(4, n, 14_567, &[7; 201]) }
}

/// Lets 400 packets go up and 100 down, changes the link in between if a path is given, and stops when all have come
/// and, unless they are to stay inside, left.
fn run(text: &str, change: Option<&str>, options: &Options) -> Stopped {
    let packet = |n| {
        let mut packet = packet(n);
        if text.contains("ecn=") {
            set_ecn(&mut packet, u8::try_from(n % 4).unwrap());
        }
        packet
    };
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let running = start(&link(text), 7, Box::new(left), Box::new(right), options).unwrap();
    left_kernel.offer((1..=200).map(&packet));
    right_kernel.offer((1..=100).map(|n| answer(&packet(n))));
    if let Some(path) = change {
        for direction in Direction::BOTH {
            running.change(direction, link(path).up.start);
        }
    }
    left_kernel.offer((201..=400).map(&packet));
    until(&running, |[up, down]| (up.offered.packets, down.offered.packets) == (400, 100));
    if !text.contains("3600s") {
        until(&running, |both| both.iter().all(|counters| counters.queued.packets == 0));
    }
    running.stop()
}

fn read(path: &Path) -> VerdictLog {
    fs::read_to_string(path).unwrap().parse().unwrap()
}

#[test]
fn the_log_has_every_packet_and_replays() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text, change) in [
        ("plain", "", None),
        ("all", "delay=2ms jitter=1ms loss=10% dup=10% corrupt=10% reorder=10%", None),
        ("policed", "policer=29pps/5 delay=1ms", None),
        ("queue", "rate=100mbit limit=100p delay=1ms", None),
        ("line", "rate=100mbit limit=20p delay=1ms order=line", None),
        ("managed", "queue=codel:1ms/10ms ecn=on rate=10mbit limit=300p", None),
        ("marked", "ecn=1ms rate=20mbit delay=1ms", None),
        ("matched", "match=udp:14567 loss=50% mtu=220", None),
        ("timed", "loss=gemodel:5%,30% delay=1ms ; t=1ms loss=1% delay=2ms", None),
        ("changed", "loss=20%", Some("loss=60% delay=1ms dup=5%")),
        ("nat", "nat=rebind@1us delay=1ms", None),
        ("inside", "dup=50% loss=10% delay=3600s jitter=3600s", None),
    ] {
        let path = folder.path().join(name);
        let options = Options { verdicts: Some(path.clone()), ..Options::default() };
        let stopped = run(text, change, &options);
        assert_eq!((stopped.up.unlogged, &stopped.log_error), (0, &None), "{name}");
        let log = read(&path);
        let counters = [stopped.up.counters, stopped.down.counters];
        let expected: u64 = counters.iter().map(|c| c.offered.packets + c.duplicated.packets).sum();
        assert_eq!(log.lines(), (usize::try_from(expected).unwrap(), 0), "{name}");
        let differences: Vec<String> = log.replay().iter().map(ToString::to_string).collect();
        assert_eq!(differences, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn replay_finds_another_seed_or_fate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("verdicts");
    run("loss=50%", None, &Options { verdicts: Some(path.clone()), ..Options::default() });
    let text = fs::read_to_string(&path).unwrap();
    let other: VerdictLog = text.replace("\nseed 7\n", "\nseed 8\n").parse().unwrap();
    assert!(other.replay().len() > 100);

    let line = text.lines().find(|line| line.ends_with(" lost")).unwrap();
    let changed: VerdictLog = text.replacen(line, &line.replace(" lost", " policed"), 1).parse().unwrap();
    let differences: Vec<String> = changed.replay().iter().map(ToString::to_string).collect();
    assert_eq!(differences.len(), 1);
    assert!(differences[0].ends_with(" =: logged policed, now lost"), "{}", differences[0]);
}

#[test]
fn a_line_names_the_flow_and_the_fate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("verdicts");
    let options = Options { verdicts: Some(path.clone()), ..Options::default() };
    run("up: loss=pattern:2 / down: mtu=300", None, &options);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(text.lines().next(), Some("# braidmq verdicts 1"));
    assert_eq!(text.lines().nth(1), Some("link up: loss=pattern:2 / down: mtu=300"));
    assert_eq!(text.lines().nth(2), Some("seed 7"));
    let line =
        |direction: &str, index: &str| lines.iter().find(|line| line[..2] == [direction, index]).unwrap();
    assert_eq!(line("up", "2")[4..], ["229", "udp", "10.0.0.1:2", "10.0.0.2:14567", "lost"]);
    let third = line("up", "3");
    assert_eq!(third[4..9], ["360", "tcp:SA", "[fd00::1]:3", "[fd00::2]:1883", "sent"]);
    assert_eq!(third[9], format!("due={}", third[3]), "due when it came");
    assert_eq!(line("down", "3")[4..], ["360", "tcp:SA", "[fd00::2]:1883", "[fd00::1]:3", "too-big"]);
}

#[test]
fn an_invalid_log_is_refused_with_its_line() {
    let good = "# braidmq verdicts 1\nlink loss=1%\nseed 7\n";
    assert!(good.parse::<VerdictLog>().is_ok());
    for (text, line) in [
        (String::new(), 1),
        ("# something else\n".to_owned(), 1),
        ("# braidmq verdicts 1\nlink delay=50m\nseed 7\n".to_owned(), 2),
        ("# braidmq verdicts 1\nlink \nseed x\n".to_owned(), 3),
        (format!("{good}up 1 = 0.000000001 28 - - -\n"), 4),
        (format!("{good}up 1 = 0.1 28 - - - lost\n"), 4),
        (format!("{good}up 1 = 0.000000001 99999999999 - - - lost\n"), 4),
        (format!("{good}up 1 = 0.000000001 28 - - - sent\n"), 4),
        (format!("{good}# remark\nleft 1 = 0.000000001 28 - - - lost\n"), 5),
        (format!("{good}up 1 ! 0.000000001 delay=50m\n"), 4),
        (format!("{good}unlogged up many\n"), 4),
    ] {
        let refused = text.parse::<VerdictLog>().unwrap_err();
        assert_eq!(refused.line, line, "{text}: {refused}");
    }
    let lacking: VerdictLog = format!("{good}unlogged up 12\n").parse().unwrap();
    assert_eq!(lacking.lines(), (0, 12));
}

#[test]
fn a_log_that_cannot_be_created_is_an_error_at_start() {
    let path = Path::new("/nowhere/verdicts");
    for options in [
        Options { verdicts: Some(path.into()), ..Options::default() },
        Options { pcap: Some(path.into()), ..Options::default() },
    ] {
        let (left, right) = (memory_wire(0).0, memory_wire(0).0);
        let refused = start(&link(""), 1, Box::new(left), Box::new(right), &options).unwrap_err();
        assert!(refused.to_string().starts_with("cannot write /nowhere/verdicts: No such file"), "{refused}");
    }
}

#[test]
fn a_full_disk_stops_the_log_and_not_the_link() {
    let options = Options { verdicts: Some("/dev/full".into()), ..Options::default() };
    let stopped = run("loss=1%", None, &options);
    assert_eq!(stopped.up.counters.offered.packets, 400);
    let error = stopped.log_error.unwrap();
    assert!(error.starts_with("a log is not whole: No space left"), "{error}");
}

#[test]
fn a_slow_disk_costs_verdicts_and_no_packet() {
    const PACKETS: u64 = 80_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (read, may_read) = channel();
    let reader = thread::spawn({
        let path = path.clone();
        move || {
            let mut pipe = File::open(path).unwrap();
            may_read.recv().unwrap();
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        }
    });
    let ((left, left_kernel), (right, right_kernel)) = (memory_wire(0), memory_wire(0));
    let options = Options { verdicts: Some(path), ..Options::default() };
    let running = start(&link(""), 7, Box::new(left), Box::new(right), &options).unwrap();
    left_kernel.offer((0..PACKETS).map(|_| packet(1)));
    // All get through while nothing can be written.
    right_kernel.take_many(80_000);
    read.send(()).unwrap();
    let stopped = running.stop();
    let (text, unlogged) = (reader.join().unwrap(), stopped.up.unlogged);
    let log: VerdictLog = text.parse().unwrap();
    assert!(unlogged > 0 && stopped.log_error.is_none());
    assert_eq!(log.lines().1, unlogged);
    assert_eq!(log.lines().0 as u64 + unlogged, PACKETS);
    assert_eq!(stopped.up.counters.sent.packets, PACKETS);
}

#[test]
fn the_capture_holds_the_packets_with_their_verdicts() {
    let folder = tempfile::tempdir().unwrap();
    let (pcap, verdicts) = (folder.path().join("pcap"), folder.path().join("verdicts"));
    let options =
        Options { pcap: Some(pcap.clone()), verdicts: Some(verdicts.clone()), ..Options::default() };
    let stopped = run("loss=10% dup=10% corrupt=10% delay=1ms", None, &options);
    let capture = fs::read(&pcap).unwrap();
    let blocks = blocks(&capture);
    assert_eq!(blocks[0].0, 0x0a0d_0d0a);
    assert_eq!(le32(blocks[0].1, 0), 0x1a2b_3c4d);
    for (block, name) in blocks[1..3].iter().zip(["up", "down"]) {
        assert_eq!((block.0, le32(block.1, 0)), (1, 101), "LINKTYPE_RAW");
        assert_eq!(options_of(&block.1[8..]), [(2, name.as_bytes()), (9, &[9][..])]);
    }
    let text = fs::read_to_string(&verdicts).unwrap();
    let lines = text.lines().skip(3);
    assert_eq!(blocks.len() - 3, lines.clone().count());
    let offered = stopped.up.counters.offered.packets + stopped.down.counters.offered.packets;
    assert!(blocks.len() as u64 - 3 > offered, "duplicates are packets of their own");
    for ((kind, block), line) in blocks[3..].iter().zip(lines) {
        let columns: Vec<&str> = line.splitn(9, ' ').collect();
        let (direction, index) = (columns[0], columns[1].parse().unwrap());
        assert_eq!((*kind, le32(block, 0)), (6, u32::from(direction == "down")));
        let length = le32(block, 12) as usize;
        assert_eq!(length, le32(block, 16) as usize);
        let came = if direction == "up" { packet(index) } else { answer(&packet(index)) };
        assert_eq!(block[20..20 + length], came, "as it came: before a bit was flipped");
        let comment = options_of(&block[20 + length.next_multiple_of(4)..]);
        assert_eq!(comment, [(1, columns[8].as_bytes())]);
    }
}

/// Kinds and bodies of the blocks of a pcapng file.
fn blocks(mut capture: &[u8]) -> Vec<(u32, &[u8])> {
    let mut blocks = Vec::new();
    while !capture.is_empty() {
        let length = le32(capture, 4) as usize;
        assert_eq!((length % 4, le32(capture, length - 4) as usize), (0, length));
        blocks.push((le32(capture, 0), &capture[8..length - 4]));
        capture = &capture[length..];
    }
    blocks
}

/// Codes and values of options, until their end.
fn options_of(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut options = Vec::new();
    loop {
        let (code, length) =
            (u16::from_le_bytes([bytes[0], bytes[1]]), u16::from_le_bytes([bytes[2], bytes[3]]));
        if code == 0 {
            assert_eq!(bytes.len(), 4);
            return options;
        }
        options.push((code, &bytes[4..4 + usize::from(length)]));
        bytes = &bytes[4 + usize::from(length).next_multiple_of(4)..];
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
