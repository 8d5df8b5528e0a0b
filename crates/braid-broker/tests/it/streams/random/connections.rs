//! Connections that come, go, move and pass a session on, and the network under them.

use std::time::Duration;

use braid_proto::packet::{Connect, Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Conditions, Direction};
use tokio::time::{Instant, timeout};

use super::actor::Life;
use super::wire::Wire;
use super::world::{Fate, IDLE, NOTICED, World};
use crate::support::{CONTROL, Lanes, lasting, will};

/// A connection that has moved and brings nothing for so long is given up.
const STARVED: Duration = Duration::from_secs(5);

fn client_options() -> QuicOptions {
    QuicOptions { idle_timeout: Some(IDLE), keep_alive: Some(IDLE / 4), ..QuicOptions::client() }
}

impl World {
    // -- Connections -------------------------------------------------------------------------------

    pub(super) fn connect_packet(&mut self, who: usize) -> Connect {
        let actor = &mut self.actors[who];
        actor.connection += 1;
        actor.receive_maximum = (self.rng.u8(0..3) > 0).then(|| self.rng.u16(1..9));
        let mut connect = lasting(&actor.client_id());
        connect.will = Some(will(&format!("$will/{who}"), &format!("{who}:{}", actor.connection)));
        connect.properties.receive_maximum = actor.receive_maximum;
        self.set_fate(who, Fate::Unknown);
        connect
    }

    /// Connects in place of whatever connection there is.
    pub(super) async fn connect(&mut self, who: usize, with_quic: bool) {
        let is_new = self.actors[who].connection == 0;
        let old = self.actors[who].wire.take();
        if old.is_some() {
            self.set_fate(who, Fate::Lost);
            self.seen.take_overs += 1;
        }
        self.begin_absence(who, old.is_some());
        let mut attempts = 0;
        let (wire, session_present) = loop {
            attempts += 1;
            assert!(attempts < 10, "{who} cannot connect");
            let connect = self.connect_packet(who);
            if !with_quic {
                let client = self.broker.memory.connect(connect).await;
                let session_present = client.connack().session_present;
                break (Wire::Memory(client), session_present);
            }
            let connector = self.broker.connector(&self.actors[who].client_id(), client_options());
            // As clients do: what is lost on its way is tried again.
            let Ok(link) = connector.connect().await else { continue };
            let lanes = Lanes::new(link, ProtocolVersion::V5);
            lanes.send_connect(connect);
            if let Ok(Some(Packet::Connack(connack))) = timeout(IDLE, lanes.next(CONTROL)).await {
                assert_eq!(connack.reason, ReasonCode::Success);
                break (Wire::Quic(lanes), connack.session_present);
            }
        };
        assert!(session_present != is_new || attempts > 1 && is_new); // [MQTT-3.2.2-2], [MQTT-3.2.2-3]
        drop(old);
        self.set_fate(who, Fate::Alive);
        let actor = &mut self.actors[who];
        actor.ledger.moved(None);
        actor.wire = Some(wire);
        actor.resume(&mut self.rng).await;
    }

    /// From here on no connection takes the messages, and the subscriptions leave their streams.
    pub(super) fn begin_absence(&mut self, who: usize, was_connected: bool) {
        let actor = &mut self.actors[who];
        if was_connected || actor.connection == 0 {
            actor.ledger.begin_move();
            // Those of its streams that were ending end with it.
            let mut ending = actor.streams.values().filter(|life| **life != Life::Open).count();
            let connection = actor.connection;
            self.resets.retain(|(_, other, number, _)| {
                let is_its = *other == who && *number == connection;
                ending += usize::from(is_its);
                !is_its
            });
            for _ in 0..ending {
                actor.ledger.moved_with_all();
            }
        }
        actor.forget_connection();
    }

    pub(super) async fn disconnect(&mut self, who: usize) {
        self.set_fate(who, Fate::Disconnected);
        let wire = self.actors[who].wire.take().expect("connected");
        self.begin_absence(who, true);
        match wire {
            Wire::Quic(lanes) => drop(lanes.disconnect().await),
            Wire::Memory(client) => client.disconnect().await,
        }
    }

    pub(super) async fn vanish(&mut self, who: usize) {
        self.set_fate(who, Fate::Lost);
        drop(self.actors[who].wire.take());
        self.begin_absence(who, true);
    }

    /// Cuts the network until both ends have given the connection up.
    pub(super) async fn lose(&mut self, who: usize) {
        let host = self.broker.host(&self.actors[who].client_id());
        host.change(|link| link.cut = true);
        self.publish(who).await;
        self.set_fate(who, Fate::Lost);
        let wire = self.actors[who].wire.take();
        self.begin_absence(who, true);
        self.prolong(who, IDLE / 2);
        let wait = if self.rng.bool() { IDLE * 3 } else { IDLE / 2 };
        self.pass(wait).await;
        host.change(|link| link.cut = false);
        drop(wire);
        self.seen.losses += 1;
    }

    // -- The network -------------------------------------------------------------------------------

    pub(super) fn change_network(&mut self, who: usize) {
        let latency = Duration::from_millis(self.rng.u64(1..40));
        let jitter = latency.mul_f64(self.rng.f64());
        let loss = if self.rng.bool() { 0.0 } else { self.rng.f64() * 0.05 };
        self.broker.host(&self.actors[who].client_id()).change(|link| {
            (link.latency, link.jitter, link.loss) = (latency, jitter, loss);
        });
    }

    /// The client comes to have another address, in the middle of what it says. The link is perfect until that is
    /// validated: where the first answers are late or lost the QUIC library gives up, and the connection starves. It
    /// may do so all the same when it is busy; then the client looks for another one, as users would.
    pub(super) async fn move_client(&mut self, who: usize, by_nat: bool) {
        let host = self.broker.host(&self.actors[who].client_id());
        let mut before = Conditions::default();
        host.change_one(Direction::Up, |link| before = link.clone());
        self.publish(who).await;
        host.change(|link| *link = Conditions::default());
        if by_nat {
            host.rebind_nat();
        } else {
            self.lanes(who).rebind();
        }
        self.publish(who).await;
        self.prolong(who, STARVED);
        self.lanes(who).send(CONTROL, &Packet::Pingreq);
        self.actors[who].is_answered = false;
        for _ in 0..STARVED.as_millis() / 10 {
            self.pass(Duration::from_millis(10)).await;
            self.actors[who].pump(usize::MAX, &mut self.rng).await;
            if self.actors[who].is_answered {
                break;
            }
        }
        host.change(|link| *link = before.clone());
        self.seen.moves += 1;
        if !self.actors[who].is_answered {
            self.seen.starved += 1;
            self.vanish(who).await;
        }
    }

    /// For a while nothing passes, and the connection survives it.
    pub(super) async fn gap(&mut self, who: usize) {
        let host = self.broker.host(&self.actors[who].client_id());
        host.change(|link| link.cut = true);
        self.publish(who).await;
        let gap = Duration::from_millis(self.rng.u64(10..4000));
        self.prolong(who, gap);
        self.pass(gap).await;
        host.change(|link| link.cut = false);
    }

    /// Cuts the network for `gap`. Packets on their way take longer, and QUIC notices late that the network is back.
    pub(super) fn prolong(&mut self, who: usize, gap: Duration) {
        let until = Instant::now() + gap * 2 + NOTICED;
        for (at, name) in &mut self.in_flight {
            if name.publisher == who {
                *at = until;
            }
        }
        for (at, other, ..) in &mut self.resets {
            if *other == who {
                *at = until;
            }
        }
    }
}
