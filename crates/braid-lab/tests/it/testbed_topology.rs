//! Topologies of real namespaces and devices.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::id;
use std::thread;

use braid_emulator::PathCounters;
use braid_lab::testbed::{LinkPlan, Namespace, PacketRule, Topology, WireChoice};
use braid_lab::wire;
use noq_udp::{Transmit, UdpSocketState};
use socket2::{Domain, Socket, Type};

use crate::testbed_rig::{PATIENCE, inside, inside_after};

const MTU: u64 = 1500;
/// Headers of IPv4 and UDP, bytes.
const HEADERS: u64 = 28;

fn names(ends: &[&str]) -> Vec<String> {
    ends.iter().map(ToString::to_string).collect()
}

/// Plan of a link from `a` to `b`.
fn plan(name: &str, shape: Option<&str>) -> LinkPlan {
    LinkPlan {
        name: name.into(),
        left: "a".into(),
        right: "b".into(),
        shape: shape.map(|text| text.parse().unwrap()),
        seed: 1,
        options: wire::Options::default(),
        rule: None,
        tcp: None,
        mtu: 1500,
        keep_offloads: false,
    }
}

fn one(link: LinkPlan, wire: WireChoice) -> Topology {
    Topology::build(&names(&["a", "b"]), vec![link], wire).unwrap()
}

fn udp(end: &Namespace, address: Ipv4Addr) -> UdpSocket {
    let socket = end.run(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sockets at `a` and `b`, connected with each other.
fn sockets(topology: &Topology) -> [UdpSocket; 2] {
    let socket = |own, other| udp(topology.end(own).unwrap(), topology.address(own, other).unwrap());
    let (a, b) = (socket("a", "b"), socket("b", "a"));
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    [a, b]
}

/// Sends a megabyte from `a` to `b` over TCP.
fn send_bulk(topology: &Topology) {
    let (a, b) = (topology.end("a").unwrap(), topology.end("b").unwrap());
    let address = topology.address("b", "a").unwrap();
    let listener = b.run(|| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let mut sender = a.run(|| std::net::TcpStream::connect(to).unwrap()).unwrap();
    let receive = thread::spawn(move || {
        let mut received = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
        received
    });
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    sender.write_all(&sent).unwrap();
    drop(sender);
    assert_eq!(receive.join().unwrap(), sent);
}

fn ping(topology: &Topology) {
    let [a, b] = sockets(topology);
    let mut buffer = [0; 64];
    a.send(b"there").unwrap();
    let read = b.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..read], b"there");
    b.send(b"and back").unwrap();
    let read = a.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..read], b"and back");
}

fn emulated(wire: WireChoice) {
    let topology = one(plan("link", Some("up: delay=2ms / down: delay=1ms")), wire);
    let expected = if wire == WireChoice::Tun { "tun" } else { "packet" };
    assert_eq!(topology.wire_kind(), expected);
    assert_eq!(topology.address("a", "b"), Some(Ipv4Addr::new(192, 168, 200, 2)));
    assert_eq!(topology.address("b", "a"), Some(Ipv4Addr::new(192, 168, 200, 1)));
    ping(&topology);
    assert_eq!(topology.offloads(), Vec::<String>::new());
    let [end] = topology.stop().try_into().unwrap();
    assert_eq!(end.name, "link");
    // The kernels send nothing by themselves: no ARP, no neighbour discovery, no reports.
    let (up, down) = (&end.stopped.up, &end.stopped.down);
    assert_eq!((up.counters.offered.packets, up.counters.offered.bytes), (1, HEADERS + 5));
    assert_eq!((down.counters.offered.packets, down.counters.offered.bytes), (1, HEADERS + 8));
    assert_eq!((up.bypassed.packets, down.bypassed.packets), (0, 0));
}

#[test]
fn packets_cross_an_emulated_link_on_packet_sockets() {
    if inside("testbed_topology::packets_cross_an_emulated_link_on_packet_sockets") {
        emulated(WireChoice::Packet);
    }
}

#[test]
fn packets_cross_an_emulated_link_on_tun() {
    if inside("testbed_topology::packets_cross_an_emulated_link_on_tun") {
        if File::options().read(true).write(true).open("/dev/net/tun").is_ok() {
            return emulated(WireChoice::Tun);
        }
        // The error of a user who may not open TUN names the other wire.
        let link = plan("link", Some(""));
        let error =
            Topology::build(&names(&["a", "b"]), vec![link], WireChoice::Tun).unwrap_err().to_string();
        assert!(error.starts_with("link link: /dev/net/tun") && error.contains("\"packet\""), "{error}");
    }
}

#[test]
fn no_packet_is_larger_than_the_mtu() {
    if inside("testbed_topology::no_packet_is_larger_than_the_mtu") {
        for wire in [WireChoice::Auto, WireChoice::Packet] {
            let topology = one(plan("link", Some("delay=1ms")), wire);
            send_bulk(&topology);
            let [end] = topology.stop().try_into().unwrap();
            let PathCounters { largest, sent, .. } = end.stopped.up.counters;
            assert_eq!(largest, MTU);
            assert!(sent.packets > 1_000_000 / MTU && sent.bytes > 1_000_000);
        }
    }
}

#[test]
fn packet_sockets_are_used_if_tun_cannot_be_opened() {
    const NAME: &str = "testbed_topology::packet_sockets_are_used_if_tun_cannot_be_opened";
    let hide = "if [ -e /dev/net/tun ]; then mount --bind /dev/null /dev/net/tun; fi;";
    if inside_after(NAME, hide) {
        let topology = one(plan("link", Some("")), WireChoice::Auto);
        assert_eq!(topology.wire_kind(), "packet");
        ping(&topology);
        let error =
            Topology::build(&names(&["a", "b"]), vec![plan("link", Some(""))], WireChoice::Tun).unwrap_err();
        assert!(error.to_string().starts_with("link link: "), "{error}");
    }
}

#[test]
fn a_plain_link_has_no_emulator() {
    if inside("testbed_topology::a_plain_link_has_no_emulator") {
        let topology = one(plan("link", None), WireChoice::Auto);
        assert_eq!((topology.wire_kind(), topology.counters("link")), ("none", None));
        ping(&topology);
        send_bulk(&topology);
        assert_eq!(topology.offloads(), Vec::<String>::new());
        assert!(topology.rule_counters("link").unwrap().is_none());
        assert_eq!(topology.stop().len(), 0);
    }
}

#[test]
fn a_second_link_between_two_ends_carries_packets_to_all_addresses() {
    if inside("testbed_topology::a_second_link_between_two_ends_carries_packets_to_all_addresses") {
        for wire in [WireChoice::Auto, WireChoice::Packet] {
            let links = ["one", "two", "three"].map(|name| plan(name, Some(""))).into();
            let topology = Topology::build(&names(&["a", "b"]), links, wire).unwrap();
            let b = udp(topology.end("b").unwrap(), topology.address("b", "a").unwrap());
            let at_second = || {
                let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
                socket.bind_device(Some(b"lq1l")).unwrap();
                UdpSocket::from(socket)
            };
            let a = topology.end("a").unwrap().run(at_second).unwrap();
            a.set_read_timeout(Some(PATIENCE)).unwrap();
            a.send_to(b"there", b.local_addr().unwrap()).unwrap();
            let mut buffer = [0; 64];
            let (read, from) = b.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..read], from.ip()), (&b"there"[..], Ipv4Addr::new(192, 168, 201, 2).into()));
            b.send_to(b"and back", from).unwrap();
            let read = a.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..read], b"and back");
            let [one, two, three] = topology.stop().try_into().unwrap();
            let offered = [one, two, three]
                .map(|end| [&end.stopped.up, &end.stopped.down].map(|way| way.counters.offered.packets));
            assert_eq!(offered, [[0, 0], [1, 1], [0, 0]]);
        }
    }
}

#[test]
fn the_kernels_rule_counts_single_packets() {
    if inside("testbed_topology::the_kernels_rule_counts_single_packets") {
        let rule = Some(PacketRule { rate: 1, burst: 5 });
        let topology = one(LinkPlan { rule, ..plan("link", None) }, WireChoice::Auto);
        let [a, b] = sockets(&topology);
        for _ in 0..200 {
            a.send(&[0; 1000]).unwrap();
        }
        let counters = topology.rule_counters("link").unwrap().unwrap();
        assert_eq!(counters.accepted.packets + counters.dropped.packets, 200);
        assert_eq!(counters.accepted.bytes, counters.accepted.packets * (1000 + HEADERS));
        // A burst of five, and the packets of the seconds that the test took.
        assert!((5..100).contains(&counters.accepted.packets), "{counters:?}");
        let mut buffer = [0; 2000];
        for _ in 0..counters.accepted.packets {
            assert_eq!(b.recv(&mut buffer).unwrap(), 1000);
        }
        b.set_nonblocking(true).unwrap();
        assert!(b.recv(&mut buffer).is_err());
        // The other direction is not limited.
        for _ in 0..50 {
            b.send(&[0; 10]).unwrap();
            assert_eq!(a.recv(&mut buffer).unwrap(), 10);
        }
    }
}

/// Sends ten datagrams in one call, which the kernel may carry as one packet.
fn send_segments(from: &UdpSocket, to: &UdpSocket) {
    let contents = [7; 10 * 1200];
    let transmit = Transmit {
        destination: to.local_addr().unwrap(),
        ecn: None,
        contents: &contents,
        segment_size: Some(1200),
        src_ip: None,
    };
    let state = UdpSocketState::new(from.into()).unwrap();
    if let Err(error) = state.try_send(from.into(), &transmit) {
        // Kernels before 6.11 refuse segmentation for a device without checksum offload.
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
        contents.chunks(1200).for_each(|datagram| assert_eq!(from.send(datagram).unwrap(), 1200));
    }
}

#[test]
fn udp_segments_are_single_packets() {
    if inside("testbed_topology::udp_segments_are_single_packets") {
        let rule = Some(PacketRule { rate: 1, burst: 5 });
        let topology = one(LinkPlan { rule, ..plan("link", None) }, WireChoice::Auto);
        let [a, b] = sockets(&topology);
        for _ in 0..20 {
            send_segments(&a, &b);
        }
        let counters = topology.rule_counters("link").unwrap().unwrap();
        assert_eq!(counters.accepted.packets + counters.dropped.packets, 200, "{counters:?}");
        assert_eq!(counters.accepted.bytes, counters.accepted.packets * (1200 + HEADERS));
        assert!((5..100).contains(&counters.accepted.packets), "{counters:?}");

        for wire in [WireChoice::Auto, WireChoice::Packet] {
            let topology = one(plan("link", Some("delay=1ms")), wire);
            let [a, b] = sockets(&topology);
            send_segments(&a, &b);
            let mut buffer = [0; 2000];
            for _ in 0..10 {
                assert_eq!(b.recv(&mut buffer).unwrap(), 1200);
            }
            let [end] = topology.stop().try_into().unwrap();
            let PathCounters { offered, largest, .. } = end.stopped.up.counters;
            assert_eq!((offered.packets, largest), (10, 1200 + HEADERS));
        }
    }
}

#[test]
fn under_a_rule_tcp_sends_single_packets_too() {
    if inside("testbed_topology::under_a_rule_tcp_sends_single_packets_too") {
        let rule = Some(PacketRule { rate: 10_000, burst: 10_000 });
        let topology = one(LinkPlan { rule, ..plan("link", None) }, WireChoice::Auto);
        send_bulk(&topology);
        let counters = topology.rule_counters("link").unwrap().unwrap();
        // Fewer would mean that a counted packet held several segments.
        assert!(counters.accepted.packets >= 1_000_000 / MTU, "{counters:?}");
    }
}

#[test]
fn with_offloads_a_rule_counts_several_packets_as_one_and_a_doubt_says_so() {
    if inside("testbed_topology::with_offloads_a_rule_counts_several_packets_as_one_and_a_doubt_says_so") {
        let rule = Some(PacketRule { rate: 10_000, burst: 10_000 });
        let link = LinkPlan { rule, keep_offloads: true, ..plan("link", None) };
        let topology = one(link, WireChoice::Auto);
        send_bulk(&topology);
        let accepted = topology.rule_counters("link").unwrap().unwrap().accepted;
        assert!(accepted.bytes > accepted.packets * MTU, "{accepted:?}");
        let on = topology.offloads();
        assert!(on.contains(&"lq0l tx-tcp-segmentation".to_owned()), "{on:?}");
        assert!(on.iter().any(|offload| offload.starts_with("lq0r ")), "{on:?}");
    }
}

#[test]
fn ends_may_have_several_links() {
    if inside("testbed_topology::ends_may_have_several_links") {
        let out = LinkPlan { right: "c".into(), left: "b".into(), ..plan("out", None) };
        let links = vec![plan("in", Some("delay=1ms")), out];
        let topology = Topology::build(&names(&["a", "b", "c"]), links, WireChoice::Packet).unwrap();
        let address = |of, from| topology.address(of, from).map(|address| address.octets()[2..].to_vec());
        assert_eq!(address("a", "b"), Some(vec![200, 2]));
        assert_eq!(address("b", "a"), Some(vec![200, 1]));
        assert_eq!(address("b", "c"), Some(vec![201, 2]));
        assert_eq!(address("c", "b"), Some(vec![201, 1]));
        assert_eq!(address("b", "b"), Some(vec![200, 1]));
        assert_eq!(address("a", "c"), None);
        assert!(topology.end("c").is_some() && topology.end("d").is_none());
        ping(&topology);
    }
}

/// Numbers of network namespace descriptors and threads of this process.
fn held() -> (usize, usize) {
    let files = fs::read_dir("/proc/self/fd").unwrap();
    let links = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
    let namespaces = links.filter(|link| link.to_string_lossy().starts_with("net:[")).count();
    (namespaces, fs::read_dir(format!("/proc/{}/task", id())).unwrap().count())
}

#[test]
fn a_failed_build_leaves_nothing() {
    if inside("testbed_topology::a_failed_build_leaves_nothing") {
        let before = held();
        let mut second = plan("second", Some("delay=1ms"));
        second.options.pcap = Some("/nowhere/at/all.pcapng".into());
        let links = vec![plan("first", Some("delay=1ms")), second];
        let error = Topology::build(&names(&["a", "b"]), links, WireChoice::Packet).unwrap_err();
        assert!(error.to_string().starts_with("link second: "), "{error}");
        assert_eq!(held(), before);
        let topology = one(plan("link", Some("delay=1ms")), WireChoice::Packet);
        assert_ne!(held(), before);
        drop(topology);
        assert_eq!(held(), before);
    }
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    const NAME: &str = "testbed_topology::a_missing_program_is_named_with_its_package";
    let hide = "mount -t tmpfs none /usr/sbin;";
    if inside_after(NAME, hide) {
        let error = |link| {
            Topology::build(&names(&["a", "b"]), vec![link], WireChoice::Packet).unwrap_err().to_string()
        };
        let rule = Some(PacketRule { rate: 29, burst: 5 });
        let said = error(LinkPlan { rule, ..plan("link", None) });
        assert!(said.contains("`iptables`") && said.contains("package iptables"), "{said}");
        assert!(said.contains("policer=xt:29pps/5"), "{said}");
    }
}

#[test]
fn a_failed_system_program_is_reported_with_its_error() {
    const NAME: &str = "testbed_topology::a_failed_system_program_is_reported_with_its_error";
    // An `ip` that accepts arguments, and only the first line of its input.
    let refuse = r#"
        mount -t tmpfs none /mnt
        printf '#!/bin/sh\n[ $1 != -batch ] || { echo "RTNETLINK answers: No\nCommand failed -:2" >&2; exit 1; }' > /mnt/ip
        chmod +x /mnt/ip
        export PATH=/mnt:$PATH;
    "#;
    if inside_after(NAME, refuse) {
        let links = vec![plan("link", None)];
        let error = Topology::build(&names(&["a", "b"]), links, WireChoice::Auto).unwrap_err();
        let expected = "`ip link set dev lq0l arp off` in the namespace a failed: RTNETLINK answers: No";
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn outside_the_testbed_the_error_names_the_remedy() {
    if inside_after(
        "testbed_topology::outside_the_testbed_the_error_names_the_remedy",
        "set -- setpriv --bounding-set=-all --inh-caps=-all -- \"$@\";",
    ) {
        let error = Namespace::create("a").unwrap_err().to_string();
        assert!(
            error.contains("network namespace of a") && error.contains("call testbed::enter first"),
            "{error}"
        );
    }
}
