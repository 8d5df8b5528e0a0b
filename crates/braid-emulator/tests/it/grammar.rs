//! Grammar of link specifications, and the one-line errors.

use std::time::Duration;

use braid_emulator::{
    Codel, Direction, Ecn, Limit, LineRate, LinkSpec, Loss, Management, NatKind, NatTimes, Order, Policer,
    Probability, Rate, Rule,
};

use crate::drive::{link, ms};

fn error(text: &str) -> String {
    text.parse::<LinkSpec>()
        .map(|link| format!("accepted as {link}"))
        .unwrap_or_else(|error| error.to_string())
}

#[test]
fn every_key() {
    let text = "match=udp,tcp:1883 policer=29pps/5 dup=2% loss=1% corrupt=0.1% limit=1000p/64kb rate=10mbit \
                delay=50ms jitter=10ms dist=normal reorder=25% nat=rebind:30s mtu=1400 order=line seed=7";
    let link = link(text);
    let path = link.timeline(Direction::Up).start.clone();
    assert_eq!(link.seed, Some(7));
    assert_eq!(path.selector.map(|s| s.rules), Some(vec![Rule::Udp(None), Rule::Tcp(Some(1883))]));
    assert_eq!(path.policer, Some(Policer::Packets { rate: 29, burst: 5 }));
    assert_eq!(path.duplicate, Some(Probability::from_billionths(20_000_000)));
    assert_eq!(path.loss, Some(Loss::Independent(Probability::from_billionths(10_000_000))));
    assert_eq!(path.corrupt, Some(Probability::from_billionths(1_000_000)));
    assert_eq!(path.limit, Some(Limit { packets: Some(1000), bytes: Some(65_536) }));
    assert_eq!(path.rate, Some(LineRate::Fixed(Rate::Bits(10_000_000))));
    assert_eq!((path.delay, path.jitter), (Some(ms(50)), Some(ms(10))));
    assert_eq!(path.mtu, Some(1400));
    assert_eq!(path.order, Some(Order::Line));
    let nat = path.nat.unwrap();
    assert_eq!((nat.kind, nat.times), (NatKind::Rebind, NatTimes::Every(Duration::from_secs(30))));
    assert_eq!(link.down.start.nat, None, "the left end is behind it");
    assert_eq!(link.down.start.delay, Some(ms(50)));
}

#[test]
fn directions_take_precedence_over_both() {
    let link = link("down: delay=20ms / up: policer=29pps/5 delay=1.5ms / loss=1% delay=9ms");
    assert_eq!(
        (link.up.start.delay, link.down.start.delay),
        (Some(Duration::from_micros(1500)), Some(ms(20)))
    );
    assert!(link.up.start.policer.is_some() && link.down.start.policer.is_none());
    assert!(link.up.start.loss.is_some() && link.up.start.loss == link.down.start.loss);
}

#[test]
fn changes_keep_what_they_do_not_name() {
    let link =
        link("delay=20ms policer=29pps/5 ; t=60s policer=10pps/5 ; t=120s up: policer=none / down: delay=1s");
    let policer = |at| link.up.at(Duration::from_secs(at)).policer;
    assert_eq!(policer(59), Some(Policer::Packets { rate: 29, burst: 5 }));
    assert_eq!(policer(60), Some(Policer::Packets { rate: 10, burst: 5 }));
    assert_eq!(policer(120), None);
    assert_eq!(link.up.at(Duration::from_secs(200)).delay, Some(ms(20)));
    assert_eq!(link.down.at(Duration::from_secs(200)).delay, Some(ms(1000)));
}

#[test]
fn a_link_is_written_as_short_as_it_was_read() {
    for text in [
        "",
        "seed=7",
        "seed=7 policer=29pps/5 delay=50ms",
        "up: policer=29pps/5 / down: delay=20ms",
        "down: delay=20ms",
        "loss=1% nat=rst@30s,75s",
        "policer=29pps/5 ; t=60s policer=10pps/5 ; t=120s policer=none",
        "delay=50ms ; t=1500ms up: loss=pattern:3,7,9-12",
        "policer=1mbit/32kb loss=gemodel:1%,10%,100%,0% limit=64kb rate=29pps",
        "loss=state:1%,10%,0%,100%,0.5% delay=1ms jitter=100us dist=table:-1,0,0,2.5",
        "match=icmp policer=xt:29pps/5 order=netem",
        "limit=300p rate=2mbit-30mbit/100ms stall=30ms-300ms/2s order=line",
        "queue=fq_codel ecn=on rate=10mbit",
        "queue=codel:10ms/200ms ecn=5ms trace=lte-driving aggregate=2ms-10ms",
        "trace=lte-walking stall=200ms/15s",
    ] {
        assert_eq!(link(text).to_string(), text);
    }
    assert_eq!(link(" t=5s  loss=1%").to_string(), " ; t=5s loss=1%");
    assert_eq!(link("loss=1% ; t=5s loss=1%").to_string(), "loss=1%", "no change is no entry");
}

#[test]
fn serde_uses_the_same_text() {
    let json = serde_json::to_string(&link("delay=50ms loss=1%")).unwrap();
    assert_eq!(json, "\"loss=1% delay=50ms\"");
    let back: LinkSpec = serde_json::from_str(&json).unwrap();
    assert_eq!(back, link("delay=50ms loss=1%"));
    let refused = serde_json::from_str::<LinkSpec>("\"delay=50m\"").unwrap_err().to_string();
    assert_eq!(refused, error("delay=50m"));
}

#[test]
fn units_and_numbers() {
    assert_eq!(error("delay=50m"), "unknown unit \"m\" in delay=50m: write 50ms or 50s");
    assert!(
        error("delay=1.0000000001s").starts_with("bad number \"1.0000000001\" in "),
        "below a nanosecond"
    );
    assert!(error("delay=99999999999s").starts_with("bad number \"99999999999\" in "), "beyond 584 years");
    assert_eq!(error("delay=50"), "no unit in delay=50: write 50ms or 50s");
    assert_eq!(error("delay="), "no number in delay=: write 50ms or 50s");
    assert_eq!(error("delay=-5ms"), "no number in delay=-5ms: write 50ms or 50s");
    assert_eq!(
        error("delay=1.2.3ms"),
        "bad number \"1.2.3\" in delay=1.2.3ms: write for example 50ms, 1.5s or 200us"
    );
    assert_eq!(
        error("loss=1"),
        "no % after \"1\" in loss=1: write a share from 0% to 100%, for example 1% or 0.25%"
    );
    let over =
        "101% is more than everything in loss=101%: write a share from 0% to 100%, for example 1% or 0.25%";
    assert_eq!(error("loss=101%"), over);
    assert_eq!(
        error("dup=-1%"),
        "bad share \"-1%\" in dup=-1%: write a share from 0% to 100%, for example 1% or 0.25%"
    );
    assert_eq!(
        error("rate=10kbps"),
        "unknown unit \"kbps\" in rate=10kbps: write for example 10mbit, 64kbit or 29pps"
    );
    assert_eq!(
        error("rate=0pps"),
        "a rate of 0 in rate=0pps: write loss=100% for a link that passes nothing"
    );
    assert_eq!(error("mtu=20"), "no number of bytes from 68 to 65535 in mtu=20: write for example mtu=1400");
    let limit = "no number of packets or bytes \"1000\" in limit=1000: write packets as 1000p, bytes as 64kb, both as 1000p/64kb";
    assert_eq!(error("limit=1000"), limit);
}

#[test]
fn lines_and_managed_queues() {
    let path = link("queue=fq_codel:10ms/200ms ecn=5ms rate=10mbit").up.start;
    let codel = Codel { target: ms(10), interval: ms(200) };
    assert_eq!((path.queue, path.ecn), (Some(Management::FqCodel(codel)), Some(Ecn::Above(ms(5)))));
    for (text, expected) in [
        ("queue=codel", "no line in queue=codel: add for example rate=10mbit"),
        ("stall=1ms/1s", "no line in stall=1ms/1s: add for example rate=10mbit"),
        ("rate=1mbit trace=lte-driving", "a trace and a rate in trace=lte-driving: leave one of them"),
        (
            "replay=3s",
            "no time in replay=3s: write for example 4p/3s: the first 4 packets of each UDP flow, 3 s later",
        ),
        (
            "replay=0p/3s",
            "bad number of packets \"0p\" in replay=0p/3s: write for example 4p/3s: the first 4 packets of each UDP flow, 3 s later",
        ),
        ("replay=4p/3s dup=1%", "a replay and duplicates in replay=4p/3s: leave one of them"),
        (
            "rate=1mbit ecn=on",
            "marks in place of drops of no CoDel in ecn=on: add queue=codel, or write ecn=5ms",
        ),
        (
            "rate=1mbit queue=codel reorder=1%",
            "packets that overtake a managed queue in reorder=1%: use jitter with order=line",
        ),
        (
            "rate=1mbit queue=codel order=netem",
            "a managed queue in the order of netem in order=netem: write order=line, or nothing",
        ),
        (
            "rate=1mbit queue=red",
            "unknown queue \"red\" in queue=red: write fifo, codel, fq_codel, or with its target and interval codel:5ms/100ms",
        ),
        (
            "rate=1mbit queue=codel:5ms",
            "no interval in queue=codel:5ms: write fifo, codel, fq_codel, or with its target and interval codel:5ms/100ms",
        ),
        (
            "rate=1mbit ; t=1s queue=codel",
            "a management of the queue that changes with time in queue=codel: write it before the first \";\"",
        ),
        (
            "rate=30mbit-2mbit/1s",
            "no range of rates \"30mbit-2mbit\" in rate=30mbit-2mbit/1s: write for example 10mbit, 29pps, or 2mbit-30mbit/100ms for one that varies",
        ),
        (
            "rate=1mbit-2mbit/0s",
            "a time that is not between 100us and 86400s in rate=1mbit-2mbit/0s: write for example 100ms",
        ),
        (
            "rate=1mbit stall=3s/2s",
            "stalls that are not shorter than their period in stall=3s/2s: write for example 30ms-300ms/2s",
        ),
        ("rate=1mbit stall=30ms", "no period in stall=30ms: write for example 30ms-300ms/2s"),
        (
            "rate=1mbit aggregate=5ms-2ms",
            "a range that falls \"5ms-2ms\" in aggregate=5ms-2ms: write for example 2ms-10ms",
        ),
        (
            "rate=1mbit ecn=yes",
            "neither on nor a wait \"yes\" in ecn=yes: write on for marks in place of drops of CoDel, or the wait above which packets are marked, as 5ms",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
    let together = "packets that leave together in the order of netem in aggregate=2ms: add order=line";
    assert_eq!(error("rate=1mbit aggregate=2ms"), together);
    for text in ["aggregate=1ns", "rate=1mbit-2mbit/1ns", "queue=codel:5ms/1000000s", "stall=0ms/1ns"] {
        let told = error(&format!("{text} order=line"));
        assert!(told.contains("a time that is not between 100us and 86400s in "), "{told}");
    }
    assert!(error("trace=/no/such/file").starts_with("cannot read /no/such/file: No such file or directory"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"1\n2\n1\n").unwrap();
    let text = format!("trace={}", file.path().display());
    assert!(error(&text).contains(" line 3: an earlier time than the line before in "), "{}", error(&text));
}

#[test]
fn policers_and_models() {
    assert_eq!(
        error("policer=1mbit"),
        "no burst in policer=1mbit: write the bytes of its bucket, for example 1mbit/32kb"
    );
    assert_eq!(
        error("policer=29pps/0"),
        "bad burst \"0\" in policer=29pps/0: write a number of packets, for example 29pps/5"
    );
    assert!(error("policer=xt:1mbit/32kb").starts_with("a rate in bits in policer=xt:1mbit/32kb: iptables"));
    assert!(error("policer=xt:20000pps/5").starts_with("more than iptables -m limit can express in "));
    assert!(
        error("loss=burst:1%")
            .starts_with("unknown loss model \"burst\" in loss=burst:1%: write 1%, gemodel:p,r")
    );
    assert!(error("loss=gemodel:1%,2%,3%,4%,5%").starts_with("more than 4 shares in "));
    assert!(error("loss=state:60%,1%,1%,1%,60%").starts_with("p13 and p14 are together above 100% in "));
    assert!(
        error("loss=pattern:7,3")
            .starts_with("\"3\" out of order in loss=pattern:7,3: write rising packet numbers")
    );
    assert!(error("loss=pattern:0").starts_with("\"0\" out of order in loss=pattern:0: "));
    assert!(error("match=quic").starts_with("unknown kind of packet \"quic\" in match=quic: write udp, tcp"));
    assert!(error("nat=rebind").starts_with("no times in nat=rebind: write rebind:30s"));
    assert!(error("nat=rebind:0s").starts_with("times that do not rise from above 0 in nat=rebind:0s: "));
    assert!(
        error("nat=rebind@5s,3s").starts_with("times that do not rise from above 0 in nat=rebind@5s,3s: ")
    );
    assert_eq!(error("order=tc"), "unknown order \"tc\" in order=tc: write netem or line");
}

#[test]
fn keys_and_structure() {
    assert!(
        error("dely=50ms")
            .starts_with("unknown key \"dely\" in dely=50ms: write one of match, policer, dup, ")
    );
    assert_eq!(error("50ms"), "no \"=\" in 50ms: write key=value, for example delay=50ms");
    assert_eq!(error("loss=1% loss=2%"), "loss twice in loss=2%: leave one of them");
    assert_eq!(error("jitter=10ms"), "jitter without delay in jitter=10ms: add for example delay=50ms");
    assert_eq!(error("reorder=25%"), "nothing to overtake in reorder=25%: add for example delay=50ms");
    assert_eq!(
        error("delay=1ms dist=normal"),
        "a distribution without jitter in dist=normal: add for example jitter=10ms"
    );
    assert_eq!(error("loss=1% ; loss=2%"), "no time in loss=2%: write ; t=60s loss=1%");
    assert_eq!(
        error("loss=1% ; t=60s loss=2% ; t=30s loss=3%"),
        "a time too early in t=30s: write changes in rising order, after 60s"
    );
    assert_eq!(error("t=0s loss=1%"), "a time too early in t=0s: write changes in rising order, after 0s");
    assert_eq!(error("loss=1% t=5s"), "a time in mid-entry in t=5s: write it first, after a \";\"");
    assert_eq!(error("seed=x"), "no whole number in seed=x: write for example seed=7");
    assert_eq!(
        error("; t=5s seed=7"),
        "a seed that changes with time in seed=7: write it before the first \";\""
    );
    assert_eq!(
        error("; t=5s nat=rebind:9s"),
        "a NAT that changes with time in nat=rebind:9s: name its times: nat=rebind@60s"
    );
}
