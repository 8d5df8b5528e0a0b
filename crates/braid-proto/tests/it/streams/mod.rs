//! Many streams in one connection: chapters 2 to 6 of the specification of MQTT over QUIC.

mod acks;
mod aliases;
mod client;
mod client_ends;
mod datagrams;
mod early;
mod ends;
mod fall_back;
mod forge;
mod identifiers;
mod model;
mod own_identifiers;
mod partial;
mod quota;
mod resends;
mod start;
mod subscriptions;
mod walk;

use braid_proto::connection::{Event, ServerOptions};
use braid_proto::packet::ProtocolVersion;
use braid_proto::stream::StreamKey;

use crate::rig::{Rig, connect, options};

fn established() -> Rig {
    granting(options())
}

fn granting(options: ServerOptions) -> Rig {
    Rig::connected(options, connect(ProtocolVersion::V5))
}

/// Payloads of the published messages.
fn payloads(events: &[Event]) -> Vec<String> {
    let mut payloads = Vec::new();
    for event in events {
        if let Event::Publish(message, _) = event {
            payloads.push(String::from_utf8(message.payload.to_vec()).unwrap());
        }
    }
    payloads
}
