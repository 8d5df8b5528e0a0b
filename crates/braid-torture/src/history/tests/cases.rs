//! Short histories for the definitions that random ones do not reach.

use std::borrow::Cow;

use super::super::event::{Event, Line, Phase, Qos};
use super::super::report::Kind;
use super::check_history;
use super::model::Entry;

/// Builder of a history, an event each millisecond.
#[derive(Default)]
struct Script {
    t: u64,
    entries: Vec<Entry>,
}

impl Script {
    fn add(mut self, file: &str, event: Event<'static>) -> Self {
        self.t += 1_000_000;
        self.entries.push((file.into(), Line { t: self.t, event }));
        self
    }

    fn wait(mut self, millis: u64) -> Self {
        self.t += millis * 1_000_000;
        self
    }

    fn send_connect(self, client: &'static str, conn: &'static str, clean: bool) -> Self {
        let event =
            Event::Connect { client: client.into(), conn: conn.into(), node: None, clean, expiry: None };
        self.add(client, event)
    }

    fn connack(self, client: &'static str, conn: &'static str, node: &'static str, present: bool) -> Self {
        let (client_id, conn, node) = (client.into(), conn.into(), node.into());
        self.add(client, Event::Connack { client: client_id, conn, node, present, reason: 0 })
    }

    fn connect(self, client: &'static str, conn: &'static str, clean: bool) -> Self {
        let node = if conn.ends_with('b') { "b" } else { "a" };
        self.send_connect(client, conn, clean).connack(client, conn, node, false)
    }

    fn closed(self, client: &'static str, conn: &'static str) -> Self {
        self.add(client, Event::Closed { client: client.into(), conn: conn.into(), reason: None })
    }

    fn disconnect(self, client: &'static str, conn: &'static str) -> Self {
        self.add(client, Event::Disconnect { client: client.into(), conn: conn.into() })
    }

    fn will(self, conn: &'static str, delay: u32) -> Self {
        let (client, conn, id, topic) = ("p".into(), conn.into(), "w:1".into(), "x".into());
        self.add("p", Event::Will { client, conn, id, topic, delay, qos: qos(1) })
    }

    fn subscribe(self, client: &'static str, conn: &'static str, filter: &'static str, level: u8) -> Self {
        let (conn, filter): (Cow<'_, str>, Cow<'_, str>) = (conn.into(), filter.into());
        let event = Event::Subscribe {
            client: client.into(),
            conn: conn.clone(),
            filter: filter.clone(),
            qos: qos(level),
        };
        self.add(client, event)
            .add(client, Event::Subscribed { client: client.into(), conn, filter, reason: level })
    }

    fn publish_with(self, conn: &'static str, number: u64, level: u8, (retain, empty): (bool, bool)) -> Self {
        let (client, topic, id) = ("p".into(), "x".into(), format!("p:{number}").into());
        let event = Event::Publish {
            client,
            conn: conn.into(),
            topic,
            qos: qos(level),
            id,
            pid: Some(1),
            dup: false,
            retain,
            empty,
        };
        self.add("p", event)
    }

    fn publish(self, conn: &'static str, number: u64, level: u8) -> Self {
        self.publish_with(conn, number, level, (false, false))
    }

    fn acked_with(self, conn: &'static str, number: u64, reason: u8) -> Self {
        let id = format!("p:{number}").into();
        self.add("p", Event::Acked { client: "p".into(), conn: conn.into(), id, reason })
    }

    fn acked(self, conn: &'static str, number: u64) -> Self {
        self.acked_with(conn, number, 0)
    }

    fn delivered(
        self,
        client: &'static str,
        conn: &'static str,
        number: u64,
        level: u8,
        pid: u16,
        (dup, retain): (bool, bool),
    ) -> Self {
        let (topic, id) = ("x".into(), format!("p:{number}").into());
        let event = Event::Delivered {
            client: client.into(),
            conn: conn.into(),
            topic,
            qos: qos(level),
            id,
            pid: Some(pid),
            dup,
            retain,
        };
        self.add(client, event)
    }

    /// Publishes a message with RETAIN and acknowledges it.
    fn retain(self, number: u64, empty: bool) -> Self {
        self.publish_with("pa", number, 1, (true, empty)).acked("pa", number)
    }

    fn done(self, client: &'static str, conn: &'static str, number: u64) -> Self {
        let id = format!("p:{number}").into();
        self.add(client, Event::DeliveryDone { client: client.into(), conn: conn.into(), id })
    }

    fn fault(self, name: &'static str, phase: Phase) -> Self {
        self.add("faults", Event::Fault { name: name.into(), on: "a".into(), phase })
    }
}

fn qos(level: u8) -> Qos {
    Qos::try_from(level).unwrap()
}

/// A publisher `p`, and a persistent subscriber `s` with one filter.
fn start(filter: &'static str, level: u8) -> Script {
    Script::default().connect("p", "pa", true).connect("s", "sa", false).subscribe("s", "sa", filter, level)
}

const PLAIN: (bool, bool) = (false, false);
const DUP: (bool, bool) = (true, false);
const RETAIN: (bool, bool) = (false, true);
/// PUBLISH with RETAIN, not empty.
const RETAINED: (bool, bool) = (true, false);

#[test]
fn required_deliveries() {
    let sent = |script: Script| script.publish("pa", 1, 1).acked("pa", 1);
    expect("a subscription of QoS 0", sent(start("x", 0)), &[]);
    expect("a subscription of QoS 1", sent(start("x", 1)), &[Kind::Lost]);
    for (reason, is_taken) in [(0x10, true), (0x87, false), (0x91, false), (0x92, true)] {
        let answered = start("x", 1).publish("pa", 1, 2).acked_with("pa", 1, reason);
        let expected: &[Kind] = if is_taken { &[Kind::Lost] } else { &[] };
        expect(&format!("an exchange that ended with {reason:#04x}"), answered, expected);
    }
    expect("another filter", sent(start("y", 1)), &[]);
    let late = start("y", 1).publish("pa", 1, 1).subscribe("s", "sa", "x", 1).acked("pa", 1);
    expect("a subscription after the first PUBLISH", late, &[]);
    let again = start("x", 1).subscribe("s", "sa", "x", 1).publish("pa", 1, 1).acked("pa", 1);
    expect("a subscription that replaces another", again, &[Kind::Lost]);
    let raised = start("x", 0).publish("pa", 1, 1).acked("pa", 1).subscribe("s", "sa", "x", 1);
    expect("a subscription whose QoS is raised later", raised, &[]);
    expect("two filters of one client", sent(start("x", 1).subscribe("s", "sa", "#", 1)), &[Kind::Lost]);
    let clean =
        Script::default().connect("p", "pa", true).connect("s", "sa", true).subscribe("s", "sa", "x", 1);
    expect("a session with Clean Start", sent(clean), &[]);
    let present = Script::default().connect("p", "pa", true).send_connect("s", "sa", false);
    let present = present.connack("s", "sa", "a", true).subscribe("s", "sa", "x", 1);
    expect("a session whose first CONNACK was lost", sent(present), &[Kind::Lost]);
    // A CONNECT without an answer may have opened another session after the end of the one before.
    let returned = |away: u64, is_unanswered: bool| {
        let event = |conn: &'static str| Event::Connect {
            client: "s".into(),
            conn: conn.into(),
            node: None,
            clean: false,
            expiry: Some(2),
        };
        let script = Script::default().connect("p", "pa", true).add("s", event("sa"));
        let script = script.connack("s", "sa", "a", false).subscribe("s", "sa", "x", 1).closed("s", "sa");
        let mut script = sent(script).wait(away);
        if is_unanswered {
            script = script.add("s", event("sx")).closed("s", "sx");
        }
        script.add("s", event("sb")).connack("s", "sb", "b", true)
    };
    expect("a session after an unanswered CONNECT", returned(100, true), &[Kind::Lost]);
    expect("a session that may have expired before one", returned(5000, true), &[]);
    expect("a session that lived on", returned(5000, false), &[Kind::Lost]);
    // The server may carry out an earlier CONNECT later, and end the session.
    let open =
        Script::default().connect("p", "pa", true).send_connect("s", "sx", true).connect("s", "sa", false);
    expect("a session after a Clean Start without answer", sent(open.subscribe("s", "sa", "x", 1)), &[]);
    let open = Script::default().connect("p", "pa", true).connect("s", "sx", true).connect("s", "sa", false);
    expect("a session after a Clean Start", sent(open.subscribe("s", "sa", "x", 1)), &[Kind::Lost]);
    let shared = start("$share/g/x", 1).connect("t", "ta", true).subscribe("t", "ta", "$share/g/x", 1);
    expect("a group with a member whose session may end", sent(shared), &[]);
    let shared = start("$share/g/x", 1).connect("t", "ta", false).subscribe("t", "ta", "$share/g/x", 1);
    expect("a group that lives", sent(shared), &[Kind::Lost]);
}

#[test]
fn duplicates_of_qos_2() {
    let sent = || start("x", 2).publish("pa", 1, 2).delivered("s", "sa", 1, 2, 1, PLAIN);
    expect("another packet identifier with DUP", sent().delivered("s", "sa", 1, 2, 2, DUP), &[]);
    expect("another packet identifier", sent().delivered("s", "sa", 1, 2, 2, PLAIN), &[Kind::Duplicate]);
    expect("a retained copy", sent().done("s", "sa", 1).delivered("s", "sa", 1, 2, 2, RETAIN), &[]);
    let copy = sent().delivered("s", "sa", 1, 2, 2, RETAIN).done("s", "sa", 1);
    expect("the end of a retained copy", copy.delivered("s", "sa", 1, 2, 1, DUP), &[]);
    let two = start("x", 2).subscribe("s", "sa", "#", 2).publish("pa", 1, 2);
    let two = two.delivered("s", "sa", 1, 2, 1, PLAIN).delivered("s", "sa", 1, 2, 2, PLAIN);
    let three = start("x", 2).subscribe("s", "sa", "#", 2).publish("pa", 1, 2);
    let three = three.delivered("s", "sa", 1, 2, 1, PLAIN).delivered("s", "sa", 1, 2, 2, PLAIN);
    expect("a copy for each filter", two, &[]);
    expect("a copy more", three.delivered("s", "sa", 1, 2, 3, PLAIN), &[Kind::Duplicate]);
    let other = sent().done("s", "sa", 1).connect("s", "sb", true).subscribe("s", "sb", "x", 2);
    expect("another session", other.delivered("s", "sb", 1, 2, 1, PLAIN), &[]);
    let lower = start("x", 2).publish("pa", 1, 1).delivered("s", "sa", 1, 1, 1, PLAIN).done("s", "sa", 1);
    expect("QoS 1", lower.delivered("s", "sa", 1, 1, 2, PLAIN), &[]);
}

#[test]
fn order_of_a_publisher() {
    let both =
        |script: Script| script.delivered("s", "sa", 2, 1, 1, PLAIN).delivered("s", "sa", 1, 1, 2, PLAIN);
    let same = start("x", 1).publish("pa", 1, 1).publish("pa", 2, 1);
    expect("one connection", both(same), &[Kind::Order]);
    let abandoned = start("x", 1).publish("pa", 1, 1).connect("p", "pb", true).publish("pb", 2, 1);
    expect("the first one abandoned", both(abandoned), &[]);
    let acked = start("x", 1).publish("pa", 1, 1).acked("pa", 1).connect("p", "pb", true).publish("pb", 2, 1);
    expect("the first one acknowledged", both(acked), &[Kind::Order]);
    let again =
        start("x", 1).publish("pa", 1, 1).connect("p", "pb", true).publish("pb", 1, 1).publish("pb", 2, 1);
    expect("the first one sent again", both(again), &[Kind::Order]);
    let late = start("y", 1).publish("pa", 1, 1).publish("pa", 2, 1).subscribe("s", "sa", "x", 1);
    let late = late.connect("p", "pb", true).publish("pb", 1, 1).publish("pb", 2, 1);
    expect("a subscription between two copies", both(late), &[]);
    let shared = start("$share/g/x", 1).publish("pa", 1, 1).publish("pa", 2, 1);
    expect("a shared subscription", both(shared), &[]);
    let qos = start("x", 1).publish("pa", 1, 2).publish("pa", 2, 1);
    expect("different QoS", both(qos), &[]);
    let moved = |level| {
        let moved = start("x", 1).publish("pa", 1, level).publish("pa", 2, level);
        let moved = moved.delivered("s", "sa", 2, level, 1, PLAIN).closed("s", "sa");
        let moved = moved.send_connect("s", "sb", false).connack("s", "sb", "b", true);
        moved.delivered("s", "sb", 1, level, 1, PLAIN)
    };
    expect("QoS 1 at two nodes", moved(1), &[Kind::Order]);
    expect("QoS 0 at two nodes", moved(0), &[]);
}

#[test]
fn owners_of_a_session() {
    let moved = || start("x", 1).send_connect("s", "sb", false).connack("s", "sb", "b", true);
    let late =
        |script: Script, flags| script.wait(300).publish("pa", 1, 1).delivered("s", "sa", 1, 1, 1, flags);
    expect("a delivery at the old node", late(moved(), PLAIN), &[Kind::TwoOwners]);
    expect("a delivery with DUP", late(moved(), DUP), &[]);
    let near = start("x", 1).send_connect("s", "sa2", false).connack("s", "sa2", "a", true);
    expect("two connections at one node", late(near, PLAIN), &[]);
    // The CONNACK of the second CONNECT comes first.
    let crossed = Script::default().connect("p", "pa", true).send_connect("s", "sa", false);
    let crossed = crossed.send_connect("s", "sb", false).connack("s", "sb", "b", false);
    let crossed =
        crossed.connack("s", "sa", "a", true).subscribe("s", "sb", "x", 1).wait(300).publish("pa", 1, 1);
    expect("CONNACKs that cross", crossed.delivered("s", "sb", 1, 1, 1, PLAIN), &[]);
    let before = |script: Script| script.wait(300).delivered("s", "sa", 1, 1, 1, PLAIN);
    let sent = || start("x", 1).publish("pa", 1, 1);
    let move_on = |script: Script| script.send_connect("s", "sb", false).connack("s", "sb", "b", true);
    expect("a message from before", before(move_on(sent())), &[Kind::TwoOwners]);
    let stopped = sent().fault("stop", Phase::Begin);
    expect("a message from before, the node stopped", before(move_on(stopped)), &[Kind::TwoOwners]);
    let slow = sent().fault("partition", Phase::Begin).fault("partition", Phase::End);
    expect("a message from before, on a link that was cut", before(move_on(slow)), &[]);
    let slow = move_on(sent().fault("partition", Phase::Begin)).wait(300);
    let slow = slow.publish("pa", 2, 1).delivered("s", "sa", 2, 1, 1, PLAIN);
    expect("a later message, on a link that is cut", slow, &[Kind::TwoOwners]);
}

#[test]
fn retained_messages_of_late_subscribers() {
    let look = |script: Script| script.connect("l", "la", true).subscribe("l", "la", "x", 1);
    let see =
        |script: Script, number, flags| look(script).delivered("l", "la", number, 1, 1, flags).wait(2000);
    let kept = || Script::default().connect("p", "pa", true).retain(1, false).retain(2, false);
    let removed = || kept().retain(3, true);
    expect("the last one", see(kept(), 2, RETAIN), &[]);
    expect("an older one", see(kept(), 1, RETAIN), &[Kind::RetainedStale]);
    expect("an older one, then the last", see(kept(), 1, RETAIN).delivered("l", "la", 2, 1, 2, PLAIN), &[]);
    expect("an older one from a queue", see(kept(), 2, RETAIN).delivered("l", "la", 1, 1, 2, PLAIN), &[]);
    let mixed =
        Script::default().connect("p", "pa", true).publish_with("pa", 1, 2, RETAINED).retain(2, false);
    expect("one of another QoS that was open", see(mixed.acked("pa", 1), 1, RETAIN), &[]);
    let mixed = Script::default().connect("p", "pa", true).publish_with("pa", 1, 2, RETAINED).acked("pa", 1);
    expect("one of another QoS", see(mixed.retain(2, false), 1, RETAIN), &[Kind::RetainedStale]);
    let abandoned = Script::default().connect("p", "pa", true).publish_with("pa", 1, 1, RETAINED);
    let abandoned = abandoned.connect("p", "pb", true).publish_with("pb", 2, 1, RETAINED).acked("pb", 2);
    expect("one that was abandoned", see(abandoned, 1, RETAIN), &[]);
    expect("none", look(kept()).wait(2000), &[Kind::RetainedMissing]);
    expect("none yet", look(kept()).wait(500), &[]);
    expect("none before the connection broke", look(kept()).closed("l", "la").wait(2000), &[]);
    expect("none after a removal", look(removed()).wait(2000), &[]);
    expect("one after a removal", see(removed(), 2, RETAIN), &[Kind::RetainedStale]);
    let open = kept().publish_with("pa", 3, 1, RETAINED);
    let open = see(open, 2, RETAIN).connect("m", "mb", true).subscribe("m", "mb", "x", 1);
    expect("one that was open, between two looks", open.delivered("m", "mb", 3, 1, 1, RETAIN), &[]);
    expect("an older one, then QoS 0", see(kept(), 1, RETAIN).publish("pa", 3, 0), &[]);
    expect("an older one while publishing goes on", see(kept(), 1, RETAIN).retain(3, false), &[]);
}

#[test]
fn wills_that_are_due() {
    let announced = |delay| start("x", 1).connect("p", "pb", true).will("pb", delay);
    expect("no delay", announced(0).closed("p", "pb"), &[Kind::WillMissing]);
    expect("a connection that is open", announced(0), &[]);
    expect("a delay that goes on", announced(5).closed("p", "pb").wait(4000), &[]);
    expect("a delay that is over", announced(5).closed("p", "pb").wait(6000), &[Kind::WillMissing]);
    let resumed = announced(5).closed("p", "pb").wait(1000).connect("p", "pc", true).wait(6000);
    expect("a client that came back", resumed, &[]);
    expect("DISCONNECT", announced(0).disconnect("p", "pb").closed("p", "pb").wait(6000), &[]);
    let closed = Event::Closed { client: "p".into(), conn: "pb".into(), reason: Some(0x8E) };
    expect("DISCONNECT of the server", announced(0).add("p", closed), &[]);
    let refused = Script::default().connect("s", "sa", false).subscribe("s", "sa", "x", 1);
    expect("no CONNACK", refused.send_connect("p", "pb", true).will("pb", 0).closed("p", "pb"), &[]);
}

#[test]
fn messages_that_a_killed_publisher_did_not_write_down() {
    let killed = |number| {
        let sent = start("x", 1).publish("pa", 5, 1).delivered("s", "sa", number, 1, 1, PLAIN);
        sent.add("s", Event::End {})
    };
    expect("the next one", killed(6), &[]);
    expect("an earlier one", killed(4), &[Kind::Ghost]);
    let other = start("x", 1).delivered("s", "sa", 6, 1, 1, PLAIN).add("s", Event::End {});
    expect("the first one", other, &[]);
}

/// Checks a history against the violations that it has, one of each kind.
fn expect(name: &str, script: Script, expected: &[Kind]) {
    let script = script.add("faults", Event::End {});
    let report = check_history(&script.entries).unwrap();
    let found: Vec<_> = report.violations.iter().map(|(kind, count)| (*kind, *count)).collect();
    let expected: Vec<_> = expected.iter().map(|kind| (*kind, 1)).collect();
    assert_eq!(found, expected, "{name}:\n{report}");
}
