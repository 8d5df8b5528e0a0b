//! Links between two kernels: real TUN devices, real packet sockets.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use braid_emulator::PacketCount;
use braid_lab::wire::{Batch, Options, PacketSocket, Running, Tun, Wire, WireError, start};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::link::link;
use crate::wire_memory::until;
use crate::wire_room::{Room, ip, is_inside};

const LEFT: &str = "192.168.200.2";
const RIGHT: &str = "192.168.200.1";
/// Limit of waits.
const PATIENCE: Duration = Duration::from_secs(20);
/// An IP protocol for experiments (RFC 3692). No checksum of it is left to devices.
const EXPERIMENT: i32 = 253;

/// Two namespaces and a link between them.
struct Net {
    left: Room,
    right: Room,
    running: Running,
}

/// Link over TUN devices.
fn over_tun(text: &str) -> Net {
    let (left, right) = (Room::new(), Room::new());
    let open = |room: &Room, device: &str, ours: &str, theirs: &str| -> Box<dyn Wire> {
        room.run(|| {
            let tun = Tun::open(device).unwrap();
            ip(&format!("link set {device} addrgenmode none"));
            ip(&format!("addr add {ours} peer {theirs} dev {device}"));
            ip(&format!("link set {device} up"));
            Box::new(tun)
        })
    };
    let wires = (open(&left, "lq0l", LEFT, RIGHT), open(&right, "lq0r", RIGHT, LEFT));
    let running = start(&link(text), 1, wires.0, wires.1, &Options::default()).unwrap();
    Net { left, right, running }
}

/// Over packet sockets on the near ends of two veth pairs; the far ends know each other or ask by ARP.
fn over_packet(text: &str, acquainted: bool) -> Net {
    let (left, right) = (Room::new(), Room::new());
    let ends = [(&left, "lq0l", LEFT, RIGHT, [1, 2]), (&right, "lq0r", RIGHT, LEFT, [2, 1])];
    let [left_wire, right_wire] = ends.map(|(room, device, ours, theirs, ethernet)| {
        let far = format!("{device}f");
        let address = |n| format!("02:00:00:00:00:0{n}");
        let [our_ethernet, their_ethernet] = ethernet.map(address);
        let peer = format!("{far} address {our_ethernet} netns {}", room.id());
        ip(&format!("link add {device} type veth peer name {peer}"));
        ip(&format!("link set {device} addrgenmode none"));
        ip(&format!("link set {device} up"));
        // The last to come up sends at once; the first not until the kernel has noticed the other.
        room.run(|| {
            ip(&format!("link set {far} addrgenmode none"));
            ip(&format!("addr add {ours}/24 dev {far}"));
            ip(&format!("link set {far} up"));
            if acquainted {
                ip(&format!("neigh add {theirs} lladdr {their_ethernet} dev {far}"));
            }
        });
        PacketSocket::open(device).unwrap()
    });
    let running =
        start(&link(text), 1, Box::new(left_wire), Box::new(right_wire), &Options::default()).unwrap();
    Net { left, right, running }
}

/// Sends `count` numbered packets up with `send` as fast as it goes, and returns the numbers that arrive in the end.
fn cross(net: &Net, count: u8, send: impl Fn(u8), receive: impl Fn() -> u8) -> Vec<u8> {
    for number in 0..count {
        send(number);
    }
    until(&net.running, |[up, _]| up.offered.packets == u64::from(count) && up.queued.packets == 0);
    let [up, _] = net.running.counters();
    (0..up.sent.packets).map(|_| receive()).collect()
}

/// Variant of [`cross`] with UDP.
fn cross_udp(net: &Net, count: u8) -> Vec<u8> {
    let receiver = net.right.run(|| UdpSocket::bind((RIGHT, 14_567)).unwrap());
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let sender = net.left.run(|| UdpSocket::bind((LEFT, 0)).unwrap());
    let receive = || {
        let mut number = [0; 2];
        assert_eq!(receiver.recv(&mut number).unwrap(), 1);
        number[0]
    };
    let send = |number| assert_eq!(sender.send_to(&[number], (RIGHT, 14_567)).unwrap(), 1);
    let arrived = cross(net, count, send, receive);
    receiver.set_nonblocking(true).unwrap();
    assert_eq!(receiver.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "nothing else");
    arrived
}

/// Variant of [`cross`] with raw IP.
fn cross_raw(net: &Net, count: u8) -> Vec<u8> {
    let socket = |room: &Room| {
        room.run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(EXPERIMENT)))).unwrap()
    };
    let (sender, receiver) = (socket(&net.left), socket(&net.right));
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = SockAddr::from(SocketAddr::new(RIGHT.parse().unwrap(), 0));
    let receive = || {
        let mut packet = [0; 64];
        assert_eq!((&receiver).read(&mut packet).unwrap(), 21);
        packet[20]
    };
    cross(net, count, |number| assert_eq!(sender.send_to(&[number], &to).unwrap(), 1), receive)
}

/// The emulator counted what was seen, and dropped by the rule: a burst of 5, then 29 a second.
fn assert_policed(net: Net, arrived: &[u8], count: u8) {
    let stopped = net.running.stop();
    let counters = stopped.up.counters;
    assert_eq!(counters.sent.packets, arrived.len() as u64);
    assert_eq!(counters.sent.packets + counters.policed.packets, u64::from(count));
    assert_eq!(arrived[..5], [0, 1, 2, 3, 4], "the burst");
    assert!(arrived.is_sorted() && arrived.len() < count.into(), "{arrived:?}");
    let refilled = (stopped.up.elapsed.as_secs_f64() * 29.0).ceil();
    assert!(arrived.len() as f64 <= 5.0 + refilled, "{} in {:?}", arrived.len(), stopped.up.elapsed);
    assert_eq!((stopped.up.unsent, stopped.up.missed, stopped.up.above_mtu), (PacketCount::default(), 0, 0));
    assert_eq!((stopped.up.first_error, stopped.down.first_error), (None, None));
    assert_eq!(stopped.up.lateness.packets, counters.sent.packets);
}

#[test]
fn tun_delivers_what_the_policer_accepts() {
    if is_inside("wire_kernel::tun_delivers_what_the_policer_accepts") {
        let net = over_tun("up: policer=29pps/5");
        let arrived = cross_udp(&net, 200);
        assert_policed(net, &arrived, 200);
    }
}

#[test]
fn packet_sockets_deliver_what_the_policer_accepts() {
    if is_inside("wire_kernel::packet_sockets_deliver_what_the_policer_accepts") {
        let net = over_packet("up: policer=29pps/5", true);
        let arrived = cross_raw(&net, 200);
        assert_policed(net, &arrived, 200);
    }
}

#[test]
fn packet_sockets_let_arp_through_and_see_nothing_twice() {
    if is_inside("wire_kernel::packet_sockets_let_arp_through_and_see_nothing_twice") {
        let net = over_packet("loss=pattern:1 delay=1ms", false);
        // Packets that the kernel in between sends itself do not count.
        ip("addr add 10.9.9.1/24 dev lq0l");
        ip("neigh add 10.9.9.2 lladdr 02:00:00:00:00:09 dev lq0l");
        UdpSocket::bind("10.9.9.1:0").unwrap().send_to(&[1], "10.9.9.2:9").unwrap();
        let mut arrived = cross_raw(&net, 100);
        // While a kernel asks by ARP it may let later packets go first.
        arrived.sort_unstable();
        arrived.dedup();
        assert_eq!(arrived.len(), 99);
        let stopped = net.running.stop();
        assert!(stopped.up.bypassed.packets >= 1 && stopped.down.bypassed.packets >= 1, "ARP both ways");
        assert_eq!((stopped.up.counters.offered.packets, stopped.down.counters.offered.packets), (100, 0));
        assert_eq!((stopped.up.wire.as_str(), stopped.down.wire.as_str()), ("packet", "packet"));
    }
}

#[test]
fn tun_carries_both_ways_in_packets_of_the_mtu() {
    if is_inside("wire_kernel::tun_carries_both_ways_in_packets_of_the_mtu") {
        let net = over_tun("delay=1ms");
        let server = net.right.run(|| UdpSocket::bind((RIGHT, 14_567)).unwrap());
        let client = net.left.run(|| UdpSocket::bind((LEFT, 0)).unwrap());
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let question: Vec<u8> = (0..=255).cycle().take(4000).collect();
        client.send_to(&question, (RIGHT, 14_567)).unwrap();
        let mut buffer = [0; 5000];
        let (length, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..length], question);
        server.send_to(&buffer[..length], from).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], from.port()), (&question[..], 14_567));
        let stopped = net.running.stop();
        for end in [&stopped.up, &stopped.down] {
            assert_eq!((end.counters.sent.packets, end.counters.largest, end.above_mtu), (3, 1500, 0));
            assert_eq!(end.wire, "tun");
        }
    }
}

#[test]
fn a_device_that_goes_down_loses_nothing_silently() {
    if is_inside("wire_kernel::a_device_that_goes_down_loses_nothing_silently") {
        let net = over_tun("");
        let sender = net.left.run(|| UdpSocket::bind((LEFT, 0)).unwrap());
        net.right.run(|| ip("link set lq0r down"));
        sender.send_to(&[1; 100], (RIGHT, 14_567)).unwrap();
        until(&net.running, |[up, _]| up.sent.packets == 1);
        let stopped = net.running.stop();
        assert_eq!(stopped.up.unsent, PacketCount { packets: 1, bytes: 128 });
        let error = stopped.up.first_error.unwrap();
        assert_eq!(error, "sending to lq0r: Input/output error (os error 5)");

        let net = over_packet("", true);
        ip("link del lq0l");
        let stopped = net.running.stop();
        let error = stopped.up.first_error.unwrap_or_default();
        assert!(error.starts_with("reading lq0l: "), "{error}");
    }
}

#[test]
fn packets_dropped_before_reading_are_counted() {
    if is_inside("wire_kernel::packets_dropped_before_reading_are_counted") {
        let room = Room::new();
        let tun = room.run(|| {
            let tun = Tun::open("lq0l").unwrap();
            ip("link set lq0l addrgenmode none");
            ip("addr add 192.168.200.2/24 dev lq0l");
            ip("link set lq0l up");
            ip("link set lq0l txqueuelen 10");
            tun
        });
        let sender = room.run(|| UdpSocket::bind((LEFT, 0)).unwrap());
        assert_eq!(tun.missed(), 0);
        for _ in 0..30 {
            sender.send_to(&[1], (RIGHT, 9)).unwrap();
        }
        let mut batch = Batch::new();
        let read = tun.recv(&mut batch).unwrap() as u64;
        assert!((1..30).contains(&read), "{read}");
        assert_eq!(tun.missed() + read, 30);
        assert!(batch.frames().all(|packet| packet.len() == 29 && packet[0] == 0x45));
    }
}

#[test]
fn packet_sockets_have_the_time_of_arrival_of_a_frame() {
    if is_inside("wire_kernel::packet_sockets_have_the_time_of_arrival_of_a_frame") {
        let room = Room::new();
        room.run(|| {
            ip("link add lq0l type veth peer name lq0w");
            ip("link set lq0w arp off up");
            ip("addr add 192.168.200.2/24 dev lq0l");
            ip("link set lq0l arp off up");
        });
        let socket = room.run(|| PacketSocket::open("lq0w").unwrap());
        assert!(socket.stamps());
        let sender = room.run(|| UdpSocket::bind((LEFT, 0)).unwrap());
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let (start, mut batch) = (Instant::now(), Batch::new());
        // The kernel begins to stamp some time after it was asked, and until then takes the time of reading.
        loop {
            let before = wall();
            sender.send_to(&[1], (RIGHT, 9)).unwrap();
            let sent = wall();
            batch.clear();
            let count = socket.recv(&mut batch).unwrap_or(0);
            assert_eq!(batch.arrivals().len(), count);
            let came = batch.arrivals().last().map(|stamp| stamp.unwrap());
            if came.is_some_and(|came| before < came && came < sent) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{before:?} {came:?} {sent:?}");
        }
    }
}

#[test]
fn a_failed_open_says_why() {
    if is_inside("wire_kernel::a_failed_open_says_why") {
        let refused = |error: Option<WireError>| error.map(|error| error.to_string()).unwrap_or_default();
        for name in ["", "a name", "sixteen-is-a-lot", "a/b"] {
            let expected =
                format!("\"{name}\" is no device name: write 1 to 15 bytes without space and slash");
            assert_eq!(refused(Tun::open(name).err()), expected);
            assert_eq!(refused(PacketSocket::open(name).err()), expected);
        }
        let first = Tun::open("lq0l").unwrap();
        let second = refused(Tun::open("lq0l").err());
        assert!(second.starts_with("cannot create the TUN device lq0l: Device or resource busy"), "{second}");
        drop(first);
        assert_eq!(
            refused(PacketSocket::open("lq0l").err()),
            "there is no network device lq0l in this namespace: create the veth pair first",
            "it is gone with its owner"
        );

        thread::scope(|scope| {
            scope.spawn(|| {
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
                set_capabilities(None, sets).unwrap();
                let remedy = "here: run inside a namespace of the laboratory or as root";
                let tun = refused(Tun::open("lq1l").err());
                assert_eq!(tun, format!("may not create the TUN device lq1l {remedy}"));
                let packet = refused(PacketSocket::open("lo").err());
                assert_eq!(packet, format!("may not open a packet socket {remedy}"));
            });
        });
    }
}
