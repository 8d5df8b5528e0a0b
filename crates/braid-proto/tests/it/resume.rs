//! Large messages that continue on another connection, against a model that knows only their bytes.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use braid_proto::connection::{
    Acceptance, Cause, Client, ClientEvent, ClientOptions, Event, Sent, ServerOptions,
};
use braid_proto::decoder::{OffsetProblem, PartialMessages, Spool};
use braid_proto::error::Violation;
use braid_proto::message::SharedMessage;
use braid_proto::packet::{
    Ack, AckKind, Connack, ConnackProperties, Connect, MessageProperties, OFFSET_PROPERTY, Packet, PacketId,
    ProtocolVersion, Publish, QoS, RESUME_PROPERTY, UserProperties,
};
use braid_proto::reason::ReasonCode;
use braid_proto::session::{Phase, Session, SessionExpiry};
use braid_proto::stream::StreamKey;
use braid_proto::topic::TopicName;
use bytes::{Buf, Bytes};

use crate::rig::{Rig, connect, delivery, encoded, options, packets};
use crate::spool::MemorySpool;

const KIB: usize = 1024;
const V5: ProtocolVersion = ProtocolVersion::V5;

/// CONNECT of a client that continues messages, or of one that does not.
fn connect_resuming(resumes: bool) -> Connect {
    let mut connect = connect(V5);
    connect.clean_start = false;
    connect.properties.session_expiry = Some(7200);
    if resumes {
        connect.properties.user.push(RESUME_PROPERTY, "1");
    }
    connect
}

/// Parts that a CONNACK lists: identifier and bytes.
fn listed(connack: &Packet) -> BTreeMap<u16, usize> {
    let Packet::Connack(connack) = connack else { panic!("{connack:?}") };
    let part = |value: &str| {
        let (id, bytes) = value.split_once(':').unwrap();
        (id.parse().unwrap(), bytes.parse().unwrap())
    };
    let user = connack.properties.user.iter().filter(|(name, _)| *name == RESUME_PROPERTY);
    user.map(|(_, value)| part(value)).collect()
}

struct World {
    spool: Arc<MemorySpool>,
    session: Option<Session>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self { spool: Arc::default(), session: None, now: Instant::now() }
    }

    /// A connection with the session of the one before, and the parts that CONNACK lists.
    fn connect(&mut self, connect: Connect) -> (Rig, BTreeMap<u16, usize>) {
        self.connect_with(connect, 100)
    }

    fn connect_with(&mut self, connect: Connect, receive_maximum: u16) -> (Rig, BTreeMap<u16, usize>) {
        let spool = Some(self.spool.clone() as Arc<dyn Spool>);
        let mut rig = Rig::before_connect(ServerOptions {
            spool,
            maximum_packet_size: KIB * KIB,
            receive_maximum,
            ..options()
        });
        rig.now = rig.now.max(self.now);
        rig.read(&encoded(&Packet::Connect(Box::new(connect)), V5));
        assert!(matches!(rig.events()[..], [Event::Connect(_)]));
        let acceptance = Acceptance { session_present: self.session.is_some(), ..Acceptance::default() };
        let session = self.session.take();
        let session = session.unwrap_or_else(|| Session::new("c".into(), SessionExpiry::NEVER));
        rig.server.accept(session, &acceptance, rig.now, |_| true);
        let parts = listed(&packets(&rig.sent(), V5)[0]);
        (rig, parts)
    }

    fn resume(&mut self) -> (Rig, BTreeMap<u16, usize>) {
        self.connect(connect_resuming(true))
    }

    fn cut(&mut self, mut rig: Rig) {
        rig.server.handle_link_closed();
        self.now = rig.now;
        self.session = rig.end().unwrap().session;
    }
}

/// A message as the model knows it.
#[derive(Clone)]
struct Known {
    id: u16,
    qos: QoS,
    topic: &'static str,
    payload: Bytes,
    user: UserProperties,
}

impl Known {
    fn new(id: u16, qos: QoS, len: usize) -> Self {
        let bytes = (0..len).map(|at| ((at / 256) ^ at ^ usize::from(id)).to_le_bytes()[0]);
        let user = UserProperties::from([("unit", "mm")]);
        Self { id, qos, topic: "large/one", payload: bytes.collect(), user }
    }

    /// PUBLISH from an offset on; `None`: whole.
    fn packet(&self, offset: Option<usize>) -> Vec<u8> {
        let text = offset.map(|offset| offset.to_string());
        self.packet_with(text.as_deref(), offset.unwrap_or(0))
    }

    fn packet_with(&self, offset: Option<&str>, from: usize) -> Vec<u8> {
        let mut user = self.user.clone();
        offset.into_iter().for_each(|offset| user.push(OFFSET_PROPERTY, offset));
        // The rest of the interval, which is another one each time.
        let message_expiry = Some(u32::try_from(10_000 - from % 100).unwrap());
        let properties = MessageProperties { message_expiry, user, ..MessageProperties::default() };
        let payload = self.payload.slice(from..);
        let publish = Publish { dup: offset.is_some(), payload: payload.into(), ..self.publish(properties) };
        encoded(&Packet::Publish(publish), V5)
    }

    fn publish(&self, properties: MessageProperties) -> Publish {
        Publish {
            dup: false,
            qos: self.qos,
            retain: false,
            topic: Some(TopicName::parse(self.topic).unwrap()),
            packet_id: PacketId::new(self.id),
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: properties.boxed(),
            payload: self.payload.clone().into(),
            spooled: false,
        }
    }
}

/// The messages among the events, which must all be known. Declares them durable.
#[track_caller]
fn arrived(rig: &mut Rig, known: &[&Known]) -> Vec<u16> {
    let events = rig.events();
    rig.persist(&events);
    let messages = events.iter().filter_map(|event| match event {
        Event::Publish(message, Some(token)) => Some((message, token.packet_id().value())),
        _ => None,
    });
    let check = |(message, id): (&SharedMessage, u16)| {
        let known = known.iter().find(|known| known.id == id).expect("a message of the model");
        assert!(
            message.payload == known.payload,
            "{} bytes of {}",
            message.payload.len(),
            known.payload.len()
        );
        assert_eq!((message.topic.as_str(), message.qos), (known.topic, known.qos));
        assert_eq!(message.properties.as_ref().unwrap().user, known.user, "without the offset");
        id
    };
    messages.map(check).collect()
}

fn refusals(rig: &mut Rig) -> Vec<OffsetProblem> {
    let problem = |event| if let Event::OffsetRefused(_, problem) = event { Some(problem) } else { None };
    rig.events().into_iter().filter_map(problem).collect()
}

/// [BQ-96], [BQ-97], [BQ-98], [BQ-99]
#[test]
fn a_message_that_is_cut_anywhere_arrives_once_and_whole() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let qos = if random.bool() { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let large = Known::new(7, qos, random.usize(150 * KIB..700 * KIB));
        let mut world = World::new();
        let (mut sent, mut received) = (0, 0);
        let mut is_done = false;
        for connection in 0.. {
            assert!(connection < 100, "seed {seed}: no progress");
            let (mut rig, parts) = world.resume();
            assert!(parts.get(&7).is_none_or(|bytes| *bytes <= received), "more than was sent");
            assert_eq!(parts.len(), usize::from(parts.contains_key(&7)), "seed {seed}");
            let offset = parts.get(&7).copied();
            let packet = large.packet(offset);
            // Over TLS the control stream, over QUIC a stream of its own, in turns.
            let stream = if random.bool() { StreamKey::CONTROL } else { rig.open(1) };
            let taken = if random.u8(0..4) == 0 { packet.len() } else { random.usize(0..packet.len()) };
            let mut rest = &packet[..taken];
            while !rest.is_empty() {
                let chunk = random.usize(1..100 * KIB).min(rest.len());
                rig.read_on(stream, &rest[..chunk]);
                rest = &rest[chunk..];
            }
            sent += taken;
            received = received.max(offset.unwrap_or(0) + taken);
            if taken == packet.len() {
                assert_eq!(arrived(&mut rig, &[&large]), [7], "seed {seed}");
                is_done = true;
                // As after a lost acknowledgement.
                rig.read_on(stream, &large.packet_with(None, 0));
            } else {
                assert!(arrived(&mut rig, &[&large]).is_empty(), "seed {seed}");
            }
            let expected = usize::from(is_done && qos == QoS::AtLeastOnce);
            assert_eq!(arrived(&mut rig, &[&large]).len(), expected, "seed {seed}: {qos:?}");
            world.cut(rig);
            if is_done {
                break;
            }
            // Each cut loses less than the part of a packet that is in the heap.
            assert!(
                sent <= received + (connection + 1) * 64 * KIB + 1000,
                "seed {seed}: {sent} of {received}"
            );
        }
        assert_eq!(world.resume().1, BTreeMap::new());
        assert_eq!(world.spool.used(), 0, "seed {seed}");
    }
}

/// Part of a message of 400 KiB in the session.
fn with_part(world: &mut World, large: &Known) -> usize {
    let (mut rig, _) = world.resume();
    rig.read(&large.packet(None)[..200 * KIB]);
    world.cut(rig);
    let (rig, parts) = world.resume();
    world.cut(rig);
    parts[&large.id]
}

/// Value of the offset, and the bytes that are left out, for a part of so many bytes.
type Fields = fn(usize) -> (String, usize);
type Problem = fn(usize) -> OffsetProblem;

/// [BQ-99]
#[test]
fn an_offset_that_lies_is_refused_and_the_whole_message_is_accepted() {
    let large = Known::new(7, QoS::ExactlyOnce, 400 * KIB);
    let elsewhere = Known { topic: "large/two", ..large.clone() };
    let lower = Known { qos: QoS::AtLeastOnce, ..large.clone() };
    let longer = Known { payload: [&large.payload[..], b"?"].concat().into(), ..large.clone() };
    let unit = Known { user: UserProperties::new(), ..large.clone() };
    let honest: Fields = |part| (part.to_string(), part);
    let lies: Vec<(&Known, Fields, Problem)> = vec![
        (
            &large,
            |part| ((part + 1).to_string(), part + 1),
            |part| OffsetProblem::Offset(part as u64 + 1, part),
        ),
        (&large, |part| ("0".to_owned(), part), |part| OffsetProblem::Offset(0, part)),
        (&large, |part| (u64::MAX.to_string(), part), |part| OffsetProblem::Offset(u64::MAX, part)),
        (&large, |part| (format!("+{part}"), part), |_| OffsetProblem::NotANumber),
        (&large, |part| ("9".repeat(30), part), |_| OffsetProblem::NotANumber),
        (&large, |part| (part.to_string(), part - 5), |_| OffsetProblem::Length(400 * KIB + 5, 400 * KIB)),
        (&longer, honest, |_| OffsetProblem::Length(400 * KIB + 1, 400 * KIB)),
        (&elsewhere, honest, |_| OffsetProblem::Head),
        (&lower, honest, |_| OffsetProblem::Head),
        (&unit, honest, |_| OffsetProblem::Head),
    ];
    for (lie, fields, problem) in lies {
        // Whole in one read, and in pieces that go through the spool.
        for step in [KIB * KIB, 10 * KIB] {
            let mut world = World::new();
            let part = with_part(&mut world, &large);
            let (mut rig, _) = world.resume();
            let (text, from) = fields(part);
            lie.packet_with(Some(&text), from).chunks(step).for_each(|chunk| rig.read(chunk));
            assert_eq!(refusals(&mut rig), [problem(part)]);
            let kind = if lie.qos == QoS::ExactlyOnce { AckKind::Pubrec } else { AckKind::Puback };
            let sent = packets(&rig.sent(), V5);
            let [Packet::Ack(ack)] = &sent[..] else { panic!("{sent:?}") };
            assert_eq!((ack.kind, ack.packet_id.value()), (kind, lie.id));
            assert_eq!(ack.reason, ReasonCode::ImplementationSpecificError);
            // The identifier was not noted.
            rig.read(&lie.packet(None));
            assert_eq!(arrived(&mut rig, &[lie]), [lie.id]);
        }
    }
}

/// [BQ-99]
#[test]
fn a_refusal_has_its_reason_unless_the_client_wants_none() {
    let large = Known::new(7, QoS::AtLeastOnce, 400 * KIB);
    for wanted in [true, false] {
        let mut connect = connect_resuming(true);
        connect.properties.request_problem_information = Some(wanted);
        let mut world = World::new();
        with_part(&mut world, &large);
        let (mut rig, _) = world.connect(connect);
        rig.read(&large.packet(Some(5)));
        let sent = packets(&rig.sent(), V5);
        let [Packet::Ack(ack)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(ack.properties.is_some(), wanted, "{ack:?}");
    }
}

/// [BQ-23], [BQ-99]
#[test]
fn a_refused_offset_counts_until_its_acknowledgement_leaves() {
    let small = |id| Known { payload: Bytes::from_static(b"small"), ..Known::new(id, QoS::AtLeastOnce, 0) };
    let mut world = World::new();
    let part = with_part(&mut world, &Known::new(2, QoS::AtLeastOnce, 400 * KIB));
    let (mut rig, _) = world.connect_with(connect_resuming(true), 3);
    rig.read(&small(1).packet(None));
    let events = rig.events();
    rig.read(&small(2).packet(Some(5)));
    assert_eq!(refusals(&mut rig), [OffsetProblem::Offset(5, part)]);
    rig.read(&small(3).packet(None));
    assert_eq!(rig.events().len(), 1);
    rig.persist(&events);
    assert_eq!(packets(&rig.sent(), V5).len(), 2, "the first, and the refusal behind it");
    for id in [4, 5] {
        rig.read(&small(id).packet(None));
        assert_eq!(rig.events().len(), 1);
    }
    rig.read(&small(6).packet(None));
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::ReceiveMaximumExceeded)));
}

/// [BQ-98]
#[test]
fn an_offset_of_qos_0_is_a_property_like_any_other() {
    let mut world = World::new();
    let (mut rig, _) = world.resume();
    let mut properties = MessageProperties::default();
    properties.user.push(OFFSET_PROPERTY, "5");
    let known = Known::new(1, QoS::AtMostOnce, 10);
    let publish = Publish { packet_id: None, ..known.publish(properties) };
    rig.read(&encoded(&Packet::Publish(publish), V5));
    let events = rig.events();
    let [Event::Publish(message, None)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((message.payload.len(), message.properties.is_some()), (10, true));
}

/// The message with properties of its application that are named like an offset.
fn with_own_offsets(large: &Known) -> Known {
    let user = UserProperties::from([(OFFSET_PROPERTY, "5"), ("unit", "mm"), (OFFSET_PROPERTY, "x")]);
    Known { user, ..large.clone() }
}

/// [BQ-98]
#[test]
fn a_property_of_the_application_that_is_named_like_an_offset_is_forwarded() {
    let own = with_own_offsets(&Known::new(7, QoS::AtLeastOnce, 400 * KIB));
    let small = Known { id: 8, payload: Bytes::from_static(b"small"), ..own.clone() };
    let mut world = World::new();
    with_part(&mut world, &Known::new(7, QoS::AtLeastOnce, 300 * KIB));
    let (mut rig, parts) = world.resume();
    assert_eq!(parts.len(), 1);
    // For the first time, and again; the client need not continue the part that was listed.
    for (known, dup) in [(&small, false), (&small, true), (&own, false), (&own, true)] {
        let mut packet = known.packet(None);
        packet[0] |= u8::from(dup) << 3;
        packet.chunks(50 * KIB).for_each(|chunk| rig.read(chunk));
        assert_eq!(arrived(&mut rig, &[known]), [known.id]);
    }
}

/// [BQ-98]
#[test]
fn a_message_whose_application_has_a_property_of_that_name_is_continued() {
    let own = with_own_offsets(&Known::new(7, QoS::ExactlyOnce, 400 * KIB));
    for step in [KIB * KIB, 10 * KIB] {
        let mut world = World::new();
        let part = with_part(&mut world, &own);
        // A second cut, within the rest.
        let (mut rig, _) = world.resume();
        own.packet(Some(part))[..100 * KIB].chunks(step).for_each(|chunk| rig.read(chunk));
        world.cut(rig);
        let (mut rig, parts) = world.resume();
        assert!(parts[&7] > part, "it has grown");
        own.packet(Some(parts[&7])).chunks(step).for_each(|chunk| rig.read(chunk));
        assert_eq!(arrived(&mut rig, &[&own]), [7]);
    }
    // The whole of it, although a part was listed.
    let mut world = World::new();
    with_part(&mut world, &own);
    let (mut rig, _) = world.resume();
    let mut packet = own.packet(None);
    packet[0] |= 8;
    packet.chunks(10 * KIB).for_each(|chunk| rig.read(chunk));
    assert_eq!(arrived(&mut rig, &[&own]), [7]);
    world.cut(rig);
    assert_eq!(world.spool.used(), 0);
}

/// [BQ-99], [MQTT-3.3.2-12]
#[test]
fn a_refused_offset_leaves_the_alias_of_its_packet() {
    let large = Known::new(7, QoS::AtLeastOnce, 400 * KIB);
    let mut world = World::new();
    let part = with_part(&mut world, &large);
    let (mut rig, _) = world.resume();
    let mut properties = MessageProperties::default();
    properties.user.push(OFFSET_PROPERTY, "1");
    let refused = Publish { dup: true, topic_alias: NonZeroU16::new(3), ..large.publish(properties) };
    let aliased = Publish { topic: None, ..Publish { dup: false, ..refused.clone() } };
    rig.read(&encoded(&Packet::Publish(refused.clone()), V5));
    assert_eq!(refusals(&mut rig), [OffsetProblem::Offset(1, part)]);
    rig.read(&encoded(&Packet::Publish(aliased), V5));
    let events = rig.events();
    let [Event::Publish(message, _)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(message.topic.as_str(), large.topic);

    with_part(&mut world, &large);
    let (mut rig, _) = world.resume();
    rig.read(&encoded(&Packet::Publish(Publish { topic_alias: NonZeroU16::new(99), ..refused }), V5));
    assert_eq!(rig.cause(), Some(Cause::Violation(Violation::TopicAlias(99))));
}

/// [BQ-95]
#[test]
fn nothing_changes_for_other_clients() {
    let large = Known::new(7, QoS::AtLeastOnce, 400 * KIB);
    let mut without_session = connect_resuming(true);
    without_session.properties.session_expiry = None;
    for connect in [connect_resuming(false), without_session] {
        let mut world = World::new();
        let (mut rig, _) = world.connect(connect.clone());
        rig.read(&large.packet(None)[..200 * KIB]);
        world.cut(rig);
        assert_eq!(world.spool.used(), 0);
        let (mut rig, parts) = world.connect(connect);
        assert!(parts.is_empty());
        // A User Property like any other.
        rig.read(&large.packet(Some(100 * KIB)));
        let events = rig.events();
        let [Event::Publish(message, _)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(message.payload.len(), 300 * KIB);
        assert_eq!(message.properties.as_ref().unwrap().user.iter().count(), 2);
    }
}

/// [BQ-96]
#[test]
fn parts_are_few_and_end_with_their_time_their_identifier_and_their_client() {
    let all: Vec<_> = (1..=6).map(|id| Known::new(id, QoS::AtLeastOnce, 300 * KIB)).collect();
    let begin = || {
        let mut world = World::new();
        let (mut rig, _) = world.resume();
        for (number, known) in (1..).zip(&all) {
            let stream = rig.open(number);
            rig.read_on(stream, &known.packet(None)[..150 * KIB]);
        }
        world.cut(rig);
        world
    };
    let mut world = begin();
    let (mut rig, parts) = world.resume();
    assert_eq!(parts.len(), 4);
    let (known, rest): (Vec<_>, Vec<_>) = all.iter().partition(|known| parts.contains_key(&known.id));
    assert_eq!(rest.len(), 2);
    // Whole, under its identifier, on another stream.
    let stream = rig.open(1);
    rig.read_on(stream, &known[0].packet(None));
    assert_eq!(arrived(&mut rig, &known), [known[0].id]);
    world.cut(rig);
    let (rig, parts) = world.resume();
    assert_eq!(parts.len(), 3, "those that were not mentioned wait");
    world.cut(rig);
    world.now += PartialMessages::KEPT_FOR - Duration::from_secs(300);
    let (rig, parts) = world.resume();
    assert_eq!(parts.len(), 3);
    world.cut(rig);
    world.now += Duration::from_secs(300);
    assert!(world.resume().1.is_empty());
    assert_eq!(world.spool.used(), 0);

    let mut world = begin();
    let (rig, parts) = world.connect(connect_resuming(false));
    assert!(parts.is_empty() && world.spool.used() == 0);
    drop(rig);
    let world = begin();
    assert!(world.spool.used() > 0 && world.session.clone().unwrap().partials.is_empty());
    let spool = world.spool.clone();
    drop(world);
    assert_eq!(spool.used(), 0, "with the session");
}

/// Links a client to a server; what each has sent goes to the other.
struct Pair {
    client: Client,
    rig: Rig,
}

impl Pair {
    fn connect(world: &mut World, session: Session) -> Self {
        let options = ClientOptions { resume_large: true, ..ClientOptions::default() };
        let client = Client::new(Arc::new(options), connect_resuming(false), Some(session), world.now);
        let mut pair = Self { client, rig: Rig::before_connect(ServerOptions::default()) };
        let bytes = pair.take(usize::MAX);
        let Packet::Connect(connect) = packets(&bytes, V5).remove(0) else { panic!("CONNECT") };
        pair.rig = world.connect(*connect).0;
        pair
    }

    /// Gives the client a CONNACK that lists these parts.
    fn accept(&mut self, parts: &[&str]) -> Vec<ClientEvent> {
        let mut properties = ConnackProperties::default();
        parts.iter().for_each(|part| properties.user.push(RESUME_PROPERTY, part));
        let connack = Connack { session_present: true, reason: ReasonCode::Success, properties };
        let bytes = encoded(&Packet::Connack(Box::new(connack)), V5);
        self.client.handle_bytes(StreamKey::CONTROL, &bytes, self.rig.now);
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }

    /// Takes bytes that the client sends.
    fn take(&mut self, limit: usize) -> Vec<u8> {
        let outbox = self.client.outbox(StreamKey::CONTROL).unwrap();
        let len = outbox.remaining().min(limit);
        outbox.copy_to_bytes(len).to_vec()
    }

    /// Acceptance and acknowledgements of the server.
    fn answer(&mut self) -> Vec<ClientEvent> {
        let bytes = self.rig.sent();
        self.client.handle_bytes(StreamKey::CONTROL, &bytes, self.rig.now);
        std::iter::from_fn(|| self.client.poll_event()).collect()
    }
}

/// Offsets and sizes of the messages that are told to go on.
fn offsets(events: &[ClientEvent]) -> Vec<(usize, usize)> {
    let continued = events.iter().filter_map(|event| match event {
        ClientEvent::Continued(continued) => Some((continued.offset, continued.size)),
        _ => None,
    });
    continued.collect()
}

/// [BQ-97], [BQ-98], [BQ-99]
#[test]
fn a_client_sends_the_rest_once_and_the_whole_after_a_refusal() {
    for (qos, is_refused) in [
        (QoS::AtLeastOnce, false),
        (QoS::ExactlyOnce, false),
        (QoS::AtLeastOnce, true),
        (QoS::ExactlyOnce, true),
    ] {
        let large = Known::new(1, qos, 400 * KIB);
        // Parts of messages that the client does not have, of whole ones, and without sense are ignored.
        let accept =
            |pair: &mut Pair, part: &str| pair.accept(&["9:5", "1:409600", "1:0", "x:1", "1:-4", "", part]);
        let mut world = World::new();
        let mut pair = Pair::connect(&mut world, Session::default());
        pair.accept(&[]);
        let mut delivery = delivery(large.topic, large.payload.clone(), qos);
        delivery.stream = StreamKey::CONTROL;
        pair.client.publish(delivery, world.now).unwrap();
        let bytes = pair.take(200 * KIB);
        pair.rig.read(&bytes);
        let session = pair.client.take_session().unwrap();
        world.cut(pair.rig);
        let mut pair = Pair::connect(&mut world, session);
        let part = pair.rig.server.session().unwrap().partials.iter().next().unwrap().1;
        if is_refused {
            pair.rig.server.session_mut().unwrap().partials.expire(world.now + Duration::from_secs(9999));
        }
        let events = accept(&mut pair, &format!("1:{part}"));
        assert_eq!(offsets(&events), [(part, 400 * KIB)]);
        let rest = pair.take(usize::MAX);
        assert!(rest.len() < 400 * KIB - part + 100, "{} bytes", rest.len());
        pair.rig.read(&rest);
        if is_refused {
            assert_eq!(refusals(&mut pair.rig), [OffsetProblem::NoPart]);
            let events = pair.answer();
            assert!(events.iter().all(|event| !matches!(event, ClientEvent::Published(..))));
            assert_eq!(offsets(&events), [(0, 400 * KIB)]);
            let whole = pair.take(usize::MAX);
            assert!(whole.len() > 400 * KIB, "{} bytes", whole.len());
            pair.rig.read(&whole);
        }
        let events = pair.rig.events();
        let [Event::Publish(message, _)] = &events[..] else { panic!("{events:?}") };
        assert!(message.payload == large.payload);
        assert!(message.properties.is_none(), "without the offset");
        pair.rig.persist(&events);
        let answered = pair.answer();
        if qos == QoS::ExactlyOnce {
            let bytes = pair.take(usize::MAX);
            pair.rig.read(&bytes);
            let events = pair.rig.events();
            assert!(matches!(events[..], [Event::Release(_)]));
            pair.rig.persist(&events);
            assert!(matches!(pair.answer()[..], [ClientEvent::Published(_, ReasonCode::Success)]));
        } else {
            let is_published =
                |event: &ClientEvent| matches!(event, ClientEvent::Published(_, ReasonCode::Success));
            assert_eq!(answered.iter().filter(|event| is_published(event)).count(), 1, "{answered:?}");
        }
    }
}

/// A part of a process that has forgotten the session: the server has it until it has the whole of another message with
/// its identifier. [BQ-97]
#[test]
fn a_part_of_another_message_is_not_continued() {
    let large = Known::new(1, QoS::AtLeastOnce, 400 * KIB);
    let mut world = World::new();
    let mut pair = Pair::connect(&mut world, Session::default());
    // The identifiers begin anew behind the last one.
    assert_eq!(offsets(&pair.accept(&["1:1000", "65535:5"])), []);
    let mut delivery = delivery(large.topic, large.payload.clone(), large.qos);
    delivery.stream = StreamKey::CONTROL;
    pair.client.publish(delivery, world.now).unwrap();
    let mut session = pair.client.take_session().unwrap();
    for (listed, continued) in
        [(&["1:1000"][..], vec![]), (&[], vec![]), (&["1:1000"], vec![(1000, 400 * KIB)])]
    {
        let mut pair = Pair::connect(&mut World::new(), session);
        assert_eq!(offsets(&pair.accept(listed)), continued);
        let sent = pair.take(usize::MAX).len();
        assert_eq!(sent > 400 * KIB, continued.is_empty(), "{sent} bytes");
        session = pair.client.take_session().unwrap();
    }
}

/// Its message has an identifier of its own. [BQ-97]
#[test]
fn a_message_beside_the_part_of_another_is_continued() {
    let large = Known::new(2, QoS::AtLeastOnce, 400 * KIB);
    let mut world = World::new();
    let mut pair = Pair::connect(&mut world, Session::default());
    assert_eq!(offsets(&pair.accept(&["1:1000"])), []);
    let mut delivery = delivery(large.topic, large.payload.clone(), large.qos);
    delivery.stream = StreamKey::CONTROL;
    assert!(matches!(pair.client.publish(delivery, world.now), Ok(Sent::Out(Some(id))) if id.value() == 2));
    let session = pair.client.take_session().unwrap();
    let mut pair = Pair::connect(&mut world, session);
    assert_eq!(offsets(&pair.accept(&["1:1000", "2:300000"])), [(300_000, 400 * KIB)]);
}

/// [BQ-98]
#[test]
fn an_offset_ends_with_its_message() {
    let [first, second] = [1, 2].map(|id| Known::new(id, QoS::AtLeastOnce, 400 * KIB));
    let mut world = World::new();
    let mut session = Session::default();
    for known in [&first, &second] {
        let delivery = delivery(known.topic, known.payload.clone(), known.qos);
        assert!(session.outbound.restore(PacketId::new(known.id).unwrap(), Phase::Sent(delivery)));
    }
    // The next identifier is the first that is free.
    assert!(session.outbound.restore(PacketId::new(u16::MAX).unwrap(), Phase::Released(None)));
    let mut pair = Pair::connect(&mut world, session);
    assert_eq!(offsets(&pair.accept(&["1:1000", "2:300000"])).len(), 2);
    // The second waits behind the first, and the server acknowledges it without having got it.
    let puback = Packet::Ack(Ack::new(AckKind::Puback, PacketId::new(2).unwrap(), ReasonCode::Success));
    pair.client.handle_bytes(StreamKey::CONTROL, &encoded(&puback, V5), world.now);
    pair.take(usize::MAX);
    pair.client.continue_resend(world.now);
    let stream = StreamKey::bidi(1);
    pair.client.handle_stream_opened(stream);
    let mut small = delivery("small", "small", QoS::AtLeastOnce);
    small.stream = stream;
    assert!(matches!(pair.client.publish(small, world.now), Ok(Sent::Out(Some(id))) if id.value() == 2));
    pair.client.handle_stream_reset(stream, world.now);
    pair.client.continue_resend(world.now);
    let repeated = packets(&pair.take(usize::MAX), V5);
    let Some(Packet::Publish(publish)) = repeated.last() else { panic!("{repeated:?}") };
    assert_eq!((publish.dup, &publish.payload[..]), (true, &b"small"[..]));
    assert!(publish.properties.is_none(), "no offset");
}
