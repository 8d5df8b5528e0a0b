//! Roles of clients: publishers, subscribers that change their nodes, clients that connect twice at once, clients with
//! Wills, visitors.

use std::future::pending;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use braid_proto::packet::{Packet, ProtocolVersion, QoS, Will};
use braid_proto::topic::TopicName;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{Client, Closed, Dialed, HOUR, Link, Profile, Subscription, WILL, next};
use super::tally::GroupId;
use super::{Phase, World, message};
use crate::topic::{topic_filter, topic_name};

/// Most messages of a publisher without their last acknowledgement.
const WINDOW: usize = 8;
/// Longest time between two bursts of a publisher, and most messages of one.
const PACE: Duration = Duration::from_millis(120);
const BURST: usize = 4;
/// Time without an acknowledgement after which a publisher goes to another node.
const PATIENCE: Duration = Duration::from_secs(6);
/// Longest stay of a subscriber at a node, and longest time between two stays.
const STAY: Duration = Duration::from_secs(8);
const AWAY: Duration = Duration::from_secs(5);
/// Longest time between two looks at a queue.
const MOMENT: Duration = Duration::from_millis(200);
/// Longest time between two takeovers.
const TAKEOVER: Duration = Duration::from_secs(3);
/// Longest connection of clients with Wills, and of visitors.
const VISIT: Duration = Duration::from_secs(3);
/// Clients whose sessions expire.
const EXPIRING: usize = 6;
/// Session Expiry Interval of these, seconds.
const SHORT: u32 = 2;
/// Longest time without a connection for a client that is to find its session: the checker excuses the last second of
/// the expiry.
const SOON: Duration = Duration::from_millis(700);

/// Name of the client that reads what is retained at a node.
pub(super) fn looker(node: &str) -> String {
    format!("look-{node}")
}

/// Starts all clients.
///
/// # Errors
/// A history cannot be created.
pub(super) fn populate(world: &Rc<World>) -> Result<(), String> {
    for number in 0..3 {
        let mut profile = Profile::persistent(&format!("pub-{number}"));
        if number == 2 {
            profile.version = ProtocolVersion::V311;
        }
        let topics = [("one", QoS::AtLeastOnce), ("two", QoS::ExactlyOnce), ("more", QoS::AtLeastOnce)];
        let topics = topics.map(|(last, qos)| (topic_name(&format!("m/{}/{last}", profile.id)), qos));
        spawn_local(publish(long_lived(world, profile)?, topics.into(), false));
    }
    let topics = (0..4).map(|number| {
        let qos = if number % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        (topic_name(&format!("r/{number}")), qos)
    });
    spawn_local(publish(long_lived(world, Profile::persistent("pub-r"))?, topics.collect(), true));
    let subscribers = [
        ("sub-all", "m/#", QoS::ExactlyOnce, ProtocolVersion::V5),
        ("sub-old", "m/#", QoS::AtLeastOnce, ProtocolVersion::V311),
        ("sub-one", "m/+/one", QoS::AtLeastOnce, ProtocolVersion::V5),
        ("sub-two", "m/+/two", QoS::ExactlyOnce, ProtocolVersion::V5),
        ("sub-r", "r/#", QoS::ExactlyOnce, ProtocolVersion::V5),
        ("sub-w", "w/#", QoS::ExactlyOnce, ProtocolVersion::V5),
    ];
    for (id, filter, qos, version) in subscribers {
        let group = world.tally().add_group(id, topic_filter(filter));
        let profile = Profile { version, ..subscriber(id, filter, qos, Some(group)) };
        spawn_local(change_nodes(long_lived(world, profile)?));
    }
    let group = world.tally().add_group("shared", topic_filter("m/+/one"));
    for number in 0..3 {
        let profile =
            subscriber(&format!("shared-{number}"), "$share/group/m/+/one", QoS::AtLeastOnce, Some(group));
        spawn_local(change_nodes(long_lived(world, profile)?));
    }
    for (id, filter, qos) in
        [("race-1", "m/+/more", QoS::AtLeastOnce), ("race-2", "m/+/two", QoS::ExactlyOnce)]
    {
        let group = world.tally().add_group(id, topic_filter(filter));
        let client = Client::new(world, subscriber(id, filter, qos, Some(group)))?;
        spawn_local(Racer::new(client, qos == QoS::AtLeastOnce).run());
    }
    for number in 0..2 {
        spawn_local(leave_wills(Rc::clone(world), number));
        spawn_local(visit(Rc::clone(world), number));
    }
    for number in 0..EXPIRING {
        let subscriber = subscriber(&format!("expiring-{number}"), "m/+/two", QoS::AtLeastOnce, None);
        spawn_local(expire(Client::new(world, Profile { expiry: SHORT, ..subscriber })?));
    }
    for node in 0..world.nodes.len() {
        spawn_local(look(Rc::clone(world), node));
    }
    world.tally().is_complete = true;
    Ok(())
}

fn subscriber(id: &str, filter: &str, qos: QoS, group: Option<GroupId>) -> Profile {
    let subscription = Some(Subscription { filter: topic_filter(filter), qos, group });
    Profile { subscription, ..Profile::persistent(id) }
}

fn long_lived(world: &Rc<World>, profile: Profile) -> Result<Client, String> {
    world.tally().add_client(&profile.id);
    Client::new(world, profile)
}

// === Publishers and subscribers ===

/// Publishes during each load, and goes to another node when one does not acknowledge.
async fn publish(mut client: Client, topics: Vec<(TopicName, QoS)>, retain: bool) {
    let (world, mut number, mut node) = (Rc::clone(&client.world), 0, None);
    loop {
        let mut link = client.open(node).await;
        node = Some(link.node);
        let mut burst = Instant::now();
        let closed = loop {
            tokio::select! {
                stepped = client.step(&mut link) => if let Err(closed) = stepped { break closed },
                () = sleep_until(burst) => {
                    burst += world.draw_time(PACE);
                    if client.session.inflight() > 0 && client.waiting_since.elapsed() > PATIENCE {
                        break Closed(None);
                    }
                    for _ in 0..world.draw(BURST) + 1 {
                        if world.is_loading() && client.session.inflight() < WINDOW {
                            number += 1;
                            let (topic, qos) = &topics[world.draw(topics.len())];
                            client.publish(&mut link, number, topic, *qos, retain);
                        }
                    }
                }
            }
        };
        client.close(link, closed);
    }
}

/// Subscribes at one node after the other, and between two of them messages are queued.
async fn change_nodes(mut client: Client) {
    let (world, mut node) = (Rc::clone(&client.world), None);
    loop {
        let link = client.open(node).await;
        node = Some(link.node);
        if let Some(link) = stay(&mut client, link, STAY).await {
            client.leave(link, world.draw(2) == 0);
            world.pause_loading(AWAY).await;
        }
    }
}

/// Handles packets for a random time below `end`, and while there is no load, and while the queue from before the death
/// of a broker has not come; `None`: the connection has ended.
async fn stay(client: &mut Client, mut link: Link, end: Duration) -> Option<Link> {
    let (world, id) = (Rc::clone(&client.world), client.profile.id.clone());
    let leaves = async {
        world.pause(end).await;
        while world.tally().is_interrupted(&id) {
            world.pause(MOMENT).await;
        }
    };
    tokio::pin!(leaves);
    loop {
        tokio::select! {
            stepped = client.step(&mut link) => if let Err(closed) = stepped {
                client.close(link, closed);
                return None;
            },
            () = &mut leaves => return Some(link),
        }
    }
}

// === Takeovers ===

/// Connection of a client that has several.
enum Attempt {
    None,
    Dialing(JoinHandle<Dialed>),
    Open(Box<Link>),
}

/// Event of a connection.
enum Progress {
    Dialed(Option<Dialed>),
    Packet(io::Result<Packet>),
}

impl Attempt {
    /// Waits for an event. Cancelling loses nothing.
    async fn progress(&mut self) -> Progress {
        match self {
            Self::None => pending().await,
            Self::Dialing(dialing) => Progress::Dialed(dialing.await.ok()),
            Self::Open(link) => Progress::Packet(next(link).await),
        }
    }

    fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// A client that connects to two nodes, one after the other and at once.
struct Racer {
    client: Client,
    attempts: [Attempt; 2],
    /// Reads on from a connection that was taken over, until the server ends it.
    reads_both: bool,
}

impl Racer {
    fn new(client: Client, reads_both: bool) -> Self {
        Self { client, attempts: [Attempt::None, Attempt::None], reads_both }
    }

    async fn run(mut self) {
        let world = Rc::clone(&self.client.world);
        let mut next_takeover = Instant::now();
        loop {
            let [first, second] = &mut self.attempts;
            tokio::select! {
                progress = first.progress() => self.handle(0, progress),
                progress = second.progress() => self.handle(1, progress),
                () = sleep_until(next_takeover) => {
                    next_takeover = Instant::now() + world.draw_time(TAKEOVER);
                    self.take_over();
                }
            }
        }
    }

    /// Connects once more: during a load with every attempt that is free, otherwise if there is no connection.
    fn take_over(&mut self) {
        let world = Rc::clone(&self.client.world);
        let is_alone = self.attempts.iter().all(Attempt::is_none);
        let wanted = match (world.is_loading(), is_alone) {
            (true, _) => 2,
            (false, true) => 1,
            (false, false) => 0,
        };
        let used = self.attempts.iter().find_map(|attempt| match attempt {
            Attempt::Open(link) => Some(link.node),
            _ => None,
        });
        let mut node = world.node_except(used);
        for attempt in self.attempts.iter_mut().filter(|attempt| attempt.is_none()).take(wanted) {
            *attempt = Attempt::Dialing(spawn_local(self.client.dial(node)));
            node = world.node_except(Some(node));
        }
    }

    fn handle(&mut self, index: usize, progress: Progress) {
        let attempt = std::mem::replace(&mut self.attempts[index], Attempt::None);
        match (progress, attempt) {
            (Progress::Dialed(Some(dialed)), _) => {
                if let Some(link) = self.client.adopt(dialed) {
                    self.attempts[index] = Attempt::Open(Box::new(link));
                    self.drop_other(1 - index);
                }
            }
            (Progress::Packet(Ok(packet)), Attempt::Open(mut link)) => {
                match self.client.handle(&mut link, packet) {
                    Ok(()) => self.attempts[index] = Attempt::Open(link),
                    Err(closed) => self.client.close(*link, closed),
                }
            }
            (Progress::Packet(Err(error)), Attempt::Open(link)) => {
                let closed = self.client.lost(&error);
                self.client.close(*link, closed);
            }
            _ => {}
        }
    }

    /// Ends the connection that was taken over: its unread messages of QoS 2 would look like new ones.
    fn drop_other(&mut self, index: usize) {
        if self.reads_both || !matches!(self.attempts[index], Attempt::Open(_)) {
            return;
        }
        if let Attempt::Open(link) = std::mem::replace(&mut self.attempts[index], Attempt::None) {
            self.client.close(*link, Closed(None));
        }
    }
}

// === Short-lived clients ===

/// Clients with Wills, one after the other; most end without DISCONNECT.
async fn leave_wills(world: Rc<World>, number: usize) {
    for index in 0_u64.. {
        world.wait_for(Phase::Load).await;
        let id = format!("will-{number}-{index}");
        let topic = topic_name(&format!("w/{id}"));
        let will_id = message::identifier(&id, WILL);
        let will = Will {
            payload: message::payload(&will_id, topic.as_str(), WILL),
            topic: topic.clone(),
            qos: if index % 2 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce },
            retain: false,
            delay: 0,
            properties: None,
        };
        let profile = Profile { will: Some(will), expiry: HOUR, ..Profile::visitor(&id) };
        let Some((mut client, link)) = enter(&world, profile).await else { continue };
        if let Some(link) = stay(&mut client, link, VISIT).await {
            if world.draw(4) == 0 {
                client.disconnect(link);
                continue;
            }
            client.close(link, Closed(None));
        }
        world.tally().due(&will_id, &topic, std::time::Instant::now());
    }
}

/// New clients that subscribe to retained messages.
async fn visit(world: Rc<World>, number: usize) {
    for index in 0_u64.. {
        world.pause(VISIT).await;
        let id = format!("late-{number}-{index}");
        let Profile { subscription, .. } = subscriber(&id, "r/#", QoS::AtLeastOnce, None);
        let profile = Profile { subscription, ..Profile::visitor(&id) };
        let Some((mut client, link)) = enter(&world, profile).await else { continue };
        if let Some(link) = stay(&mut client, link, VISIT).await {
            client.disconnect(link);
        }
    }
}

/// A new client of a node that subscribes to retained messages when nothing is published any more.
async fn look(world: Rc<World>, node: usize) {
    world.wait_for(Phase::Look).await;
    let id = looker(world.name(node));
    let Profile { subscription, .. } = subscriber(&id, "r/#", QoS::AtLeastOnce, None);
    match Client::new(&world, Profile { subscription, ..Profile::visitor(&id) }) {
        Ok(mut client) => loop {
            let dialed = client.dial(node).await;
            match client.adopt(dialed) {
                Some(link) => drop(stay(&mut client, link, VISIT).await),
                None => sleep(MOMENT).await,
            }
        },
        Err(reason) => world.tally().fault(reason),
    }
}

/// A new client with its first connection, if that succeeds.
async fn enter(world: &Rc<World>, profile: Profile) -> Option<(Client, Link)> {
    let entered = async {
        let mut client = Client::new(world, profile).map_err(|reason| world.tally().fault(reason)).ok()?;
        let dialed = client.dial(world.node_except(None)).await;
        let link = client.adopt(dialed)?;
        Some((client, link))
    };
    let entered = entered.await;
    if entered.is_none() {
        sleep(Duration::from_millis(200)).await;
    }
    entered
}

/// A client whose session expires now and then while it is disconnected.
async fn expire(mut client: Client) {
    let world = Rc::clone(&client.world);
    loop {
        let link = client.open(None).await;
        if let Some(link) = stay(&mut client, link, VISIT).await {
            client.leave(link, world.draw(2) == 0);
            let longest = if world.draw(2) == 0 { SOON } else { Duration::from_secs((4 * SHORT).into()) };
            world.pause_loading(longest).await;
        }
    }
}
