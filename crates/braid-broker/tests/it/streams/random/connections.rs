//! Connects, takeovers, migrations and losses of connections, and the state of the network.

use std::time::Duration;

use braid_proto::packet::{Connect, Packet, ProtocolVersion};
use braid_proto::reason::ReasonCode;
use braid_transport::quic::QuicOptions;
use braid_transport::sim::{Conditions, Direction};
use tokio::time::{Instant, timeout};

use super::client::StreamState;
use super::wire::Wire;
use super::world::{Fate, IDLE, NOTICED, World};
use crate::support::{CONTROL, Lanes, lasting, will};

/// Time without any arrival after which a connection that migrated is given up.
const STARVED: Duration = Duration::from_secs(5);

fn client_options() -> QuicOptions {
    QuicOptions { idle_timeout: Some(IDLE), keep_alive: Some(IDLE / 4), ..QuicOptions::client() }
}

impl World {
    // -- Connections -------------------------------------------------------------------------------

    pub(super) fn connect_packet(&mut self, client_index: usize) -> Connect {
        let client = &mut self.clients[client_index];
        client.connection += 1;
        client.receive_maximum = (self.rng.u8(0..3) > 0).then(|| self.rng.u16(1..9));
        let mut connect = lasting(&client.client_id());
        connect.will =
            Some(will(&format!("$will/{client_index}"), &format!("{client_index}:{}", client.connection)));
        connect.properties.receive_maximum = client.receive_maximum;
        self.set_fate(client_index, Fate::Unknown);
        connect
    }

    /// Connects, and replaces the present connection, if any.
    pub(super) async fn connect(&mut self, client_index: usize, with_quic: bool) {
        let is_new = self.clients[client_index].connection == 0;
        let old = self.clients[client_index].wire.take();
        if old.is_some() {
            self.set_fate(client_index, Fate::Lost);
            self.seen.take_overs += 1;
        }
        self.end_connection(client_index, old.is_some());
        let mut attempts = 0;
        let (wire, session_present) = loop {
            attempts += 1;
            assert!(attempts < 10, "{client_index} cannot connect");
            let connect = self.connect_packet(client_index);
            if !with_quic {
                let client = self.broker.memory.connect(connect).await;
                let session_present = client.connack().session_present;
                break (Wire::Memory(client), session_present);
            }
            let connector = self.broker.connector(&self.clients[client_index].client_id(), client_options());
            // Lost attempts are repeated, as clients do.
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
        self.set_fate(client_index, Fate::Alive);
        let client = &mut self.clients[client_index];
        client.model.moved(None);
        client.wire = Some(wire);
        client.resume(&mut self.rng).await;
    }

    /// Ends the connection in the model: it takes no more messages, and the subscriptions leave their streams.
    pub(super) fn end_connection(&mut self, client_index: usize, was_connected: bool) {
        let client = &mut self.clients[client_index];
        if was_connected || client.connection == 0 {
            client.model.begin_move();
            // Its streams that were ending end with it.
            let mut ending = client.streams.values().filter(|state| **state != StreamState::Open).count();
            let connection = client.connection;
            self.resets.retain(|(_, other, number, _)| {
                let is_its = *other == client_index && *number == connection;
                ending += usize::from(is_its);
                !is_its
            });
            for _ in 0..ending {
                client.model.moved_with_all();
            }
        }
        client.forget_connection();
    }

    pub(super) async fn disconnect(&mut self, client_index: usize) {
        self.set_fate(client_index, Fate::Disconnected);
        let wire = self.clients[client_index].wire.take().expect("connected");
        self.end_connection(client_index, true);
        match wire {
            Wire::Quic(lanes) => drop(lanes.disconnect().await),
            Wire::Memory(client) => client.disconnect().await,
        }
    }

    pub(super) async fn vanish(&mut self, client_index: usize) {
        self.set_fate(client_index, Fate::Lost);
        drop(self.clients[client_index].wire.take());
        self.end_connection(client_index, true);
    }

    /// Cuts the network until both ends have given the connection up.
    pub(super) async fn lose(&mut self, client_index: usize) {
        let host = self.broker.host(&self.clients[client_index].client_id());
        host.change(|link| link.cut = true);
        self.publish(client_index).await;
        self.set_fate(client_index, Fate::Lost);
        let wire = self.clients[client_index].wire.take();
        self.end_connection(client_index, true);
        self.prolong(client_index, IDLE / 2);
        let wait = if self.rng.bool() { IDLE * 3 } else { IDLE / 2 };
        self.pass(wait).await;
        host.change(|link| link.cut = false);
        drop(wire);
        self.seen.losses += 1;
    }

    // -- The network -------------------------------------------------------------------------------

    pub(super) fn change_network(&mut self, client_index: usize) {
        let latency = Duration::from_millis(self.rng.u64(1..40));
        let jitter = latency.mul_f64(self.rng.f64());
        let loss = if self.rng.bool() { 0.0 } else { self.rng.f64() * 0.05 };
        self.broker.host(&self.clients[client_index].client_id()).change(|link| {
            (link.latency, link.jitter, link.loss) = (latency, jitter, loss);
        });
    }

    /// Changes the client's address within a packet. The link is perfect until the new address is
    /// validated: if the first answers are late or lost, the QUIC library gives up and the connection starves. It
    /// may do so anyway under load; then the client chooses another address, as users would.
    pub(super) async fn move_client(&mut self, client_index: usize, by_nat: bool) {
        let host = self.broker.host(&self.clients[client_index].client_id());
        let mut before = Conditions::default();
        host.change_one(Direction::Up, |link| before = link.clone());
        self.publish(client_index).await;
        host.change(|link| *link = Conditions::default());
        if by_nat {
            host.rebind_nat();
        } else {
            self.lanes(client_index).rebind();
        }
        self.publish(client_index).await;
        self.prolong(client_index, STARVED);
        self.lanes(client_index).send(CONTROL, &Packet::Pingreq);
        self.clients[client_index].is_answered = false;
        for _ in 0..STARVED.as_millis() / 10 {
            self.pass(Duration::from_millis(10)).await;
            self.clients[client_index].pump(usize::MAX, &mut self.rng).await;
            if self.clients[client_index].is_answered {
                break;
            }
        }
        host.change(|link| *link = before.clone());
        self.seen.moves += 1;
        if !self.clients[client_index].is_answered {
            self.seen.starved += 1;
            self.vanish(client_index).await;
        }
    }

    /// Drops every packet for a time that the connection survives.
    pub(super) async fn gap(&mut self, client_index: usize) {
        let host = self.broker.host(&self.clients[client_index].client_id());
        host.change(|link| link.cut = true);
        self.publish(client_index).await;
        let gap = Duration::from_millis(self.rng.u64(10..4000));
        self.prolong(client_index, gap);
        self.pass(gap).await;
        host.change(|link| link.cut = false);
    }

    /// Cuts the network for `gap`. Packets in transit take longer, and QUIC notices late that the network is back.
    pub(super) fn prolong(&mut self, client_index: usize, gap: Duration) {
        let until = Instant::now() + gap * 2 + NOTICED;
        for (at, name) in &mut self.in_flight {
            if name.publisher == client_index {
                *at = until;
            }
        }
        for (at, other, ..) in &mut self.resets {
            if *other == client_index {
                *at = until;
            }
        }
    }
}
